//! `release_attempt`: an attempt is let go. Invariant: unsealed changes are only given up when the
//! caller says so; how many there are is a fact that comes with the command, since the delta lives
//! with a worker.

use serde::Serialize;

use crate::id::AttemptId;
use crate::ops::begin_quiesce::fence;
use crate::ops::commit_seal::{end, lose_execs};
use crate::ops::fail_attempt::Snapshot;
use crate::ops::{Decision, Reject, Request, Transition};
use crate::record::{Attempt, EventKind, LeaseStatus};
use crate::state::{AttemptStatus, AttemptStep};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReleaseAttempt {
    /// The attempt.
    pub attempt: AttemptId,
    /// The epoch of its lease; needed when it is live.
    pub epoch: Option<u64>,
    /// How many unsealed changes its delta has.
    pub unsealed: u64,
    /// Whether they may be given up.
    pub discard: bool,
    /// Why, when nobody asked, such as `lease_expired`; goes into the event.
    pub reason: Option<String>,
}

/// Decides. An attempt that was released already is returned as it is.
///
/// # Errors
/// `UnsealedChanges` with the count, `LeaseFenced`.
pub fn decide(
    snapshot: &Snapshot,
    command: &ReleaseAttempt,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    let was = snapshot.attempt.status;
    if was == AttemptStatus::Released {
        return Ok(Decision::new(snapshot.attempt.clone()));
    }
    if was.is_live() {
        fence(&snapshot.attempt, command.epoch)?;
    }
    if command.unsealed > 0 && !command.discard {
        return Err(Reject::UnsealedChanges { count: command.unsealed, attempts: vec![command.attempt] });
    }
    let now = request.meta.now;
    let mut attempt = snapshot.attempt.clone();
    let mut quiescing = None;
    if was == AttemptStatus::Active {
        attempt.take(AttemptStep::Quiesce, now)?;
        quiescing = Some(Transition::of_attempt(EventKind::AttemptQuiescing, &attempt));
    }
    attempt.take(AttemptStep::Release, now)?;
    let released = Transition::of_attempt(EventKind::AttemptReleased, &attempt).detail(serde_json::json!({
        "private_delta": attempt.private_delta, "unsealed": command.unsealed, "reason": command.reason
    }));
    let mut decision = Decision::new(attempt.clone());
    decision.transitions.extend(quiescing);
    lose_execs(&mut decision, &snapshot.running, now, "the attempt was released while it ran");
    end(&mut decision, attempt, was, snapshot.lease.as_ref(), LeaseStatus::Released, now);
    Ok(decision.log(released))
}
