//! The state machines of nodes and attempts (specification, design section 4): enums with data and
//! one `step` each, matched without a wildcard, so a new state or step is a compile error until it is
//! decided everywhere. Pure.
//!
//! ```text
//! node:    draft -> sealed | terminal | pruned;  sealed -> terminal | pruned;  terminal -> pruned
//! attempt: queued -> active | failed | released
//!          active -> quiescing | failed
//!          quiescing -> sealed | failed | released
//!          sealed | failed -> released
//! ```
//! `active -> failed` is the holder that is gone; `quiescing -> released` is an attempt that was given
//! up on purpose, or an evaluator's run, which has nothing to seal: neither has failed.

use crate::manifest::RootPin;
use crate::record::{Failure, text_forms};

/// A step that a state machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal step: {machine} that is {from} cannot {step}")]
pub struct IllegalStep {
    /// `node` or `attempt`.
    pub machine: &'static str,
    /// The state it is in.
    pub from: &'static str,
    /// The refused step.
    pub step: &'static str,
}

/// A node's status, as in the schema and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeStatus {
    /// Work may be done on it; it has no root yet.
    Draft,
    /// Immutable, selectable, forkable.
    Sealed,
    /// Immutable, evaluable and exportable; not forkable.
    Terminal,
    /// Out of sight; its bytes may be collected.
    Pruned,
}

text_forms!(NodeStatus { Draft = "draft", Sealed = "sealed", Terminal = "terminal", Pruned = "pruned" });

/// A node's state with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Work may be done on it.
    Draft,
    /// Immutable, selectable, forkable.
    Sealed {
        /// Its tree.
        root: RootPin,
    },
    /// Immutable, not forkable.
    Terminal {
        /// Its tree.
        root: RootPin,
    },
    /// Out of sight.
    Pruned {
        /// The tree it had, if it was ever sealed.
        root: Option<RootPin>,
    },
}

/// What may happen to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// A delta becomes its tree.
    Seal {
        /// The sealed tree.
        root: RootPin,
        /// Whether it ends here.
        terminal: bool,
    },
    /// A sealed node ends here.
    End,
    /// It goes out of sight.
    Prune,
}

impl NodeStep {
    /// The word for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Seal { root: _, terminal: false } => "seal",
            Self::Seal { root: _, terminal: true } => "seal as terminal",
            Self::End => "end",
            Self::Prune => "prune",
        }
    }
}

impl NodeState {
    /// The status without the data.
    pub const fn status(&self) -> NodeStatus {
        match self {
            Self::Draft => NodeStatus::Draft,
            Self::Sealed { root: _ } => NodeStatus::Sealed,
            Self::Terminal { root: _ } => NodeStatus::Terminal,
            Self::Pruned { root: _ } => NodeStatus::Pruned,
        }
    }

    /// The next state.
    ///
    /// # Errors
    /// `IllegalStep` when there is no such edge.
    pub fn step(self, step: NodeStep) -> Result<Self, IllegalStep> {
        use NodeStep::{End, Prune, Seal};
        let illegal = IllegalStep { machine: "node", from: self.status().as_str(), step: step.name() };
        match (self, step) {
            (Self::Draft, Seal { root, terminal: false }) => Ok(Self::Sealed { root }),
            (Self::Draft, Seal { root, terminal: true }) => Ok(Self::Terminal { root }),
            (Self::Draft, Prune) => Ok(Self::Pruned { root: None }),
            (Self::Sealed { root }, End) => Ok(Self::Terminal { root }),
            (Self::Sealed { root } | Self::Terminal { root }, Prune) => Ok(Self::Pruned { root: Some(root) }),
            (Self::Draft, End)
            | (Self::Sealed { root: _ }, Seal { root: _, terminal: _ })
            | (Self::Terminal { root: _ }, Seal { root: _, terminal: _ } | End)
            | (Self::Pruned { root: _ }, Seal { root: _, terminal: _ } | End | Prune) => Err(illegal),
        }
    }
}

/// An attempt's status, as in the schema and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptStatus {
    /// It waits for a worker.
    Queued,
    /// It runs under a lease.
    Active,
    /// It admits no more work and is being sealed or given up.
    Quiescing,
    /// Its delta became its node's tree.
    Sealed,
    /// It failed; its record, its logs and perhaps its delta are kept.
    Failed,
    /// Nothing of it is held any more.
    Released,
}

