//! Opening, and the status of what is there. Invariant: nothing but directories and regular files is
//! ever opened, and those of lowers for reading only.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::fs::Timespec;
use rustix::io::Errno;

use super::copy_up::open_file;
use super::file::{File, Home, OpenFile};
use super::listing::{Entry, UPPER};
use super::resolve::Last;
use super::tree::{Id, Tree, stat};
use super::{Identity, Kind, Node, Open, Result, Stat};

pub(super) fn stat_of(stat: &rustix::fs::Stat, kind: Kind, identity: Option<Identity>) -> Stat {
    let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos as _ };
    Stat {
        kind,
        mode: stat.st_mode & 0o7777,
        size: stat.st_size as u64,
        links: stat.st_nlink,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        identity: identity.unwrap_or((stat.st_dev, stat.st_ino)),
    }
}

impl Tree {
    pub(super) fn open(&mut self, at: Id, path: &[u8], how: Open) -> Result<Node> {
        let new = how.create && how.exclusive;
        let last = match how.follow && !new {
            true => Last::Follow,
            false => Last::Keep,
        };
        // A slash where a file is to be made is an error, whatever is there.
        let slash = how.create && path.last() == Some(&b'/');
        let place = self.resolve(at, path, if slash { Last::Name } else { last })?;
        if how.create && place.slash && place.name.is_some() {
            return Err(Errno::ISDIR);
        }
        let id = place.directory;
        let Some(name) = place.name else {
            return if new { Err(Errno::EXIST) } else { self.open_directory(id, how) };
        };
        let Some(entry) = place.entry else {
            return match how.create {
                true => self.create_file(id, &name, how).map(Node::File),
                false => Err(Errno::NOENT),
            };
        };
        if new {
            return Err(Errno::EXIST);
        }
        match entry.kind {
            Kind::Directory => {
                let child = self.child(id, &name, &entry)?;
                self.open_directory(child, how)
            }
            _ if place.slash || how.directory => Err(Errno::NOTDIR),
            Kind::Symlink => Err(Errno::LOOP),
            Kind::File => self.open_file(id, &name, &entry, how).map(Node::File),
            Kind::Fifo | Kind::Socket | Kind::Device => Err(Errno::NXIO),
        }
    }

    pub(super) fn open_directory(&mut self, id: Id, how: Open) -> Result<Node> {
        if how.write || how.create {
            return Err(Errno::ISDIR);
        }
        Ok(Node::Dir(self.handle(id)))
    }

    pub(super) fn open_file(&mut self, id: Id, name: &[u8], entry: &Entry, how: Open) -> Result<File> {
        let (read, write) = (how.read, how.write);
        if entry.layer != UPPER && !write {
            let directory = self.descriptor(id, entry.layer)?;
            let fd = open_file(&*directory, name, false, true)?;
            let home = Home::Lower { directory: self.handle(id), name: name.into(), raised: OnceLock::new() };
            let file = Arc::new(OpenFile { home, read, write, fd });
            self.note_open(id, &file);
            return Ok(File(file));
        }
        let fd = if entry.layer == UPPER {
            let directory = self.descriptor(id, UPPER)?;
            open_file(&*directory, name, write, read)?
        } else {
            self.raise_file(id, name, entry, !how.truncate)?
        };
        let file = self.file(fd, read, write)?;
        if how.truncate {
            file.set_size(0)?;
        }
        Ok(file)
    }

    /// A handle of a file of the upper.
    pub(super) fn file(&mut self, fd: OwnedFd, read: bool, write: bool) -> Result<File> {
        let stat = rustix::fs::fstat(&fd)?;
        let home = Home::Upper(self.inode(&stat));
        Ok(File(Arc::new(OpenFile { home, read, write, fd })))
    }

    pub(super) fn stat_directory(&mut self, id: Id) -> Result<Stat> {
        let node = self.node(id);
        if node.gone {
            let left = node.left.clone().ok_or(Errno::NOENT)?;
            let stat = rustix::fs::fstat(&*left)?;
            return Ok(stat_of(&stat, Kind::Directory, node.identity));
        }
        let (top, lower) = (node.stack[0], node.stack.iter().find(|layer| **layer != UPPER).copied());
        let fd = self.descriptor(id, top)?;
        let stat = rustix::fs::fstat(&*fd)?;
        if self.node(id).identity.is_none() {
            let of = match lower {
                Some(lower) if lower != top => {
                    let fd = self.descriptor(id, lower)?;
                    rustix::fs::fstat(&*fd)?
                }
                _ => stat,
            };
            self.node_mut(id).identity = Some((of.st_dev, of.st_ino));
        }
        Ok(stat_of(&stat, Kind::Directory, self.node(id).identity))
    }

    pub(super) fn stat_entry(&mut self, id: Id, name: &[u8], entry: &Entry) -> Result<Stat> {
        let several = entry.layer == UPPER && !entry.rest.is_empty();
        if entry.kind == Kind::Directory && (several || self.node(id).children.contains_key(name)) {
            let child = self.child(id, name, entry)?;
            return self.stat_directory(child);
        }
        let directory = self.descriptor(id, entry.layer)?;
        let found = stat(&*directory, name)?;
        let identity = match entry.layer {
            UPPER => self.origins.get(&found.st_ino).copied(),
            _ => None,
        };
        Ok(stat_of(&found, entry.kind, identity))
    }
}
