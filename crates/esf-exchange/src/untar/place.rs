//! Where entries of an archive come to lie: beneath one open directory, reached without symlinks.
//! Invariant: every name is created new; an existing one is only ever an implied directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use esf_core::Name;
use esf_core::manifest::{MAX_DEPTH, MAX_PATH, MAX_TARGET, Mode};
use esf_core::time::FileTime;
use esf_layerstack::{Form, Records};
use rustix::fs::{
    AtFlags, FileType, OFlags, ResolveFlags, linkat, mkdirat, mknodat, openat, openat2, symlinkat,
};
use rustix::io::Errno;

use super::header::Xattrs;
use super::refused;
use crate::{Error, readable};

/// What an entry has beside its kind.
pub(crate) struct Attrs {
    pub(crate) mode: Mode,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: FileTime,
    pub(crate) xattrs: Xattrs,
}

/// Brings a path of an archive to components joined by `/`; empty is the top.
pub(crate) fn clean(path: &[u8]) -> Result<Vec<u8>, Error> {
    if path.is_empty() || path.starts_with(b"/") {
        return Err(refused(path, "a path that is empty or absolute"));
    }
    let mut components = Vec::new();
    for component in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        Name::new(component).map_err(|_| refused(path, "a path with a component that is no name"))?;
        components.push(component);
    }
    let cleaned = components.join(&b'/');
    if components.len() > MAX_DEPTH || cleaned.len() > MAX_PATH {
        return Err(refused(path, "a path that is too long or too deep"));
    }
    Ok(cleaned)
}

pub(crate) struct Place<'a> {
    top: &'a OwnedFd,
    form: Form,
    records: Records,
    /// Directories that the archive names, with what they get at the end; deepest last by order.
    directories: BTreeMap<Vec<u8>, Attrs>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(top: &'a OwnedFd, form: Form) -> Self {
        Self { top, form, records: Records::default(), directories: BTreeMap::new() }
    }

    pub(crate) fn directory(&mut self, path: &[u8], attrs: Attrs) -> Result<(), Error> {
        self.open_directory(path)?;
        if self.directories.insert(path.to_vec(), attrs).is_some() {
            return Err(refused(path, "a directory named twice"));
        }
        Ok(())
    }

    pub(crate) fn file(
        &self,
        path: &[u8],
        attrs: Attrs,
        size: u64,
        data: &mut dyn Read,
    ) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&parent, name, flags, rustix::fs::Mode::from_raw_mode(0o600))
            .map_err(|e| made(path, e))?;
        let mut file = File::from(file);
        let found = io::copy(&mut data.take(size), &mut file).map_err(Error::io(readable(path)))?;
        if found != size {
            return Err(refused(path, format!("only {found} of {size} bytes")));
        }
        self.finish_file(path, &file.into(), attrs)
    }

    pub(crate) fn link(&self, path: &[u8], target: &[u8]) -> Result<(), Error> {
        let (from, old) = self.parent(target)?;
        let (to, new) = self.parent(path)?;
        linkat(&from, old, &to, new, AtFlags::empty()).map_err(|e| made(path, e))
    }

    pub(crate) fn symlink(&mut self, path: &[u8], attrs: Attrs, target: &[u8]) -> Result<(), Error> {
        if !(1..=MAX_TARGET).contains(&target.len()) || target.contains(&0) {
            return Err(refused(path, "a symlink whose target no root holds"));
        }
        let (parent, name) = self.parent(path)?;
        symlinkat(target, &parent, name).map_err(|e| made(path, e))?;
        self.finish_unopened(path, &parent, name, None, &attrs)
    }

    pub(crate) fn fifo(&mut self, path: &[u8], attrs: Attrs) -> Result<(), Error> {
        let (parent, name) = self.parent(path)?;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        mknodat(&parent, name, FileType::Fifo, mode, 0).map_err(|e| made(path, e))?;
        self.finish_unopened(path, &parent, name, Some(attrs.mode), &attrs)
    }

    /// Gives directories their attributes, those below before those above; answers what symlinks and
    /// fifos could not carry.
    pub(crate) fn finish(mut self) -> Result<Records, Error> {
        while let Some((path, attrs)) = self.directories.pop_last() {
            let directory = self.open_beneath(&path)?;
            self.finish_file(&path, &directory, attrs)?;
        }
        Ok(self.records)
    }

    fn finish_file(&self, path: &[u8], file: &OwnedFd, attrs: Attrs) -> Result<(), Error> {
        let root = rustix::process::geteuid().is_root();
        let mut xattrs: Vec<_> =
            attrs.xattrs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        xattrs.sort_unstable();
        let mut owner = (attrs.uid, attrs.gid);
        if self.form == Form::Native && !root {
            // As far as may be: nobody else gives files away or privilege to programs.
            xattrs.retain(|(name, _): &(Box<[u8]>, _)| **name != *b"security.capability");
            owner = (0, 0);
        }
        let set = self.form.set_open(file, attrs.mode.bits(), Some(attrs.mtime), owner, &xattrs);
        set.map_err(Error::io(readable(path)))
    }

    /// For entries that cannot be opened; a root keeps no attributes of them but owner, mode and time.
    fn finish_unopened(
        &mut self,
        path: &[u8],
        parent: &OwnedFd,
        name: &[u8],
        fifo: Option<Mode>,
        attrs: &Attrs,
    ) -> Result<(), Error> {
        let root = rustix::process::geteuid().is_root();
        let owner = if self.form == Form::Native && !root { (0, 0) } else { (attrs.uid, attrs.gid) };
        let records = (path, &mut self.records);
        let set = self.form.set_unopened_entry(parent, name, fifo, owner, attrs.mtime, records);
        set.map_err(Error::io(readable(path)))
    }

    /// Opens the parent of `path`, making implied directories, and answers the last name.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Error> {
        match path.iter().rposition(|&byte| byte == b'/') {
            _ if path.is_empty() => Err(refused(path, "a top that is no directory")),
            Some(slash) => Ok((self.open_directory(&path[..slash])?, &path[slash + 1..])),
            None => Ok((self.open_directory(b"")?, path)),
        }
    }

    fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Error> {
        match self.open_beneath(path) {
            Ok(directory) => return Ok(directory),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let (parent, name) = self.parent(path)?;
        mkdirat(&parent, name, rustix::fs::Mode::from_raw_mode(0o755)).map_err(|e| made(path, e))?;
        // The umask of this process is not the archive's.
        let directory = self.open_beneath(path)?;
        rustix::fs::fchmod(&directory, rustix::fs::Mode::from_raw_mode(0o755))
            .map_err(|e| failed(path, e))?;
        Ok(directory)
    }

    fn open_beneath(&self, path: &[u8]) -> Result<OwnedFd, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        openat2(self.top, name, flags, rustix::fs::Mode::empty(), resolve).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV => {
                refused(path, "a way through something that is no directory")
            }
            error => failed(path, error),
        })
    }
}

/// Why an entry could not be made: what is already there is the archive's fault.
fn made(path: &[u8], error: Errno) -> Error {
    if error == Errno::EXIST { refused(path, "an entry named twice") } else { failed(path, error) }
}

fn failed(path: &[u8], error: Errno) -> Error {
    Error::io(readable(path))(error.into())
}
