//! `retry`: a new attempt of the same draft. Invariant: the failed attempt's record is not touched.

use serde::Serialize;

use crate::id::AttemptId;
use crate::ops::enqueue::free;
use crate::ops::{Change, Decision, Reject, Request, Transition};
use crate::record::{Attempt, EventKind, Node, PrivateDelta, Purpose};
use crate::state::{AttemptStatus, NodeStatus};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Retry {
    /// The failed or released attempt.
    pub attempt: AttemptId,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The attempt.
    pub attempt: Attempt,
    /// Its node.
    pub node: Node,
    /// The node's queued or live attempt on its draft.
    pub open: Option<AttemptId>,
}

/// Decides.
///
/// # Errors
/// `NotRetryable`, `AttemptLive`, `Stale` when the draft was sealed by another attempt, `Pruned`.
pub fn decide(
    snapshot: &Snapshot,
    command: &Retry,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    let old = &snapshot.attempt;
    let node = snapshot.node.node_id;
    match old.status {
        AttemptStatus::Failed | AttemptStatus::Released => {}
        AttemptStatus::Queued | AttemptStatus::Active | AttemptStatus::Quiescing | AttemptStatus::Sealed => {
            return Err(Reject::NotRetryable { attempt: old.attempt_id, status: old.status });
        }
    }
    match (old.purpose.has_draft(), snapshot.node.status) {
        (_, NodeStatus::Pruned) => return Err(Reject::Pruned { node }),
        (true, NodeStatus::Draft) => free(&snapshot.node, snapshot.open)?,
        (true, status @ (NodeStatus::Sealed | NodeStatus::Terminal)) => {
            return Err(Reject::Stale { attempt: old.attempt_id, node, status });
        }
        (false, NodeStatus::Sealed | NodeStatus::Terminal | NodeStatus::Draft) => {}
    }
    let attempt = Attempt {
        attempt_id: AttemptId::derive(&request.seed(command.attempt.as_bytes(), 0)),
        lease_id: None,
        lease_epoch: 0,
        worker_id: None,
        private_delta: PrivateDelta::None,
        status: AttemptStatus::Queued,
        purpose: if old.purpose.has_draft() { Purpose::Work } else { old.purpose },
        failure: None,
        retry_of: Some(old.attempt_id),
        boot_id: None,
        queued_at: request.meta.now,
        started_at: None,
        ended_at: None,
        created_by: request.meta.actor.clone(),
        trace_id: request.meta.trace_id.clone(),
        ..old.clone()
    };
    Ok(Decision::new(attempt.clone())
        .log(Transition::of_attempt(EventKind::AttemptQueued, &attempt))
        .change(Change::InsertAttempt(Box::new(attempt))))
}
