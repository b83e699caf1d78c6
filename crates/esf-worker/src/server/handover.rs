//! Work with a deadline whose result must not be lost: it is done in a thread of its own, and who waits for
//! it may go on without. Invariants: the result is taken by exactly one of both, and the one who made it
//! cleans up after itself when nobody waits any more; nobody waits for what panicked.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

enum State<T> {
    Making,
    /// The result, or what `make` panicked with.
    Made(thread::Result<T>),
    Abandoned,
}

/// Does `make` in a thread named `name` and waits for at most `budget`. Nothing when that was not enough: then
/// `late` gets the result, in that thread, whenever there is one; nothing if `make` panicked.
///
/// # Errors
/// When there is no thread for it; then nothing was done.
///
/// # Panics
/// As `make` does.
pub(crate) fn within<T: Send + 'static>(
    name: &str,
    stack: usize,
    budget: Duration,
    make: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(Option<T>) + Send + 'static,
) -> io::Result<Option<T>> {
    let shared = Arc::new((Mutex::new(State::Making), Condvar::new()));
    let theirs = Arc::clone(&shared);
    let body = move || {
        let made = catch_unwind(AssertUnwindSafe(make));
        let mut state = theirs.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Abandoned) {
            drop(state);
            late(made.ok());
        } else {
            *state = State::Made(made);
            theirs.1.notify_one();
        }
    };
    thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(body)?;
    let state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = shared.1.wait_timeout_while(state, budget, |state| matches!(state, State::Making));
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    match std::mem::replace(&mut *state, State::Abandoned) {
        State::Made(Ok(made)) => Ok(Some(made)),
        State::Made(Err(panic)) => resume_unwind(panic),
        State::Making | State::Abandoned => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn nobody_waits_for_what_panicked() {
        let waits =
            || within("t", 64 << 10, Duration::from_secs(3600), || panic!("as asked"), |_: Option<()>| {});
        assert!(catch_unwind(AssertUnwindSafe(waits)).is_err());
        let (go, gone) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let make = move || -> u8 { gone.recv().map(|()| panic!("as asked")).expect("told to go on") };
        let slow = within("t", 64 << 10, Duration::from_millis(5), make, move |made| {
            told.send(made).expect("heard")
        });
        assert_eq!(slow.expect("a thread"), None);
        go.send(()).expect("it waits");
        assert_eq!(tells.recv(), Ok(None), "who is late is told all the same");
    }

    #[test]
    fn what_is_made_goes_to_one_of_both() {
        let quick = within("t", 64 << 10, Duration::from_secs(20), || 7, |_| panic!("it was waited for"));
        assert_eq!(quick.expect("a thread"), Some(7));
        let (go, gone) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let make = move || gone.recv().map(|()| 8).expect("told to go on");
        let slow = within("t", 64 << 10, Duration::from_millis(5), make, move |made| {
            told.send(made).expect("heard")
        });
        assert_eq!(slow.expect("a thread"), None);
        go.send(()).expect("it waits");
        assert_eq!(tells.recv(), Ok(Some(8)));
    }
}
