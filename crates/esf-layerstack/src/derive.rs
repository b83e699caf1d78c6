//! A merged root gets its carrier: what it takes from *theirs* is linked, or copied where mode or
//! attributes differ, on top of *ours* (design section 3). Invariant: the carrier is walked like a
//! sealed upper, and is published only if it has the merged root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esf_core::diff::diff;
use esf_core::manifest::{Attrs, EntryKind, Mode, RootPin, lookup};
use esf_core::merge::{Action, Edit, From, Merge};
use esf_core::{BlobId, Digest};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::Error;
use crate::error::Context;
use crate::form::Form;
use crate::handle;
use crate::local::{self, CarrierId};
use crate::projection::Projection;
use crate::seal::make_whiteout;
use crate::sealed::SealedRoot;
use crate::stack::LayerStack;
use crate::staging::{For, Making, Publication, Staging};
use crate::upper::{self, Purpose, Source, Unopened};

impl LayerStack {
    /// Makes the root of a merge hot on top of *ours*. The objects that the merge made must be stored;
    /// `contents` has the bytes that neither side has.
    ///
    /// # Errors
    /// `RootMissing` when a side is not hot here, `Damaged` with the path, `storage_full`.
    pub fn derive_root(
        &self,
        ours: &RootPin,
        merge: &Merge,
        theirs: &RootPin,
        contents: &BTreeMap<BlobId, Vec<u8>>,
    ) -> Result<SealedRoot, Error> {
        let held = Arc::new(self.lock_shared()?);
        let mut bytes = 0;
        if self.inner.local.read(|db| local::projection(db, &merge.root))?.is_none() {
            let staging = Staging::begin(self, Making::Merge)?;
            let mut derive = Derive {
                stack: self,
                root: merge.root,
                base: *ours,
                ours: Side::open(self, ours)?,
                theirs: Side::open(self, theirs)?,
                contents,
                form: self.inner.form,
                unopened: Unopened::new(),
                top: staging.root.try_clone().at("open", b"staging")?,
                made: BTreeSet::new(),
                linked: BTreeMap::new(),
                shares_with: BTreeSet::new(),
                buffer: vec![0; handle::BUFFER],
                bytes: 0,
            };
            derive.run(&merge.edits)?;
            bytes = derive.bytes;
            self.check_merged(&derive, ours, &merge.root)?;
            let shares_with: Vec<CarrierId> = derive.shares_with.iter().copied().collect();
            let layers =
                std::iter::once(staging.carrier).chain(derive.ours.projection.ids.iter().copied()).collect();
            let packs = self.inner.objects.writer().stage()?;
            let publication = Publication {
                made_for: For::Root(merge.root, layers),
                form: derive.form,
                unopened: derive.unopened,
                charge: None,
                shares_with: &shares_with,
                durable: true,
            };
            staging.publish(packs, &publication)?;
        }
        Ok(SealedRoot { pin: merge.root, bytes, txn: None, _held: held })
    }

    /// The staged carrier over *ours* must be the merged root, but for hard links that a merge joins
    /// across carriers.
    fn check_merged(&self, made: &Derive<'_>, ours: &RootPin, expected: &RootPin) -> Result<(), Error> {
        let mut writer = self.inner.objects.writer();
        let directory = handle::open_child(&made.top, b".").at("open", b"staging")?;
        let source = Source { directory, form: made.form, unopened: &made.unopened };
        let walked = upper::walk(Purpose::Survey, &self.inner.objects, &mut writer, source, ours, &())?;
        let unlinked = |side: &Option<esf_core::diff::Side>| {
            side.clone().map(|mut side| {
                side.attrs.hard_link = None;
                let directory = side.kind.is_directory();
                (side.mode, side.attrs.own(), (!directory).then_some(side.kind))
            })
        };
        let differences = diff(&writer, expected, &walked.pin)?;
        match differences.iter().find(|change| unlinked(&change.before) != unlinked(&change.after)) {
            None => Ok(()),
            Some(change) => Err(Error::MergeMismatch {
                expected: expected.root.to_string(),
                found: format!("{}, at {}", walked.pin.root, crate::error::show(&change.path)),
            }),
        }
    }
}

