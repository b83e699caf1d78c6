//! A copy-on-write union over a workspace without a mount: what overlayfs would show of the lowers and
//! the upper, and an upper that a seal reads as one of overlayfs (design section 5).
//!
//! **Semantics**: overlayfs' with `index=off,redirect_dir=off,metacopy=off`, but for one thing: a
//! directory that lies in a lower may be renamed; it is copied up whole first. A name of the upper hides
//! the lowers', a whiteout (character device 0:0) removes it, directories merge unless the upper one is
//! opaque. A file is copied up when it is first written, its times or links changed; handles that were
//! open for reading before go over to the copy. New files are 0644, directories 0755.
//!
//! **Invariants**: carriers are opened for reading only. What takes more than one step is built in the
//! workspace's `work` directory and renamed into place, so whoever kills the process finds the state
//! before or the state after. This process is the only writer of the upper, so names are cached, within
//! bounds: memory and descriptors do not grow with the tree. Paths resolve inside of the directory they
//! start from (`resolve.rs`). Namespace operations take one lock; reads and writes of open files none.
//! Names are bytes. A tree may be as deep, and its paths as long, as a root holds them.

mod bytes;
mod change;
mod copy_up;
mod file;
mod listing;
mod open;
mod quota;
mod rename;
mod resolve;
#[cfg(test)]
mod tests;
mod tree;
mod weigh;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{FileType, Timespec};
pub use rustix::io::Errno;

use crate::Form;
use file::Home;
use listing::UPPER;
use quota::Quota;
use resolve::Last;
use tree::{Id, Tree};

pub use file::File;
pub use listing::Listing;
pub use quota::NAME;

/// Errors are the kernel's numbers: `NOENT`, `EXIST`, `NOTDIR`, ... and `PERM` where a path would leave
/// its directory, `LOOP` after 40 links, `NAMETOOLONG` also for what is deeper or longer than a root
/// holds, `NOSPC` beyond the quota.
pub type Result<T> = std::result::Result<T, Errno>;

/// Device and inode number; stays with a file that is copied up or renamed, as far as that is known
/// (not for a lower file with several names, nor for directories that were copied up by a rename).
pub type Identity = (u64, u64);

/// The layers of a workspace, as open directories.
#[derive(Debug)]
pub struct Layers {
    /// The carriers, topmost first.
    pub lowers: Vec<OwnedFd>,
    /// Where changes go.
    pub upper: OwnedFd,
    /// On the upper's filesystem, and nobody else's: things are made here before they get their name.
    pub work: OwnedFd,
    /// The upper's form.
    pub form: Form,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A named pipe: listed, never opened.
    Fifo,
    /// A socket: listed, never opened.
    Socket,
    /// A device: listed, never opened.
    Device,
}

impl Kind {
    /// None of a whiteout.
    fn of(stat: &rustix::fs::Stat) -> Option<Self> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::CharacterDevice {
            return (stat.st_rdev != 0).then_some(Self::Device);
        }
        Some(Self::of_type(kind).unwrap_or(Self::Device))
    }

    /// None where only the status can tell.
    fn of_type(kind: FileType) -> Option<Self> {
        match kind {
            FileType::Directory => Some(Self::Directory),
            FileType::RegularFile => Some(Self::File),
            FileType::Symlink => Some(Self::Symlink),
            FileType::Fifo => Some(Self::Fifo),
            FileType::Socket => Some(Self::Socket),
            FileType::BlockDevice => Some(Self::Device),
            FileType::CharacterDevice | FileType::Unknown => None,
        }
    }

    fn tag(self) -> u8 {
        match self {
            Self::Directory => 1,
            Self::File => 2,
            Self::Symlink => 3,
            Self::Fifo => 4,
            Self::Socket => 5,
            Self::Device => 6,
        }
    }

    fn of_tag(tag: u8) -> Option<Self> {
        let kinds = [Self::Directory, Self::File, Self::Symlink, Self::Fifo, Self::Socket, Self::Device];
        kinds.get(usize::from(tag).checked_sub(1)?).copied()
    }
}

