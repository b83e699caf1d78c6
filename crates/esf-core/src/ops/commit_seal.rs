//! `commit_seal`: the commit point of a seal (design section 3, step 6). Invariant: root, logical state,
//! provenance and result appear together with the attempt's end, or not at all; the first seal of a
//! draft wins, and a later one ends `failed(stale)` and keeps its delta. One that goes on opens the next
//! attempt, on a draft of the new node, in the same decision: it takes over the place of the one that ends.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::failure::FailureClass;
use crate::id::{AttemptId, WorkerId};
use crate::manifest::RootPin;
use crate::ops::begin_quiesce::fence;
use crate::ops::start::{self, Start, Started};
use crate::ops::{Change, Decision, Reject, Request, Transition, fork};
use crate::policy::Policy;
use crate::record::{
    Attempt, Changed, EventKind, Exec, Failure, Json, Lease, LeaseStatus, LogicalState, Node, PrivateDelta,
    Purpose,
};
use crate::state::{AttemptStatus, AttemptStep, IllegalStep, NodeStatus, NodeStep};
use crate::time::Timestamp;

/// What is asked for; the root comes with its proof.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommitSeal {
    /// The quiescing attempt.
    pub attempt: AttemptId,
    /// The epoch of its lease.
    pub epoch: u64,
    /// Whether the node ends here.
    pub terminal: bool,
    /// The logical state; the parent's when absent.
    pub state: Option<LogicalState>,
    /// What the sealer says about it.
    pub message: Option<String>,
    /// What the attempt reported.
    pub result: Json,
    /// Where the tree comes from.
    pub provenance: Json,
    /// What changed against the base.
    pub changed: Changed,
    /// Why it was sealed when nobody asked, such as `lease_expired`.
    pub reason: Option<String>,
    /// Digest of the signed statement, once there is one.
    pub statement_digest: Option<Digest>,
    /// Goes on in a new attempt on the new node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
}

/// Who holds the attempt in which the work goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Keep {
    /// The worker that held the one before.
    pub worker: WorkerId,
    /// For how many milliseconds, unless renewed.
    pub lease_ms: u64,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The attempt.
    pub attempt: Attempt,
    /// Its node.
    pub node: Node,
    /// Its lease.
    pub lease: Option<Lease>,
    /// Its execs that have no outcome yet.
    pub running: Vec<Exec>,
    /// The attempt that a salvage salvages.
    pub salvaged: Option<Attempt>,
}

/// The sealed node and the attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SealReply {
    /// The node.
    pub node: Node,
    /// The attempt.
    pub attempt: Attempt,
    /// What changed against the base.
    pub changed: Changed,
    /// The attempt in which the work goes on, with its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Box<Started>>,
}

/// What became of a seal; both are committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The draft is sealed.
    Sealed(Box<SealReply>),
    /// The node was not a draft any more; the attempt failed as stale.
    Stale {
        /// The failed attempt.
        attempt: Box<Attempt>,
        /// What the node was.
        status: NodeStatus,
    },
}

/// Decides.
///
/// # Errors
/// `LeaseFenced`, `IllegalStep`, `Terminal` for a terminal node that is to be gone on from. A seal that came too late is a decision and not an error.
pub fn decide(
    snapshot: &Snapshot,
    command: &CommitSeal,
    root: RootPin,
    request: &Request<'_>,
) -> Result<Decision<Outcome>, Reject> {
    fence(&snapshot.attempt, Some(command.epoch))?;
    if !snapshot.attempt.purpose.has_draft() {
        return Err(IllegalStep { machine: "attempt", from: "evaluating", step: "seal" }.into());
    }
    if snapshot.node.status != NodeStatus::Draft {
        return stale(snapshot, request);
    }
    let now = request.meta.now;
    let mut node = snapshot.node.clone();
    node.take(NodeStep::Seal { root, terminal: command.terminal }, now)?;
    let mut attempt = snapshot.attempt.clone();
    attempt.take(AttemptStep::Seal, now)?;
    if let Some(state) = &command.state {
        node.state_id = state.id();
        node.logical_state = state.clone();
    }
    node.attempt_id = Some(attempt.attempt_id);
    node.message.clone_from(&command.message);
    node.result = command.result.clone();
    node.provenance = command.provenance.clone();
    node.changed = Some(command.changed);
    node.statement_digest = command.statement_digest;

    let reason = command.reason.as_ref().map_or(Json::Null, |reason| serde_json::json!({ "reason": reason }));
    let kind = if command.terminal { EventKind::NodeTerminal } else { EventKind::NodeSealed };
    let sealed = Transition { lease_id: attempt.lease_id, ..Transition::of_node(kind, &node).detail(reason) };
    let ended = Transition::of_attempt(EventKind::AttemptSealed, &attempt).root(node.root_id);
    let next = command.keep.map(|keep| go_on(&node, &attempt, keep, request)).transpose()?;
    let reply = SealReply {
        node: node.clone(),
        attempt: attempt.clone(),
        changed: command.changed,
        next: next.as_ref().map(|next| Box::new(next.reply.clone())),
    };
    let mut decision = Decision::new(Outcome::Sealed(Box::new(reply)))
        .change(Change::UpdateNode { node: Box::new(node), was: snapshot.node.status })
        .log(sealed);
    end(&mut decision, attempt, snapshot.attempt.status, snapshot.lease.as_ref(), LeaseStatus::Released, now);
    lose_execs(&mut decision, &snapshot.running, now, "the attempt was sealed while it ran");
    decision = decision.log(ended);
    hand_over(&mut decision, snapshot.salvaged.as_ref(), now)?;
    if let Some(next) = next {
        decision.changes.extend(next.changes);
        decision.transitions.extend(next.transitions);
    }
    Ok(decision)
}

