//! Where a manager takes what it is told: what it is asked to do comes before what a process says, and what a
//! process says waits at its writer once there is too much of it. Invariant: never more than `ROOM` items of
//! a process are held, and no item of it holds up a request.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most items of a process that are held at one time.
const ROOM: usize = 8;

struct State<R, D> {
    requests: VecDeque<R>,
    said: VecDeque<D>,
    closed: bool,
}

/// Requests of type `R`, and what processes say of type `D`.
pub(super) struct Inbox<R, D> {
    state: Mutex<State<R, D>>,
    changed: Condvar,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came<R, D> {
    Request(R),
    Said(D),
    /// Nothing in the given time.
    Nothing,
    Closed,
}

impl<R, D> Inbox<R, D> {
    pub(super) fn new() -> Self {
        let state = State { requests: VecDeque::new(), said: VecDeque::new(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<R, D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request in; false when it is closed.
    pub(super) fn request(&self, request: R) -> bool {
        let mut state = self.state();
        if !state.closed {
            state.requests.push_back(request);
            self.changed.notify_all();
        }
        !state.closed
    }

    /// Puts in what a process said, waiting for room; false when it is closed.
    pub(super) fn say(&self, said: D) -> bool {
        let full = |state: &mut State<R, D>| !state.closed && state.said.len() >= ROOM;
        let waited = self.changed.wait_while(self.state(), full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.closed {
            state.said.push_back(said);
            self.changed.notify_all();
        }
        !state.closed
    }

    /// Takes the next item, waiting for it as long as `patience` says, or for ever.
    pub(super) fn take(&self, patience: Option<Duration>) -> Came<R, D> {
        let until = patience.map(|patience| Instant::now() + patience);
        let mut state = self.state();
        loop {
            if state.closed {
                return Came::Closed;
            }
            if let Some(request) = state.requests.pop_front() {
                return Came::Request(request);
            }
            if let Some(said) = state.said.pop_front() {
                self.changed.notify_all();
                return Came::Said(said);
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Came::Nothing,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Ends it: nothing more goes in or out, what is in it is dropped, and nobody waits any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.requests.clear();
        state.said.clear();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_bounded_and_holds_up_no_request() {
        let inbox = Inbox::<u32, u32>::new();
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| (0..).take_while(|item| inbox.say(*item)).count());
            while inbox.state().said.len() < ROOM {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(inbox.state().said.len(), ROOM, "the rest waits at its writer");
            assert!(inbox.request(7));
            assert_eq!(inbox.take(None), Came::Request(7));
            assert_eq!(inbox.take(None), Came::Said(0), "in order");
            inbox.close();
            assert!(flood.join().unwrap() <= ROOM + 1);
        });
        assert_eq!((inbox.take(None), inbox.request(1)), (Came::Closed, false));
        assert_eq!(Inbox::<u32, u32>::new().take(Some(Duration::from_millis(1))), Came::Nothing);
    }
}
