//! The bound on commands that run at once in all attempts of the worker. Who comes when it is reached waits
//! for its turn, first in, first out, before anything is recorded of it. Invariant: a permit that is
//! dropped goes to the first who waits, so none is lost and none is there twice.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags};

use crate::server::running::{Bell, locked};
use crate::wire::{Connection, wait};

/// How often one who waits looks whether its attempt is over.
const LOOK_MS: u64 = 200;

#[derive(Default)]
struct Inner {
    running: u64,
    waiting: VecDeque<Arc<Ticket>>,
}

struct Ticket {
    bell: Bell,
    granted: AtomicBool,
}

/// The bound.
pub(crate) struct Gate {
    most: u64,
    inner: Mutex<Inner>,
}

/// The right of one command to run.
pub(crate) struct Permit(Arc<Gate>);

/// How a wait ended.
pub(crate) enum Entered {
    /// It may run.
    Permit(Permit),
    /// The client cancelled it.
    Cancelled,
    /// The client is gone.
    Gone,
    /// What it waited with said that it is over.
    Over,
}

impl Gate {
    pub(crate) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, inner: Mutex::default() })
    }

    /// How many run, and how many wait.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let inner = locked(&self.inner);
        (inner.running, inner.waiting.len() as u64)
    }

    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Permit> {
        let mut inner = locked(&self.inner);
        let free = inner.running < self.most && inner.waiting.is_empty();
        inner.running += u64::from(free);
        free.then(|| Permit(Arc::clone(self)))
    }

    /// Waits for a turn, until the client is gone or `over` says that there is no sense in it.
    pub(crate) fn enter(
        self: &Arc<Self>,
        connection: &mut Connection,
        over: impl Fn() -> bool,
    ) -> io::Result<Entered> {
        if let Some(permit) = self.try_enter() {
            return Ok(Entered::Permit(permit));
        }
        let ticket = Arc::new(Ticket { bell: Bell::new()?, granted: AtomicBool::new(false) });
        locked(&self.inner).waiting.push_back(Arc::clone(&ticket));
        // One may have gone between the two looks.
        self.hand_out();
        let ended = self.wait(&ticket, connection, over);
        let mut inner = locked(&self.inner);
        inner.waiting.retain(|other| !Arc::ptr_eq(other, &ticket));
        drop(inner);
        match ticket.granted.load(Ordering::Acquire).then(|| Permit(Arc::clone(self))) {
            // A permit that comes too late goes on to the next when it is dropped here.
            Some(permit) if ended.as_ref().is_ok_and(Option::is_none) => Ok(Entered::Permit(permit)),
            _ => ended.map(|ended| ended.unwrap_or(Entered::Over)),
        }
    }

    /// Nothing when it was granted.
    fn wait(
        &self,
        ticket: &Ticket,
        connection: &mut Connection,
        over: impl Fn() -> bool,
    ) -> io::Result<Option<Entered>> {
        loop {
            ticket.bell.silence();
            if ticket.granted.load(Ordering::Acquire) {
                return Ok(None);
            }
            if over() {
                return Ok(Some(Entered::Over));
            }
            if connection.asks_to_cancel()? {
                return Ok(Some(Entered::Cancelled));
            }
            if connection.ended() {
                return Ok(Some(Entered::Gone));
            }
            wait(&mut [PollFd::new(&ticket.bell, PollFlags::IN)], Some(LOOK_MS))?;
        }
    }

    fn hand_out(&self) {
        let mut inner = locked(&self.inner);
        while inner.running < self.most
            && let Some(first) = inner.waiting.pop_front()
        {
            inner.running += 1;
            first.granted.store(true, Ordering::Release);
            first.bell.ring();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        locked(&self.0.inner).running -= 1;
        self.0.hand_out();
    }
}
