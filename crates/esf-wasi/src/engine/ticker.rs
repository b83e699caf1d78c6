//! Moves the engines' epoch on while guests run, so that a guest in a loop yields and can be stopped.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::Engine;

/// How long a guest runs before it yields.
const TICK: Duration = Duration::from_millis(10);

/// The thread that ticks. It sleeps while no guest runs and ends when this is dropped.
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    engines: Vec<Engine>,
    guests: usize,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        let mut state = self.state();
        while !state.ended {
            state = if state.guests == 0 {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                state.engines.iter().for_each(Engine::increment_epoch);
                self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

impl Ticker {
    /// # Errors
    ///
    /// When no thread can be started.
    pub(super) fn new() -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let ticking = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("esf-wasi-epoch".to_owned());
        let thread = thread.stack_size(64 << 10).spawn(move || ticking.tick())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Ticks this engine, too.
    pub(super) fn add(&self, engine: &Engine) {
        self.shared.state().engines.push(engine.clone());
    }

    /// Ticks until what is returned is dropped.
    pub(super) fn run(&self) -> Running<'_> {
        self.shared.state().guests += 1;
        self.shared.changed.notify_one();
        Running(self)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: it only waits.
            let _ = thread.join();
        }
    }
}

/// One guest that runs.
pub(super) struct Running<'a>(&'a Ticker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.shared.state().guests -= 1;
    }
}
