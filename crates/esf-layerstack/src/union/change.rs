//! Making and removing names, and setting times. Invariants: a name that a lower shows leaves a whiteout
//! when it goes, and only such a name; a directory that takes the place of a whiteout is opaque; every
//! step is one system call that changes what the union shows, or none that does.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat, Timestamps};
use rustix::io::Errno;

use super::file::{File, Home, OpenFile};
use super::listing::{Entry, UPPER};
use super::quota::NAME;
use super::resolve::{Last, check};
use super::tree::{Id, Tree, stat};
use super::{Kind, Open, Result};
use crate::Form;

const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
const SETGID: u32 = 0o2000;

impl Tree {
    /// Makes a file that is not there.
    pub(super) fn create_file(&mut self, id: Id, name: &[u8], how: Open) -> Result<File> {
        let access = if how.read { OFlags::RDWR } else { OFlags::WRONLY };
        let access = if how.write { access } else { OFlags::RDONLY };
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let masked = self.masked;
        let fd = self.make(id, name, Kind::File, |directory, name| {
            let fd = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(FILE_MODE))?;
            if masked {
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(FILE_MODE))?;
            }
            Ok(fd)
        })?;
        let inode = self.inode(&rustix::fs::fstat(&fd)?);
        let (home, read, write) = (Home::Upper(inode), how.read, how.write);
        Ok(File(Arc::new(OpenFile { home, read, write, fd })))
    }

    pub(super) fn create_directory(&mut self, at: Id, path: &[u8]) -> Result<()> {
        let (id, name, entry, _) = self.resolve(at, path, Last::Name)?.named(Errno::EXIST)?;
        if entry.is_some() {
            return Err(Errno::EXIST);
        }
        let masked = self.masked;
        self.make(id, &name, Kind::Directory, |directory, name| {
            rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(DIRECTORY_MODE))?;
            if masked {
                let inherited = stat(directory, name)?.st_mode & SETGID;
                let mode = Mode::from_raw_mode(DIRECTORY_MODE | inherited);
                rustix::fs::chmodat(directory, name, mode, AtFlags::empty())?;
            }
            Ok(())
        })
    }

    pub(super) fn symlink(&mut self, target: &[u8], at: Id, path: &[u8]) -> Result<()> {
        check(target)?;
        let (id, name, entry, slash) = self.resolve(at, path, Last::Name)?.named(Errno::EXIST)?;
        if entry.is_some() {
            return Err(Errno::EXIST);
        }
        if slash {
            return Err(Errno::NOENT);
        }
        self.make(id, &name, Kind::Symlink, |directory, name| rustix::fs::symlinkat(target, directory, name))
    }

    /// Makes a name that the union does not show; where it was removed a whiteout has its place.
    fn make<T>(
        &mut self,
        id: Id,
        name: &[u8],
        kind: Kind,
        create: impl Fn(&OwnedFd, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.check_room(id, name)?;
        let above = self.raise(id)?;
        self.quota.take(NAME)?;
        let made = create(&above, name);
        self.quota.release(if made.is_err() { NAME } else { 0 });
        let (made, below) = match made {
            Err(Errno::EXIST) => (self.make_over_whiteout(&above, name, kind, create)?, true),
            made => (made?, false),
        };
        self.note(id, name, Some(Entry::upper(kind, below)));
        Ok(made)
    }

    fn make_over_whiteout<T>(
        &mut self,
        above: &OwnedFd,
        name: &[u8],
        kind: Kind,
        create: impl Fn(&OwnedFd, &[u8]) -> Result<T>,
    ) -> Result<T> {
        self.made(0, |tree, temp| {
            let made = create(&tree.work, temp.as_bytes())?;
            tree.inherit_group(above, temp, kind)?;
            if kind == Kind::Directory {
                let directory = super::tree::open_directory(&tree.work, temp.as_bytes())?;
                tree.set_opaque(&directory)?;
            }
            tree.replace_whiteout(temp, above, name, kind)?;
            Ok(made)
        })
    }

    /// Gives what was made in `work` the name that a whiteout has.
    pub(super) fn replace_whiteout(
        &self,
        temp: &str,
        above: &OwnedFd,
        name: &[u8],
        kind: Kind,
    ) -> Result<()> {
        if kind != Kind::Directory {
            return rustix::fs::renameat(&self.work, temp, above, name);
        }
        rustix::fs::renameat_with(&self.work, temp, above, name, RenameFlags::EXCHANGE)?;
        rustix::fs::unlinkat(&self.work, temp, AtFlags::empty())
    }

    /// What is made in a directory with the setgid bit has its group, wherever it was made.
    fn inherit_group(&self, above: &OwnedFd, temp: &str, kind: Kind) -> Result<()> {
        let parent = rustix::fs::fstat(above)?;
        if self.form != Form::Native || parent.st_mode & SETGID == 0 {
            return Ok(());
        }
        let gid = Gid::from_raw(parent.st_gid);
        rustix::fs::chownat(&self.work, temp, None, Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if kind == Kind::Directory {
            let mode = Mode::from_raw_mode(DIRECTORY_MODE | SETGID);
            rustix::fs::chmodat(&self.work, temp, mode, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Marks a directory of the upper: nothing beneath it shows.
    pub(super) fn set_opaque(&self, directory: &OwnedFd) -> Result<()> {
        rustix::fs::fsetxattr(directory, self.form.opaque(), b"y", rustix::fs::XattrFlags::empty())
    }

    pub(super) fn unlink(&mut self, at: Id, path: &[u8]) -> Result<()> {
        let (id, name, entry, slash) = self.resolve(at, path, Last::Name)?.named(Errno::ISDIR)?;
        let entry = entry.ok_or(Errno::NOENT)?;
        match entry.kind {
            Kind::Directory => Err(Errno::ISDIR),
            _ if slash => Err(Errno::NOTDIR),
            _ => self.remove_name(id, &name, &entry),
        }
    }

    /// Removes a name that is no directory's.
    fn remove_name(&mut self, id: Id, name: &[u8], entry: &Entry) -> Result<()> {
        let above = self.raise(id)?;
        if entry.layer == UPPER {
            let before = stat(&*above, name)?;
            if entry.below {
                self.made(0, |tree, temp| {
                    make_whiteout(&tree.work, temp.as_bytes())?;
                    rustix::fs::renameat(&tree.work, temp, &*above, name)
                })?;
            } else {
                rustix::fs::unlinkat(&*above, name, AtFlags::empty())?;
                self.quota.release(NAME);
            }
            self.lost_name(&before);
        } else {
            make_whiteout(&above, name)?;
            self.quota.force(NAME);
            self.forget_open(id, name);
        }
        self.note(id, name, None);
        Ok(())
    }

    /// An inode of the upper, as it was before, has a name less: releases its bytes with its last.
    pub(super) fn lost_name(&mut self, before: &Stat) {
        if before.st_nlink > 1 {
            return;
        }
        self.origins.remove(&before.st_ino);
        if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
            return;
        }
        match self.inodes.remove(&before.st_ino).and_then(|inode| inode.upgrade()) {
            Some(inode) => inode.unlink(),
            None => self.quota.forget(before.st_ino, before.st_size as u64),
        }
    }

    pub(super) fn remove_directory(&mut self, at: Id, path: &[u8]) -> Result<()> {
        let place = self.resolve(at, path, Last::Name)?;
        // `.` is nobody's to remove, and what `..` leads to has the directory it came from in it.
        let last = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        let dots = if last == Some(b"..") { Errno::NOTEMPTY } else { Errno::INVAL };
        let (id, name, entry, _) = place.named(dots)?;
        let entry = entry.ok_or(Errno::NOENT)?;
        if entry.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let child = self.child(id, &name, &entry)?;
        self.check_empty(child)?;
        self.keep_for_handles(child)?;
        let above = self.raise(id)?;
        if entry.layer != UPPER {
            make_whiteout(&above, &name)?;
            self.quota.force(NAME);
        } else {
            self.clear(child)?;
            if entry.below {
                self.made(0, |tree, temp| {
                    make_whiteout(&tree.work, temp.as_bytes())?;
                    rustix::fs::renameat_with(&tree.work, temp, &*above, &*name, RenameFlags::EXCHANGE)?;
                    rustix::fs::unlinkat(&tree.work, temp, AtFlags::REMOVEDIR)
                })?;
            } else {
                rustix::fs::unlinkat(&*above, &*name, AtFlags::REMOVEDIR)?;
                self.quota.release(NAME);
            }
        }
        self.detach(id, &name);
        self.note(id, &name, None);
        Ok(())
    }

    /// Refuses a directory that shows names.
    pub(super) fn check_empty(&mut self, id: Id) -> Result<()> {
        if self.snapshot(id)?.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    /// A directory that is about to go keeps a descriptor for those that have a handle of it.
    pub(super) fn keep_for_handles(&mut self, id: Id) -> Result<()> {
        if Arc::strong_count(&self.node(id).key) > 1 {
            let top = self.node(id).stack[0];
            self.descriptor(id, top)?;
        }
        Ok(())
    }

    /// Takes the whiteouts out of a directory of the upper that shows nothing; it still shows nothing.
    pub(super) fn clear(&mut self, id: Id) -> Result<()> {
        let fd = self.descriptor(id, UPPER)?;
        if self.node(id).stack.len() > 1 {
            self.set_opaque(&fd)?;
            self.node_mut(id).stack.truncate(1);
        }
        let names = names(&fd)?;
        if !names.is_empty() {
            self.forget_names(id);
        }
        for name in names {
            rustix::fs::unlinkat(&*fd, &*name, AtFlags::empty())?;
            self.quota.release(NAME);
        }
        Ok(())
    }

    pub(super) fn link(&mut self, from: Id, path: &[u8], follow: bool, to: Id, new: &[u8]) -> Result<()> {
        let place = self.resolve(from, path, if follow { Last::Follow } else { Last::Keep })?;
        let source = match (place.name, place.entry) {
            (None, _) => None,
            (Some(_), None) => return Err(Errno::NOENT),
            (Some(_), Some(entry)) if entry.kind == Kind::Directory => None,
            (Some(_), Some(_)) if place.slash => return Err(Errno::NOTDIR),
            (Some(name), Some(entry)) => Some((place.directory, name, entry)),
        };
        let (to, new, there, slash) = self.resolve(to, new, Last::Name)?.named(Errno::EXIST)?;
        if there.is_some() {
            return Err(Errno::EXIST);
        }
        if slash {
            return Err(Errno::NOENT);
        }
        let (from, name, entry) = source.ok_or(Errno::PERM)?;
        self.check_room(to, &new)?;
        self.raise_entry(from, &name, &entry)?;
        let source = self.descriptor(from, UPPER)?;
        self.make(to, &new, entry.kind, |directory, new| {
            rustix::fs::linkat(&source, &*name, directory, new, AtFlags::empty())
        })
    }

    pub(super) fn set_times_at(
        &mut self,
        at: Id,
        path: &[u8],
        follow: bool,
        times: &Timestamps,
    ) -> Result<()> {
        let place = self.resolve(at, path, if follow { Last::Follow } else { Last::Keep })?;
        let id = place.directory;
        let Some(name) = place.name else { return self.set_times_of_directory(id, times) };
        let entry = place.entry.ok_or(Errno::NOENT)?;
        if entry.kind == Kind::Directory {
            let child = self.child(id, &name, &entry)?;
            return self.set_times_of_directory(child, times);
        }
        if place.slash {
            return Err(Errno::NOTDIR);
        }
        self.raise_entry(id, &name, &entry)?;
        let above = self.descriptor(id, UPPER)?;
        rustix::fs::utimensat(&*above, &*name, times, AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(super) fn set_times_of_directory(&mut self, id: Id, times: &Timestamps) -> Result<()> {
        let fd = self.raise(id)?;
        rustix::fs::futimens(&*fd, times)
    }
}

/// Makes the mark of a removed name.
pub(super) fn make_whiteout(directory: &OwnedFd, name: &[u8]) -> Result<()> {
    rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0)
}

/// The names in a directory, as they are on disk.
pub(super) fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>> {
    rustix::fs::seek(directory, SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(1 << 15);
    let (mut names, mut raw) = (Vec::new(), RawDir::new(directory, buffer.spare_capacity_mut()));
    while let Some(entry) = raw.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
