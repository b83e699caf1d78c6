//! Activation: from a node to a live sandbox, through the queue.
//! Invariants: what an executor cannot honour is refused before anything is recorded; the slot is taken
//! before the lease; an activation that fails leaves a failed attempt and nothing on disk; several
//! clients with one key wait for one attempt, and only when the last of them goes is it cancelled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use esf_control::scheduler::{Needs, Reason, Shed, Stage, Waiting};
use esf_core::environment::ExecutorKind;
use esf_core::manifest::RootPin;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::fail_attempt::FailAttempt;
use esf_core::ops::start::{Start, Started};
use esf_core::ops::{Meta, Reject};
use esf_core::policy::Budgets;
use esf_core::record::{Attempt, Group, Purpose};
use esf_core::state::AttemptStatus;
use esf_core::{AttemptId, Class, FailureClass, GroupId, Problem};
use rustix::event::{PollFd, PollFlags};

use crate::executor::{Activation, Extra, Sandbox};
use crate::logs::failure;
use crate::message::{ActivatePurpose, ActivateRequest, QueueNews, RetryRequest};
use crate::server::connection::{Served, reply};
use crate::server::house::House;
use crate::server::live::Live;
use crate::server::running::{Bell, locked};
use crate::server::{STACK, Starting, State, Worker, handover};
use crate::wire::{Connection, Kind, wait};
use crate::{clock, place};

/// How often a client that waits is told its position.
const NEWS_MS: u64 = 500;

/// Stages of failures before an attempt ever was live.
const QUEUE: &str = "queue";
pub(crate) const ACTIVATE: &str = "activate";
/// The code of a start that came after the attempt's end.
const OVER: &str = "not_active";

/// The code of a sandbox that was not ready within its budget.
const LATE: &str = "prepare_timeout";

/// What a waiting client sees next.
enum Turn {
    /// It is live.
    Live(Arc<Live>),
    /// It is this client's to start.
    Start,
    /// It is being started by another.
    Starting,
    /// So many are before it.
    Wait { before: u64, group: GroupId, reason: Reason },
    /// It will not be started.
    Refused(Shed),
    /// It ended without becoming live.
    Over,
}

/// What is asked for, as far as it decides whether it is let in.
struct Asked {
    needs: Needs,
    executor: ExecutorKind,
    /// Whether it begins something.
    new: bool,
    no_wait: bool,
}

/// How a wait ended.
enum Waited {
    Live(Arc<Live>),
    Over,
    /// The client cancelled it, or is gone.
    Left {
        gone: bool,
    },
}

impl State {
    /// Takes note of a sandbox that was made, or of its place that is free.
    fn made(&mut self, id: AttemptId, made: &Result<Arc<Live>, Problem>) {
        match made {
            Ok(live) => drop(self.live.insert(id, Arc::clone(live))),
            // One that is still being prepared gives its place back when that is over.
            Err(problem) if problem.code == LATE => {}
            Err(_) => drop(self.taken.remove(&id)),
        }
    }
}

impl Worker {
    pub(crate) fn activate(
        self: &Arc<Self>,
        connection: &mut Connection,
        request: &ActivateRequest,
    ) -> Result<Served, Problem> {
        let executor = self.executor(request.environment.executor.as_str())?;
        executor.check(&request.environment, &request.extra).map_err(|error| error.problem())?;
        let meta = clock::meta(&request.meta);
        let node = self.graph().node(request.node).map_err(|error| error.problem())?;
        let group = self.graph().group(node.group_id).map_err(|error| error.problem())?;
        let (purpose, lifetime) = match request.purpose {
            ActivatePurpose::Work => (Purpose::Work, group.policy.lifetime()),
            ActivatePurpose::Evaluate => (Purpose::Evaluate, None),
        };
        let command = Enqueue {
            node: request.node,
            environment: request.environment.clone(),
            purpose,
            lifetime_ms: request.lifetime_ms.or(lifetime),
            on_expiry: request.on_expiry,
            priority: request.priority,
        };
        let asked = Asked {
            needs: House::needs(&request.environment.limits),
            executor: request.environment.executor,
            new: purpose == Purpose::Work,
            no_wait: request.no_wait,
        };
        if self.graph().recorded::<Attempt>(&meta, "enqueue").map_err(|error| error.problem())?.is_none() {
            self.door(&asked, &group)?;
        }
        let attempt = self.graph().enqueue(&meta, command).map_err(|error| error.problem())?;
        self.bring_to_life(connection, &meta, &attempt, &request.extra, request.no_wait)
    }