/// What is known of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Permission bits on disk, `0o7777`; in the portable form `Union::mode_at` has the true ones.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Names of the inode on disk; a carrier's may count names in other carriers.
    pub links: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last modification.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Which inode it is.
    pub identity: Identity,
}

/// How to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Make the file if it is not there.
    pub create: bool,
    /// With `create`: it must not be there.
    pub exclusive: bool,
    /// Empty the file; needs `write`.
    pub truncate: bool,
    /// It must be a directory.
    pub directory: bool,
    /// Follow a link at the end of the path.
    pub follow: bool,
}

/// What becomes of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// It stays.
    Keep,
    /// The kernel's clock.
    Now,
    /// This.
    At(Timespec),
}

/// Names a directory of one union.
#[derive(Debug)]
struct Key {
    union: u64,
    node: Id,
}

/// A directory of a union; cheap to clone. It stays valid when it is renamed; once it is removed, its
/// names are `NOENT`.
#[derive(Clone, Debug)]
pub struct Dir(Arc<Key>);

/// What was opened.
#[derive(Clone, Debug)]
pub enum Node {
    /// A directory.
    Dir(Dir),
    /// A regular file.
    File(File),
}

/// The union; shared by all guests of an attempt.
pub struct Union {
    tree: Mutex<Tree>,
    root: Dir,
    quota: Arc<Quota>,
}

impl std::fmt::Debug for Union {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Union")
            .field("root", &self.root)
            .field("delta", &self.delta())
            .finish_non_exhaustive()
    }
}

impl Union {
    /// A union of these layers. What an earlier process left in `work` is removed; what the upper has
    /// already counts. `quota` bounds the delta, in bytes as `Union::delta` counts them.
    ///
    /// # Errors
    /// The kernel's; `INVAL` for more layers than can be stacked.
    pub fn new(layers: Layers, quota: Option<u64>) -> Result<Self> {
        static UNIONS: AtomicU64 = AtomicU64::new(0);
        let id = UNIONS.fetch_add(1, Ordering::Relaxed);
        let Layers { lowers, upper, work, form } = layers;
        let quota = Arc::new(Quota::new(quota));
        weigh::weigh(&upper, &quota)?;
        let tops: Vec<_> = std::iter::once(upper).chain(lowers).collect();
        if u16::try_from(tops.len()).is_err() {
            return Err(Errno::INVAL);
        }
        let mut tree = Tree::new(id, tops, work, form, Arc::clone(&quota));
        tree.clean_work()?;
        let root = tree.handle(tree::ROOT);
        Ok(Self { tree: Mutex::new(tree), root, quota })
    }

    /// The top directory.
    pub fn root(&self) -> Dir {
        self.root.clone()
    }

    /// What the delta weighs, in bytes: `NAME` for each name in the upper, whiteouts included, and for
    /// each file in it, open ones without a name included, its size in blocks of 4096 bytes, or what the
    /// disk allocates to it if it has holes. Inodes' own blocks and directories' are not counted.
    pub fn delta(&self) -> u64 {
        self.quota.used()
    }

