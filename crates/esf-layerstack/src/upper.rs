//! Walks an overlay upper over its base and works out the root that the two make together.
//! Invariant: the walk is iterative and relative to descriptors; nothing of the base is read but the
//! directories that the upper touches; a character device 0:0 is a whiteout and nothing else is;
//! overlay's own marks are taken off, forged ones refused, what a root cannot hold is named.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

use esf_core::manifest::{
    Attrs, DirectoryCursor, Entry, EntryKind, MAX_DEPTH, Mode, ObjectSink, Objects, RootPin, load_top,
};
use esf_core::{AttrsId, Digest, Name, TreeId};
use rustix::fs::Stat;

use crate::Error;
use crate::assemble::{Assembled, Directory, Inode, Links};
use crate::attributes::{Shown, Sorted, left_out, sort_upper};
use crate::error::{Context, show};
use crate::form::{Form, Recorded};
use crate::handle::{self, Content, Kind, unchanged};
use crate::handle::{join, read_error};
use crate::sealed::{Progress, Skipped};

/// Whether the walk may touch what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Look only; a sandbox may be writing there.
    Survey,
    /// The upper is quiescent and becomes a carrier: marks and foreign attributes come off.
    Seal,
    /// The same, and what the kernel remembers of files is not believed: they are read from the disk.
    ReadBack,
}

/// A socket in an upper: it must not stay in a carrier.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    /// The directory it is in.
    pub(crate) directory: Vec<u8>,
    pub(crate) name: Name,
    /// Whether it hides an entry of the base, so that a whiteout must take its place.
    pub(crate) hides: bool,
}

/// At most this many files, and this many bytes of them, are made durable one by one.
const FEW_FILES: usize = 16;
const FEW_BYTES: u64 = 8 << 20;
const FEW_DIRECTORIES: usize = 64;

/// What is to be made durable, while it is little.
#[derive(Debug, Default)]
pub(crate) struct Few {
    pub(crate) files: Vec<Vec<u8>>,
    pub(crate) directories: Vec<Vec<u8>>,
    bytes: u64,
    many: bool,
}

impl Few {
    fn file(&mut self, path: &[u8], bytes: u64) {
        self.bytes += bytes;
        self.many |= self.files.len() >= FEW_FILES || self.bytes > FEW_BYTES;
        if !self.many {
            self.files.push(path.to_vec());
        }
    }

    fn directory(&mut self, path: &[u8]) {
        self.many |= self.directories.len() >= FEW_DIRECTORIES;
        if !self.many {
            self.directories.push(path.to_vec());
        }
    }

    /// Whether one sync of the filesystem is cheaper.
    pub(crate) fn is_many(&self) -> bool {
        self.many
    }
}

/// What a walk found.
#[derive(Debug)]
pub(crate) struct Walked {
    /// The root before hard-link groups of the base that lost a path were named anew.
    pub(crate) pin: RootPin,
    pub(crate) skipped: Skipped,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) few: Few,
    /// The paths of linked files of the upper.
    pub(crate) links: Links,
    /// Hard-link groups of the base of which a path is hidden by the upper.
    pub(crate) lost: BTreeSet<Digest>,
}

/// The base's entries of one directory, read in step with the upper's.
struct Base {
    cursor: DirectoryCursor,
    next: Option<(Entry, Attrs)>,
    /// The upper's directory is opaque, or one above it: what is beneath does not show.
    hidden: bool,
}

/// An entry of the base where the upper has one too.
struct Below {
    entry: Entry,
    attrs: Attrs,
    hidden: bool,
}

/// A directory of the upper under way.
struct Frame {
    directory: OwnedFd,
    name: Option<Name>,
    path: Vec<u8>,
    stat: Stat,
    shown: Shown,
    names: std::iter::Peekable<std::vec::IntoIter<Name>>,
    base: Option<Base>,
    entries: Directory,
}

