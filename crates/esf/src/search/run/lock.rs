//! One driver for each search, by a file that is locked while it runs. Invariant: the lock is free exactly when no
//! driver lives, however the last one ended; so what is held by a driver's name may be taken over.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use esf_core::{Class, Problem, SearchId};
use rustix::fs::{FlockOperation, flock};

use crate::context::io_problem;

/// The lock of a search; its file is removed with it.
pub(super) struct DriverLock {
    path: PathBuf,
    _file: File,
}

impl DriverLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// `search_is_run` when another driver has it.
    pub(super) fn take(store: &Path, search: SearchId) -> Result<Self, Problem> {
        let path = store.join(format!("run-{search}.lock"));
        let failed = |error: &std::io::Error| io_problem("lock", &path, error);
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = file.map_err(|error| failed(&error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let message = format!("another `esf search run` is at {search}");
                    return Err(Problem::new(Class::Conflict, "search_is_run", message)
                        .remedy("wait for it, or end it with Ctrl-C first; `esf search watch` shows how far it is")
                        .retryable());
                }
                Err(error) => return Err(failed(&error.into())),
            }
            // An earlier driver may have removed the file between the opening and the lock.
            let there = fs::metadata(&path).map(|there| there.ino());
            let ours = file.metadata().map_err(|error| failed(&error))?.ino();
            if there.is_ok_and(|there| there == ours) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for DriverLock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, "the lock's file stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_driver_at_a_time_and_nothing_left() {
        let store = tempfile::tempdir().expect("tempdir");
        let search = SearchId::from_bytes([7; 16]);
        let lock = DriverLock::take(store.path(), search).expect("free");
        let refused = DriverLock::take(store.path(), search).err().expect("held");
        assert_eq!(refused.code, "search_is_run");
        drop(lock);
        assert_eq!(fs::read_dir(store.path()).expect("readable").count(), 0);
        DriverLock::take(store.path(), search).expect("free again");
    }
}
