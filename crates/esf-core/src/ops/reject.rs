//! Why an operation is refused. Each refusal has a stable code and says what was expected, what was
//! found, which ids are concerned and what to do (style rule 16); `problem` is the one place where
//! that is worded.

use serde_json::json;

use crate::id::{AttemptId, ExecId, LeaseId, NodeId};
use crate::manifest::RootPin;
use crate::problem::{Class, Problem};
use crate::record::StateTooLarge;
use crate::state::{AttemptStatus, IllegalStep, NodeStatus};

/// A refusal of an operation; nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reject {
    /// The actor or the key of a request is empty or too long.
    #[error("bad request: {field} must have 1 to 255 bytes and has {bytes}")]
    BadMeta {
        /// `actor` or `key`.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A name that would not be found again.
    #[error("bad name {name:?}: {reason}")]
    BadName {
        /// The refused name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// An argument outside its range.
    #[error("bad argument {argument}: expected {expected}, found {found}")]
    BadArgument {
        /// Which.
        argument: &'static str,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A logical state over the bound.
    #[error(transparent)]
    StateTooLarge(#[from] StateTooLarge),
    /// A name that is in use.
    #[error("the name {name:?} is taken by {by}")]
    NameTaken {
        /// The name.
        name: String,
        /// What has it.
        by: String,
    },
    /// A root that nobody sealed in this store.
    #[error("unknown root {}", root.root)]
    UnknownRoot {
        /// The root.
        root: RootPin,
    },
    /// The node is a draft, but a sealed one is needed.
    #[error("{node} is not sealed")]
    NotSealed {
        /// The node.
        node: NodeId,
        /// The nearest sealed ancestor.
        last_sealed: Option<NodeId>,
    },
    /// The node is terminal: it cannot be forked, worked on or promoted.
    #[error("{node} is terminal")]
    Terminal {
        /// The node.
        node: NodeId,
    },
    /// The node was pruned.
    #[error("{node} was pruned")]
    Pruned {
        /// The node.
        node: NodeId,
    },
    /// The node was already sealed by somebody else.
    #[error("{attempt} is stale: its node {node} is {status} already", status = status.as_str())]
    Stale {
        /// The late attempt.
        attempt: AttemptId,
        /// Its node.
        node: NodeId,
        /// The node's status.
        status: NodeStatus,
    },
    /// The draft has a queued or live attempt.
    #[error("{node} has an attempt already: {attempt}")]
    AttemptLive {
        /// The draft.
        node: NodeId,
        /// Its attempt.
        attempt: AttemptId,
    },
    /// The write carries an epoch that is no longer the attempt's.
    #[error("the lease of {attempt} moved on")]
    LeaseFenced {
        /// The attempt.
        attempt: AttemptId,
        /// The epoch of the write; `None` when it had none.
        epoch: Option<u64>,
        /// The attempt's epoch.
        current: u64,
        /// The attempt's status.
        status: AttemptStatus,
    },
    /// A step that the state machine does not have.
    #[error(transparent)]
    IllegalStep(#[from] IllegalStep),
    /// Only a failed or released attempt may be tried again.
    #[error("{attempt} is {status}", status = status.as_str())]
    NotRetryable {
        /// The attempt.
        attempt: AttemptId,
        /// Its status.
        status: AttemptStatus,
    },
    /// There is no delta left that could be salvaged.
    #[error("nothing to salvage of {attempt}: {reason}")]
    NothingToSalvage {
        /// The attempt.
        attempt: AttemptId,
        /// Why.
        reason: &'static str,
    },
    /// The canonical node moved since the caller looked.
    #[error("stale generation: expected {expected}, found {generation}")]
    StaleGeneration {
        /// What the caller expected.
        expected: u64,
        /// The current generation.
        generation: u64,
        /// The current canonical node.
        canonical: NodeId,
    },
    /// The node does not descend from the canonical one.
    #[error("{node} does not descend from the canonical node {canonical}")]
    NotDescendant {
        /// The node.
        node: NodeId,
        /// The canonical node.
        canonical: NodeId,
        /// The current generation.
        generation: u64,
    },
    /// A queued or leased attempt holds the node.
    #[error("{node} is leased by {attempt}")]
    Leased {
        /// The node.
        node: NodeId,
        /// The attempt that holds it.
        attempt: AttemptId,
        /// Its lease, when it has one.
        lease: Option<LeaseId>,
    },
    /// The canonical node cannot be pruned.
    #[error("{node} is the canonical node of its group")]
    Canonical {
        /// The node.
        node: NodeId,
    },
    /// There are changes that were never sealed.
    #[error("{count} unsealed changes would be lost")]
    UnsealedChanges {
        /// How many entries.
        count: u64,
        /// The attempts that have them.
        attempts: Vec<AttemptId>,
    },
    /// Nodes of more than one group.
    #[error("{node} is of another group")]
    OtherGroup {
        /// The node.
        node: NodeId,
    },
    /// A quota of the group's policy is used up.
    #[error("quota {quota} is used up: {used} of {limit}")]
    Quota {
        /// The policy's key.
        quota: &'static str,
        /// How many there are.
        used: u64,
        /// How many there may be.
        limit: u64,
    },
    /// An exec that has ended cannot end again otherwise.
    #[error("{exec} has ended")]
    ExecEnded {
        /// The exec.
        exec: ExecId,
    },
}

impl Reject {
    /// The refusal as it leaves the libraries.
    pub fn problem(&self) -> Problem {
        self.usage()
            .or_else(|| self.of_node())
            .or_else(|| self.of_attempt())
            .unwrap_or_else(|| self.of_group())
    }

    fn of_class(&self, class: Class, code: &str) -> Problem {
        Problem::new(class, code, self.to_string())
    }

    fn usage(&self) -> Option<Problem> {
        let problem = |code| self.of_class(Class::Usage, code);
        Some(match self {
            Self::BadMeta { field, bytes } => problem("bad_request")
                .expected(format!("{field} of 1 to 255 bytes"))
                .found(format!("{bytes} bytes")),
            Self::BadName { name, reason } => {
                problem("bad_name").expected(*reason).found(name.clone()).remedy("choose another name")
            }
            Self::BadArgument { argument: _, expected, found } => {
                problem("bad_argument").expected(expected.clone()).found(found.clone())
            }
            Self::StateTooLarge(error) => problem("state_too_large")
                .expected(format!("at most {} bytes", crate::record::LogicalState::MAX))
                .found(format!("{} bytes", error.found))
                .remedy("keep large data in the tree and refer to it"),
            _ => return None,
        })
    }

    fn of_node(&self) -> Option<Problem> {
        let problem = |code| self.of_class(Class::Conflict, code);
        Some(match self {
            Self::UnknownRoot { root } => self
                .of_class(Class::NotFound, "not_found")
                .expected("a root that was sealed in this store")
                .found(root.root.to_string())
                .remedy("import it first: esf root import SOURCE"),
            Self::NotSealed { node, last_sealed } => {
                let problem = problem("not_sealed")
                    .expected("a sealed node")
                    .found("draft")
                    .context(json!({ "node_id": node, "last_sealed": last_sealed }));
                match last_sealed {
                    Some(last) => problem
                        .remedy(format!("seal it with esf suspend, or use the last sealed node {last}")),
                    None => problem.remedy("seal it with esf suspend"),
                }
            }
            Self::Terminal { node } => problem("terminal")
                .expected("a sealed node that is not terminal")
                .found("terminal")
                .remedy("evaluate or export it, or fork one of its parents")
                .context(json!({ "node_id": node })),
            Self::Pruned { node } => problem("pruned")
                .expected("a node that was not pruned")
                .found("pruned")
                .context(json!({ "node_id": node })),
            Self::Leased { node, attempt, lease } => problem("leased")
                .expected("no queued or live attempt")
                .found(lease.map_or_else(|| attempt.to_string(), |lease| format!("{attempt} under {lease}")))
                .remedy(format!("suspend or release {attempt} first"))
                .context(json!({ "node_id": node, "attempt_id": attempt, "lease_id": lease })),
            Self::Canonical { node } => problem("canonical")
                .expected("a node that is not canonical")
                .found(node.to_string())
                .remedy("promote another node first")
                .context(json!({ "node_id": node })),
            Self::UnsealedChanges { count, attempts } => problem("unsealed_changes")
                .expected("nothing unsealed")
                .found(format!("{count} unsealed changes"))
                .remedy("seal them with esf suspend, or give them up with --discard")
                .context(json!({ "unsealed": count, "attempts": attempts })),
            Self::OtherGroup { node } => problem("other_group")
                .expected("nodes of one group")
                .found(node.to_string())
                .context(json!({ "node_id": node })),
            _ => return None,
        })
    }

    fn of_attempt(&self) -> Option<Problem> {
        let problem = |code| self.of_class(Class::Conflict, code);
        Some(match self {
            Self::Stale { attempt, node, status } => problem("stale")
                .expected("a draft")
                .found(status.as_str())
                .remedy(format!("the first seal won; release {attempt}, or fork {node} and redo the work"))
                .context(json!({ "attempt_id": attempt, "node_id": node })),
            Self::AttemptLive { node, attempt } => problem("attempt_live")
                .expected("a draft without a queued or live attempt")
                .found(attempt.to_string())
                .remedy("use that attempt, release it, or fork the parent again")
                .context(json!({ "node_id": node, "attempt_id": attempt })),
            Self::LeaseFenced { attempt, epoch, current, status } => problem("lease_fenced")
                .expected(format!("epoch {current} of a live lease"))
                .found(match epoch {
                    Some(epoch) => format!("epoch {epoch}, attempt {}", status.as_str()),
                    None => format!("no epoch, attempt {}", status.as_str()),
                })
                .remedy("stop: another holder or recovery took over")
                .context(json!({ "attempt_id": attempt, "epoch": current, "status": status })),
            Self::IllegalStep(step) => problem("illegal_step")
                .expected(format!("{} in a state that can {}", step.machine, step.step))
                .found(step.from),
            Self::NotRetryable { attempt, status } => problem("not_retryable")
                .expected("a failed or released attempt")
                .found(status.as_str())
                .context(json!({ "attempt_id": attempt })),
            Self::NothingToSalvage { attempt, reason } => problem("nothing_to_salvage")
                .expected("a failed attempt whose delta is kept, in the boot it was written in")
                .found(*reason)
                .remedy(format!("esf retry {attempt} starts again from the same draft"))
                .context(json!({ "attempt_id": attempt })),
            Self::ExecEnded { exec } => {
                problem("exec_ended").expected("a running exec").found(exec.to_string())
            }
            _ => return None,
        })
    }

    fn of_group(&self) -> Problem {
        let problem = |code| self.of_class(Class::Conflict, code);
        match self {
            Self::NameTaken { name, by } => problem("name_taken")
                .expected("a free name")
                .found(by.clone())
                .remedy(format!("choose another name than {name:?}")),
            Self::StaleGeneration { expected, generation, canonical } => problem("stale_generation")
                .expected(expected.to_string())
                .found(generation.to_string())
                .remedy(format!("look at {canonical}, then merge and try again with generation {generation}"))
                .context(json!({ "generation": generation, "canonical_node_id": canonical })),
            Self::NotDescendant { node, canonical, generation } => problem("not_descendant")
                .expected(format!("a descendant of {canonical}"))
                .found(node.to_string())
                .remedy("merge it with the canonical node, or drop that one's work with --replace")
                .context(json!({
                    "node_id": node, "canonical_node_id": canonical, "generation": generation
                })),
            Self::Quota { quota, used, limit } => self
                .of_class(Class::Refused, "quota")
                .expected(format!("fewer than {limit}"))
                .found(used.to_string())
                .remedy("wait for a live attempt to end, or raise the group's quota")
                .retryable()
                .context(json!({ "quota": quota, "used": used, "limit": limit })),
            Self::BadMeta { .. }
            | Self::BadName { .. }
            | Self::BadArgument { .. }
            | Self::StateTooLarge(_)
            | Self::UnknownRoot { .. }
            | Self::NotSealed { .. }
            | Self::Terminal { .. }
            | Self::Pruned { .. }
            | Self::Leased { .. }
            | Self::Canonical { .. }
            | Self::UnsealedChanges { .. }
            | Self::OtherGroup { .. }
            | Self::Stale { .. }
            | Self::AttemptLive { .. }
            | Self::LeaseFenced { .. }
            | Self::IllegalStep(_)
            | Self::NotRetryable { .. }
            | Self::NothingToSalvage { .. }
            | Self::ExecEnded { .. } => unreachable!("worded above"),
        }
    }
}