/// An upper, or a carrier that is to lie on top of a base.
pub(crate) struct Source<'a> {
    pub(crate) directory: OwnedFd,
    pub(crate) form: Form,
    /// Records of symlinks and fifos, by path; an upper has none.
    pub(crate) unopened: &'a Unopened,
}

impl<'a> Source<'a> {
    /// An upper.
    pub(crate) fn upper(directory: OwnedFd, form: Form) -> Self {
        static NONE: Unopened = Unopened::new();
        Self { directory, form, unopened: &NONE }
    }
}

/// What the disk cannot say, in portable form, of entries that carry no attributes: by path.
pub(crate) type Unopened = BTreeMap<Vec<u8>, Recorded>;

/// The walk.
pub(crate) struct Upper<'a, S> {
    purpose: Purpose,
    form: Form,
    unopened: &'a Unopened,
    objects: &'a dyn Objects,
    sink: &'a mut S,
    progress: &'a dyn Progress,
    open: Vec<Frame>,
    contents: BTreeMap<Inode, Content>,
    buffer: Vec<u8>,
    walked: Walked,
}

/// Walks `source` over the root `base`; new objects go to `sink`.
pub(crate) fn walk<S: ObjectSink>(
    purpose: Purpose,
    objects: &dyn Objects,
    sink: &mut S,
    source: Source<'_>,
    base: &RootPin,
    progress: &dyn Progress,
) -> Result<Walked, Error> {
    let (root, attrs) = load_top(objects, base)?;
    let walked = Walked {
        pin: *base,
        skipped: Vec::new(),
        sockets: Vec::new(),
        few: Few::default(),
        links: Links::default(),
        lost: BTreeSet::new(),
    };
    let mut walk = Upper {
        purpose,
        form: source.form,
        unopened: source.unopened,
        objects,
        sink,
        progress,
        open: Vec::new(),
        contents: BTreeMap::new(),
        buffer: vec![0; handle::BUFFER],
        walked,
    };
    walk.enter(source.directory, None, Vec::new(), Some((root.tree, attrs.children, false)))?;
    while walk.step()? {}
    Ok(walk.walked)
}

