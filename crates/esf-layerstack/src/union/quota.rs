//! What the attempt's delta weighs, and that it stays within its limit.
//!
//! **The measure**: `NAME` bytes for each name in the upper (whiteouts and directories included), and
//! for each regular file of it, once however many names it has and as long as a guest holds it open,
//! its size rounded up to blocks of `BLOCK` bytes; of a file with holes what the disk allocates to it,
//! but never more than that. Invariant: `used` is exactly this sum, so it never drifts: what a file
//! with holes was charged is kept until it is gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::Stat;
use rustix::io::Errno;

/// What a name costs, in bytes.
pub const NAME: u64 = 512;
/// The block by which files are counted, in bytes.
pub(super) const BLOCK: u64 = 4096;

/// Bytes of a dense file of that size.
pub(super) fn dense(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// Bytes of a file with holes.
pub(super) fn allocated(stat: &Stat) -> u64 {
    (stat.st_blocks as u64).saturating_mul(512).min(dense(stat.st_size as u64))
}

/// The count of an attempt's delta.
#[derive(Debug)]
pub(super) struct Quota {
    limit: u64,
    used: AtomicU64,
    /// What files with holes are charged, by inode.
    sparse: Mutex<HashMap<u64, u64>>,
}

impl Quota {
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { limit: limit.unwrap_or(u64::MAX), used: AtomicU64::new(0), sparse: Mutex::default() }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, all or none.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Errno> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.limit || bytes == 0)
        });
        taken.map(|_| ()).map_err(|_| Errno::NOSPC)
    }

    /// Takes as many whole blocks of `bytes` as there is room for; how many bytes that is.
    pub(super) fn take_blocks(&self, bytes: u64) -> u64 {
        let granted = |used: u64| bytes.min(self.limit.saturating_sub(used) / BLOCK * BLOCK);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            Some(used.saturating_add(granted(used)))
        });
        before.map_or(0, granted)
    }

    /// Takes `bytes` whatever the limit says: what removes may not fail for want of room.
    pub(super) fn force(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn release(&self, bytes: u64) {
        let released = |used: u64| {
            debug_assert!(used >= bytes, "{bytes} bytes are released of {used}");
            Some(used.saturating_sub(bytes))
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, released).expect("it always answers");
    }

    /// What a file with holes is charged; none of a dense one.
    pub(super) fn sparse(&self, inode: u64) -> Option<u64> {
        self.lock().get(&inode).copied()
    }

    /// Notes what a file with holes is charged, or with none that it is dense or gone.
    pub(super) fn set_sparse(&self, inode: u64, charged: Option<u64>) {
        match charged {
            Some(charged) => self.lock().insert(inode, charged),
            None => self.lock().remove(&inode),
        };
    }

    /// Forgets a file that is gone, and releases what it was charged.
    pub(super) fn forget(&self, inode: u64, size: u64) {
        let charged = self.lock().remove(&inode);
        self.release(charged.unwrap_or(dense(size)));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, u64>> {
        self.sparse.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
