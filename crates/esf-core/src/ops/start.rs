//! `start`: a worker takes a queued attempt under a lease. Invariant: never more live attempts in a
//! group than its policy allows, and every lease has an epoch that no earlier one had.

use serde::{Deserialize, Serialize};

use crate::id::{AttemptId, LeaseId, WorkerId};
use crate::ops::{Change, Decision, Reject, Request, Transition};
use crate::policy::Policy;
use crate::record::{Attempt, EventKind, Lease, LeaseStatus};
use crate::state::AttemptStep;
use crate::time::BootMillis;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Start {
    /// The queued attempt.
    pub attempt: AttemptId,
    /// Who takes it.
    pub worker: WorkerId,
    /// For how many milliseconds, unless renewed.
    pub lease_ms: u64,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The attempt.
    pub attempt: Attempt,
    /// Its group's rules.
    pub policy: Policy,
    /// How many attempts of the group are live.
    pub live: u64,
}

/// The attempt and its lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The attempt.
    pub attempt: Attempt,
    /// The lease that fences it.
    pub lease: Lease,
}

/// Decides.
///
/// # Errors
/// `IllegalStep` when it is not queued, `Quota` when the group has as many live ones as it may.
pub fn decide(
    snapshot: &Snapshot,
    command: &Start,
    request: &Request<'_>,
) -> Result<Decision<Started>, Reject> {
    let meta = request.meta;
    let mut attempt = snapshot.attempt.clone();
    let was = attempt.status;
    let epoch = attempt.lease_epoch + 1;
    attempt.take(AttemptStep::Start { epoch }, meta.now)?;
    if let Some(limit) = snapshot.policy.quotas.max_live_attempts
        && snapshot.live >= limit
    {
        return Err(Reject::Quota { quota: "max_live_attempts", used: snapshot.live, limit });
    }
    let lease = Lease {
        lease_id: LeaseId::derive(&request.seed(command.attempt.as_bytes(), epoch)),
        attempt_id: attempt.attempt_id,
        node_id: attempt.node_id,
        worker_id: command.worker,
        epoch,
        status: LeaseStatus::Held,
        lease_ms: command.lease_ms,
        expires_at: expiry(meta.boot.millis, command.lease_ms),
        boot_id: meta.boot.boot_id.clone(),
        granted_at: meta.now,
        ended_at: None,
    };
    attempt.lease_id = Some(lease.lease_id);
    attempt.worker_id = Some(command.worker);
    attempt.boot_id = Some(meta.boot.boot_id.clone());
    let active = Transition::of_attempt(EventKind::AttemptActive, &attempt);
    Ok(Decision::new(Started { attempt: attempt.clone(), lease: lease.clone() })
        .change(Change::UpdateAttempt { attempt: Box::new(attempt), was })
        .change(Change::InsertLease(lease))
        .log(active))
}

/// When a lease of `lease_ms` granted at `now` expires.
pub fn expiry(now: BootMillis, lease_ms: u64) -> BootMillis {
    BootMillis(now.0.saturating_add(i64::try_from(lease_ms).unwrap_or(i64::MAX)))
}