impl<S: ObjectSink> Upper<'_, S> {
    /// Opens a directory of the upper over the base's directory of the same path, if there is one.
    fn enter(
        &mut self,
        directory: OwnedFd,
        name: Option<Name>,
        path: Vec<u8>,
        base: Option<(TreeId, Option<AttrsId>, bool)>,
    ) -> Result<(), Error> {
        let raw = handle::xattrs(&directory).at("read attributes of", &path)?;
        let sorted = sort_upper(self.form, &path, true, raw)?;
        self.take_off(&path, &sorted, |name| rustix::fs::fremovexattr(&directory, name))?;
        self.rewrite(&path, &directory, &sorted)?;
        let stat = rustix::fs::fstat(&directory).at("inspect", &path)?;
        let names = handle::list(&directory).at("list", &path)?;
        if self.open.len() >= MAX_DEPTH && !names.is_empty() {
            let (found, limit) = (self.open.len() as u64 + 1, MAX_DEPTH as u64);
            return Err(Error::limit("tree_too_deep", &path, "depth", found, limit));
        }
        let base = match base {
            Some((tree, attrs, hidden)) => {
                let mut cursor = DirectoryCursor::open(self.objects, tree, attrs)?;
                let next = cursor.next(self.objects)?;
                Some(Base { cursor, next, hidden: hidden || sorted.opaque })
            }
            None => None,
        };
        self.walked.few.directory(&path);
        let names = names.into_iter().peekable();
        let (shown, entries) = (sorted.shown(self.form, &stat, None), Directory::default());
        self.open.push(Frame { directory, name, path, stat, shown, names, base, entries });
        Ok(())
    }

    /// Takes one entry of the innermost directory, or completes it; false after the last.
    fn step(&mut self) -> Result<bool, Error> {
        let Some(frame) = self.open.last_mut() else { return Ok(false) };
        let in_base = frame.base.as_ref().and_then(|base| base.next.as_ref()).map(|(entry, _)| &entry.name);
        let order = match (frame.names.peek(), in_base) {
            (None, None) => return self.complete(),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(upper), Some(base)) => upper.cmp(base),
        };
        let mut below = None;
        if order != Ordering::Less {
            let base = frame.base.as_mut().expect("there is a next entry of the base");
            let (entry, attrs) = base.next.take().expect("it was looked at");
            base.next = base.cursor.next(self.objects)?;
            if order == Ordering::Greater && !base.hidden {
                frame.entries.keep(entry, attrs);
                return Ok(true);
            }
            self.walked.lost.extend(attrs.hard_link);
            below = Some(Below { entry, attrs, hidden: base.hidden });
        }
        if order != Ordering::Greater {
            let name = frame.names.next().expect("was peeked");
            self.take(name, below)?;
        }
        Ok(true)
    }

    fn innermost(&mut self) -> &mut Frame {
        self.open.last_mut().expect("an entry is taken inside of an open directory")
    }

    /// Takes an entry of the upper; `below` is what the base has there.
    fn take(&mut self, name: Name, below: Option<Below>) -> Result<(), Error> {
        let purpose = self.purpose;
        let frame = self.innermost();
        let path = join(&frame.path, &name)?;
        let stat = match handle::stat_entry(&frame.directory, name.as_bytes()) {
            Err(error) if purpose == Purpose::Survey && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(());
            }
            stat => stat.at("inspect", &path)?,
        };
        match Kind::of(&stat) {
            Kind::Whiteout => Ok(()),
            Kind::Directory => {
                let base = below.and_then(|below| match below.entry.kind {
                    EntryKind::Directory { tree } => Some((tree, below.attrs.children, below.hidden)),
                    EntryKind::File { .. } | EntryKind::Symlink { .. } | EntryKind::Fifo => None,
                });
                let child = handle::open_child(&frame.directory, name.as_bytes()).at("open", &path)?;
                self.enter(child, Some(name), path, base)
            }
            Kind::File => self.take_file(name, &path),
            Kind::Symlink | Kind::Fifo => self.take_handle(name, &path, &stat),
            Kind::Socket => {
                let (directory, hides) = (frame.path.clone(), below.is_some_and(|below| !below.hidden));
                self.walked.sockets.push(Socket { directory, name, hides });
                self.walked.skipped.push((path, "socket".to_owned()));
                Ok(())
            }
            Kind::Device => Err(Error::Unrepresentable {
                path: show(&path),
                what: "a device, which no root holds".into(),
            }),
        }
    }

    fn take_file(&mut self, name: Name, path: &[u8]) -> Result<(), Error> {
        let directory = &self.innermost().directory;
        let file = handle::open_regular(directory, name.as_bytes()).at("open", path)?;
        let sorted =
            sort_upper(self.form, path, false, handle::xattrs(&file).at("read attributes of", path)?)?;
        self.take_off(path, &sorted, |name| rustix::fs::fremovexattr(&file, name))?;
        self.rewrite(path, &file, &sorted)?;
        let before = rustix::fs::fstat(&file).at("inspect", path)?;
        if Kind::of(&before) != Kind::File {
            return Err(Error::Changed { path: show(path) });
        }
        let inode = (before.st_nlink > 1).then_some((before.st_dev, before.st_ino));
        let content = match inode.and_then(|inode| self.contents.get(&inode)) {
            Some(content) => *content,
            None => self.hash(path, &file, &before)?,
        };
        if let Some(inode) = inode {
            self.walked.links.note(inode, path);
            self.contents.insert(inode, content);
        }
        self.walked.few.file(path, content.size);
        self.progress.advance(1, content.size);
        let kind = EntryKind::File { size: content.size, blob: content.blob };
        let shown = sorted.shown(self.form, &before, None);
        let entry = Entry { name, mode: shown.mode, kind };
        self.innermost().entries.add(entry, shown.attrs(&before), inode);
        Ok(())
    }

    /// Hashes a file and sees to it that nobody wrote to it meanwhile.
    fn hash(&mut self, path: &[u8], file: &OwnedFd, before: &Stat) -> Result<Content, Error> {
        if self.purpose == Purpose::ReadBack {
            // Pages whose write-back failed are clean to the kernel, so they can be dropped.
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).at("read back", path)?;
        }
        let content =
            handle::take_in(file, before, None, &mut self.buffer).map_err(|error| read_error(error, path))?;
        let after = rustix::fs::fstat(file).at("inspect", path)?;
        let quiet = unchanged(before, &after) && content.size == after.st_size as u64;
        if self.purpose != Purpose::Survey && !quiet {
            return Err(Error::Changed { path: show(path) });
        }
        Ok(content)
    }

    /// Takes a symlink or a fifo: neither is ever opened.
    fn take_handle(&mut self, name: Name, path: &[u8], stat: &Stat) -> Result<(), Error> {
        let directory = &self.innermost().directory;
        let entry = handle::open_handle(directory, name.as_bytes()).at("open", path)?;
        let raw = handle::xattrs_of_handle(&entry).at("read attributes of", path)?;
        let sorted = sort_upper(self.form, path, false, raw)?;
        let magic = handle::magic_path(&entry);
        self.take_off(path, &sorted, |name| rustix::fs::removexattr(&*magic, name))?;
        let shown = sorted.shown(self.form, stat, self.unopened.get(path));
        let (mode, kind) = match Kind::of(stat) {
            Kind::Symlink => {
                let target = rustix::fs::readlinkat(&entry, "", Vec::new()).at("read the link", path)?;
                (Mode::SYMLINK, EntryKind::Symlink { target: target.into_bytes().into() })
            }
            _ => (shown.mode, EntryKind::Fifo),
        };
        let inode = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
        if let Some(inode) = inode {
            self.walked.links.note(inode, path);
        }
        self.progress.advance(1, 0);
        self.innermost().entries.add(Entry { name, mode, kind }, shown.attrs(stat), inode);
        Ok(())
    }

    /// Takes off what a carrier must not carry, when this is a seal; names what a root loses by it.
    fn take_off(
        &mut self,
        path: &[u8],
        sorted: &Sorted,
        remove: impl Fn(&[u8]) -> rustix::io::Result<()>,
    ) -> Result<(), Error> {
        for name in &sorted.foreign {
            self.walked.skipped.push((path.to_vec(), left_out(name)));
        }
        if self.purpose == Purpose::Survey {
            return Ok(());
        }
        for name in sorted.marks.iter().chain(&sorted.foreign) {
            remove(name).at("take an attribute off", path)?;
        }
        Ok(())
    }

    /// Brings file capabilities on disk to the form that the root records.
    fn rewrite(&self, path: &[u8], file: impl AsFd, sorted: &Sorted) -> Result<(), Error> {
        if self.purpose == Purpose::Survey {
            return Ok(());
        }
        for (name, value) in &sorted.rewritten {
            rustix::fs::fsetxattr(&file, &**name, value, rustix::fs::XattrFlags::REPLACE)
                .at("set an attribute of", path)?;
        }
        Ok(())
    }

    /// Completes the innermost directory; false when it was the top.
    fn complete(&mut self) -> Result<bool, Error> {
        let frame = self.open.pop().expect("the caller saw it");
        let inside = frame.entries.assemble(self.sink)?;
        let (mode, attrs) = (frame.shown.mode, frame.shown.attrs(&frame.stat));
        self.progress.advance(1, 0);
        match (frame.name, self.open.last_mut()) {
            (Some(name), Some(parent)) => {
                parent.entries.add_directory(name, mode, attrs, inside);
                Ok(true)
            }
            _ => self.finish(inside, mode, attrs),
        }
    }

    fn finish(&mut self, inside: Assembled, mode: Mode, attrs: Attrs) -> Result<bool, Error> {
        self.walked.pin = inside.into_root(self.sink, mode, attrs, &self.walked.links)?;
        Ok(false)
    }
}
