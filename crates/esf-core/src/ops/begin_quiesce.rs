//! `begin_quiesce`: admission of commands stops; the attempt is about to be sealed or given up.

use serde::Serialize;

use crate::id::AttemptId;
use crate::ops::{Change, Decision, Reject, Request, Transition};
use crate::record::{Attempt, EventKind};
use crate::state::AttemptStep;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BeginQuiesce {
    /// The active attempt.
    pub attempt: AttemptId,
    /// The epoch of its lease.
    pub epoch: u64,
}

/// Decides.
///
/// # Errors
/// `LeaseFenced`, `IllegalStep`.
pub fn decide(
    attempt: &Attempt,
    command: &BeginQuiesce,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    fence(attempt, Some(command.epoch))?;
    let was = attempt.status;
    let mut attempt = attempt.clone();
    attempt.take(AttemptStep::Quiesce, request.meta.now)?;
    Ok(Decision::new(attempt.clone())
        .log(Transition::of_attempt(EventKind::AttemptQuiescing, &attempt))
        .change(Change::UpdateAttempt { attempt: Box::new(attempt), was }))
}

/// Refuses a write that does not carry the epoch of a live lease.
///
/// # Errors
/// `LeaseFenced`.
pub fn fence(attempt: &Attempt, epoch: Option<u64>) -> Result<(), Reject> {
    if attempt.status.is_live() && epoch == Some(attempt.lease_epoch) {
        return Ok(());
    }
    Err(Reject::LeaseFenced {
        attempt: attempt.attempt_id,
        epoch,
        current: attempt.lease_epoch,
        status: attempt.status,
    })
}