/// A root that is merged: where its files lie, and in which form.
struct Side {
    projection: Projection,
    forms: Vec<Form>,
}

impl Side {
    fn open(stack: &LayerStack, pin: &RootPin) -> Result<Self, Error> {
        let projection = Projection::open(stack, pin)?;
        let forms = stack.forms(&projection.ids)?;
        Ok(Self { projection, forms })
    }
}

struct Derive<'a> {
    stack: &'a LayerStack,
    root: RootPin,
    base: RootPin,
    ours: Side,
    theirs: Side,
    contents: &'a BTreeMap<BlobId, Vec<u8>>,
    /// Of the carrier that is made.
    form: Form,
    /// Records of its symlinks and fifos.
    unopened: Unopened,
    top: OwnedFd,
    /// Directories that were made and get their attributes at the end.
    made: BTreeSet<Vec<u8>>,
    /// Copied members of hard-link groups.
    linked: BTreeMap<Digest, Vec<u8>>,
    shares_with: BTreeSet<CarrierId>,
    buffer: Vec<u8>,
    bytes: u64,
}

/// What an edit makes of an entry.
struct Put<'a> {
    path: &'a [u8],
    mode: Mode,
    kind: &'a EntryKind,
    attrs: &'a Attrs,
    from: From,
    as_is: bool,
}