    /// What is refused before anything of it is recorded.
    fn door(&self, asked: &Asked, group: &Group) -> Result<(), Problem> {
        self.refuse_at_the_door(&asked.needs, asked.new)?;
        if !asked.no_wait {
            return Ok(());
        }
        let waiting = Waiting {
            attempt: AttemptId::from_bytes([0; 16]),
            group: group.group_id,
            batch: None,
            priority: 0,
            stage: if asked.new { Stage::New } else { Stage::Evaluate },
            executor: asked.executor,
            needs: asked.needs,
            root: None,
            queued_at: clock::now(),
        };
        self.refuse_when_full(&waiting, group)
    }

    pub(crate) fn retry(
        self: &Arc<Self>,
        connection: &mut Connection,
        request: &RetryRequest,
    ) -> Result<Served, Problem> {
        let old = self.graph().attempt(request.attempt).map_err(|error| error.problem())?;
        if old.purpose == Purpose::Evaluate {
            return Err(Problem::new(
                Class::Refused,
                "not_supported",
                "an evaluator's run is not retried by itself",
            )
            .remedy("`esf evaluate` its node again"));
        }
        self.executor(old.executor.as_str())?
            .check(&old.environment, &Extra::default())
            .map_err(|error| error.problem())?;
        let meta = clock::meta(&request.meta);
        let asked = Asked {
            needs: House::needs(&old.budget),
            executor: old.executor,
            new: true,
            no_wait: request.no_wait,
        };
        if self.graph().recorded::<Attempt>(&meta, "retry").map_err(|error| error.problem())?.is_none() {
            self.door(&asked, &self.graph().group(old.group_id).map_err(|error| error.problem())?)?;
        }
        let attempt = self.graph().retry(&meta, request.attempt).map_err(|error| error.problem())?;
        self.bring_to_life(connection, &meta, &attempt, &Extra::default(), request.no_wait)
    }

    fn bring_to_life(
        self: &Arc<Self>,
        connection: &mut Connection,
        meta: &Meta,
        attempt: &Attempt,
        extra: &Extra,
        no_wait: bool,
    ) -> Result<Served, Problem> {
        let id = attempt.attempt_id;
        let now = self.graph().attempt(id).map_err(|error| error.problem())?;
        // What the graph said may be older than what is known here.
        if now.status != AttemptStatus::Queued && !locked(&self.state).knows(id) {
            return self.answer_again(meta, id);
        }
        let bell = Arc::new(Bell::new().map_err(|error| failure(&error, "cannot wait"))?);
        self.join_queue(attempt, &bell)?;
        match self.wait_for_turn(connection, meta, attempt, extra, &bell, no_wait) {
            Ok(Waited::Live(live)) => reply(&live.attempt),
            Ok(Waited::Over) => self.answer_again(meta, id),
            Ok(Waited::Left { gone }) => {
                self.leave_queue(id, &bell);
                let problem = Problem::new(Class::Failure, "cancelled", format!("{id} was cancelled"));
                if gone { Ok(Served::Gone) } else { Err(problem) }
            }
            Err(problem) => {
                self.leave_queue(id, &bell);
                Err(problem)
            }
        }
    }

    /// The answer of an activation that others brought to its end: the same as they got.
    fn answer_again(&self, meta: &Meta, id: AttemptId) -> Result<Served, Problem> {
        let attempt = self.graph().attempt(id).map_err(|error| error.problem())?;
        if let Some(failure) = &attempt.failure
            && matches!(failure.stage.as_str(), QUEUE | ACTIVATE)
        {
            let message = format!("{id}: {}", failure.detail);
            return Err(Problem::new(Class::Failure, failure.class.as_str(), message));
        }
        let started = self.graph().recorded::<Started>(&meta.sub("start"), "start");
        match started.map_err(|error| error.problem())? {
            Some(started) => reply(&started.attempt),
            None => reply(&attempt),
        }
    }

