//! Copy-up: an entry of a lower gets a twin in the upper. Invariants: the twin is made in `work` and
//! gets its name by one rename, so it is whole or not there; it has the bytes (holes as holes), mode,
//! owner, attributes and modification time of the original; the directory above keeps its times.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::bytes::{Extent, Job, LARGE, Prepared, copy_bytes};
use super::file::OpenFile;
use super::listing::{Entry, UPPER};
use super::quota::{NAME, allocated};
use super::tree::{Id, Tree, open_directory, stat};
use super::{Kind, Result, SetTime};
use crate::Form;
use crate::handle;

/// Everything in `work` whose name begins so is the union's.
const WORK: &str = "union-";

/// The kernel's way to say times.
pub(super) fn times(atime: SetTime, mtime: SetTime) -> Timestamps {
    let of = |time| match time {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        SetTime::At(time) => time,
    };
    Timestamps { last_access: of(atime), last_modification: of(mtime) }
}

/// Opens a regular file; never waits, never follows.
pub(super) fn open_file(directory: impl AsFd, name: &[u8], write: bool, read: bool) -> Result<OwnedFd> {
    let access = match (read, write) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// The kernel's number of an error of this crate's own helpers.
pub(super) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The times of a directory, to be given back to it.
pub(super) struct Held(Timestamps);

impl Held {
    pub(super) fn of(directory: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstat(directory)?;
        let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos as _ };
        Ok(Self(Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        }))
    }

    pub(super) fn give_back(self, directory: impl AsFd) -> Result<()> {
        rustix::fs::futimens(directory, &self.0)
    }
}

impl Tree {
    /// A name in `work` that nobody has.
    pub(super) fn work_name(&mut self) -> String {
        self.serial += 1;
        format!("{WORK}{:x}", self.serial)
    }

    /// Removes what an earlier process left in `work`, and sees what the umask does to new files.
    pub(super) fn clean_work(&mut self) -> Result<()> {
        let names = handle::list(open_directory(&self.work, b".")?).map_err(errno)?;
        for name in names.iter().filter(|name| name.as_bytes().starts_with(WORK.as_bytes())) {
            // What resists stays in the way of nobody.
            let _gone = crate::trash::remove(&self.work, name);
            if let Some(serial) = serial(name.as_bytes()) {
                self.serial = self.serial.max(serial);
            }
        }
        let name = self.work_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let probe = rustix::fs::openat(&self.work, &*name, flags, Mode::from_raw_mode(0o755))?;
        self.masked = rustix::fs::fstat(&probe)?.st_mode & 0o777 != 0o755;
        rustix::fs::unlinkat(&self.work, &*name, AtFlags::empty())
    }

    /// Has a directory in the upper, and those above it; answers its descriptor there.
    pub(super) fn raise(&mut self, id: Id) -> Result<Arc<OwnedFd>> {
        if self.node(id).gone {
            return Err(Errno::NOENT);
        }
        let (mut at, mut way) = (id, Vec::new());
        while self.node(at).stack[0] != UPPER {
            way.push(at);
            at = self.node(at).parent;
        }
        while let Some(at) = way.pop() {
            self.raise_directory(at)?;
        }
        self.descriptor(id, UPPER)
    }

    fn raise_directory(&mut self, id: Id) -> Result<()> {
        let (parent, name, stack) =
            (self.node(id).parent, self.node(id).name.clone(), self.node(id).stack.clone());
        let above = self.descriptor(parent, UPPER)?;
        let from = self.descriptor(id, stack[0])?;
        self.made(NAME, |tree, temp| {
            rustix::fs::mkdirat(&tree.work, temp, Mode::from_raw_mode(0o700))?;
            let made = open_directory(&tree.work, temp.as_bytes())?;
            tree.form.copy_attributes(&*from, &made).map_err(errno)?;
            tree.publish(temp, &above, &name)
        })?;
        self.node_mut(id).stack.insert(0, UPPER);
        self.note(
            parent,
            &name,
            Some(Entry { kind: Kind::Directory, layer: UPPER, below: true, rest: stack }),
        );
        Ok(())
    }

