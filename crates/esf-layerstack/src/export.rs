//! Export: a root becomes a plain directory again, exactly (design section 3).
//! Invariant: every byte is checked on the way; a failed export leaves nothing; privilege (setuid and
//! setgid bits of files, file capabilities) leaves only when it is asked for.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use esf_core::manifest::{Attrs, EntryKind, Mode, RootPin, WalkEntry, walk};
use esf_core::{Digest, Name};
use rustix::fs::AtFlags;

use crate::Error;
use crate::error::Context;
use crate::form::Form;
use crate::handle;
use crate::projection::Projection;
use crate::sealed::Progress;
use crate::stack::LayerStack;
use crate::staging::{For, Making, Publication, Staging};
use crate::trash;
use crate::upper::Unopened;

/// How a root is exported.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions {
    /// Keeps setuid and setgid bits of files, and file capabilities.
    pub preserve_privilege: bool,
    /// Keeps owners, which takes root; otherwise everything belongs to this user.
    pub preserve_owners: bool,
}

impl LayerStack {
    /// Restores a root at `to`, which must be absent or an empty directory.
    ///
    /// # Errors
    /// `DestinationExists`, `RootMissing`, `Damaged` with the path, `storage_full`.
    pub fn export_directory(
        &self,
        root: &RootPin,
        to: &Path,
        options: &ExportOptions,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let _held = self.lock_shared()?;
        let projection = Projection::open(self, root)?;
        let (top, made) = claim_destination(to)?;
        let keep = top.try_clone().on("open", to)?;
        let mut export = Export::new(projection, Form::Native, *options, progress, keep);
        let done = export.run(walk(&self.inner.objects, root), top);
        if done.is_err() {
            undo(&export.top, to, made);
        }
        done
    }

    /// Makes a carrier of this process's form that shows all of a root, from what its manifest says:
    /// nothing of the carriers that it stands on now is read but the bytes of files.
    ///
    /// # Errors
    /// `Damaged` with the path, `storage_full`, and what this process may not read.
    pub(crate) fn rebuild(&self, root: &RootPin) -> Result<(), Error> {
        let staging = Staging::begin(self, Making::Squash)?;
        let options = ExportOptions { preserve_privilege: true, preserve_owners: true };
        let open = || staging.root.try_clone().at("open", b"staging");
        let (projection, form) = (Projection::open(self, root)?, self.inner.form);
        let mut export = Export::new(projection, form, options, &(), open()?);
        export.run(walk(&self.inner.objects, root), open()?)?;
        let packs = self.inner.objects.writer().stage()?;
        let publication = Publication {
            made_for: For::Root(*root, vec![staging.carrier]),
            unopened: export.unopened,
            form,
            charge: None,
            shares_with: &[],
            durable: true,
        };
        staging.publish(packs, &publication)
    }
}

/// Opens the destination; true when it was made.
fn claim_destination(to: &Path) -> Result<(OwnedFd, bool), Error> {
    let made = match std::fs::create_dir(to) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error).on("create", to),
    };
    let refused = || Error::DestinationExists(to.to_owned());
    let top = handle::open_directory(to).map_err(|_| refused())?;
    if !made && !handle::list(&top).on("list", to)?.is_empty() {
        return Err(refused());
    }
    Ok((top, made))
}

/// Takes away what a failed export has written; what resists is told in the log.
fn undo(top: &OwnedFd, to: &Path, made: bool) {
    let clean = handle::list(top).is_ok_and(|names| names.iter().all(|name| trash::remove(top, name)));
    let gone = !made || std::fs::remove_dir(to).is_ok();
    if !clean || !gone {
        tracing::warn!(to = %to.display(), "what a failed export wrote could not be removed");
    }
}

/// A directory whose entries are being written.
struct Open {
    directory: OwnedFd,
    path: Vec<u8>,
    mode: Mode,
    attrs: Attrs,
}

struct Export<'a> {
    projection: Projection,
    form: Form,
    /// Records of symlinks and fifos; none in native form.
    unopened: Unopened,
    options: ExportOptions,
    progress: &'a dyn Progress,
    open: Vec<Open>,
    linked: BTreeMap<Digest, Vec<u8>>,
    top: OwnedFd,
    buffer: Vec<u8>,
}

impl<'a> Export<'a> {
    fn new(
        projection: Projection,
        form: Form,
        options: ExportOptions,
        progress: &'a dyn Progress,
        top: OwnedFd,
    ) -> Self {
        Self {
            projection,
            form,
            unopened: Unopened::new(),
            options,
            progress,
            open: Vec::new(),
            linked: BTreeMap::new(),
            top,
            buffer: vec![0; handle::BUFFER],
        }
    }

