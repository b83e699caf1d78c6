//! Whether a store's worker lives, by its lock: `STORE/worker.lock`, held for its whole life.
//! Invariant: the lock is free exactly when no worker lives, however the last one ended (design 4).

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
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

/// A turn at a request, until it is dropped. One that dies with its process leaves an empty file behind,
/// which the next turn at the same request takes over.
#[derive(Debug)]
#[must_use = "a turn that is dropped is over"]
pub struct Turn {
    path: PathBuf,
    /// Locked.
    _file: File,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // While the lock is held, so that nobody else's file is removed; a file that stays is taken over.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Holds back whoever asks the same under the same `key`: for requests of several steps, whose steps
/// must not be done twice at once. Other requests, of this process too, are not held back.
///
/// # Errors
/// When the lock's file cannot be made or locked.
pub fn same_request(store: &Path, key: &str) -> Result<Turn, Problem> {
    let parts = [store.as_os_str().as_bytes(), &[0], key.as_bytes()].concat();
    let digest = Digest::in_context("esf request lock v1", &parts);
    let name: String = digest.as_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let directory = place::runtime_directory();
    let path = directory.join(format!("request-{name}.lock"));
    let take = || {
        place::private_directory(&directory)?;
        loop {
            let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // Whoever held it before has removed it, and the name is free or another's.
            if file.metadata()?.nlink() > 0 {
                return Ok(Turn { path: path.clone(), _file: file });
            }
        }
    };
    take().map_err(|error: std::io::Error| failure(&error, "cannot take the lock of a request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_at_one_request_come_one_after_the_other() {
        let store = tempfile::tempdir().expect("tempdir");
        let inside = std::sync::atomic::AtomicU32::new(0);
        let most = std::sync::atomic::AtomicU32::new(0);
        let turn = || {
            use std::sync::atomic::Ordering::SeqCst;
            for _ in 0..50 {
                let turn = same_request(store.path(), "k").expect("a turn");
                most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::yield_now();
                inside.fetch_sub(1, SeqCst);
                drop(turn);
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(turn))));
        assert_eq!(most.into_inner(), 1);
        // Another request has its turn meanwhile, and nothing stays.
        let turns = ["a", "b"].map(|key| same_request(store.path(), key).expect("a turn"));
        let paths = turns.each_ref().map(|turn| turn.path.clone());
        drop(turns);
        assert!(paths.iter().all(|path| !path.exists()));
    }

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
