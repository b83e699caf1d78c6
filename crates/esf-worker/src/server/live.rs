//! One live attempt, as all of the worker's threads share it.
//! Invariant: it ends once. Whoever ends it holds `ending`; commands and transfers are admitted only
//! while it is open, under a read lock that the ender waits for.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use esf_core::record::{Attempt, Failure};
use esf_core::{AttemptId, Class, ExecId, LeaseId, Problem, RootId};

use crate::executor::{ExecutorError, QuiesceError, Sandbox, Stats};
use crate::server::running::{Command, locked};

/// How far an attempt has come towards its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Commands run.
    Open,
    /// Nothing can write any more; a seal may be tried, again if need be.
    Quiesced,
    /// It is over.
    Ended,
}

/// A live attempt.
pub(crate) struct Live {
    pub(crate) attempt: Attempt,
    pub(crate) lease: LeaseId,
    pub(crate) epoch: u64,
    pub(crate) deadline: Option<Instant>,
    /// The tree it began on.
    pub(crate) root: Option<RootId>,
    pub(crate) died: OwnedFd,
    pub(crate) ending: Mutex<Stage>,
    sandbox: RwLock<Option<Box<dyn Sandbox>>>,
    closing: AtomicBool,
    commands: Mutex<HashMap<ExecId, Arc<Command>>>,
    /// Commands under a caller's key between their row and their start.
    starting: Mutex<HashSet<ExecId>>,
    oom_kills: AtomicU64,
    pids_refused: AtomicU64,
}

/// What a sandbox did to its limits since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LimitsHit {
    pub(crate) oom: bool,
    pub(crate) pids: bool,
}

impl Live {
    pub(crate) fn new(
        attempt: Attempt,
        lease: LeaseId,
        deadline: Option<Instant>,
        root: Option<RootId>,
        sandbox: Box<dyn Sandbox>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            lease,
            epoch: attempt.lease_epoch,
            attempt,
            deadline,
            root,
            died: sandbox.died().try_clone_to_owned()?,
            ending: Mutex::new(Stage::Open),
            sandbox: RwLock::new(Some(sandbox)),
            closing: AtomicBool::new(false),
            commands: Mutex::default(),
            starting: Mutex::default(),
            oom_kills: AtomicU64::new(0),
            pids_refused: AtomicU64::new(0),
        })
    }

    pub(crate) fn id(&self) -> AttemptId {
        self.attempt.attempt_id
    }

    /// The sandbox, kept from ending until the guard is dropped.
    pub(crate) fn admit(&self) -> Result<Admitted<'_>, Problem> {
        if self.is_closing() {
            return Err(self.closed());
        }
        let guard = self.sandbox.read().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            return Err(self.closed());
        }
        Ok(Admitted(guard))
    }

    /// Whether transfers and commands should make way for the end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn closed(&self) -> Problem {
        Problem::new(Class::Conflict, "not_active", format!("{} is ending", self.id()))
            .expected("an active attempt")
            .remedy("activate the node anew, or `esf retry` the attempt")
    }

    /// Waits until nobody else is starting this command; then it is this caller's turn.
    pub(crate) fn start_alone(&self, exec: ExecId) -> StartingAlone<'_> {
        while !locked(&self.starting).insert(exec) {
            std::thread::sleep(Duration::from_millis(1));
        }
        StartingAlone { live: self, exec }
    }

    pub(crate) fn add(&self, command: Arc<Command>) {
        locked(&self.commands).insert(command.exec_id, command);
    }

    pub(crate) fn remove(&self, exec: ExecId) {
        locked(&self.commands).remove(&exec);
    }

    pub(crate) fn command(&self, exec: ExecId) -> Option<Arc<Command>> {
        locked(&self.commands).get(&exec).cloned()
    }

    pub(crate) fn commands(&self) -> Vec<Arc<Command>> {
        locked(&self.commands).values().cloned().collect()
    }

    pub(crate) fn stats(&self) -> Option<Stats> {
        self.admit().ok()?.stats().ok()
    }

    /// Which limits were hit since the last call.
    pub(crate) fn limits_hit(&self) -> LimitsHit {
        let Some(stats) = self.stats() else { return LimitsHit::default() };
        LimitsHit {
            oom: self.oom_kills.swap(stats.oom_kills, Ordering::AcqRel) < stats.oom_kills,
            pids: self.pids_refused.swap(stats.pids_refused, Ordering::AcqRel) < stats.pids_refused,
        }
    }

    /// Stops admission, kills what runs for the reason given, and proves that nothing can write any more.
    pub(crate) fn quiesce(&self, reason: &Failure) -> Result<(), QuiesceError> {
        let quiesced = match self.close(reason) {
            Some(sandbox) => sandbox.quiesce(),
            None => Ok(()),
        };
        self.let_commands_end();
        quiesced
    }

    /// Takes the sandbox down; its delta stays.
    pub(crate) fn destroy(&self, reason: &Failure) -> Result<(), ExecutorError> {
        let released = match self.close(reason) {
            Some(sandbox) => sandbox.release(),
            None => Ok(()),
        };
        self.let_commands_end();
        released
    }

    /// Lets the supervisors of killed commands record how they ended, before the attempt's own end makes
    /// that impossible. They need milliseconds; an attempt is not held up by one that needs longer.
    fn let_commands_end(&self) {
        for _ in 0..1000 {
            if locked(&self.commands).is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        tracing::warn!(attempt = %self.id(), "commands have not ended with their sandbox");
    }

    fn close(&self, reason: &Failure) -> Option<Box<dyn Sandbox>> {
        self.closing.store(true, Ordering::Release);
        for command in self.commands() {
            command.condemn(reason.clone());
        }
        self.sandbox.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A turn at starting one command.
pub(crate) struct StartingAlone<'a> {
    live: &'a Live,
    exec: ExecId,
}

impl Drop for StartingAlone<'_> {
    fn drop(&mut self) {
        locked(&self.live.starting).remove(&self.exec);
    }
}

/// A sandbox that does not end while this lives.
pub(crate) struct Admitted<'a>(RwLockReadGuard<'a, Option<Box<dyn Sandbox>>>);

impl std::ops::Deref for Admitted<'_> {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().expect("admitted only while it is there")
    }
}
