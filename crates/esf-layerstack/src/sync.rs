//! One `syncfs` for everybody who waits for one: rounds, as in a group commit (performance trap 8).
//! Invariant: a caller returns only after a round that began after its call; the failure of a round
//! is told to all who waited for it and is never retried as a success.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::disk::{self, Boundary};

#[derive(Debug, Default)]
struct State {
    begun: u64,
    ended: u64,
    running: bool,
    failed: Option<(u64, i32)>,
}

/// Rounds of `syncfs` on one filesystem.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Open since before anything was written through it, so that write-back errors are reported.
    filesystem: OwnedFd,
    state: Mutex<State>,
    ended: Condvar,
}

/// Ends a round even if its `syncfs` panics (a failpoint).
struct Running<'a> {
    rounds: &'a Rounds,
    errno: Option<i32>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        state.running = false;
        state.ended = state.begun;
        if let Some(errno) = self.errno {
            state.failed = Some((state.begun, errno));
        }
        self.rounds.ended.notify_all();
    }
}

impl Rounds {
    pub(crate) fn new(filesystem: OwnedFd) -> Self {
        Self { filesystem, state: Mutex::default(), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything written before this call durable.
    pub(crate) fn sync(&self, at: Boundary) -> io::Result<()> {
        let mut state = self.lock();
        let wanted = state.begun + 1;
        while state.ended < wanted {
            if state.running {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.running = true;
            state.begun += 1;
            drop(state);
            let mut running = Running { rounds: self, errno: Some(rustix::io::Errno::IO.raw_os_error()) };
            running.errno = disk::syncfs(&self.filesystem, at)
                .err()
                .map(|error| error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()));
            drop(running);
            state = self.lock();
        }
        match state.failed {
            Some((round, errno)) if round >= wanted => Err(io::Error::from_raw_os_error(errno)),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_callers_share_rounds() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let rounds = Rounds::new(crate::handle::open_directory(dir.path()).expect("open"));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| rounds.sync(Boundary::SealSync).expect("sync"));
            }
        });
        let state = rounds.lock();
        assert!(state.begun <= 16 && state.ended == state.begun && !state.running);
    }
}