impl Derive<'_> {
    fn run(&mut self, edits: &[Edit]) -> Result<(), Error> {
        self.made.insert(Vec::new());
        for edit in edits {
            match &edit.action {
                Action::Delete => self.delete(&edit.path)?,
                Action::Put { mode, kind, attrs, from, as_is } => {
                    let (path, mode, from, as_is) = (edit.path.as_slice(), *mode, *from, *as_is);
                    self.put(&Put { path, mode, kind, attrs, from, as_is })?;
                }
            }
        }
        // Deepest first: a directory's time is set after everything in it.
        for path in self.made.iter().rev() {
            let entry = lookup(&self.stack.inner.objects, &self.root, path)?;
            let entry = entry.ok_or_else(|| Error::damaged(path, "the merged root does not have it"))?;
            let directory = self.directory(path)?;
            let (mode, attrs) = (entry.mode, &entry.attrs);
            self.form.set_attributes(&directory, mode, attrs).at("set the attributes of", path)?;
        }
        Ok(())
    }

    fn directory(&self, path: &[u8]) -> Result<OwnedFd, Error> {
        handle::open_beneath(&self.top, path, OFlags::RDONLY | OFlags::DIRECTORY).at("open", path)
    }

    /// The parent of `path` in the staged carrier, made if need be, and the last component.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Error> {
        let Some(at) = path.iter().rposition(|byte| *byte == b'/') else {
            return Ok((self.directory(b"")?, path));
        };
        let ends = path[..at].iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in ends.chain([at]) {
            self.make_directory(&path[..end])?;
        }
        Ok((self.directory(&path[..at])?, &path[at + 1..]))
    }

    fn make_directory(&mut self, path: &[u8]) -> Result<(), Error> {
        if !self.made.insert(path.to_vec()) {
            return Ok(());
        }
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (self.directory(&path[..at])?, &path[at + 1..]),
            None => (self.directory(b"")?, path),
        };
        let directory = handle::create_directory(&parent, name).at("create", path)?;
        let below = lookup(&self.stack.inner.objects, &self.base, path)?;
        if below.is_some_and(|entry| !entry.kind.is_directory()) {
            self.form.mark_opaque(&directory).at("mark as opaque", path)?;
        }
        Ok(())
    }

    fn delete(&mut self, path: &[u8]) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        make_whiteout(&parent, name).at("hide", path)
    }

    fn put(&mut self, put: &Put<'_>) -> Result<(), Error> {
        let path = put.path;
        if put.kind.is_directory() {
            if !path.is_empty() {
                self.parent(path)?;
                self.make_directory(path)?;
            }
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        match put.kind {
            EntryKind::Directory { .. } => unreachable!("directories were handled above"),
            EntryKind::File { size, blob } => return self.put_file(put, &parent, name, (*blob, *size)),
            EntryKind::Symlink { target } => {
                rustix::fs::symlinkat(&**target, &parent, name).at("create", path)?;
            }
            EntryKind::Fifo => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mkfifoat(&parent, name, mode).at("create", path)?;
            }
        }
        self.set_entry(put, &parent, name).at("set the attributes of", path)
    }

    fn put_file(
        &mut self,
        put: &Put<'_>,
        parent: &OwnedFd,
        name: &[u8],
        expected: (BlobId, u64),
    ) -> Result<(), Error> {
        let path = put.path;
        self.bytes += expected.1;
        if put.as_is && self.link(put, parent, name)? {
            return Ok(());
        }
        let first = put.attrs.hard_link.and_then(|group| self.linked.get(&group));
        if let Some(first) = first {
            return rustix::fs::linkat(&self.top, &**first, parent, name, AtFlags::empty()).at("link", path);
        }
        let copy = handle::create_file(parent, name).at("create", path)?;
        let buffer = &mut self.buffer;
        match put.from {
            From::Ours => self.ours.projection.take_in(path, expected, Some(&copy), buffer)?,
            From::Theirs => self.theirs.projection.take_in(path, expected, Some(&copy), buffer)?,
            From::Merged => {
                let bytes = self.contents.get(&expected.0);
                let bytes = bytes.ok_or_else(|| Error::damaged(path, "nobody has the merged contents"))?;
                File::from(copy.try_clone().at("open", path)?).write_all(bytes).at("write", path)?;
            }
        }
        self.form.set_attributes(&copy, put.mode, put.attrs).at("set the attributes of", path)?;
        self.linked.extend(put.attrs.hard_link.map(|group| (group, path.to_vec())));
        Ok(())
    }

    /// Links the very inode that the side has; false when it has no room for another link, or says what
    /// it is in another form.
    fn link(&mut self, put: &Put<'_>, parent: &OwnedFd, name: &[u8]) -> Result<bool, Error> {
        let side = match put.from {
            From::Ours => &self.ours,
            From::Theirs => &self.theirs,
            From::Merged => return Ok(false),
        };
        let (found, nth) = side.projection.find(put.path, OFlags::PATH)?;
        if side.forms[nth] != self.form {
            return Ok(false);
        }
        match link_open(self.form, &found, parent, name) {
            Ok(()) => {
                self.shares_with.insert(side.projection.ids[nth]);
                Ok(true)
            }
            Err(Errno::MLINK) => Ok(false),
            Err(error) => Err(error).at("link", put.path),
        }
    }

    /// Gives a symlink or a fifo its owner, mode and time.
    fn set_entry(&mut self, put: &Put<'_>, parent: &OwnedFd, name: &[u8]) -> std::io::Result<()> {
        let fifo = (*put.kind == EntryKind::Fifo).then_some(put.mode);
        let kept = self.form.set_recorded(parent, name, fifo, put.attrs)?;
        self.unopened.extend(kept.map(|recorded| (put.path.to_vec(), recorded)));
        Ok(())
    }
}

/// Gives the inode of a handle one more name. Only root may do so by the handle itself.
fn link_open(form: Form, found: &OwnedFd, parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match form {
        Form::Native => rustix::fs::linkat(found, "", parent, name, AtFlags::EMPTY_PATH),
        Form::Portable => {
            let path = handle::magic_path(found);
            rustix::fs::linkat(rustix::fs::CWD, path, parent, name, AtFlags::SYMLINK_FOLLOW)
        }
    }
}
