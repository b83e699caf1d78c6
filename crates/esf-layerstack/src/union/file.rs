//! Open files: reads and writes go straight to a descriptor, without any lock of the union. Invariants:
//! a file of a lower is open for reading only, and its handles go over to the copy when it is copied up;
//! every byte that lands in the upper was taken from the quota before, under the inode's own lock when
//! the file grows or shrinks.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::Stat;
use rustix::io::Errno;

use super::copy_up::errno;
use super::quota::{BLOCK, Quota, allocated, dense};
use super::{Dir, Identity, Result};
use crate::Form;

/// A regular file of the upper that somebody has open; all its handles share it.
#[derive(Debug)]
pub(super) struct Inode {
    number: u64,
    /// Whose it was before it was copied up.
    pub(super) identity: Option<Identity>,
    quota: Arc<Quota>,
    form: Form,
    /// It is known to have no set-id bits and no file capability.
    bare: AtomicBool,
    extent: RwLock<Extent>,
}

#[derive(Debug)]
struct Extent {
    size: u64,
    /// What it is charged if it may have holes; a dense file is charged its size in blocks.
    sparse: Option<u64>,
    /// No name is left: what it is charged goes with the last handle.
    unlinked: bool,
}

impl Inode {
    pub(super) fn new(stat: &Stat, form: Form, quota: &Arc<Quota>, identity: Option<Identity>) -> Self {
        let (number, size) = (stat.st_ino, stat.st_size as u64);
        let extent = Extent { size, sparse: quota.sparse(number), unlinked: false };
        // In the native form the kernel takes a capability off by itself.
        let bare = form == Form::Native && !gives_privilege(stat.st_mode);
        let (bare, extent) = (AtomicBool::new(bare), RwLock::new(extent));
        Self { number, identity, quota: Arc::clone(quota), form, bare, extent }
    }

    /// Takes set-id bits and file capabilities off, as the kernel does when an ordinary process writes.
    fn make_bare(&self, fd: &OwnedFd) -> Result<()> {
        if self.bare.load(Ordering::Acquire) {
            return Ok(());
        }
        let stat = rustix::fs::fstat(fd)?;
        self.form.forget_capability(fd).map_err(errno)?;
        let mode = self.form.mode_of(fd, &stat).map_err(errno)?.bits();
        if gives_privilege(mode) {
            let kept = if mode & EXECUTE_GROUP == 0 { SETGID } else { 0 };
            let mode = esf_core::manifest::Mode::new(mode & !(SETUID | SETGID) | mode & kept);
            self.form.set_mode(fd, mode.expect("fewer bits of a mode are one")).map_err(errno)?;
        }
        self.bare.store(true, Ordering::Release);
        Ok(())
    }

    /// Says that the mode was set: the next writer looks at it again.
    pub(super) fn mode_was_set(&self) {
        self.bare.store(false, Ordering::Release);
    }

    /// Says that the last name went.
    pub(super) fn unlink(&self) {
        self.write().unlinked = true;
    }

    fn read(&self) -> RwLockReadGuard<'_, Extent> {
        self.extent.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Extent> {
        self.extent.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_at(&self, fd: &OwnedFd, bytes: &[u8], offset: Option<u64>) -> Result<usize> {
        if !bytes.is_empty() {
            self.make_bare(fd)?;
        }
        if let Some(offset) = offset {
            let extent = self.read();
            let inside = extent.sparse.is_none() && end(offset, bytes)? <= extent.size;
            if inside {
                return rustix::io::pwrite(fd, bytes, offset);
            }
        }
        let mut extent = self.write();
        let offset = offset.unwrap_or(extent.size);
        end(offset, bytes)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        if extent.sparse.is_none() && offset <= extent.size {
            self.extend(fd, &mut extent, bytes, offset)
        } else {
            self.scatter(fd, &mut extent, bytes, offset)
        }
    }

    /// Writes to a dense file so that it stays dense: as much of `bytes` as there is room for.
    fn extend(&self, fd: &OwnedFd, extent: &mut Extent, bytes: &[u8], offset: u64) -> Result<usize> {
        let charged = dense(extent.size);
        let growth = dense(end(offset, bytes)?).saturating_sub(charged);
        let granted = self.quota.take_blocks(growth);
        let room = (charged + granted).saturating_sub(offset);
        let fitting = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let written =
            if fitting == 0 { Err(Errno::NOSPC) } else { rustix::io::pwrite(fd, &bytes[..fitting], offset) };
        extent.size = extent.size.max(offset + written.unwrap_or(0) as u64);
        self.quota.release(charged + granted - dense(extent.size).max(charged));
        written
    }

    /// Writes to a file that has holes, or beyond the end: charged is what the disk says afterwards.
    fn scatter(&self, fd: &OwnedFd, extent: &mut Extent, bytes: &[u8], offset: u64) -> Result<usize> {
        let most = dense(bytes.len() as u64) + BLOCK;
        self.quota.take(most)?;
        let written = rustix::io::pwrite(fd, bytes, offset);
        let settled = self.settle(fd, extent);
        self.quota.release(most);
        settled?;
        written
    }

    fn set_size(&self, fd: &OwnedFd, size: u64) -> Result<()> {
        self.make_bare(fd)?;
        let mut extent = self.write();
        rustix::fs::ftruncate(fd, size)?;
        if extent.sparse.is_none() && size <= dense(extent.size) {
            self.quota.release(dense(extent.size) - dense(size));
            extent.size = size;
            return Ok(());
        }
        self.settle(fd, &mut extent)
    }

    /// Charges a file with holes what the disk allocates to it now.
    fn settle(&self, fd: &OwnedFd, extent: &mut Extent) -> Result<()> {
        let stat = rustix::fs::fstat(fd)?;
        let before = extent.sparse.unwrap_or(dense(extent.size));
        let now = allocated(&stat);
        self.quota.force(now);
        self.quota.release(before);
        extent.size = stat.st_size as u64;
        extent.sparse = (extent.size > 0).then_some(now);
        self.quota.set_sparse(self.number, extent.sparse);
        Ok(())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let extent = self.extent.get_mut().unwrap_or_else(PoisonError::into_inner);
        if extent.unlinked {
            self.quota.forget(self.number, extent.size);
        }
    }
}

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const EXECUTE_GROUP: u32 = 0o010;

/// Whether whoever executes the file gets other ids by it.
fn gives_privilege(mode: u32) -> bool {
    mode & SETUID != 0 || mode & SETGID != 0 && mode & EXECUTE_GROUP != 0
}

/// Where `bytes` end in a file.
fn end(offset: u64, bytes: &[u8]) -> Result<u64> {
    let end = offset.checked_add(bytes.len() as u64);
    end.filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::FBIG)
}

