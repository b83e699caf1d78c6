//! Ctrl-C and SIGTERM as a descriptor. Invariant: one for the whole process, never read, so whoever
//! asks at any time learns of it and a thousand requests cost one pipe.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use esf_core::{Class, Problem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

static WATCHED: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// A descriptor that becomes, and stays, readable at SIGINT or SIGTERM. From the first call on these
/// signals do nothing else.
///
/// # Errors
/// `signals` when they cannot be watched.
pub(crate) fn watch() -> Result<OwnedFd, Problem> {
    let failed = |error: io::Error| {
        Problem::new(Class::Failure, "signals", format!("cannot watch for signals: {error}"))
    };
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fd) = &*watched {
        return fd.try_clone().map_err(failed);
    }
    let (read, write) = io::pipe().map_err(failed)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(write)).map_err(failed)?;
    }
    let read = OwnedFd::from(read);
    let given = read.try_clone().map_err(failed)?;
    *watched = Some(read);
    Ok(given)
}

/// Whether one of them came since `watch` was first called.
pub(crate) fn seen() -> bool {
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(fd) = &*watched else { return false };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Waits, but not beyond Ctrl-C.
pub(crate) fn pause(ms: u64) {
    let until = Instant::now() + Duration::from_millis(ms);
    while !seen() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}