    fn run(&mut self, entries: esf_core::manifest::Walk<'_>, top: OwnedFd) -> Result<(), Error> {
        let mut top = Some(top);
        for entry in entries {
            let entry = entry?;
            match top.take() {
                Some(top) => self.enter(top, entry),
                None => self.write(entry)?,
            }
        }
        while self.close()? {}
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd, entry: WalkEntry) {
        let (path, mode) = (entry.path, entry.mode);
        self.open.push(Open { directory, path, mode, attrs: entry.attrs });
    }

    /// Completes the innermost directory: its times come last.
    fn close(&mut self) -> Result<bool, Error> {
        let Some(done) = self.open.pop() else { return Ok(false) };
        let attrs = self.allowed(&done.attrs);
        self.form
            .set_attributes(&done.directory, done.mode, &attrs)
            .at("set the attributes of", &done.path)?;
        self.progress.advance(1, 0);
        Ok(true)
    }

    fn write(&mut self, entry: WalkEntry) -> Result<(), Error> {
        let split = entry.path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match split {
            Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
            None => (&b""[..], &entry.path[..]),
        };
        while self.open.last().is_some_and(|open| open.path != parent) {
            self.close()?;
        }
        let name = Name::new(name).expect("a manifest holds only names");
        let directory = &self.open.last().expect("a parent comes before its entries").directory;
        let path = &entry.path;
        let exported = match &entry.kind {
            EntryKind::Directory { .. } => {
                let child = handle::create_directory(directory, name.as_bytes()).at("create", path)?;
                self.enter(child, entry);
                return Ok(());
            }
            EntryKind::Symlink { target } => {
                rustix::fs::symlinkat(&**target, directory, name.as_bytes()).map_err(Into::into)
            }
            EntryKind::Fifo => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mkfifoat(directory, name.as_bytes(), mode).map_err(std::io::Error::from)
            }
            EntryKind::File { size, blob } => return self.write_file(&entry, &name, (*blob, *size)),
        };
        exported.at("create", path)?;
        self.set_entry(&entry, &name).at("set the attributes of", path)?;
        self.progress.advance(1, 0);
        Ok(())
    }

    fn write_file(
        &mut self,
        entry: &WalkEntry,
        name: &Name,
        expected: (esf_core::BlobId, u64),
    ) -> Result<(), Error> {
        let path = &entry.path;
        let directory = &self.open.last().expect("the caller saw it").directory;
        let first = entry.attrs.hard_link.and_then(|group| self.linked.get(&group));
        if let Some(first) = first {
            rustix::fs::linkat(&self.top, &**first, directory, name.as_bytes(), AtFlags::empty())
                .at("link", path)?;
        } else {
            let copy = handle::create_file(directory, name.as_bytes()).at("create", path)?;
            self.projection.take_in(path, expected, Some(&copy), &mut self.buffer)?;
            let mode = self.allowed_mode(entry.mode);
            let attrs = self.allowed(&entry.attrs);
            self.form.set_attributes(&copy, mode, &attrs).at("set the attributes of", path)?;
            self.linked.extend(entry.attrs.hard_link.map(|group| (group, path.clone())));
        }
        self.progress.advance(1, expected.1);
        Ok(())
    }

    /// Gives a symlink or a fifo its owner, mode, attributes and time.
    fn set_entry(&mut self, entry: &WalkEntry, name: &Name) -> std::io::Result<()> {
        let directory = &self.open.last().expect("the caller saw it").directory;
        let attrs = self.allowed(&entry.attrs);
        let fifo = (entry.kind == EntryKind::Fifo).then(|| self.allowed_mode(entry.mode));
        let kept = self.form.set_recorded(directory, name.as_bytes(), fifo, &attrs)?;
        self.unopened.extend(kept.map(|recorded| (entry.path.clone(), recorded)));
        Ok(())
    }

    fn allowed_mode(&self, mode: Mode) -> Mode {
        if self.options.preserve_privilege { mode } else { Mode::of_stat(mode.bits() & !0o6000) }
    }

    /// The attributes that may leave.
    fn allowed(&self, attrs: &Attrs) -> Attrs {
        let mut attrs = attrs.own();
        if !self.options.preserve_owners {
            let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            (attrs.uid, attrs.gid) = user;
        }
        if !self.options.preserve_privilege {
            attrs.xattrs.retain(|(name, _)| **name != *b"security.capability");
        }
        attrs
    }
}