/// Where an open file's bytes are.
#[derive(Debug)]
pub(super) enum Home {
    /// In the upper.
    Upper(Arc<Inode>),
    /// In a carrier, which is never written; the name by which it was opened, and the copy since there
    /// is one.
    Lower { directory: Dir, name: Box<[u8]>, raised: OnceLock<Arc<Raised>> },
}

/// The copy of a file that was open when it was copied up: a descriptor for reading.
#[derive(Debug)]
pub(super) struct Raised {
    pub(super) inode: Arc<Inode>,
    pub(super) fd: OwnedFd,
}

/// What a handle is. The inode goes before the descriptor: while the descriptor is open its number is
/// nobody else's.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) home: Home,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) fd: OwnedFd,
}

impl OpenFile {
    /// The descriptor of the bytes.
    pub(super) fn fd(&self) -> &OwnedFd {
        match &self.home {
            Home::Lower { raised, .. } => raised.get().map_or(&self.fd, |raised| &raised.fd),
            Home::Upper(_) => &self.fd,
        }
    }

    /// The shared state, if it is in the upper.
    pub(super) fn inode(&self) -> Option<&Inode> {
        match &self.home {
            Home::Lower { raised, .. } => raised.get().map(|raised| &*raised.inode),
            Home::Upper(inode) => Some(inode),
        }
    }
}

/// An open regular file; cheap to clone, survives rename and unlink.
#[derive(Clone, Debug)]
pub struct File(pub(super) Arc<OpenFile>);

impl File {
    /// Reads at an offset; 0 at the end.
    ///
    /// # Errors
    /// `BADF` when it was not opened for reading, and the kernel's.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if !self.0.read {
            return Err(Errno::BADF);
        }
        // An offset that no file reaches.
        if i64::try_from(offset).is_err() {
            return Ok(0);
        }
        rustix::io::pread(self.0.fd(), buffer, offset)
    }

    /// Writes at an offset; how many bytes were, which may be fewer where the quota ends.
    ///
    /// # Errors
    /// `BADF` when it was not opened for writing, `NOSPC` beyond the quota, `FBIG`, and the kernel's.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.writable()?.write_at(&self.0.fd, bytes, Some(offset))
    }

    /// Writes at the end, whoever else appends; how many bytes were.
    ///
    /// # Errors
    /// As `write_at`.
    pub fn append(&self, bytes: &[u8]) -> Result<usize> {
        self.writable()?.write_at(&self.0.fd, bytes, None)
    }

    /// Cuts the file, or lengthens it by a hole.
    ///
    /// # Errors
    /// `INVAL` when it was not opened for writing, `FBIG`, and the kernel's.
    pub fn set_size(&self, size: u64) -> Result<()> {
        if i64::try_from(size).is_err() {
            return Err(Errno::FBIG);
        }
        self.writable().map_err(|_| Errno::INVAL)?.set_size(&self.0.fd, size)
    }

    /// Waits until the file's bytes are on the disk, and its metadata unless `data_only`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        match self.0.inode() {
            None => Ok(()),
            Some(_) if data_only => rustix::fs::fdatasync(self.0.fd()),
            Some(_) => rustix::fs::fsync(self.0.fd()),
        }
    }

    /// Whether it was opened for reading.
    pub fn is_readable(&self) -> bool {
        self.0.read
    }

    /// Whether it was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.0.write
    }

    /// A read-only descriptor of the bytes. All that are made of one handle share one offset, which
    /// begins at 0.
    ///
    /// # Errors
    /// `BADF` unless the file was opened for reading only, and the kernel's.
    pub fn reader(&self) -> Result<OwnedFd> {
        if !self.0.read || self.0.write {
            return Err(Errno::BADF);
        }
        rustix::io::fcntl_dupfd_cloexec(self.0.fd(), 0)
    }

    fn writable(&self) -> Result<&Inode> {
        match &self.0.home {
            Home::Upper(inode) if self.0.write => Ok(inode),
            Home::Upper(_) | Home::Lower { .. } => Err(Errno::BADF),
        }
    }
}
