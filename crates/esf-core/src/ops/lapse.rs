//! `lapse`: the holder of a lease is gone. The epoch is bumped, so that a late write of it is refused;
//! the attempt is `failed(infra_lost)` and its delta is kept (design section 4).

use serde::Serialize;

use crate::failure::FailureClass;
use crate::id::AttemptId;
use crate::ops::commit_seal::{end, lose_execs};
use crate::ops::fail_attempt::Snapshot;
use crate::ops::{Decision, Reject, Request, Transition};
use crate::record::{Attempt, EventKind, Failure, LeaseStatus};
use crate::state::AttemptStep;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lapse {
    /// The live attempt whose holder is gone.
    pub attempt: AttemptId,
    /// How that is known, such as `worker lock is free` or `lease expired`.
    pub reason: String,
}

/// Decides. An attempt that is not live has nothing to lapse: it is returned as it is.
///
/// # Errors
/// `IllegalStep` never; the signature is that of all decisions.
pub fn decide(
    snapshot: &Snapshot,
    command: &Lapse,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    if !snapshot.attempt.status.is_live() {
        return Ok(Decision::new(snapshot.attempt.clone()));
    }
    let now = request.meta.now;
    let mut attempt = snapshot.attempt.clone();
    let failure = Failure::new(FailureClass::InfraLost, "lease", command.reason.clone());
    attempt.take(AttemptStep::Fail { failure, delta_kept: attempt.purpose.has_draft() }, now)?;
    attempt.lease_epoch += 1;
    let lapsed = Transition::of_attempt(EventKind::LeaseLapsed, &attempt)
        .detail(serde_json::json!({ "reason": command.reason }));
    let failed = Transition::of_attempt(EventKind::AttemptFailed, &attempt)
        .detail(serde_json::json!({ "class": FailureClass::InfraLost, "stage": "lease" }));
    let mut decision = Decision::new(attempt.clone()).log(lapsed).log(failed);
    lose_execs(&mut decision, &snapshot.running, now, "the worker was lost while it ran");
    end(&mut decision, attempt, snapshot.attempt.status, snapshot.lease.as_ref(), LeaseStatus::Lapsed, now);
    Ok(decision)
}
