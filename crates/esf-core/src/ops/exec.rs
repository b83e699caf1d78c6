//! `exec` on record: one row before the start when the caller gave a key (at most once), or one row
//! after the end. An outcome that is unknown is `lost` and never run again (design section 4).

use serde::Serialize;

use crate::id::{AttemptId, ExecId};
use crate::ops::begin_quiesce::fence;
use crate::ops::{Change, Decision, Reject, Request, Transition};
use crate::record::{Attempt, EventKind, Exec, ExecOutcome, ExecStatus};
use crate::state::AttemptStatus;

/// What is asked for: to record a command that is about to start, or that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordExec {
    /// The active attempt.
    pub attempt: AttemptId,
    /// The epoch of its lease.
    pub epoch: u64,
    /// The command and its arguments.
    pub argv: Vec<String>,
    /// Its working directory inside.
    pub cwd: Option<String>,
    /// Its user inside.
    pub user: Option<String>,
    /// Its time-out in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Digest or other mark of what else distinguishes the request, such as its environment and stdin.
    pub fingerprint: Option<String>,
    /// How it ended, when it has ended already.
    pub outcome: Option<ExecOutcome>,
}

/// What is asked for: to record the end of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FinishExec {
    /// The exec.
    pub exec: ExecId,
    /// The epoch of its attempt's lease.
    pub epoch: u64,
    /// How it ended.
    pub outcome: ExecOutcome,
}

/// A recorded exec, and whether this request recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The exec as it is now.
    pub exec: Exec,
    /// False when the same request recorded it before: it must not be started again.
    pub fresh: bool,
}

/// The id that a request's exec has, for a caller who needs it before the row exists.
pub fn exec_id(command: &RecordExec, request: &Request<'_>) -> ExecId {
    ExecId::derive(&request.seed(command.attempt.as_bytes(), 0))
}

/// Decides about a command that is about to start, or that has ended.
///
/// # Errors
/// `LeaseFenced`; `IllegalStep` when the attempt admits no more work.
pub fn record(
    attempt: &Attempt,
    command: &RecordExec,
    request: &Request<'_>,
) -> Result<Decision<ExecId>, Reject> {
    fence(attempt, Some(command.epoch))?;
    if attempt.status != AttemptStatus::Active && command.outcome.is_none() {
        let from = attempt.status.as_str();
        return Err(crate::state::IllegalStep { machine: "attempt", from, step: "exec" }.into());
    }
    let exec = Exec {
        exec_id: exec_id(command, request),
        attempt_id: command.attempt,
        status: if command.outcome.is_some() { ExecStatus::Finished } else { ExecStatus::Running },
        argv: command.argv.clone(),
        cwd: command.cwd.clone(),
        user: command.user.clone(),
        timeout_ms: command.timeout_ms,
        outcome: command.outcome.clone(),
        started_at: request.meta.now,
        ended_at: command.outcome.as_ref().map(|_| request.meta.now),
        created_by: request.meta.actor.clone(),
        trace_id: request.meta.trace_id.clone(),
    };
    let mut decision = Decision::new(exec.exec_id).log(transition(EventKind::ExecStarted, attempt, &exec));
    if command.outcome.is_some() {
        decision = decision.log(transition(EventKind::ExecFinished, attempt, &exec));
    }
    Ok(decision.change(Change::InsertExec(Box::new(exec))))
}

/// Decides about a command that has ended.
///
/// # Errors
/// `LeaseFenced`, `ExecEnded`.
pub fn finish(
    attempt: &Attempt,
    exec: &Exec,
    command: &FinishExec,
    request: &Request<'_>,
) -> Result<Decision<Exec>, Reject> {
    fence(attempt, Some(command.epoch))?;
    match exec.status {
        ExecStatus::Running => {}
        ExecStatus::Finished | ExecStatus::Lost => return Err(Reject::ExecEnded { exec: exec.exec_id }),
    }
    let exec = Exec {
        status: ExecStatus::Finished,
        outcome: Some(command.outcome.clone()),
        ended_at: Some(request.meta.now),
        ..exec.clone()
    };
    Ok(Decision::new(exec.clone())
        .log(transition(EventKind::ExecFinished, attempt, &exec))
        .change(Change::UpdateExec(Box::new(exec))))
}

fn transition(kind: EventKind, attempt: &Attempt, exec: &Exec) -> Transition {
    Transition { exec_id: Some(exec.exec_id), ..Transition::of_attempt(kind, attempt) }
}
