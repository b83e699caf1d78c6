//! Taking a directory in: copying and hashing it at once, by two threads that share the work by
//! directories and by runs of files. Invariant: what was read is what is hashed and what is stored,
//! whoever edits the source meanwhile; no symlink is followed, no fifo opened; what a root cannot hold
//! is refused or skipped by name.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use esf_core::Name;
use esf_core::manifest::{Attrs, Entry, EntryKind, MAX_DEPTH, Mode, RootPin};
use rustix::fs::{AtFlags, Stat};

use crate::Error;
use crate::assemble::{Assembled, Directory, Inode, Links};
use crate::attributes::{Shown, Sorted, Xattrs, attrs_of, left_out, sort_foreign, sort_upper};
use crate::error::{Context, show};
use crate::form::Form;
use crate::handle::{self, Content, Kind, join, read_error};
use crate::import::ImportOptions;
use crate::object_store::PackWriter;
use crate::sealed::{Progress, Skipped};
use crate::upper::Unopened;

const THREADS: usize = 2;
/// How many files of one directory are taken in one go.
const RUN: usize = 64;

/// What names an inode on this machine.
pub(crate) fn stat_key(stat: &Stat) -> Inode {
    (stat.st_dev, stat.st_ino)
}

/// What has been found so far.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
    links: Links,
    /// Records of the symlinks and fifos that were made.
    pub(crate) unopened: Unopened,
    /// Known once the top directory is complete.
    pub(crate) pin: Option<RootPin>,
}

/// A linked file that was taken in at its first path.
#[derive(Clone)]
struct Taken {
    path: Vec<u8>,
    mode: Mode,
    content: Content,
    attrs: Attrs,
}

/// A directory under way.
struct Node {
    parent: Option<Arc<Node>>,
    name: Option<Name>,
    path: Vec<u8>,
    depth: usize,
    source: OwnedFd,
    staged: OwnedFd,
    stat: Stat,
    shown: Shown,
    files: Vec<(Name, Stat)>,
    entries: Mutex<Directory>,
    /// Children and runs of files that are not done, plus one while it is being listed.
    pending: AtomicUsize,
}

enum Job {
    Directory(Arc<Node>, Name),
    Files(Arc<Node>, std::ops::Range<usize>),
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    /// Threads that may still add jobs.
    busy: usize,
    failed: Option<Error>,
}

