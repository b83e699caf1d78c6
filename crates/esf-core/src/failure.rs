//! Why an attempt or an evaluation failed, and what follows from it (design section 4).
//! A lost sandbox is never a reward of zero: only classes with `reward_valid` may be scored.

use serde::{Deserialize, Serialize};

/// The class of a failure; in the schema from the first day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The command ended with a non-zero code of its own.
    UserExit,
    /// The command outlived its time-out.
    UserTimeout,
    /// The command hit its memory limit.
    UserOom,
    /// The command wrote more than it may.
    OutputLimit,
    /// The machine, the worker or the sandbox went away.
    InfraLost,
    /// The sandbox could not be prepared.
    InfraPrepare,
    /// The evaluator itself broke.
    EvaluatorError,
    /// Somebody asked for it to stop.
    Cancelled,
    /// Another attempt or a newer lease won.
    Stale,
    /// A quota was used up.
    Quota,
}

impl FailureClass {
    /// Every class, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::UserExit,
        Self::UserTimeout,
        Self::UserOom,
        Self::OutputLimit,
        Self::InfraLost,
        Self::InfraPrepare,
        Self::EvaluatorError,
        Self::Cancelled,
        Self::Stale,
        Self::Quota,
    ];

    /// The stable text form, as in the schema and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UserExit => "user_exit",
            Self::UserTimeout => "user_timeout",
            Self::UserOom => "user_oom",
            Self::OutputLimit => "output_limit",
            Self::InfraLost => "infra_lost",
            Self::InfraPrepare => "infra_prepare",
            Self::EvaluatorError => "evaluator_error",
            Self::Cancelled => "cancelled",
            Self::Stale => "stale",
            Self::Quota => "quota",
        }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// Whether trying the same again may help.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::InfraLost | Self::InfraPrepare | Self::EvaluatorError | Self::Quota)
    }

    /// Whether what was left behind may be graded.
    pub const fn gradable(self) -> bool {
        matches!(self, Self::UserExit | Self::UserTimeout | Self::UserOom | Self::OutputLimit)
    }

    /// Whether a reward given after it means anything.
    pub const fn reward_valid(self) -> bool {
        self.gradable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_sandbox_is_never_graded() {
        for class in FailureClass::ALL {
            assert_eq!(FailureClass::parse(class.as_str()), Some(class));
            assert!(!(class.retryable() && class.reward_valid()), "{class:?}");
        }
    }
}
