//! `cancel`: ends every attempt of a group that waits, at once. What lives is not touched: its holder ends
//! it, under its lease. Invariant: an attempt that was started meanwhile is left as it is.

use serde::{Deserialize, Serialize};

use crate::failure::FailureClass;
use crate::id::GroupId;
use crate::ops::fail_attempt::{self, FailAttempt};
use crate::ops::{Decision, Reject, Request};
use crate::record::Attempt;

/// Why attempts are not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// What they were for has moved on.
    Stale,
    /// There is more to do than can be done.
    Overload,
    /// Somebody said so.
    User,
}

impl CancelReason {
    /// The class that their attempts fail with.
    pub const fn class(self) -> FailureClass {
        match self {
            Self::Stale => FailureClass::Stale,
            Self::Overload | Self::User => FailureClass::Cancelled,
        }
    }

    /// The reason for people.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Stale => "its group was cancelled: what it was for has moved on (stale)",
            Self::Overload => "its group was cancelled: there is too much to do (overload)",
            Self::User => "its group was cancelled on request (user)",
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cancel {
    /// Whose attempts.
    pub group: GroupId,
    /// Why.
    pub reason: CancelReason,
}

/// Decides over one attempt that waits.
///
/// # Errors
/// `IllegalStep` when it does not wait.
pub fn decide(
    attempt: &Attempt,
    command: &Cancel,
    request: &Request<'_>,
) -> Result<Decision<Attempt>, Reject> {
    let snapshot = fail_attempt::Snapshot { attempt: attempt.clone(), lease: None, running: Vec::new() };
    let fail = FailAttempt {
        attempt: attempt.attempt_id,
        epoch: None,
        class: command.reason.class(),
        stage: "queue".to_owned(),
        detail: command.reason.detail().to_owned(),
        delta_kept: false,
    };
    fail_attempt::decide(&snapshot, &fail, request)
}