/// A directory that is being taken in.
pub(crate) struct Intake<'a> {
    /// None for a plain directory, in which no mark means anything. Some when the source is in portable
    /// form, as archives are unpacked without root: the records of its symlinks and fifos.
    unpacked: Option<&'a Unopened>,
    /// Of the carrier that is made.
    form: Form,
    options: &'a ImportOptions,
    progress: &'a dyn Progress,
    store: Inode,
    device: u64,
    sink: Mutex<PackWriter>,
    linked: Mutex<HashMap<Inode, Taken>>,
    found: Mutex<Found>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Intake<'a> {
    /// Will take in a directory of `device`, leaving out the directory `store` if it meets it.
    pub(crate) fn new(
        options: &'a ImportOptions,
        progress: &'a dyn Progress,
        (store, device): (Inode, u64),
        form: Form,
        unpacked: Option<&'a Unopened>,
        sink: PackWriter,
    ) -> Self {
        Self {
            unpacked,
            form,
            options,
            progress,
            store,
            device,
            sink: Mutex::new(sink),
            linked: Mutex::default(),
            found: Mutex::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The writer with the objects of what was taken in.
    pub(crate) fn into_sink(self) -> PackWriter {
        self.sink.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies everything in `source` to `staged`.
    pub(crate) fn run(&self, source: OwnedFd, staged: OwnedFd) -> Result<Found, Error> {
        self.enter(None, None, source, Some(staged))?;
        std::thread::scope(|scope| {
            for _ in 1..THREADS {
                scope.spawn(|| self.work());
            }
            self.work();
        });
        match lock(&self.queue).failed.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut *lock(&self.found))),
        }
    }

    /// Takes jobs until there are none and none can come.
    fn work(&self) {
        let mut buffer = vec![0; handle::BUFFER];
        while let Some(job) = self.next() {
            let done = match job {
                Job::Directory(parent, name) => self.open_directory(&parent, name),
                Job::Files(node, run) => self.take_files(&node, run, &mut buffer),
            };
            let mut queue = lock(&self.queue);
            queue.busy -= 1;
            if let Err(error) = done {
                queue.failed.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.failed.is_some() {
                return None;
            }
            if let Some(job) = queue.jobs.pop() {
                queue.busy += 1;
                return Some(job);
            }
            if queue.busy == 0 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn open_directory(&self, parent: &Arc<Node>, name: Name) -> Result<(), Error> {
        let path = join(&parent.path, &name)?;
        match handle::open_child(&parent.source, name.as_bytes()) {
            Ok(source) => self.enter(Some(parent), Some(name), source, None),
            // Removed or replaced since it was listed: as if it had been before.
            Err(error) if is_gone(&error) => self.finish_part(parent),
            Err(error) => Err(error).at("open", &path),
        }
    }

    /// Lists a directory and queues what is in it.
    fn enter(
        &self,
        parent: Option<&Arc<Node>>,
        name: Option<Name>,
        source: OwnedFd,
        staged: Option<OwnedFd>,
    ) -> Result<(), Error> {
        let path = match (parent, &name) {
            (Some(parent), Some(name)) => join(&parent.path, name)?,
            _ => Vec::new(),
        };
        let depth = parent.map_or(0, |parent| parent.depth + 1);
        let stat = rustix::fs::fstat(&source).at("inspect", &path)?;
        let staged = match (staged, parent, &name) {
            (Some(staged), ..) => staged,
            (None, Some(parent), Some(name)) => {
                handle::create_directory(&parent.staged, name.as_bytes()).at("copy", &path)?
            }
            (None, ..) => unreachable!("only the top directory has no parent, and it is staged"),
        };
        let xattrs = handle::xattrs(&source).at("read attributes of", &path)?;
        let shown = self.look(&path, &stat, xattrs)?;
        let mut node = Node {
            parent: parent.cloned(),
            name,
            depth,
            source,
            staged,
            stat,
            shown,
            files: Vec::new(),
            entries: Mutex::default(),
            pending: AtomicUsize::new(1),
            path,
        };
        let directories = self.list(&mut node)?;
        self.queue_parts(Arc::new(node), directories)
    }

    fn queue_parts(&self, node: Arc<Node>, directories: Vec<Name>) -> Result<(), Error> {
        let runs: Vec<_> = (0..node.files.len()).step_by(RUN).collect();
        node.pending.fetch_add(directories.len() + runs.len(), Ordering::Relaxed);
        let mut queue = lock(&self.queue);
        queue.jobs.extend(directories.into_iter().map(|name| Job::Directory(Arc::clone(&node), name)));
        // Files come last and are taken first: that closes directories early.
        for start in runs {
            let end = (start + RUN).min(node.files.len());
            queue.jobs.push(Job::Files(Arc::clone(&node), start..end));
        }
        drop(queue);
        self.changed.notify_all();
        self.finish_part(&node)
    }

    /// Takes in everything of a directory but files and directories; notes the files.
    fn list(&self, node: &mut Node) -> Result<Vec<Name>, Error> {
        let mut directories = Vec::new();
        let names = handle::list(&node.source).at("list", &node.path)?;
        if node.depth >= MAX_DEPTH && !names.is_empty() {
            let (found, limit) = (node.depth as u64 + 1, MAX_DEPTH as u64);
            return Err(Error::limit("tree_too_deep", &node.path, "depth", found, limit));
        }
        for name in names {
            let path = join(&node.path, &name)?;
            let stat = match handle::stat_entry(&node.source, name.as_bytes()) {
                Ok(stat) => stat,
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error).at("inspect", &path),
            };
            if self.options.exclude.contains(&path) {
                self.skip(&path, "excluded");
                continue;
            }
            match Kind::of(&stat) {
                Kind::Directory if stat_key(&stat) == self.store => self.skip(&path, "this store itself"),
                Kind::Directory if stat.st_dev != self.device => self.special(&path, "mount point")?,
                Kind::Directory => directories.push(name),
                Kind::File => node.files.push((name, stat)),
                Kind::Symlink => self.take_symlink(node, name, &stat, &path)?,
                Kind::Fifo => self.take_fifo(node, name, &stat, &path)?,
                kind @ (Kind::Socket | Kind::Device) => self.special(&path, kind.word())?,
                Kind::Whiteout => self.special(&path, "device")?,
            }
        }
        Ok(directories)
    }

    /// Mode, owner and attributes that an entry of the source gets in the root.
    fn look(&self, path: &[u8], stat: &Stat, xattrs: Xattrs) -> Result<Shown, Error> {
        let mut shown = match self.unpacked {
            None => {
                let sorted = sort_foreign(path, xattrs)?;
                self.note_left_out(path, &sorted);
                sorted.shown(Form::Native, stat, None)
            }
            Some(unopened) => {
                let directory = Kind::of(stat) == Kind::Directory;
                let sorted = sort_upper(Form::Portable, path, directory, xattrs)?;
                sorted.shown(Form::Portable, stat, unopened.get(path))
            }
        };
        if !self.options.preserve_owners {
            shown.owner = (0, 0);
        }
        Ok(shown)
    }

    fn special(&self, path: &[u8], kind: &'static str) -> Result<(), Error> {
        if !self.options.skip_special {
            return Err(Error::SpecialFile { path: show(path), kind });
        }
        self.skip(path, kind);
        Ok(())
    }

    fn skip(&self, path: &[u8], why: &str) {
        lock(&self.found).skipped.push((path.to_vec(), why.to_owned()));
    }

    fn note_left_out(&self, path: &[u8], sorted: &Sorted) {
        for name in &sorted.foreign {
            self.skip(path, &left_out(name));
        }
    }

    fn count(&self, bytes: u64) {
        let mut found = lock(&self.found);
        found.entries += 1;
        found.bytes += bytes;
        drop(found);
        self.progress.advance(1, bytes);
    }

    fn take_symlink(&self, node: &Node, name: Name, stat: &Stat, path: &[u8]) -> Result<(), Error> {
        let target = match rustix::fs::readlinkat(&node.source, name.as_bytes(), Vec::new()) {
            Ok(target) => target.into_bytes(),
            Err(error) if is_gone(&error.into()) => return Ok(()),
            Err(error) => return Err(error).at("read the link", path),
        };
        rustix::fs::symlinkat(&*target, &node.staged, name.as_bytes()).at("copy", path)?;
        let shown = self.look(path, stat, Vec::new())?;
        self.set_unopened(node, &name, stat, None, shown.owner, path)?;
        let kind = EntryKind::Symlink { target: target.into() };
        let entry = Entry { name, mode: Mode::SYMLINK, kind };
        lock(&node.entries).add(entry, shown.attrs(stat), None);
        self.count(0);
        Ok(())
    }

    fn take_fifo(&self, node: &Node, name: Name, stat: &Stat, path: &[u8]) -> Result<(), Error> {
        let raw = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(&node.staged, name.as_bytes(), raw).at("copy", path)?;
        let shown = self.look(path, stat, Vec::new())?;
        self.set_unopened(node, &name, stat, Some(shown.mode), shown.owner, path)?;
        let entry = Entry { name, mode: shown.mode, kind: EntryKind::Fifo };
        lock(&node.entries).add(entry, shown.attrs(stat), None);
        self.count(0);
        Ok(())
    }

    /// Gives a copied symlink or fifo its owner, mode and time, and keeps its record if it needs one.
    fn set_unopened(
        &self,
        node: &Node,
        name: &Name,
        stat: &Stat,
        fifo: Option<Mode>,
        owner: (u32, u32),
        path: &[u8],
    ) -> Result<(), Error> {
        let (form, mtime) = (self.form, Some(handle::mtime(stat)));
        let kept = form.set_unopened(&node.staged, name.as_bytes(), fifo, owner, mtime);
        if let Some(recorded) = kept.at("set the attributes of", path)? {
            lock(&self.found).unopened.insert(path.to_vec(), recorded);
        }
        Ok(())
    }

    fn take_files(
        &self,
        node: &Arc<Node>,
        run: std::ops::Range<usize>,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        for (name, listed) in &node.files[run] {
            self.take_file(node, name, listed, buffer)?;
        }
        self.finish_part(node)
    }

    fn take_file(&self, node: &Node, name: &Name, listed: &Stat, buffer: &mut [u8]) -> Result<(), Error> {
        let path = join(&node.path, name)?;
        let file = match handle::open_regular(&node.source, name.as_bytes()) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error).at("open", &path),
        };
        let stat = rustix::fs::fstat(&file).at("inspect", &path)?;
        if Kind::of(&stat) != Kind::File {
            return Err(Error::Changed { path: show(&path) });
        }
        let inode = (stat.st_nlink > 1 || listed.st_nlink > 1).then(|| stat_key(&stat));
        let source = Source { node, name, path: &path, file: &file, stat: &stat };
        let taken = match inode {
            None => self.copy(&source, buffer)?,
            Some(inode) => self.copy_linked(&source, inode, buffer)?,
        };
        let size = taken.content.size;
        let kind = EntryKind::File { size, blob: taken.content.blob };
        let entry = Entry { name: name.clone(), mode: taken.mode, kind };
        lock(&node.entries).add(entry, taken.attrs, inode);
        self.count(size);
        Ok(())
    }

    /// Copies the first path of a linked file and links the others to it.
    fn copy_linked(&self, source: &Source<'_>, inode: Inode, buffer: &mut [u8]) -> Result<Taken, Error> {
        // Held while copying: another thread may be at another path of the same file.
        let mut linked = lock(&self.linked);
        lock(&self.found).links.note(inode, source.path);
        if let Some(taken) = linked.get(&inode) {
            let (top, staged) = (source.top(), &source.node.staged);
            let (old, new) = (&*taken.path, source.name.as_bytes());
            rustix::fs::linkat(&top.staged, old, staged, new, AtFlags::empty()).at("link", source.path)?;
            return Ok(taken.clone());
        }
        let taken = self.copy(source, buffer)?;
        linked.insert(inode, taken.clone());
        Ok(taken)
    }

    fn copy(&self, source: &Source<'_>, buffer: &mut [u8]) -> Result<Taken, Error> {
        let path = source.path;
        let found = handle::xattrs(source.file).at("read attributes of", path)?;
        let shown = self.look(path, source.stat, found)?;
        let copy = handle::create_file(&source.node.staged, source.name.as_bytes()).at("copy", path)?;
        let content = handle::take_in(source.file, source.stat, Some(&copy), buffer)
            .map_err(|error| read_error(error, path))?;
        let (mode, mtime) = (shown.mode, Some(handle::mtime(source.stat)));
        self.form
            .set_open(&copy, mode.bits(), mtime, shown.owner, &shown.xattrs)
            .at("set the attributes of", path)?;
        Ok(Taken { path: path.to_vec(), mode, content, attrs: shown.attrs(source.stat) })
    }

    /// Notes that a part of `node` is done; completes it and what that completes above.
    fn finish_part(&self, node: &Arc<Node>) -> Result<(), Error> {
        let mut node = Arc::clone(node);
        while node.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            let entries = std::mem::take(&mut *lock(&node.entries));
            let inside = entries.assemble(&mut *lock(&self.sink))?;
            let (mode, mtime) = (node.shown.mode, Some(handle::mtime(&node.stat)));
            self.form
                .set_open(&node.staged, mode.bits(), mtime, node.shown.owner, &node.shown.xattrs)
                .at("set the attributes of", &node.path)?;
            let attrs = attrs_of(&node.stat, node.shown.owner, node.shown.xattrs.clone());
            let Some(parent) = &node.parent else {
                return self.finish_top(inside, mode, attrs);
            };
            let name = node.name.clone().expect("only the top directory has no name");
            lock(&parent.entries).add_directory(name, mode, attrs, inside);
            self.count(0);
            node = Arc::clone(parent);
        }
        Ok(())
    }

    fn finish_top(&self, inside: Assembled, mode: Mode, attrs: Attrs) -> Result<(), Error> {
        let mut found = lock(&self.found);
        found.pin = Some(inside.into_root(&mut *lock(&self.sink), mode, attrs, &found.links)?);
        Ok(())
    }
}

/// One file of the source, open.
struct Source<'a> {
    node: &'a Node,
    name: &'a Name,
    path: &'a [u8],
    file: &'a OwnedFd,
    stat: &'a Stat,
}

impl Source<'_> {
    fn top(&self) -> &Node {
        let mut node = self.node;
        while let Some(parent) = &node.parent {
            node = parent;
        }
        node
    }
}

/// Whether an error says that an entry went away or became something else.
fn is_gone(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::NXIO];
    error.raw_os_error().is_some_and(|raw| gone.iter().any(|errno| errno.raw_os_error() == raw))
}
