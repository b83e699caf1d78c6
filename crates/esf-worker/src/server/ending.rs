//! The ends of a live attempt: sealed, released, expired, died, stopped. One at a time for each attempt.
//! Invariants: a seal begins only when nothing can write any more, and that is proven; a seal that fails
//! keeps the delta and may be tried again with the same key; unsealed changes are given up only when
//! somebody said so; whatever happens in between, recovery finds enough to go on.

use std::sync::Arc;

use esf_core::digest::RequestDigest;
use esf_core::ops::Meta;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::{CommitSeal, Keep, Outcome, SealReply};
use esf_core::ops::release_attempt::ReleaseAttempt;
use esf_core::policy::OnExpiry;
use esf_core::record::{Attempt, Changed, Failure, Json, LogicalState};
use esf_core::state::AttemptStatus;
use esf_core::{AttemptId, Class, FailureClass, Problem, canonical};
use esf_layerstack::{Changes, SealRequest, SealState};
use serde_json::json;

use crate::clock;
use crate::message::{ChangedSummary, RequestMeta, SuspendReply, SuspendRequest};
use crate::server::Worker;
use crate::server::activate::{ACTIVATE, fail};
use crate::server::live::{Live, Stage};
use crate::server::running::locked;

/// Why the worker itself ended an attempt at the end of its lifetime.
const EXPIRED: &str = "lease_expired";

/// How a node is to be sealed.
pub(crate) struct Sealing<'a> {
    pub(crate) terminal: bool,
    pub(crate) state: Option<&'a Json>,
    pub(crate) message: Option<String>,
    pub(crate) reason: Option<String>,
    /// Whether the work goes on in a new attempt on the new node.
    pub(crate) keep: bool,
}

/// Which upper goes into which attempt's node.
pub(crate) struct Target<'a> {
    /// The attempt that is sealed.
    pub(crate) attempt: &'a Attempt,
    /// The attempt whose upper it is: another one only for a salvage.
    pub(crate) upper_of: AttemptId,
    pub(crate) epoch: u64,
}

impl Worker {
    pub(crate) fn suspend(self: &Arc<Self>, request: &SuspendRequest) -> Result<SuspendReply, Problem> {
        let meta = clock::meta(&request.meta);
        let sealing = Sealing {
            terminal: request.terminal,
            state: request.state.as_ref(),
            message: request.message.clone(),
            reason: None,
            keep: request.keep,
        };
        if request.keep && request.terminal {
            return Err(Problem::new(Class::Usage, "bad_option", "nothing goes on from a terminal node")
                .expected("--keep or --terminal")
                .found("both"));
        }
        // A seal that goes on is answered when the next attempt lives, however often it is asked for.
        if request.keep
            && let Some(live) = self.live(request.attempt)
        {
            drop(locked(&live.ending));
        }
        if let Some(reply) = self.sealed_before(request.attempt, &meta, &sealing)? {
            return Ok(reply);
        }
        match self.live(request.attempt) {
            // What is said of the node is a change as well.
            Some(live) if request.keep && request.if_changed && request.state.is_none() => {
                match self.unchanged(&live)? {
                    Some(reply) => Ok(reply),
                    None => self.seal_live(&live, &meta, &sealing),
                }
            }
            Some(live) => self.seal_live(&live, &meta, &sealing),
            None if request.keep => Err(self.live_or_problem(request.attempt).err().unwrap_or_else(|| {
                Problem::new(Class::Conflict, "not_active", "it came to life this moment").retryable()
            })),
            None => self.salvage(request.attempt, &meta, &sealing),
        }
    }

    /// The answer where nothing has changed since the node on which a live attempt began: it stays as it is.
    fn unchanged(&self, live: &Live) -> Result<Option<SuspendReply>, Problem> {
        let stage = locked(&live.ending);
        if *stage != Stage::Open || self.unsealed(live.id(), false)? > 0 {
            return Ok(None);
        }
        let draft = self.graph().node(live.attempt.node_id).map_err(|error| error.problem())?;
        // A draft of a merge is not its parent's tree.
        let [parent] = &draft.parents[..] else { return Ok(None) };
        let node = self.graph().node(*parent).map_err(|error| error.problem())?;
        if node.root() != draft.base_root() {
            return Ok(None);
        }
        let attempt = Some(live.attempt.clone());
        Ok(Some(SuspendReply { node, changed: ChangedSummary::default(), attempt }))
    }