    fn join_queue(&self, attempt: &Attempt, bell: &Arc<Bell>) -> Result<(), Problem> {
        let group = self.graph().group(attempt.group_id).map_err(|error| error.problem())?;
        let node = self.graph().node(attempt.node_id).map_err(|error| error.problem())?;
        let id = attempt.attempt_id;
        let mut state = locked(&self.state);
        if state.live.contains_key(&id) {
            return Ok(());
        }
        if state.stopping {
            return Err(Problem::new(Class::Failure, "worker_stopping", "the worker is ending")
                .remedy("repeat the command: it starts another")
                .retryable());
        }
        if let Some(starting) = state.starting.get_mut(&id) {
            starting.bells.push(Arc::clone(bell));
            return Ok(());
        }
        if state.queue.join(id, bell) || state.taken.contains_key(&id) {
            return Ok(());
        }
        self.know(&mut state, &group);
        state.queue.push(Self::waiting(attempt, &node), Arc::clone(bell));
        self.admit(&mut state);
        Ok(())
    }

    fn turn(&self, id: AttemptId) -> Turn {
        let mut state = locked(&self.state);
        if let Some(live) = state.live.get(&id) {
            return Turn::Live(Arc::clone(live));
        }
        if let Some(starting) = state.starting.get_mut(&id) {
            return match std::mem::replace(&mut starting.claimed, true) {
                false => Turn::Start,
                true => Turn::Starting,
            };
        }
        if let Some(refused) = state.refused.get(&id) {
            return Turn::Refused(refused.why);
        }
        match (state.queue.before(id), state.queue.group_of(id)) {
            (Some(before), Some(group)) => Turn::Wait { before, group, reason: state.reason(group) },
            _ => Turn::Over,
        }
    }

    /// Records that an attempt was refused while it waited, and says why; the last to be told forgets it.
    fn refused(&self, id: AttemptId, why: Shed, bell: &Bell) -> Problem {
        let problem = self.refusal(why);
        self.end_queued(id, FailureClass::Quota, &format!("{}: {}", problem.code, problem.message));
        let mut state = locked(&self.state);
        let left = state.refused.get_mut(&id).map(|refused| {
            refused.bells.retain(|other| !std::ptr::eq(Arc::as_ptr(other), bell));
            refused.bells.len()
        });
        if left == Some(0) {
            state.refused.remove(&id);
        }
        problem
    }

