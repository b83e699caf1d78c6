//! The bytes of a copy-up. Those of a large file are copied outside of the union's lock, so that guests
//! wait for their own copies only: the job is made under the lock, run without it, and what it prepared
//! is taken by the next try if the file is still the one. Invariant: what is prepared is charged, and
//! removed and released if nobody takes it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::copy_up::errno;
use super::quota::{Quota, allocated, dense};
use super::tree::open_directory;
use super::{Identity, Result};
use crate::handle;

/// Files of more bytes on disk are copied outside of the lock.
pub(super) const LARGE: u64 = 1 << 20;
/// Bytes that are copied at once where the kernel cannot copy by itself.
const BUFFER: usize = 1 << 17;

/// What there is to copy of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) size: u64,
    pub(super) holes: bool,
    /// What the copy is charged at first.
    pub(super) charge: u64,
}

impl Extent {
    /// All of a file, or nothing of it.
    pub(super) fn of(stat: &Stat, bytes: bool) -> Self {
        let size = if bytes { stat.st_size as u64 } else { 0 };
        let holes = bytes && allocated(stat) < dense(size);
        Self { size, holes, charge: if holes { allocated(stat) } else { dense(size) } }
    }
}

/// A copy to be made outside of the lock.
pub(super) struct Job {
    from: OwnedFd,
    work: OwnedFd,
    quota: Arc<Quota>,
    temp: String,
    origin: Identity,
    extent: Extent,
}

impl Job {
    pub(super) fn new(
        (from, stat): (&OwnedFd, &Stat),
        extent: Extent,
        (work, temp): (&OwnedFd, String),
        quota: &Arc<Quota>,
    ) -> Result<Self> {
        Ok(Self {
            from: rustix::io::fcntl_dupfd_cloexec(from, 0)?,
            work: open_directory(work, b".")?,
            quota: Arc::clone(quota),
            temp,
            origin: (stat.st_dev, stat.st_ino),
            extent,
        })
    }

    /// Copies the bytes.
    pub(super) fn run(self) -> Result<Prepared> {
        self.quota.take(self.extent.charge)?;
        let made = handle::create_file(&self.work, self.temp.as_bytes()).map_err(errno);
        let copied = made.and_then(|copy| {
            copy_bytes(&self.from, &copy, self.extent.size, self.extent.holes)?;
            Ok(copy)
        });
        let Self { work, quota, temp, origin, extent, .. } = self;
        let leave = Leave { work, quota, temp, charge: extent.charge, taken: false };
        Ok(Prepared { copy: copied?, origin, leave })
    }
}

/// A file in `work` with all its bytes, which somebody may give its name.
pub(super) struct Prepared {
    pub(super) copy: OwnedFd,
    pub(super) origin: Identity,
    leave: Leave,
}

impl Prepared {
    /// The descriptor and the name in `work`; both, and the charge, are the taker's from now on.
    pub(super) fn take(mut self) -> (OwnedFd, String) {
        self.leave.taken = true;
        (self.copy, std::mem::take(&mut self.leave.temp))
    }
}

/// Removes what nobody took.
struct Leave {
    work: OwnedFd,
    quota: Arc<Quota>,
    temp: String,
    charge: u64,
    taken: bool,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if !self.taken {
            // What resists is removed with the workspace.
            let _gone = rustix::fs::unlinkat(&self.work, &*self.temp, AtFlags::empty());
            self.quota.release(self.charge);
        }
    }
}

/// Copies the first `size` bytes, holes as holes.
pub(super) fn copy_bytes(from: &OwnedFd, to: &OwnedFd, size: u64, holes: bool) -> Result<()> {
    let mut at = 0;
    while at < size {
        let end = if holes {
            at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                data => data?.min(size),
            };
            rustix::fs::seek(from, SeekFrom::Hole(at))?.min(size)
        } else {
            size
        };
        copy_run(from, to, at, end)?;
        at = end;
    }
    if holes { rustix::fs::ftruncate(to, size) } else { Ok(()) }
}

fn copy_run(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<()> {
    while at < end {
        let (mut here, mut there) = (at, at);
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut here), to, Some(&mut there), most) {
            // A carrier that is shorter than it was.
            Ok(0) => return Err(Errno::IO),
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL) => {
                return pump(from, to, at, end);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn pump(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(BUFFER);
        let read = rustix::io::pread(from, &mut buffer[..most], at)?;
        if read == 0 {
            return Err(Errno::IO);
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let written = rustix::io::pwrite(to, rest, at)?;
            (rest, at) = (&rest[written..], at + written as u64);
        }
    }
    Ok(())
}