    /// The reply of a seal that was committed under this key before; refused when it was another request.
    fn sealed_before(
        &self,
        upper_of: AttemptId,
        meta: &Meta,
        sealing: &Sealing<'_>,
    ) -> Result<Option<SuspendReply>, Problem> {
        match self.graph().recorded::<Outcome>(meta, "commit_seal").map_err(|error| error.problem())? {
            None => Ok(None),
            Some(Outcome::Sealed(reply)) => {
                let asked = seal_digest(upper_of, sealing).to_string();
                match reply.node.provenance["request_digest"].as_str() {
                    Some(before) if before != asked => Err(another_request(&meta.key, before, &asked)),
                    _ => {
                        let reply = told(*reply);
                        // As it was told the first time: one that never lived had failed by then.
                        let next = reply.attempt.as_ref().map(|next| self.graph().attempt(next.attempt_id));
                        match next.transpose().map_err(|error| error.problem())? {
                            Some(now) if never_lived(&now) => {
                                Ok(Some(SuspendReply { attempt: Some(now), ..reply }))
                            }
                            Some(_) | None => Ok(Some(reply)),
                        }
                    }
                }
            }
            Some(Outcome::Stale { attempt, .. }) => Err(stale(&attempt)),
        }
    }

    fn seal_live(
        self: &Arc<Self>,
        live: &Arc<Live>,
        meta: &Meta,
        sealing: &Sealing<'_>,
    ) -> Result<SuspendReply, Problem> {
        let mut stage = locked(&live.ending);
        if *stage == Stage::Ended {
            drop(stage);
            // Somebody else ended it while this waited for its turn; with the same key, by the same seal.
            return match self.sealed_before(live.id(), meta, sealing)? {
                Some(reply) => Ok(reply),
                None if sealing.keep => Err(self.live_or_problem(live.id()).err().unwrap_or_else(|| {
                    Problem::new(Class::Conflict, "not_active", format!("{} has ended", live.id()))
                })),
                // It was lost meanwhile, perhaps: then its delta is what is to be sealed.
                None => self.salvage(live.id(), meta, sealing),
            };
        }
        if !live.attempt.purpose.has_draft() {
            return Err(Problem::new(Class::Conflict, "no_draft", "an evaluator's run has nothing to seal")
                .remedy("release it"));
        }
        if *stage == Stage::Open {
            self.bring_to_rest(live, meta, &mut stage)?;
        }
        let target = Target { attempt: &live.attempt, upper_of: live.id(), epoch: live.epoch };
        let sealed = self.seal(&target, meta, sealing).map(|reply| {
            if let Some(next) = &reply.next {
                // Still alone: who asks the same at the same time finds the next attempt alive.
                self.go_on(&meta.sub("next"), live.id(), next);
            }
            self.told(reply)
        });
        if sealed.is_ok() || sealed.as_ref().is_err_and(is_over) {
            *stage = Stage::Ended;
            drop(stage);
            self.forget(live.id());
        }
        sealed
    }

    /// Quiesces; an attempt that cannot be brought to rest fails and keeps its delta.
    fn bring_to_rest(&self, live: &Live, meta: &Meta, stage: &mut Stage) -> Result<(), Problem> {
        let begin = BeginQuiesce { attempt: live.id(), epoch: live.epoch };
        self.graph().begin_quiesce(&meta.sub("quiesce"), begin).map_err(|error| error.problem())?;
        let reason = Failure::new(FailureClass::Cancelled, "seal", "the attempt was sealed while it ran");
        if let Err(error) = live.quiesce(&reason) {
            self.lose(live, stage, "quiesce", &error.to_string());
            return Err(error.problem());
        }
        *stage = Stage::Quiesced;
        Ok(())
    }

