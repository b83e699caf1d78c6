//! `ExecutionAttempt`: a disposable activation of one node on one back end.
//! Invariant: `private_delta` says what became of the writable delta and never where it is.

use serde::{Deserialize, Serialize};

use crate::digest::EnvironmentDigest;
use crate::environment::{Environment, ExecutorKind, Limits};
use crate::failure::FailureClass;
use crate::id::{AttemptId, GroupId, LeaseId, NodeId, WorkerId};
use crate::policy::OnExpiry;
use crate::record::text_forms;
use crate::state::{AttemptState, AttemptStatus, AttemptStep, IllegalStep};
use crate::time::Timestamp;

/// What became of an attempt's writable delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrivateDelta {
    /// There is none: not started, or a run on a sealed node.
    None,
    /// It is being written to.
    Open,
    /// The attempt failed and its unsealed changes are kept until released.
    Kept,
    /// It became the node's tree.
    Sealed,
    /// It was given up.
    Discarded,
}

text_forms!(PrivateDelta {
    None = "none",
    Open = "open",
    Kept = "kept",
    Sealed = "sealed",
    Discarded = "discarded",
});

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "purpose", rename_all = "snake_case")]
pub enum Purpose {
    /// Work on a draft, to be sealed.
    Work,
    /// A run on a sealed node; it has no draft and seals nothing.
    Evaluate,
    /// Seals the kept delta of a failed attempt.
    Salvage {
        /// The failed attempt.
        #[serde(rename = "salvaged_from")]
        from: AttemptId,
    },
}

impl Purpose {
    /// The stable text form of the kind.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Evaluate => "evaluate",
            Self::Salvage { from: _ } => "salvage",
        }
    }

    /// Whether it works on a draft and may seal it.
    pub const fn has_draft(&self) -> bool {
        match self {
            Self::Work | Self::Salvage { from: _ } => true,
            Self::Evaluate => false,
        }
    }
}

/// Why an attempt, an exec or an evaluation failed, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// In which stage, such as `prepare`, `exec`, `quiesce`, `seal`, `lease`.
    pub stage: String,
    /// What happened, for people.
    pub detail: String,
    /// Whether trying the same again may help.
    pub retryable: bool,
    /// Whether what was left behind may be graded.
    pub gradable: bool,
    /// Whether a reward given after it means anything.
    pub reward_valid: bool,
}

impl Failure {
    /// A failure of `class`, whose consequences follow from the class.
    pub fn new(class: FailureClass, stage: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            class,
            stage: stage.into(),
            detail: detail.into(),
            retryable: class.retryable(),
            gradable: class.gradable(),
            reward_valid: class.reward_valid(),
        }
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its id.
    pub attempt_id: AttemptId,
    /// The group of its node.
    pub group_id: GroupId,
    /// The draft it works on, or the sealed node an evaluation runs on.
    pub node_id: NodeId,
    /// The back end.
    pub executor: ExecutorKind,
    /// The lease that fences it; null until it was active once.
    pub lease_id: Option<LeaseId>,
    /// Grows with each lease and each lapse; every write of a worker carries it.
    pub lease_epoch: u64,
    /// The worker that holds or held it.
    pub worker_id: Option<WorkerId>,
    /// What became of its writable delta; never a place.
    pub private_delta: PrivateDelta,
    /// Queued, active, quiescing, sealed, failed or released.
    pub status: AttemptStatus,
    /// What it is for; `salvaged_from` beside it when it salvages.
    #[serde(flatten)]
    pub purpose: Purpose,
    /// How its commands run.
    pub environment: Environment,
    /// Digest of the environment.
    pub environment_digest: EnvironmentDigest,
    /// The resource budget: the environment's limits.
    pub budget: Limits,
    /// Higher is started earlier; within one priority the queue is first in, first out.
    pub priority: i32,
    /// Milliseconds after its start at which its holder seals or discards it.
    pub lifetime_ms: Option<u64>,
    /// What then happens.
    pub on_expiry: OnExpiry,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The attempt that this one tries again.
    pub retry_of: Option<AttemptId>,
    /// The boot of the machine in which its delta was written; an unsealed delta does not outlive it.
    pub boot_id: Option<String>,
    /// When it was asked for.
    pub queued_at: Timestamp,
    /// When it became active.
    pub started_at: Option<Timestamp>,
    /// When it was sealed, failed or released first.
    pub ended_at: Option<Timestamp>,
    /// Who asked for it.
    pub created_by: String,
    /// Trace of the request that asked for it.
    pub trace_id: String,
}

impl Attempt {
    /// The state with its data.
    pub fn state(&self) -> AttemptState {
        match self.status {
            AttemptStatus::Queued => AttemptState::Queued,
            AttemptStatus::Active => AttemptState::Active { epoch: self.lease_epoch },
            AttemptStatus::Quiescing => AttemptState::Quiescing { epoch: self.lease_epoch },
            AttemptStatus::Sealed => AttemptState::Sealed,
            AttemptStatus::Failed => AttemptState::Failed,
            AttemptStatus::Released => AttemptState::Released,
        }
    }

    /// Takes one step at `now`.
    ///
    /// # Errors
    /// `IllegalStep` when the state machine has no such edge; the attempt is unchanged then.
    pub fn take(&mut self, step: AttemptStep, now: Timestamp) -> Result<(), IllegalStep> {
        let next = self.state().step(&step)?;
        self.status = next.status();
        match step {
            AttemptStep::Start { epoch } => {
                self.lease_epoch = epoch;
                self.started_at = Some(now);
                self.private_delta =
                    if self.purpose.has_draft() { PrivateDelta::Open } else { PrivateDelta::None };
            }
            AttemptStep::Quiesce => {}
            AttemptStep::Seal => {
                self.private_delta = PrivateDelta::Sealed;
                self.ended_at.get_or_insert(now);
            }
            AttemptStep::Fail { failure, delta_kept } => {
                self.failure = Some(failure);
                if self.private_delta == PrivateDelta::Open {
                    self.private_delta = if delta_kept { PrivateDelta::Kept } else { PrivateDelta::None };
                }
                self.ended_at.get_or_insert(now);
            }
            AttemptStep::Release => {
                if matches!(self.private_delta, PrivateDelta::Open | PrivateDelta::Kept) {
                    self.private_delta = PrivateDelta::Discarded;
                }
                self.ended_at.get_or_insert(now);
            }
        }
        Ok(())
    }
}
