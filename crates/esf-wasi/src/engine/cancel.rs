//! Stops one guest wherever it is: in a loop (it yields at each epoch), asleep, or waiting for a pipe.
//!
//! The guest's thread looks at it whenever its call is polled; [`Cancel::cancel`] sees to it that it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

/// Ends a guest early. Clones are the same; cancelling twice, or after the guest has ended, does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    cancelled: bool,
    waiting: Option<Waker>,
}

impl Cancel {
    /// A handle that has not been used yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Ends the guest: now if it runs, at its start if it does not yet.
    pub(crate) fn cancel(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cancelled = true;
        if let Some(waker) = state.waiting.take() {
            waker.wake();
        }
    }

    /// Whether it was cancelled; if not, the task is woken when it is.
    pub(super) fn poll(&self, context: &Context<'_>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.cancelled && !state.waiting.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waiting = Some(context.waker().clone());
        }
        state.cancelled
    }
}
