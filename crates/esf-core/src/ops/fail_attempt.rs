//! `fail_attempt`: an attempt ends without a seal. Its record and logs stay, and its unsealed changes
//! too when there are any.

use serde::Serialize;

use crate::failure::FailureClass;
use crate::id::AttemptId;
use crate::ops::begin_quiesce::fence;
use crate::ops::commit_seal::{end, lose_execs};
use crate::ops::{Decision, Reject, Request, Transition};
use crate::record::{Attempt, EventKind, Exec, Failure, Lease, LeaseStatus};
use crate::state::AttemptStep;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailAttempt {
    /// The attempt: queued, active or quiescing.
    pub attempt: AttemptId,
    /// The epoch of its lease; needed when it is live.
    pub epoch: Option<u64>,
    /// Why, as a class.
    pub class: FailureClass,
    /// In which stage.
    pub stage: String,
    /// What happened, for people.
    pub detail: String,
    /// Whether unsealed changes are kept.
    pub delta_kept: bool,
}

/// What this and other ends of an attempt look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The attempt.
    pub attempt: Attempt,
    /// Its lease.
    pub lease: Option<Lease>,
    /// Its execs that have no outcome yet.
    pub running: Vec<Exec>,
}

/// Decides.
///
/// # Errors
/// `LeaseFenced`, `IllegalStep`.
pub fn decide(
    snapshot: &Snapshot,
    command: &FailAttempt,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    if snapshot.attempt.status.is_live() || command.epoch.is_some() {
        fence(&snapshot.attempt, command.epoch)?;
    }
    let now = request.meta.now;
    let mut attempt = snapshot.attempt.clone();
    let failure = Failure::new(command.class, command.stage.clone(), command.detail.clone());
    attempt.take(AttemptStep::Fail { failure, delta_kept: command.delta_kept }, now)?;
    let failed = Transition::of_attempt(EventKind::AttemptFailed, &attempt)
        .detail(serde_json::json!({ "class": command.class, "stage": command.stage }));
    let mut decision = Decision::new(attempt.clone());
    lose_execs(&mut decision, &snapshot.running, now, "the attempt failed while it ran");
    end(&mut decision, attempt, snapshot.attempt.status, snapshot.lease.as_ref(), LeaseStatus::Released, now);
    Ok(decision.log(failed))
}
