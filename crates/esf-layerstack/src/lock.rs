//! The store's lock: shared by whatever makes or uses roots, exclusive for collection.
//! Invariant: while a root exists only as a value in a program (sealed, not yet in the graph), that
//! value holds the lock shared, so no collection can take the root away.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::Error;
use crate::error::Context;

const NAME: &str = "store.lock";
const PAUSE: Duration = Duration::from_millis(20);

/// Holds the store's lock until dropped.
#[derive(Debug)]
#[must_use = "the lock is given up when this is dropped"]
pub struct StoreLock {
    _file: File,
    exclusive: bool,
}

impl StoreLock {
    /// Whether this excludes all others.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub(crate) fn shared(dir: &Path, patience: Duration) -> Result<Self, Error> {
        Self::acquire(dir, FlockOperation::NonBlockingLockShared, patience)
            .map(|file| Self { _file: file, exclusive: false })
    }

    pub(crate) fn exclusive(dir: &Path, patience: Duration) -> Result<Self, Error> {
        Self::acquire(dir, FlockOperation::NonBlockingLockExclusive, patience)
            .map(|file| Self { _file: file, exclusive: true })
    }

    /// Tries until `patience` is used up. Counts its pauses: libraries read no clock.
    fn acquire(dir: &Path, operation: FlockOperation, patience: Duration) -> Result<File, Error> {
        let path = dir.join(NAME);
        let options = File::options().read(true).write(true).create(true).mode(0o600).to_owned();
        let file = options.open(&path).on("open", &path)?;
        let mut left = patience.as_millis() / PAUSE.as_millis();
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) if left > 0 => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(Error::StoreBusy("another command holds its lock")),
                Err(error) => return Err(error).on("lock", &path),
            }
            left -= 1;
        }
    }
}