    fn wait_for_turn(
        self: &Arc<Self>,
        connection: &mut Connection,
        meta: &Meta,
        attempt: &Attempt,
        extra: &Extra,
        bell: &Bell,
        no_wait: bool,
    ) -> Result<Waited, Problem> {
        let mut told = None;
        loop {
            bell.silence();
            match self.turn(attempt.attempt_id) {
                Turn::Live(live) => return Ok(Waited::Live(live)),
                Turn::Over => return Ok(Waited::Over),
                Turn::Refused(why) => return Err(self.refused(attempt.attempt_id, why, bell)),
                Turn::Starting => {}
                Turn::Start => match self.start(meta, attempt, extra) {
                    Err(problem) if problem.code == "quota" => {
                        self.back_to_queue(attempt.attempt_id);
                        if no_wait {
                            return Err(problem);
                        }
                        // The graph counts one more than we do, until its end is committed.
                        std::thread::sleep(Duration::from_millis(20));
                        self.admit(&mut locked(&self.state));
                        continue;
                    }
                    Err(problem) if problem.code == OVER => return Ok(Waited::Over),
                    started => return started.map(Waited::Live),
                },
                Turn::Wait { group, reason, .. } if no_wait => {
                    return Err(self.no_room(&locked(&self.state), group, reason));
                }
                Turn::Wait { before, reason, .. } => {
                    if told != Some((before, reason)) {
                        told = Some((before, reason));
                        let news = QueueNews { before, reason: reason.as_str().to_owned() };
                        if connection.send_json(Kind::Queued, &news).is_err() {
                            return Ok(Waited::Left { gone: true });
                        }
                    }
                }
            }
            let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::new(connection.stream(), PollFlags::IN)];
            wait(&mut fds, Some(NEWS_MS)).map_err(|error| failure(&error, "cannot wait"))?;
            match connection.try_read() {
                Ok(Some(frame)) if frame.kind == Kind::Cancel => return Ok(Waited::Left { gone: false }),
                Ok(_) if !connection.ended() => {}
                Ok(_) | Err(_) => return Ok(Waited::Left { gone: true }),
            }
        }
    }

    /// Puts an admitted attempt back at the head of the queue.
    fn back_to_queue(&self, id: AttemptId) {
        let mut state = locked(&self.state);
        if let Some(Starting { waiting, bells, .. }) = state.starting.remove(&id) {
            state.taken.remove(&id);
            state.queue.put_back(waiting, bells);
        }
    }

    /// Takes one client out of the wait; the last one to go takes the attempt along.
    fn leave_queue(&self, id: AttemptId, bell: &Arc<Bell>) {
        if self.leave(id, bell) {
            self.give_up(id, "cancelled while it waited");
        }
    }

    /// Ends a queued attempt for which nobody waits.
    pub(crate) fn give_up(&self, id: AttemptId, why: &str) {
        self.end_queued(id, FailureClass::Cancelled, why);
    }

    fn end_queued(&self, id: AttemptId, class: FailureClass, why: &str) {
        self.failures.count(class);
        let meta = clock::own_meta(format!("give-up/{id}"));
        let command = fail(id, None, class, QUEUE, why, false);
        if let Err(error) = self.graph().fail_attempt(&meta, command) {
            tracing::warn!(attempt = %id, %error, "cannot record that a queued attempt was given up");
        }
    }

    /// Starts an admitted attempt; its slot is given back when that fails.
    fn start(self: &Arc<Self>, meta: &Meta, attempt: &Attempt, extra: &Extra) -> Result<Arc<Live>, Problem> {
        let id = attempt.attempt_id;
        let started = self.start_in_slot(meta, attempt, extra);
        if started.as_ref().is_err_and(|problem| problem.code == "quota") {
            return started;
        }
        let mut state = locked(&self.state);
        let slot = state.starting.remove(&id);
        state.made(id, &started);
        self.admit(&mut state);
        drop(state);
        slot.iter().flat_map(|slot| &slot.bells).for_each(|bell| bell.ring());
        self.keeper.ring();
        started
    }

    fn start_command(&self, attempt: AttemptId) -> Start {
        Start { attempt, worker: self.id, lease_ms: self.config.lease_ms }
    }

    fn start_in_slot(
        self: &Arc<Self>,
        meta: &Meta,
        attempt: &Attempt,
        extra: &Extra,
    ) -> Result<Arc<Live>, Problem> {
        let id = attempt.attempt_id;
        let begun = Instant::now();
        let start = self.start_command(id);
        let started = self.graph().start(&meta.sub("start"), start).map_err(|error| match error {
            esf_graph::Error::Rejected(Reject::IllegalStep(step)) => {
                Problem::new(Class::Conflict, OVER, format!("{id}: {step}"))
            }
            error => error.problem(),
        })?;
        let epoch = started.attempt.lease_epoch;
        // A repetition gets the stored answer; it must not bring to life what has ended since.
        let now = self.graph().attempt(id).map_err(|error| error.problem())?;
        if now.status != AttemptStatus::Active || now.lease_epoch != epoch {
            let message = format!("{id} is {}", now.status.as_str());
            return Err(Problem::new(Class::Conflict, OVER, message));
        }
        self.enliven(meta, &started, begun, extra)
    }

    /// Makes the sandbox of an attempt that is active by its record; one that cannot be made fails.
    fn enliven(
        self: &Arc<Self>,
        meta: &Meta,
        started: &Started,
        begun: Instant,
        extra: &Extra,
    ) -> Result<Arc<Live>, Problem> {
        let (id, epoch) = (started.attempt.attempt_id, started.attempt.lease_epoch);
        let deadline = started.attempt.lifetime_ms.map(|millis| begun + Duration::from_millis(millis));
        let base = self.base_of(&started.attempt);
        let root = base.as_ref().ok().map(|base| base.root);
        let made =
            base.and_then(|base| self.make_in_time(&started.attempt, base, extra)).and_then(|sandbox| {
                Live::new(started.attempt.clone(), started.lease.lease_id, deadline, root, sandbox)
                    .map_err(|error| failure(&error, "cannot watch the sandbox"))
            });
        match made {
            Ok(live) => Ok(Arc::new(live)),
            Err(problem) => {
                let class = FailureClass::InfraPrepare;
                let failed = fail(id, Some(epoch), class, ACTIVATE, &problem.message, false);
                let failed = self.graph().fail_attempt(&meta.sub("failed"), failed);
                if let Err(error) = &failed {
                    tracing::error!(attempt = %id, %error, "cannot record a failed activation");
                }
                self.failures.count(class);
                if problem.code != LATE {
                    self.discard(id);
                }
                Err(problem)
            }
        }
    }

    /// Brings to life the attempt in which sealed work goes on, in the place of `before`, whatever waits. When it
    /// cannot be made it has failed, and its place is free.
    pub(crate) fn go_on(self: &Arc<Self>, meta: &Meta, before: AttemptId, started: &Started) {
        let id = started.attempt.attempt_id;
        {
            let mut state = locked(&self.state);
            if let Some(place) = state.taken.remove(&before) {
                state.taken.insert(id, place);
            }
        }
        let made = self.enliven(meta, started, Instant::now(), &Extra::default());
        locked(&self.state).made(id, &made);
        if let Err(problem) = made {
            tracing::warn!(attempt = %id, %problem.message, "sealed work could not go on");
        }
    }

    fn discard(&self, id: AttemptId) {
        if let Err(error) = self.stack().discard_workspace(id) {
            tracing::error!(attempt = %id, %error, "cannot discard the workspace of a failed activation");
        }
    }

    /// Makes the sandbox within the group's budget. One that comes later is taken down again.
    fn make_in_time(
        self: &Arc<Self>,
        attempt: &Attempt,
        base: RootPin,
        extra: &Extra,
    ) -> Result<Box<dyn Sandbox>, Problem> {
        let id = attempt.attempt_id;
        let budget = {
            let state = locked(&self.state);
            let known = state.groups.get(&attempt.group_id);
            Duration::from_millis(known.map_or_else(Budgets::default, |known| known.budgets).prepare.0)
        };
        let (worker, own, more) = (Arc::clone(self), attempt.clone(), extra.clone());
        let make = move || worker.make(&own, base, &more);
        let worker = Arc::clone(self);
        let late = move |made: Option<Result<Box<dyn Sandbox>, Problem>>| {
            let sandbox = made.and_then(Result::ok);
            if let Some(Err(error)) = sandbox.map(|sandbox| sandbox.release()) {
                tracing::warn!(attempt = %id, %error, "a sandbox that came too late did not go down cleanly");
            }
            worker.discard(id);
            worker.forget(id);
        };
        let made = handover::within("activation", STACK, budget, make, late);
        made.map_err(|error| failure(&error, "cannot start the activation"))?.unwrap_or_else(|| {
            let message = format!("the sandbox was not ready within {} ms", budget.as_millis());
            Err(Problem::new(Class::Failure, LATE, message)
                .expected("an activation within the group's budget `prepare`")
                .remedy("try again, or give the group's policy a larger budget")
                .retryable())
        })
    }

    fn make(&self, attempt: &Attempt, base: RootPin, extra: &Extra) -> Result<Box<dyn Sandbox>, Problem> {
        let workspace =
            self.stack().open_workspace(&base, attempt.attempt_id).map_err(|error| error.problem())?;
        let logs = place::logs(&self.directory, attempt.attempt_id);
        std::fs::create_dir_all(&logs)
            .map_err(|error| failure(&error, "cannot make the directory of logs"))?;
        let activation = Activation {
            attempt: attempt.attempt_id,
            workspace: &workspace,
            environment: &attempt.environment,
            extra,
        };
        let executor = self.executor(attempt.executor.as_str())?;
        executor.activate(activation).map_err(|error| error.problem())
    }

    /// The root an attempt starts from: its draft's base, or the sealed node's own.
    pub(crate) fn base_of(&self, attempt: &Attempt) -> Result<RootPin, Problem> {
        let node = self.graph().node(attempt.node_id).map_err(|error| error.problem())?;
        let base = if attempt.purpose.has_draft() { node.base_root() } else { node.root() };
        base.ok_or_else(|| {
            Problem::new(Class::Conflict, "not_sealed", format!("{} has no root to start from", node.node_id))
        })
    }
}

/// A failed attempt, as the graph is told.
pub(crate) fn fail(
    attempt: AttemptId,
    epoch: Option<u64>,
    class: FailureClass,
    stage: &str,
    detail: &str,
    delta_kept: bool,
) -> FailAttempt {
    FailAttempt { attempt, epoch, class, stage: stage.to_owned(), detail: detail.to_owned(), delta_kept }
}

pub(super) fn full(whose: &str, quota: &'static str, used: u64, limit: u64) -> Problem {
    let mut problem = Reject::Quota { quota, used, limit }.problem();
    problem.message = format!("{whose} has no room for another live attempt");
    problem.remedy("wait for one to end, or leave out --no-wait")
}