    /// Copies a file of a lower up, with its bytes or without; answers a descriptor for both ways.
    pub(super) fn raise_file(&mut self, id: Id, name: &[u8], entry: &Entry, bytes: bool) -> Result<OwnedFd> {
        let above = self.raise(id)?;
        let lower = self.descriptor(id, entry.layer)?;
        let from = open_file(&*lower, name, false, true)?;
        let before = rustix::fs::fstat(&from)?;
        self.put_off(&from, &before, bytes)?;
        let opened = self.opened(id, name);
        let copy = self.copy_file(&from, &before, bytes, |tree, temp| {
            tree.publish_open(&opened, temp, |tree| tree.publish(temp, &above, name))
        })?;
        self.note(id, name, Some(Entry::upper(Kind::File, true)));
        Ok(copy)
    }

    /// Puts a large copy off until the lock is not held, if the operation can begin again.
    fn put_off(&mut self, from: &OwnedFd, before: &rustix::fs::Stat, bytes: bool) -> Result<()> {
        let extent = Extent::of(before, bytes);
        let ready = self.prepared.as_ref().is_some_and(|made| made.origin == (before.st_dev, before.st_ino));
        if !self.can_begin_again || ready || extent.charge <= LARGE {
            return Ok(());
        }
        let temp = self.work_name();
        self.job = Some(Job::new((from, before), extent, (&self.work, temp), &self.quota)?);
        Err(Errno::AGAIN)
    }

    /// Gives a copied file its name; those that have the original open go over to it.
    pub(super) fn publish_open(
        &mut self,
        opened: &[Arc<OpenFile>],
        temp: &str,
        publish: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if opened.is_empty() {
            return publish(self);
        }
        let fd = open_file(&self.work, temp.as_bytes(), false, true)?;
        publish(self)?;
        self.go_over(opened, fd)
    }

    /// Copies a file of a lower up that is open and still has the name by which it was opened.
    pub(super) fn raise_open(&mut self, id: Id, name: &[u8], file: &OpenFile) -> Result<()> {
        let entry = self.lookup(id, name)?.filter(|entry| entry.kind == Kind::File && entry.layer != UPPER);
        let is_known = self.opened(id, name).iter().any(|known| std::ptr::eq(&**known, file));
        let entry = entry.filter(|_| is_known).ok_or(Errno::NOENT)?;
        self.raise_file(id, name, &entry, true).map(drop)
    }

    /// Copies an open file into `work`, charged, and has `publish` give it its name.
    pub(super) fn copy_file(
        &mut self,
        from: &OwnedFd,
        before: &rustix::fs::Stat,
        bytes: bool,
        publish: impl FnOnce(&mut Self, &str) -> Result<()>,
    ) -> Result<OwnedFd> {
        let extent = Extent::of(before, bytes);
        let (holes, charge) = (extent.holes, extent.charge);
        let origin = (before.st_dev, before.st_ino);
        let ready = self.prepared.take_if(|prepared| bytes && prepared.origin == origin);
        let (ready, temp) = match ready.map(Prepared::take) {
            Some((copy, temp)) => (Some(copy), temp),
            None => {
                self.quota.take(charge)?;
                (None, self.work_name())
            }
        };
        let mut inode = 0;
        let copied = self.made_as(temp, NAME, charge, |tree, temp| {
            let copy = match ready {
                Some(copy) => copy,
                None => {
                    let copy = handle::create_file(&tree.work, temp.as_bytes()).map_err(errno)?;
                    copy_bytes(from, &copy, extent.size, holes)?;
                    copy
                }
            };
            tree.form.copy_attributes(from, &copy).map_err(errno)?;
            if !bytes {
                rustix::fs::futimens(&copy, &times(SetTime::Keep, SetTime::Now))?;
            }
            if holes {
                inode = rustix::fs::fstat(&copy)?.st_ino;
                tree.quota.set_sparse(inode, Some(charge));
            }
            if before.st_nlink == 1 {
                tree.remember(rustix::fs::fstat(&copy)?.st_ino, origin);
            }
            publish(tree, temp)?;
            Ok(copy)
        });
        if holes {
            self.settle_copy(inode, charge, copied.as_ref().ok())?;
        }
        copied
    }

    /// Charges a copy with holes what it has come to.
    fn settle_copy(&mut self, inode: u64, charge: u64, copy: Option<&OwnedFd>) -> Result<()> {
        let Some(copy) = copy else {
            self.quota.set_sparse(inode, None);
            return Ok(());
        };
        let now = allocated(&rustix::fs::fstat(copy)?);
        self.quota.force(now);
        self.quota.release(charge);
        self.quota.set_sparse(inode, Some(now));
        Ok(())
    }

