//! `enqueue`: asks for an attempt; the graph is the queue. A sealed node forks one draft first; an
//! evaluation runs on the sealed node itself and has no draft. Invariant: a draft has at most one
//! attempt that is queued or live.

use serde::Serialize;

use crate::environment::Environment;
use crate::id::{AttemptId, NodeId};
use crate::ops::{Change, Decision, Reject, Request, Transition, fork};
use crate::policy::{OnExpiry, Policy};
use crate::record::{Attempt, EventKind, Node, PrivateDelta, Purpose};
use crate::state::{AttemptStatus, NodeStatus};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Enqueue {
    /// A draft, or a sealed node.
    pub node: NodeId,
    /// How its commands run: executor and limits are in it.
    pub environment: Environment,
    /// Milliseconds after its start at which the holder seals or discards it.
    pub lifetime_ms: Option<u64>,
    /// What then happens; the group's policy says it when absent.
    pub on_expiry: Option<OnExpiry>,
    /// Higher is started earlier.
    pub priority: i32,
    /// What it is for.
    pub purpose: Purpose,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The node.
    pub node: Node,
    /// Its group's rules.
    pub policy: Policy,
    /// The node's queued or live attempt on its draft.
    pub open: Option<AttemptId>,
    /// How many attempts of the group wait.
    pub queued: u64,
    /// The attempt to salvage.
    pub salvage: Option<Attempt>,
    /// The node's nearest sealed ancestor, looked up when it is a draft.
    pub last_sealed: Option<NodeId>,
}

/// Decides.
///
/// # Errors
/// `AttemptLive`, `NotSealed`, `Terminal`, `Pruned`, `NothingToSalvage`, `Stale`, `Quota`.
pub fn decide(
    snapshot: &Snapshot,
    command: &Enqueue,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    quota(snapshot)?;
    match command.purpose {
        Purpose::Work => work(snapshot, command, request),
        Purpose::Evaluate => evaluate(snapshot, command, request),
        Purpose::Salvage { from } => salvage(snapshot, command, request, from),
    }
}

fn quota(snapshot: &Snapshot) -> Result<(), Reject> {
    match snapshot.policy.quotas.max_queued_attempts {
        Some(limit) if snapshot.queued >= limit => {
            Err(Reject::Quota { quota: "max_queued_attempts", used: snapshot.queued, limit })
        }
        Some(_) | None => Ok(()),
    }
}

fn work(snapshot: &Snapshot, command: &Enqueue, request: &Request<'_>) -> Result<Decision<Attempt>, Reject> {
    let node = &snapshot.node;
    if node.status == NodeStatus::Draft {
        free(node, snapshot.open)?;
        return Ok(queue(new_attempt(node, snapshot, command, request), Vec::new()));
    }
    let root = fork::forkable(node, None)?;
    let forked = fork::forked(node, 1, request);
    let draft = fork::child(node, root, &forked, request.store, 0);
    let attempt = new_attempt(&draft, snapshot, command, request);
    Ok(queue(attempt, vec![draft]))
}

fn evaluate(
    snapshot: &Snapshot,
    command: &Enqueue,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    let node = snapshot.node.node_id;
    match snapshot.node.status {
        NodeStatus::Sealed | NodeStatus::Terminal => {
            Ok(queue(new_attempt(&snapshot.node, snapshot, command, request), Vec::new()))
        }
        NodeStatus::Draft => Err(Reject::NotSealed { node, last_sealed: snapshot.last_sealed }),
        NodeStatus::Pruned => Err(Reject::Pruned { node }),
    }
}

fn salvage(
    snapshot: &Snapshot,
    command: &Enqueue,
    request: &Request<'_>,
    from: AttemptId,
) -> Result<Decision<Attempt>, Reject> {
    let node = &snapshot.node;
    let nothing = |reason| Reject::NothingToSalvage { attempt: from, reason };
    let Some(failed) = &snapshot.salvage else { return Err(nothing("it is not known")) };
    if failed.node_id != node.node_id {
        return Err(nothing("it worked on another node"));
    }
    if failed.status != AttemptStatus::Failed || failed.private_delta != PrivateDelta::Kept {
        return Err(nothing("it has no kept delta"));
    }
    if failed.boot_id.as_deref() != Some(request.meta.boot.boot_id.as_str()) {
        return Err(nothing("the machine has rebooted since, and an unsealed delta does not outlive that"));
    }
    if node.status != NodeStatus::Draft {
        return Err(Reject::Stale { attempt: from, node: node.node_id, status: node.status });
    }
    free(node, snapshot.open)?;
    Ok(queue(new_attempt(node, snapshot, command, request), Vec::new()))
}

/// Refuses when the draft has a queued or live attempt.
///
/// # Errors
/// `AttemptLive` naming it.
pub fn free(node: &Node, open: Option<AttemptId>) -> Result<(), Reject> {
    match open {
        Some(attempt) => Err(Reject::AttemptLive { node: node.node_id, attempt }),
        None => Ok(()),
    }
}

fn queue(attempt: Attempt, drafts: Vec<Node>) -> Decision<Attempt> {
    let mut decision = Decision::new(attempt.clone());
    for draft in drafts {
        decision = decision
            .log(Transition::of_node(EventKind::NodeCreated, &draft))
            .change(Change::InsertNode(Box::new(draft)));
    }
    decision
        .log(Transition::of_attempt(EventKind::AttemptQueued, &attempt))
        .change(Change::InsertAttempt(Box::new(attempt)))
}

fn new_attempt(node: &Node, snapshot: &Snapshot, command: &Enqueue, request: &Request<'_>) -> Attempt {
    Attempt {
        attempt_id: AttemptId::derive(&request.seed(command.node.as_bytes(), 0)),
        group_id: node.group_id,
        node_id: node.node_id,
        executor: command.environment.executor,
        lease_id: None,
        lease_epoch: 0,
        worker_id: None,
        private_delta: PrivateDelta::None,
        status: AttemptStatus::Queued,
        purpose: command.purpose,
        environment_digest: command.environment.digest(),
        budget: command.environment.limits,
        environment: command.environment.clone(),
        priority: command.priority,
        lifetime_ms: command.lifetime_ms,
        on_expiry: command.on_expiry.unwrap_or(snapshot.policy.on_expiry),
        failure: None,
        retry_of: None,
        boot_id: None,
        queued_at: request.meta.now,
        started_at: None,
        ended_at: None,
        created_by: request.meta.actor.clone(),
        trace_id: request.meta.trace_id.clone(),
    }
}
