//! One driver at a time for each thing that is driven (a search, a queue), by a file that is locked while it runs.
//! Invariant: the lock is free exactly when no driver lives, however the last one ended; so what is held by a
//! driver's name may be taken over.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use esf_core::Problem;
use rustix::fs::{FlockOperation, flock};

use crate::context::io_problem;

/// The lock; its file is removed with it.
pub(crate) struct DriverLock {
    path: PathBuf,
    _file: File,
}

impl DriverLock {
    /// Takes the lock `NAME.lock` in the store's directory.
    ///
    /// # Errors
    /// What `held` says when another driver has it; `io` when there can be none.
    pub(crate) fn take(store: &Path, name: &str, held: impl Fn() -> Problem) -> Result<Self, Problem> {
        let path = store.join(format!("{name}.lock"));
        let failed = |error: &std::io::Error| io_problem("lock", &path, error);
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = file.map_err(|error| failed(&error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(held()),
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
    use esf_core::Class;

    use super::*;

    #[test]
    fn one_driver_at_a_time_and_nothing_left() {
        let store = tempfile::tempdir().expect("tempdir");
        let take = || {
            DriverLock::take(store.path(), "x", || Problem::new(Class::Conflict, "held", "somebody has it"))
        };
        let lock = take().expect("free");
        assert_eq!(take().err().expect("held").code, "held");
        drop(lock);
        assert_eq!(fs::read_dir(store.path()).expect("readable").count(), 0);
        take().expect("free again");
    }
}