    /// Copies a link or a fifo of a lower up.
    fn raise_other(&mut self, id: Id, name: &[u8], entry: &Entry) -> Result<()> {
        let above = self.raise(id)?;
        let lower = self.descriptor(id, entry.layer)?;
        self.made(NAME, |tree, temp| {
            tree.copy_other(&lower, name, entry.kind, temp)?;
            tree.publish(temp, &above, name)
        })?;
        self.note(id, name, Some(Entry::upper(entry.kind, true)));
        Ok(())
    }

    /// Copies a link or a fifo into `work`.
    pub(super) fn copy_other(&self, from: &OwnedFd, name: &[u8], kind: Kind, temp: &str) -> Result<()> {
        let before = stat(from, name)?;
        let fifo = match kind {
            Kind::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&*target, &self.work, temp)?;
                None
            }
            Kind::Fifo => {
                rustix::fs::mknodat(&self.work, temp, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                self.copy_attributes_of_fifo(from, name, temp)?;
                Some(esf_core::manifest::Mode::of_stat(before.st_mode))
            }
            // No carrier holds any.
            Kind::Directory | Kind::File | Kind::Socket | Kind::Device => return Err(Errno::PERM),
        };
        let (owner, mtime) = ((before.st_uid, before.st_gid), Some(handle::mtime(&before)));
        let set = self.form.set_unopened(&self.work, temp.as_bytes(), fifo, owner, mtime);
        // In portable form an upper has no place for their owners.
        set.map(|_| ()).map_err(errno)
    }

    fn copy_attributes_of_fifo(&self, from: &OwnedFd, name: &[u8], temp: &str) -> Result<()> {
        if self.form != Form::Native {
            return Ok(());
        }
        let handle = handle::open_handle(from, name).map_err(errno)?;
        let copy = handle::open_handle(&self.work, temp.as_bytes()).map_err(errno)?;
        for (name, value) in handle::xattrs_of_handle(&handle).map_err(errno)? {
            if esf_core::manifest::is_portable_xattr(&name) {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(handle::magic_path(&copy), &*name, &value, flags)?;
            }
        }
        Ok(())
    }

    /// Has an entry that is no directory in the upper.
    pub(super) fn raise_entry(&mut self, id: Id, name: &[u8], entry: &Entry) -> Result<()> {
        match entry.kind {
            _ if entry.layer == UPPER => Ok(()),
            Kind::File => self.raise_file(id, name, entry, true).map(drop),
            Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Device => self.raise_other(id, name, entry),
            Kind::Directory => unreachable!("the caller deals with directories"),
        }
    }

    /// Makes something in `work` under a name of its own, charged; when it fails nothing is left.
    pub(super) fn made<T>(
        &mut self,
        charge: u64,
        make: impl FnOnce(&mut Self, &str) -> Result<T>,
    ) -> Result<T> {
        let temp = self.work_name();
        self.made_as(temp, charge, 0, make)
    }

    /// The same under a given name; `charged` was taken before.
    fn made_as<T>(
        &mut self,
        temp: String,
        charge: u64,
        charged: u64,
        make: impl FnOnce(&mut Self, &str) -> Result<T>,
    ) -> Result<T> {
        let taken = self.quota.take(charge);
        let made = taken.and_then(|()| make(self, &temp));
        if made.is_err() {
            let name = esf_core::Name::new(temp.as_bytes()).expect("a number is a name");
            // What resists is removed with the workspace.
            let _gone = crate::trash::remove(&self.work, &name);
            self.quota.release(charged + if taken.is_ok() { charge } else { 0 });
        }
        made
    }

    /// Gives what was copied its name; the directory keeps its times.
    fn publish(&self, temp: &str, above: &OwnedFd, name: &[u8]) -> Result<()> {
        let held = Held::of(above)?;
        rustix::fs::renameat_with(&self.work, temp, above, name, RenameFlags::NOREPLACE)?;
        held.give_back(above)
    }
}

/// The number in a name of `work`.
fn serial(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name.strip_prefix(WORK.as_bytes())?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}
