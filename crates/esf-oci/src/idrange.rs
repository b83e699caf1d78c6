//! Ranges of user and group ids, one for each live sandbox of the machine.
//! Invariant: two sandboxes never have ids in common, whichever stores and workers they belong to: a
//! range is used only while its lock file is held, and the kernel frees it when the holder dies.
//!
//! The region is `0x7000_0000` to `0x7FFB_FFFF`: 4092 ranges of 65536. It lies above what systemd hands
//! to containers (up to `0x6FFF_FFFF`) and far above subordinate ids of users. Lock files are
//! `/run/esf/ids/N`. The ids above it, `0x7FFC_0000` to `0x7FFE_FFFF`, are the jail's: owners of user
//! namespaces, as which nothing ever runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};

/// First id of the region.
pub const FIRST: u32 = 0x7000_0000;
/// Number of ranges.
pub const RANGES: u32 = 4092;

/// A range of our own, until dropped.
#[derive(Debug)]
pub struct IdRange {
    base: u32,
    _lock: File,
}

impl IdRange {
    /// The first id.
    pub fn base(&self) -> u32 {
        self.base
    }
}

/// Hands out ranges.
#[derive(Debug)]
pub struct IdRanges {
    directory: PathBuf,
    next: AtomicU32,
}

impl IdRanges {
    /// Locks live in `directory`, which is made. `seed` says where to begin looking, so that workers do
    /// not stand in each other's way and a range that was just given up is not the next to be used.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(directory: &Path, seed: u32) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        Ok(Self { directory: directory.to_owned(), next: AtomicU32::new(seed % RANGES) })
    }

    /// Takes a free range.
    ///
    /// # Errors
    /// `QuotaExceeded` when all are in use.
    pub fn take(&self) -> io::Result<IdRange> {
        for _ in 0..RANGES {
            let index = self.next.fetch_add(1, Ordering::Relaxed) % RANGES;
            if let Some(range) = self.lock(index)? {
                return Ok(range);
            }
        }
        let what = format!("all {RANGES} id ranges of this machine are in use");
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, what))
    }

    fn lock(&self, index: u32) -> io::Result<Option<IdRange>> {
        let path = self.directory.join(index.to_string());
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(IdRange { base: FIRST + index * 65536, _lock: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_never_meet_and_come_back_when_dropped() {
        let directory = tempfile::tempdir().expect("tempdir");
        let one = IdRanges::new(directory.path(), 7).expect("makes");
        let two = IdRanges::new(directory.path(), 7).expect("makes");
        let held: Vec<IdRange> =
            (0..200).map(|n| if n % 2 == 0 { &one } else { &two }.take().expect("free")).collect();
        let bases: BTreeSet<u32> = held.iter().map(IdRange::base).collect();
        assert_eq!(bases.len(), held.len());
        assert!(bases.iter().all(|base| *base >= FIRST && base % 65536 == 0));
        drop(held);
        for _ in 0..RANGES {
            drop(one.take().expect("all are free again"));
        }
    }

    #[test]
    fn when_all_are_in_use_it_says_so() {
        let directory = tempfile::tempdir().expect("tempdir");
        let ranges = IdRanges::new(directory.path(), 0).expect("makes");
        // As many open files as a test may have.
        let held: Vec<File> =
            (0..RANGES).map_while(|n| File::create(directory.path().join(n.to_string())).ok()).collect();
        let locked = held.iter().all(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok());
        if held.len() == RANGES as usize && locked {
            assert_eq!(ranges.take().expect_err("none free").kind(), io::ErrorKind::QuotaExceeded);
        }
    }
}