    /// A panic inside of an operation leaves a table that nobody may trust.
    fn tree(&self) -> Result<MutexGuard<'_, Tree>> {
        let mut tree = self.tree.lock().map_err(|_| Errno::IO)?;
        tree.trim();
        Ok(tree)
    }

    /// Opens what `path` leads to.
    ///
    /// # Errors
    /// As open(2): `LOOP` for a link that is not followed, `ISDIR` for a directory that is to be written
    /// or created, `NXIO` for what has no bytes (fifos, sockets, devices), `INVAL` for flags that
    /// contradict each other.
    pub fn open(&self, at: &Dir, path: &[u8], how: Open) -> Result<Node> {
        if how.truncate && !how.write || how.create && how.directory {
            return Err(Errno::INVAL);
        }
        self.unhurried(|tree| {
            let at = tree.of(at)?;
            tree.open(at, path, how)
        })
    }

    /// Does what may have to copy a large file: then it begins again, once the file is copied outside of
    /// the lock. A file that is another one each time is copied under the lock in the end.
    fn unhurried<T>(&self, mut operation: impl FnMut(&mut Tree) -> Result<T>) -> Result<T> {
        let mut prepared = None;
        for last in [false, false, true] {
            let mut tree = self.tree()?;
            (tree.prepared, tree.can_begin_again) = (prepared.take(), !last);
            let done = operation(&mut tree);
            tree.can_begin_again = false;
            let (left, job) = (tree.prepared.take(), tree.job.take());
            drop(tree);
            drop(left);
            match job {
                Some(job) => prepared = Some(job.run()?),
                None => return done,
            }
        }
        unreachable!("the last time nothing is put off")
    }

    /// The status of what `path` leads to.
    ///
    /// # Errors
    /// As stat(2).
    pub fn stat_at(&self, at: &Dir, path: &[u8], follow: bool) -> Result<Stat> {
        let mut tree = self.tree()?;
        let at = tree.of(at)?;
        let place = tree.resolve(at, path, if follow { Last::Follow } else { Last::Keep })?;
        let Some(name) = place.name else { return tree.stat_directory(place.directory) };
        let entry = place.entry.ok_or(Errno::NOENT)?;
        if place.slash && entry.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        tree.stat_entry(place.directory, &name, &entry)
    }

    /// The status of what is open.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stat(&self, node: &Node) -> Result<Stat> {
        match node {
            Node::File(file) => {
                let stat = rustix::fs::fstat(file.0.fd())?;
                let identity = file.0.inode().and_then(|inode| inode.identity);
                Ok(open::stat_of(&stat, Kind::File, identity))
            }
            Node::Dir(dir) => {
                let mut tree = self.tree()?;
                let id = tree.of(dir)?;
                tree.stat_directory(id)
            }
        }
    }

    /// The permission bits, `0o7777`, that what `path` leads to has in its root.
    ///
    /// # Errors
    /// As stat(2).
    pub fn mode_at(&self, at: &Dir, path: &[u8], follow: bool) -> Result<u32> {
        let stat = self.stat_at(at, path, follow)?;
        let opened = stat.kind == Kind::Directory || stat.kind == Kind::File;
        if !opened || self.tree()?.form == Form::Native {
            return Ok(stat.mode);
        }
        let fd = match self.open(at, path, Open { read: true, follow, ..Open::default() })? {
            Node::File(file) => return self.mode_of(file.0.fd()),
            Node::Dir(dir) => {
                let mut tree = self.tree()?;
                let id = tree.of(&dir)?;
                let top = tree.node(id).stack[0];
                tree.descriptor(id, top)?
            }
        };
        self.mode_of(&fd)
    }

    fn mode_of(&self, fd: &OwnedFd) -> Result<u32> {
        let stat = rustix::fs::fstat(fd)?;
        let form = self.tree()?.form;
        Ok(form.mode_of(fd, &stat).map_err(copy_up::errno)?.bits())
    }

    /// Gives a file that is open for writing the permission bits that it will have in its root.
    ///
    /// # Errors
    /// `BADF` unless it was opened for writing, `INVAL` for other bits than `0o7777`, and the kernel's.
    pub fn set_mode(&self, file: &File, mode: u32) -> Result<()> {
        if !file.0.write {
            return Err(Errno::BADF);
        }
        let mode = esf_core::manifest::Mode::new(mode).ok_or(Errno::INVAL)?;
        let form = self.tree()?.form;
        form.set_mode(&file.0.fd, mode).map_err(copy_up::errno)?;
        if let Home::Upper(inode) = &file.0.home {
            inode.mode_was_set();
        }
        Ok(())
    }

    /// Sets the times of what `path` leads to.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_times_at(
        &self,
        at: &Dir,
        path: &[u8],
        follow: bool,
        atime: SetTime,
        mtime: SetTime,
    ) -> Result<()> {
        self.unhurried(|tree| {
            let at = tree.of(at)?;
            tree.set_times_at(at, path, follow, &copy_up::times(atime, mtime))
        })
    }

    /// Sets the times of what is open; a file of a lower is copied up.
    ///
    /// # Errors
    /// As futimens(3); `NOENT` for a file of a lower that was removed.
    pub fn set_times(&self, node: &Node, atime: SetTime, mtime: SetTime) -> Result<()> {
        let times = copy_up::times(atime, mtime);
        match node {
            Node::File(File(file)) => match &file.home {
                Home::Upper(_) => rustix::fs::futimens(&file.fd, &times),
                Home::Lower { directory, name, .. } => {
                    let mut tree = self.tree()?;
                    if file.inode().is_none() {
                        let id = tree.of(directory)?;
                        tree.raise_open(id, name, file)?;
                    }
                    rustix::fs::futimens(file.fd(), &times)
                }
            },
            Node::Dir(dir) => {
                let mut tree = self.tree()?;
                let id = tree.of(dir)?;
                tree.set_times_of_directory(id, &times)
            }
        }
    }

    /// Sets the size of an open file.
    ///
    /// # Errors
    /// As `File::set_size`.
    pub fn set_size(&self, file: &File, size: u64) -> Result<()> {
        file.set_size(size)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn create_directory(&self, at: &Dir, path: &[u8]) -> Result<()> {
        let mut tree = self.tree()?;
        let at = tree.of(at)?;
        tree.create_directory(at, path)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn remove_directory(&self, at: &Dir, path: &[u8]) -> Result<()> {
        let mut tree = self.tree()?;
        let at = tree.of(at)?;
        tree.remove_directory(at, path)
    }

    /// Removes a name that is not a directory's; whoever has the file open keeps it.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn unlink(&self, at: &Dir, path: &[u8]) -> Result<()> {
        let mut tree = self.tree()?;
        let at = tree.of(at)?;
        tree.unlink(at, path)
    }

    /// Makes a symbolic link. Any target may be said; an absolute one leads nowhere in a union.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn symlink(&self, target: &[u8], at: &Dir, path: &[u8]) -> Result<()> {
        let mut tree = self.tree()?;
        let at = tree.of(at)?;
        tree.symlink(target, at, path)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn read_link(&self, at: &Dir, path: &[u8]) -> Result<Vec<u8>> {
        let mut tree = self.tree()?;
        let at = tree.of(at)?;
        let (directory, name, entry, slash) = tree.resolve(at, path, Last::Keep)?.named(Errno::INVAL)?;
        let entry = entry.ok_or(Errno::NOENT)?;
        match entry.kind {
            Kind::Symlink => tree.read_target(directory, &name, &entry),
            Kind::Directory => Err(Errno::INVAL),
            _ if slash => Err(Errno::NOTDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Gives a file another name. A file of a lower is copied up first: its other names in the lower
    /// stay what they were.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&self, from: &Dir, path: &[u8], follow: bool, to: &Dir, new: &[u8]) -> Result<()> {
        self.unhurried(|tree| {
            let (from, to) = (tree.of(from)?, tree.of(to)?);
            tree.link(from, path, follow, to, new)
        })
    }

    /// Renames; a directory with everything in it, of lowers too.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: &Dir, path: &[u8], to: &Dir, new: &[u8]) -> Result<()> {
        self.unhurried(|tree| {
            let (from, to) = (tree.of(from)?, tree.of(to)?);
            tree.rename(from, path, to, new)
        })
    }

    /// The names of a directory, as they are now: the snapshot stays what it is.
    ///
    /// # Errors
    /// `NOENT` once the directory is removed, and the kernel's.
    pub fn list(&self, dir: &Dir) -> Result<Arc<Listing>> {
        let mut tree = self.tree()?;
        let id = tree.of(dir)?;
        if tree.node(id).gone {
            return Err(Errno::NOENT);
        }
        tree.touch(id);
        tree.snapshot(id)
    }

    /// Waits until a directory's own changes are on the disk.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync(&self, dir: &Dir) -> Result<()> {
        let mut tree = self.tree()?;
        let id = tree.of(dir)?;
        if tree.node(id).gone || tree.node(id).stack[0] != UPPER {
            return Ok(());
        }
        let fd = tree.descriptor(id, UPPER)?;
        drop(tree);
        rustix::fs::fsync(&*fd)
    }
}
