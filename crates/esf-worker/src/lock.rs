//! The worker's lock: `STORE/worker.lock`, held exclusively for the whole life of the one worker.
//! Invariant: the lock is free exactly when no worker lives, however the last one ended; whoever holds
//! it may settle what a dead worker left (design section 4).

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The right to be the store's worker, or to clean up after one; given back when dropped.
#[derive(Debug)]
pub struct WorkerLock {
    _file: File,
}

impl WorkerLock {
    /// Takes the lock; nothing when a worker holds it.
    ///
    /// # Errors
    /// The file system's own.
    pub fn try_acquire(store: &Path) -> io::Result<Option<Self>> {
        let file = open(store)?;
        // More than once, because `held` takes it for an instant.
        for _ in 0..5 {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(2)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

/// Whether a worker lives. An answer of false may be old already; of true as well.
pub fn held(store: &Path) -> bool {
    let Ok(file) = open(store) else { return false };
    // Shared, so that two who only ask never take each other for a worker.
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

fn open(store: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(store.join("worker.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_and_asking_takes_nothing() {
        let store = tempfile::tempdir().expect("tempdir");
        assert!(!held(store.path()));
        let lock = WorkerLock::try_acquire(store.path()).expect("opens").expect("free");
        assert!(held(store.path()));
        assert!(WorkerLock::try_acquire(store.path()).expect("opens").is_none());
        drop(lock);
        assert!(!held(store.path()));
        assert!(WorkerLock::try_acquire(store.path()).expect("opens").is_some());
    }
}