    /// Seals an upper into which nothing can write any more, and commits the node.
    pub(crate) fn seal(
        &self,
        target: &Target<'_>,
        meta: &Meta,
        sealing: &Sealing<'_>,
    ) -> Result<SealReply, Problem> {
        let attempt = target.attempt;
        let state = sealing.state.map(LogicalState::new).transpose();
        let state =
            state.map_err(|error| Problem::new(Class::Usage, "state_too_large", error.to_string()))?;
        let base = self.base_of(attempt)?;
        let group = self.graph().group(attempt.group_id).map_err(|error| error.problem())?;
        let request = SealRequest {
            attempt: target.upper_of,
            base,
            request_digest: seal_digest(target.upper_of, sealing),
            key: meta.key.clone(),
            durability: group.policy.durability,
        };
        let prepared = self.stack().seal(&request, &()).map_err(|error| {
            self.abandon_intent(target.upper_of);
            error.problem()
        })?;
        let changes = prepared.changes().clone();
        let commit = CommitSeal {
            attempt: attempt.attempt_id,
            epoch: target.epoch,
            terminal: sealing.terminal,
            state,
            message: sealing.message.clone(),
            result: json!({ "skipped": skipped(&changes) }),
            provenance: self.provenance(target, &request.request_digest, &changes),
            changed: Changed {
                added: changes.added,
                modified: changes.modified,
                deleted: changes.deleted,
                bytes: changes.bytes,
            },
            reason: sealing.reason.clone(),
            statement_digest: None,
            keep: sealing.keep.then_some(Keep { worker: self.id, lease_ms: self.config.lease_ms }),
        };
        let committed = self.graph().commit_seal(meta, commit, prepared.sealed());
        if matches!(committed, Err(esf_graph::Error::Closed | esf_graph::Error::Database(_))) {
            // Nobody knows whether it is committed; the same request resumes, or recovery asks the graph.
            return committed.map_err(|error| error.problem());
        }
        if let Err(error) = self.stack().settle_seal(prepared, committed.is_ok()) {
            // What is left on disk is settled by the next recovery.
            tracing::warn!(attempt = %attempt.attempt_id, %error, "a seal is not yet settled");
        }
        committed.map_err(|error| error.problem())
    }

    /// A seal as its caller is told of it; the attempt in which the work goes on as it is now.
    pub(crate) fn told(&self, reply: SealReply) -> SuspendReply {
        let reply = told(reply);
        let attempt = reply.attempt.map(|next| self.graph().attempt(next.attempt_id).unwrap_or(next));
        SuspendReply { attempt, ..reply }
    }

    /// Forgets a seal that failed before it was prepared, so that any request may seal anew.
    fn abandon_intent(&self, upper_of: AttemptId) {
        let unsettled = self.stack().unsettled_seals().unwrap_or_default();
        let intents =
            unsettled.iter().filter(|seal| seal.attempt == upper_of && seal.state == SealState::Intent);
        for seal in intents {
            if let Err(error) = self.stack().settle_unsettled(seal.txn, false) {
                tracing::warn!(attempt = %upper_of, %error, "a failed seal is not yet forgotten");
            }
        }
    }

    /// Where a tree comes from, as its node records it.
    fn provenance(&self, target: &Target<'_>, asked: &RequestDigest, changes: &Changes) -> Json {
        let attempt = target.attempt;
        let mut provenance = json!({
            "attempt_id": attempt.attempt_id,
            "node_id": attempt.node_id,
            "delta_of": target.upper_of,
            "request_digest": asked,
            "executor": attempt.executor,
            "environment_digest": attempt.environment_digest,
            "lease_id": attempt.lease_id,
            "lease_epoch": target.epoch,
            "worker_id": self.id,
            "builder": concat!("esf ", env!("CARGO_PKG_VERSION")),
            "skipped": skipped(changes),
        });
        if let Some(wasi) = &attempt.environment.wasi {
            provenance["wasi"] = json!({ "engine": wasi.engine, "modules": wasi.modules });
        }
        provenance
    }

    pub(crate) fn release(
        &self,
        request: &RequestMeta,
        attempt: AttemptId,
        discard: bool,
    ) -> Result<Attempt, Problem> {
        let meta = clock::meta(request);
        match self.live(attempt) {
            Some(live) => self.release_live(&live, &meta, discard, None),
            None => self.release_settled(attempt, &meta, discard),
        }
    }

    /// An attempt that is not live here: queued, failed with its delta, or over.
    fn release_settled(&self, id: AttemptId, meta: &Meta, discard: bool) -> Result<Attempt, Problem> {
        let attempt = self.graph().attempt(id).map_err(|error| error.problem())?;
        if attempt.status == AttemptStatus::Queued {
            let mut state = locked(&self.state);
            let bells = state.queue.take(id).map(|(_, bells)| bells);
            drop(state);
            bells.iter().flatten().for_each(|bell| bell.ring());
        }
        let kept = self.stack().existing_workspace(id).map_err(|error| error.problem())?.is_some();
        let unsealed = if kept && attempt.purpose.has_draft() { self.unsealed(id, discard)? } else { 0 };
        let command = ReleaseAttempt { attempt: id, epoch: None, unsealed, discard, reason: None };
        let released = self.graph().release_attempt(meta, command).map_err(|error| error.problem())?;
        // Also when no upper was found: a worker that was killed early may have left half a workspace.
        self.stack().discard_workspace(id).map_err(|error| error.problem())?;
        Ok(released)
    }