/// A draft on `sealed`, and an attempt on it that is active at once: as the one before, in its place, so no quota
/// is asked.
fn go_on(
    sealed: &Node,
    before: &Attempt,
    keep: Keep,
    request: &Request<'_>,
) -> Result<Decision<Started>, Reject> {
    let root = fork::forkable(sealed, None)?;
    let draft = fork::child(sealed, root, &fork::forked(sealed, 1, request), request.store, 0);
    let queued = Attempt {
        attempt_id: AttemptId::derive(&request.seed(sealed.node_id.as_bytes(), 0)),
        node_id: draft.node_id,
        lease_id: None,
        lease_epoch: 0,
        worker_id: None,
        private_delta: PrivateDelta::None,
        status: AttemptStatus::Queued,
        purpose: Purpose::Work,
        failure: None,
        retry_of: None,
        boot_id: None,
        queued_at: request.meta.now,
        started_at: None,
        ended_at: None,
        created_by: request.meta.actor.clone(),
        trace_id: request.meta.trace_id.clone(),
        ..before.clone()
    };
    let start = Start { attempt: queued.attempt_id, worker: keep.worker, lease_ms: keep.lease_ms };
    let snapshot = start::Snapshot { attempt: queued.clone(), policy: Policy::default(), live: 0 };
    let started = start::decide(&snapshot, &start, request)?;
    let mut decision = Decision::new(started.reply)
        .log(Transition::of_node(EventKind::NodeCreated, &draft))
        .change(Change::InsertNode(Box::new(draft)))
        .log(Transition::of_attempt(EventKind::AttemptQueued, &queued))
        .change(Change::InsertAttempt(Box::new(queued)));
    decision.changes.extend(started.changes);
    decision.transitions.extend(started.transitions);
    Ok(decision)
}

/// The delta of a salvaged attempt went into the node: the failed attempt has nothing left to keep.
fn hand_over(
    decision: &mut Decision<Outcome>,
    salvaged: Option<&Attempt>,
    now: Timestamp,
) -> Result<(), Reject> {
    let Some(salvaged) = salvaged else { return Ok(()) };
    let mut released = salvaged.clone();
    released.private_delta = PrivateDelta::Sealed;
    released.take(AttemptStep::Release, now)?;
    decision.transitions.push(Transition::of_attempt(EventKind::AttemptReleased, &released));
    decision.changes.push(Change::UpdateAttempt { attempt: Box::new(released), was: salvaged.status });
    Ok(())
}

fn stale(snapshot: &Snapshot, request: &Request<'_>) -> Result<Decision<Outcome>, Reject> {
    let now = request.meta.now;
    let detail = format!("{} is {} already", snapshot.node.node_id, snapshot.node.status.as_str());
    let failure = Failure::new(FailureClass::Stale, "seal", detail);
    let mut attempt = snapshot.attempt.clone();
    attempt.take(AttemptStep::Fail { failure, delta_kept: true }, now)?;
    let outcome = Outcome::Stale { attempt: Box::new(attempt.clone()), status: snapshot.node.status };
    let failed = Transition::of_attempt(EventKind::AttemptFailed, &attempt)
        .detail(serde_json::json!({ "class": FailureClass::Stale }));
    let mut decision = Decision::new(outcome);
    end(&mut decision, attempt, snapshot.attempt.status, snapshot.lease.as_ref(), LeaseStatus::Released, now);
    lose_execs(&mut decision, &snapshot.running, now, "the attempt ended while it ran");
    Ok(decision.log(failed))
}

/// Adds the end of `attempt` and of the lease it holds.
pub fn end<R>(
    decision: &mut Decision<R>,
    attempt: Attempt,
    was: AttemptStatus,
    lease: Option<&Lease>,
    status: LeaseStatus,
    now: Timestamp,
) {
    decision.changes.push(Change::UpdateAttempt { attempt: Box::new(attempt), was });
    if let Some(lease) = lease
        && lease.status == LeaseStatus::Held
    {
        let ended = Lease { status, ended_at: Some(now), ..lease.clone() };
        decision.changes.push(Change::UpdateLease(ended));
    }
}

/// Adds that the outcome of `running` will never be known.
pub fn lose_execs<R>(decision: &mut Decision<R>, running: &[Exec], now: Timestamp, why: &str) {
    use crate::record::{ExecOutcome, ExecStatus};
    for exec in running {
        let failure = Failure::new(FailureClass::InfraLost, "exec", why);
        let lost = Exec {
            status: ExecStatus::Lost,
            outcome: Some(ExecOutcome { failure: Some(failure), ..ExecOutcome::default() }),
            ended_at: Some(now),
            ..exec.clone()
        };
        decision.transitions.push(Transition {
            attempt_id: Some(lost.attempt_id),
            exec_id: Some(lost.exec_id),
            ..Transition::new(EventKind::ExecLost)
        });
        decision.changes.push(Change::UpdateExec(Box::new(lost)));
    }
}