text_forms!(AttemptStatus {
    Queued = "queued",
    Active = "active",
    Quiescing = "quiescing",
    Sealed = "sealed",
    Failed = "failed",
    Released = "released",
});

impl AttemptStatus {
    /// Whether a worker holds it under a lease.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Active | Self::Quiescing => true,
            Self::Queued | Self::Sealed | Self::Failed | Self::Released => false,
        }
    }

    /// Whether it occupies its draft: waiting or live.
    pub const fn is_open(self) -> bool {
        match self {
            Self::Queued | Self::Active | Self::Quiescing => true,
            Self::Sealed | Self::Failed | Self::Released => false,
        }
    }
}

/// An attempt's state with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// It waits for a worker.
    Queued,
    /// It runs under the lease of this epoch.
    Active {
        /// The epoch that fences it.
        epoch: u64,
    },
    /// It admits no more work.
    Quiescing {
        /// The epoch that fences it.
        epoch: u64,
    },
    /// Its delta became its node's tree.
    Sealed,
    /// It failed.
    Failed,
    /// Nothing of it is held any more.
    Released,
}

/// What may happen to an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptStep {
    /// A worker takes it under a lease.
    Start {
        /// The lease's epoch.
        epoch: u64,
    },
    /// Admission stops.
    Quiesce,
    /// Its delta becomes its node's tree.
    Seal,
    /// It fails.
    Fail {
        /// Why.
        failure: Failure,
        /// Whether unsealed changes are kept.
        delta_kept: bool,
    },
    /// It is let go; a delta it still had is discarded.
    Release,
}

impl AttemptStep {
    /// The word for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start { epoch: _ } => "start",
            Self::Quiesce => "quiesce",
            Self::Seal => "seal",
            Self::Fail { failure: _, delta_kept: _ } => "fail",
            Self::Release => "release",
        }
    }
}

impl AttemptState {
    /// The status without the data.
    pub const fn status(&self) -> AttemptStatus {
        match self {
            Self::Queued => AttemptStatus::Queued,
            Self::Active { epoch: _ } => AttemptStatus::Active,
            Self::Quiescing { epoch: _ } => AttemptStatus::Quiescing,
            Self::Sealed => AttemptStatus::Sealed,
            Self::Failed => AttemptStatus::Failed,
            Self::Released => AttemptStatus::Released,
        }
    }