    fn release_live(
        &self,
        live: &Arc<Live>,
        meta: &Meta,
        discard: bool,
        reason: Option<&str>,
    ) -> Result<Attempt, Problem> {
        let mut stage = locked(&live.ending);
        if *stage == Stage::Ended {
            drop(stage);
            return self.release_settled(live.id(), meta, discard);
        }
        let id = live.id();
        let guarded = live.attempt.purpose.has_draft() && !discard;
        if guarded {
            // Counted before anything is taken down, so that a refusal leaves the attempt as it was.
            let unsealed = self.unsealed(id, false)?;
            if unsealed > 0 {
                return Err(
                    esf_core::ops::Reject::UnsealedChanges { count: unsealed, attempts: vec![id] }.problem()
                );
            }
        }
        let why = Failure::new(FailureClass::Cancelled, "release", "the attempt was released while it ran");
        if let Err(error) = live.destroy(&why) {
            tracing::warn!(attempt = %id, %error, "a sandbox did not go down cleanly");
        }
        *stage = Stage::Quiesced;
        let unsealed = if live.attempt.purpose.has_draft() { self.unsealed(id, discard)? } else { 0 };
        if guarded && unsealed > 0 {
            // Written between the count and the kill: nobody gave that up.
            self.lose(live, &mut stage, "release", "it had unsealed changes after all, which are kept");
            return Err(
                esf_core::ops::Reject::UnsealedChanges { count: unsealed, attempts: vec![id] }.problem()
            );
        }
        let reason = reason.map(str::to_owned);
        let command = ReleaseAttempt { attempt: id, epoch: Some(live.epoch), unsealed, discard, reason };
        let released = self.graph().release_attempt(meta, command).map_err(|error| error.problem())?;
        *stage = Stage::Ended;
        // Still alone: who asks the same at the same time finds all of it done.
        let discarded = self.stack().discard_workspace(id).map_err(|error| error.problem());
        drop(stage);
        self.forget(id);
        discarded.map(|()| released)
    }

    /// How many changes an upper has. When they are given up anyway, one that cannot be counted counts
    /// as one.
    fn unsealed(&self, attempt: AttemptId, discard: bool) -> Result<u64, Problem> {
        match self.stack().changed(attempt) {
            Ok(changed) => Ok(changed.count()),
            Err(error) if discard => {
                tracing::warn!(%attempt, %error, "discarding changes that cannot be counted");
                Ok(1)
            }
            Err(error) => Err(error.problem()),
        }
    }

    /// Its lifetime is over: the worker itself seals or discards, and the record says why.
    pub(crate) fn expire(self: &Arc<Self>, live: &Arc<Live>) {
        let id = live.id();
        let key = format!("lifetime/{id}");
        let done = match (live.attempt.purpose.has_draft(), live.attempt.on_expiry) {
            (true, OnExpiry::Seal) => {
                let sealing = Sealing {
                    terminal: false,
                    state: None,
                    message: Some("sealed at the end of its lifetime".to_owned()),
                    reason: Some(EXPIRED.to_owned()),
                    keep: false,
                };
                self.seal_live(live, &clock::own_meta(key), &sealing).map(drop)
            }
            (true, OnExpiry::Discard) | (false, OnExpiry::Seal | OnExpiry::Discard) => {
                self.release_live(live, &clock::own_meta(key), true, Some(EXPIRED)).map(drop)
            }
        };
        match done {
            Ok(()) => tracing::info!(attempt = %id, "its lifetime is over"),
            Err(problem) => {
                tracing::error!(attempt = %id, %problem, "its lifetime is over, but it did not end")
            }
        }
    }

    /// Its sandbox died, or its lease was taken: it fails and keeps its delta; one that waits at rest for
    /// another try of its seal only when `at_rest` says so.
    pub(crate) fn lost(&self, live: &Arc<Live>, what: &str, at_rest: bool) {
        let mut stage = locked(&live.ending);
        match *stage {
            Stage::Open => self.lose(live, &mut stage, "active", what),
            Stage::Quiesced if at_rest => self.lose(live, &mut stage, "seal", what),
            Stage::Quiesced | Stage::Ended => {}
        }
    }

    /// Ends a live attempt that is not wanted any more; what it has not sealed is kept until it is released.
    /// False when it had ended already.
    pub(crate) fn call_off(&self, live: &Arc<Live>, class: FailureClass, what: &str) -> bool {
        let mut stage = locked(&live.ending);
        let ends = *stage != Stage::Ended;
        if ends {
            self.fail_live(live, &mut stage, class, "cancel", what);
        }
        ends
    }

