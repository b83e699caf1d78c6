//! Whether a store's worker lives, by its lock: `STORE/worker.lock`, held for its whole life.
//! Invariant: the lock is free exactly when no worker lives, however the last one ended (design 4).

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use esf_core::{Digest, Problem};
use esf_store::WorkerLock;
use rustix::fs::{FlockOperation, flock};

use crate::logs::failure;
use crate::place;

/// Takes the lock; nothing when a worker holds it.
///
/// # Errors
/// The file system's own.
pub(crate) fn acquire(store: &Path) -> Result<Option<WorkerLock>, Problem> {
    // More than once, because `held` takes it for an instant.
    for _ in 0..5 {
        let lock = WorkerLock::try_acquire(store);
        if let Some(lock) = lock.map_err(|error| failure(&error, "cannot take the worker's lock"))? {
            return Ok(Some(lock));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(None)
}

/// Whether a worker lives. An answer may be old already.
pub fn held(store: &Path) -> bool {
    let Ok(file) = File::open(store.join(WorkerLock::FILE)) else { return false };
    // Shared, so that two who only ask never take each other for a worker.
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Holds back whoever asks the same under the same `key`, until the returned file is dropped: for
/// requests of several steps, whose steps must not be done twice at once. Locks are few and shared, so
/// strangers may wait for each other now and then.
///
/// # Errors
/// When the lock's file cannot be made or locked.
pub fn same_request(store: &Path, key: &str) -> Result<File, Problem> {
    let digest =
        Digest::in_context("esf request lock v1", &[store.as_os_str().as_bytes(), key.as_bytes()].concat());
    let directory = place::runtime_directory();
    let take = || {
        place::private_directory(&directory)?;
        let path = directory.join(format!("request-{:02x}.lock", digest.as_bytes()[0] % 64));
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    take().map_err(|error: std::io::Error| failure(&error, "cannot take the lock of a request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_takes_nothing() {
        let store = tempfile::tempdir().expect("tempdir");
        assert!(!held(store.path()));
        let lock = acquire(store.path()).expect("opens").expect("free");
        assert!(held(store.path()));
        assert!(acquire(store.path()).expect("opens").is_none());
        drop(lock);
        assert!(!held(store.path()));
        assert!(acquire(store.path()).expect("opens").is_some());
    }
}
