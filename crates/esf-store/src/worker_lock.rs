//! The lock that tells whether a resident worker lives: held exclusively for the worker's life, so a
//! free lock means that there is none now (design section 4). Whoever holds it may settle what a
//! dead worker left, and no worker can start meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Proof that no other worker of this store lives; given up when dropped.
#[derive(Debug)]
#[must_use = "the lock is given up when this is dropped"]
pub struct WorkerLock {
    _file: File,
}

impl WorkerLock {
    /// The lock's file in the store's directory.
    pub const FILE: &str = "worker.lock";

    /// Takes the lock of the store at `store_dir` unless somebody holds it; never waits.
    ///
    /// # Errors
    /// When the lock's file cannot be opened or locked.
    pub fn try_acquire(store_dir: &Path) -> io::Result<Option<Self>> {
        let no_follow = OFlags::NOFOLLOW.bits() as i32;
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(no_follow);
        let file = options.open(store_dir.join(Self::FILE))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = WorkerLock::try_acquire(dir.path()).unwrap();
        assert!(held.is_some());
        assert!(WorkerLock::try_acquire(dir.path()).unwrap().is_none());
        drop(held);
        assert!(WorkerLock::try_acquire(dir.path()).unwrap().is_some());
    }
}