    /// Ends a live attempt as `infra_lost`; its delta is kept for a salvage.
    fn lose(&self, live: &Live, stage: &mut Stage, at: &str, what: &str) {
        let oom = live.limits_hit().oom;
        let class = if oom { FailureClass::UserOom } else { FailureClass::InfraLost };
        self.fail_live(live, stage, class, at, what);
    }

    fn fail_live(&self, live: &Live, stage: &mut Stage, class: FailureClass, at: &str, what: &str) {
        let id = live.id();
        self.failures.count(class);
        if let Err(error) = live.destroy(&Failure::new(class, at, what)) {
            tracing::warn!(attempt = %id, %error, "a lost sandbox did not go down cleanly");
        }
        let kept = live.attempt.purpose.has_draft();
        let command = fail(id, Some(live.epoch), class, at, what, kept);
        if let Err(error) = self.graph().fail_attempt(&clock::own_meta(format!("lost/{id}")), command) {
            // Fenced: somebody else has recorded its end already.
            tracing::warn!(attempt = %id, %error, "cannot record that an attempt was lost");
        }
        if !kept && let Err(error) = self.stack().discard_workspace(id) {
            tracing::warn!(attempt = %id, %error, "cannot discard the workspace of a lost run");
        }
        *stage = Stage::Ended;
        self.forget(id);
    }

    /// Ends the worker. Live attempts make it refuse, or end `infra_lost` with their deltas kept.
    pub(crate) fn stop(&self, force: bool) -> Result<(), Problem> {
        let queue = {
            let mut state = locked(&self.state);
            let idle = state.live.is_empty() && state.starting.is_empty() && state.queue.is_empty();
            if !idle && !force {
                let ids: Vec<String> = state.live.keys().map(ToString::to_string).collect();
                return Err(Problem::new(Class::Conflict, "worker_busy", "the worker has live attempts")
                    .found(format!("{} live, {} waiting", ids.len(), state.queue.len()))
                    .remedy("suspend or release them first, or force it: they end infra_lost and keep their deltas")
                    .context(json!({ "attempts": ids })));
            }
            state.stopping = true;
            state.queue.take_all(None)
        };
        for (attempt, bells) in queue {
            self.give_up(attempt, "the worker was stopped while it waited");
            bells.iter().for_each(|bell| bell.ring());
        }
        // What lives, and what is just being started, is ended by the keeper.
        self.keeper.ring();
        Ok(())
    }
}

fn seal_digest(upper_of: AttemptId, sealing: &Sealing<'_>) -> RequestDigest {
    let mut body = json!({
        "attempt": upper_of,
        "terminal": sealing.terminal,
        "state": sealing.state,
        "message": sealing.message,
    });
    if sealing.keep {
        body["keep"] = true.into();
    }
    RequestDigest::new(canonical::digest("esf suspend request v1", &body))
}

fn never_lived(attempt: &Attempt) -> bool {
    attempt.failure.as_ref().is_some_and(|failure| failure.stage == ACTIVATE)
}

fn told(reply: SealReply) -> SuspendReply {
    let skipped = reply.node.result.get("skipped").cloned().unwrap_or_default();
    let changed = ChangedSummary {
        added: reply.changed.added,
        modified: reply.changed.modified,
        deleted: reply.changed.deleted,
        bytes: reply.changed.bytes,
        // Written by `seal` above as a list of texts.
        skipped: serde_json::from_value(skipped).unwrap_or_default(),
    };
    SuspendReply { node: reply.node, changed, attempt: reply.next.map(|next| next.attempt) }
}

/// What was left out, as text: path and reason.
fn skipped(changes: &Changes) -> Vec<String> {
    let line = |(path, reason): &(Vec<u8>, String)| format!("{}: {reason}", path.escape_ascii());
    changes.skipped.iter().map(line).collect()
}

fn another_request(key: &str, before: &str, asked: &str) -> Problem {
    let message = format!("the idempotency key {key:?} was used for another suspend request");
    Problem::new(Class::Conflict, "idempotency_conflict", message)
        .expected(before)
        .found(asked)
        .remedy("use another idempotency key for another request")
}

fn stale(attempt: &Attempt) -> Problem {
    let detail = attempt.failure.as_ref().map_or("", |failure| &failure.detail);
    Problem::new(Class::Conflict, "stale", format!("{} came too late: {detail}", attempt.attempt_id))
        .expected("a draft that is not sealed yet")
        .remedy("its delta is kept until it is released; fork the sealed node to go on")
}

/// Whether a refused seal ended the attempt: it lost the race, or its lease.
fn is_over(problem: &Problem) -> bool {
    matches!(problem.code.as_str(), "stale" | "lease_fenced")
}