    /// The next state.
    ///
    /// # Errors
    /// `IllegalStep` when there is no such edge.
    pub fn step(self, step: &AttemptStep) -> Result<Self, IllegalStep> {
        use AttemptStep::{Fail, Quiesce, Release, Seal, Start};
        let illegal = IllegalStep { machine: "attempt", from: self.status().as_str(), step: step.name() };
        match (self, step) {
            (Self::Queued, Start { epoch }) => Ok(Self::Active { epoch: *epoch }),
            (Self::Active { epoch }, Quiesce) => Ok(Self::Quiescing { epoch }),
            (Self::Quiescing { epoch: _ }, Seal) => Ok(Self::Sealed),
            (
                Self::Queued | Self::Active { epoch: _ } | Self::Quiescing { epoch: _ },
                Fail { failure: _, delta_kept: _ },
            ) => Ok(Self::Failed),
            (Self::Queued | Self::Quiescing { epoch: _ } | Self::Sealed | Self::Failed, Release) => {
                Ok(Self::Released)
            }
            (Self::Queued, Quiesce | Seal)
            | (Self::Active { epoch: _ }, Start { epoch: _ } | Seal | Release)
            | (Self::Quiescing { epoch: _ }, Start { epoch: _ } | Quiesce)
            | (
                Self::Sealed | Self::Failed,
                Start { epoch: _ } | Quiesce | Seal | Fail { failure: _, delta_kept: _ },
            )
            | (
                Self::Released,
                Start { epoch: _ } | Quiesce | Seal | Fail { failure: _, delta_kept: _ } | Release,
            ) => Err(illegal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{AttrsId, Digest, RootId};
    use crate::failure::FailureClass;

    fn root(byte: u8) -> RootPin {
        let digest = Digest::from_bytes([byte; 32]);
        RootPin { root: RootId::new(digest), attrs: AttrsId::new(digest) }
    }

    fn table<S, T>(
        states: &[S],
        steps: &[T],
        name: impl Fn(&T) -> &'static str,
        take: impl Fn(&S, &T) -> Result<&'static str, IllegalStep>,
        status: impl Fn(&S) -> &'static str,
    ) -> String {
        let mut text = String::new();
        for state in states {
            for step in steps {
                let outcome = take(state, step).unwrap_or_else(|illegal| {
                    assert_eq!((illegal.from, illegal.step), (status(state), name(step)));
                    "-"
                });
                text.push_str(&format!("{:<9} {:<16} {outcome}\n", status(state), name(step)));
            }
        }
        print!("{text}");
        text
    }

    #[test]
    fn every_pair_of_a_nodes_state_and_step_is_decided() {
        let states = [
            NodeState::Draft,
            NodeState::Sealed { root: root(1) },
            NodeState::Terminal { root: root(1) },
            NodeState::Pruned { root: None },
            NodeState::Pruned { root: Some(root(1)) },
        ];
        let seal = |terminal| NodeStep::Seal { root: root(2), terminal };
        let steps = [seal(false), seal(true), NodeStep::End, NodeStep::Prune];
        let take = |state: &NodeState, step: &NodeStep| state.step(*step).map(|next| next.status().as_str());
        let text = table(&states, &steps, NodeStep::name, take, |state| state.status().as_str());
        let expected = "\
draft     seal             sealed
draft     seal as terminal terminal
draft     end              -
draft     prune            pruned
sealed    seal             -
sealed    seal as terminal -
sealed    end              terminal
sealed    prune            pruned
terminal  seal             -
terminal  seal as terminal -
terminal  end              -
terminal  prune            pruned
pruned    seal             -
pruned    seal as terminal -
pruned    end              -
pruned    prune            -
pruned    seal             -
pruned    seal as terminal -
pruned    end              -
pruned    prune            -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_root_never_changes_once_it_is_there() {
        let sealed = NodeState::Draft.step(NodeStep::Seal { root: root(1), terminal: false });
        assert_eq!(sealed, Ok(NodeState::Sealed { root: root(1) }));
        let ended = sealed.and_then(|state| state.step(NodeStep::End));
        assert_eq!(ended, Ok(NodeState::Terminal { root: root(1) }));
        let pruned = ended.and_then(|state| state.step(NodeStep::Prune));
        assert_eq!(pruned, Ok(NodeState::Pruned { root: Some(root(1)) }));
    }

    #[test]
    fn every_pair_of_an_attempts_state_and_step_is_decided() {
        let states = [
            AttemptState::Queued,
            AttemptState::Active { epoch: 1 },
            AttemptState::Quiescing { epoch: 1 },
            AttemptState::Sealed,
            AttemptState::Failed,
            AttemptState::Released,
        ];
        let failure = Failure::new(FailureClass::Cancelled, "test", "");
        let steps = [
            AttemptStep::Start { epoch: 2 },
            AttemptStep::Quiesce,
            AttemptStep::Seal,
            AttemptStep::Fail { failure, delta_kept: false },
            AttemptStep::Release,
        ];
        let take =
            |state: &AttemptState, step: &AttemptStep| state.step(step).map(|next| next.status().as_str());
        let text = table(&states, &steps, AttemptStep::name, take, |state| state.status().as_str());
        let expected = "\
queued    start            active
queued    quiesce          -
queued    seal             -
queued    fail             failed
queued    release          released
active    start            -
active    quiesce          quiescing
active    seal             -
active    fail             failed
active    release          -
quiescing start            -
quiescing quiesce          -
quiescing seal             sealed
quiescing fail             failed
quiescing release          released
sealed    start            -
sealed    quiesce          -
sealed    seal             -
sealed    fail             -
sealed    release          released
failed    start            -
failed    quiesce          -
failed    seal             -
failed    fail             -
failed    release          released
released  start            -
released  quiesce          -
released  seal             -
released  fail             -
released  release          -
";
        assert_eq!(text, expected);
    }
}
