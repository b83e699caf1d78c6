//! Why an operation is refused. Each refusal has a stable code and says what was expected, what was
//! found, which ids are concerned and what to do (style rule 16); `problem` is the one place where
//! that is worded.

use serde_json::json;

use crate::id::{AttemptId, ExecId, LeaseId, NodeId};
use crate::manifest::RootPin;
use crate::ops::{development, rollout, search};
use crate::problem::{Class, Problem};
use crate::record::{Json, LogicalState, StateTooLarge};
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
    /// A refusal by a search.
    #[error(transparent)]
    Search(#[from] search::reject::Reject),
    /// A refusal by a run.
    #[error(transparent)]
    Rollout(#[from] rollout::reject::Reject),
    /// A refusal by a task or by the queue.
    #[error(transparent)]
    Development(#[from] development::reject::Reject),
}

impl Reject {
    /// The refusal as it leaves the libraries.
    pub fn problem(&self) -> Problem {
        let (class, code) = self.class_and_code();
        let (expected, found) = self.expected_and_found();
        let problem = Problem {
            remediation: self.remediation(),
            retryable: class == Class::Refused,
            context: self.context(),
            ..Problem::new(class, code, self.to_string())
        };
        problem.expected(expected).found(found)
    }

    /// The class and the stable code.
    pub const fn class_and_code(&self) -> (Class, &'static str) {
        match self {
            Self::BadMeta { .. } => (Class::Usage, "bad_request"),
            Self::BadName { .. } => (Class::Usage, "bad_name"),
            Self::BadArgument { .. } => (Class::Usage, "bad_argument"),
            Self::StateTooLarge(_) => (Class::Usage, "state_too_large"),
            Self::NameTaken { .. } => (Class::Conflict, "name_taken"),
            Self::UnknownRoot { .. } => (Class::NotFound, "not_found"),
            Self::NotSealed { .. } => (Class::Conflict, "not_sealed"),
            Self::Terminal { .. } => (Class::Conflict, "terminal"),
            Self::Pruned { .. } => (Class::Conflict, "pruned"),
            Self::Stale { .. } => (Class::Conflict, "stale"),
            Self::AttemptLive { .. } => (Class::Conflict, "attempt_live"),
            Self::LeaseFenced { .. } => (Class::Conflict, "lease_fenced"),
            Self::IllegalStep(_) => (Class::Conflict, "illegal_step"),
            Self::NotRetryable { .. } => (Class::Conflict, "not_retryable"),
            Self::NothingToSalvage { .. } => (Class::Conflict, "nothing_to_salvage"),
            Self::StaleGeneration { .. } => (Class::Conflict, "stale_generation"),
            Self::NotDescendant { .. } => (Class::Conflict, "not_descendant"),
            Self::Leased { .. } => (Class::Conflict, "leased"),
            Self::Canonical { .. } => (Class::Conflict, "canonical"),
            Self::UnsealedChanges { .. } => (Class::Conflict, "unsealed_changes"),
            Self::OtherGroup { .. } => (Class::Conflict, "other_group"),
            Self::Quota { .. } => (Class::Refused, "quota"),
            Self::ExecEnded { .. } => (Class::Conflict, "exec_ended"),
            Self::Search(reject) => reject.class_and_code(),
            Self::Rollout(reject) => reject.class_and_code(),
            Self::Development(reject) => reject.class_and_code(),
        }
    }

    fn expected_and_found(&self) -> (String, String) {
        let both = |expected: &str, found: &dyn ToString| (expected.to_owned(), found.to_string());
        match self {
            Self::BadMeta { field, bytes } => both(&format!("{field} of 1 to 255 bytes"), bytes),
            Self::BadName { name, reason } => both(reason, name),
            Self::BadArgument { argument: _, expected, found } => both(expected, found),
            Self::StateTooLarge(error) => both(&format!("at most {} bytes", LogicalState::MAX), &error.found),
            Self::NameTaken { name: _, by } => both("a free name", by),
            Self::UnknownRoot { root } => both("a root that was sealed in this store", &root.root),
            Self::NotSealed { .. } => both("a sealed node", &"draft"),
            Self::Terminal { .. } => both("a sealed node that is not terminal", &"terminal"),
            Self::Pruned { .. } => both("a node that was not pruned", &"pruned"),
            Self::Stale { status, .. } => both("a draft", &status.as_str()),
            Self::AttemptLive { attempt, .. } => both("a draft without a queued or live attempt", attempt),
            Self::LeaseFenced { epoch, current, status, .. } => {
                let epoch = epoch.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
                let found = format!("epoch {epoch}, attempt {}", status.as_str());
                both(&format!("epoch {current} of a live lease"), &found)
            }
            Self::IllegalStep(step) => {
                both(&format!("{} in a state that can {}", step.machine, step.step), &step.from)
            }
            Self::NotRetryable { status, .. } => both("a failed or released attempt", &status.as_str()),
            Self::NothingToSalvage { reason, .. } => {
                both("a failed attempt whose delta is kept, in the boot it was written in", reason)
            }
            Self::StaleGeneration { expected, generation, .. } => both(&expected.to_string(), generation),
            Self::NotDescendant { node, canonical, .. } => {
                both(&format!("a descendant of {canonical}"), node)
            }
            Self::Leased { attempt, lease, .. } => {
                let under = lease.map_or_else(String::new, |lease| format!(" under {lease}"));
                both("no queued or live attempt", &format!("{attempt}{under}"))
            }
            Self::Canonical { node } => both("a node that is not canonical", node),
            Self::UnsealedChanges { count, .. } => {
                both("nothing unsealed", &format!("{count} unsealed changes"))
            }
            Self::OtherGroup { node } => both("nodes of one group", node),
            Self::Quota { used, limit, .. } => both(&format!("fewer than {limit}"), used),
            Self::ExecEnded { exec } => both("a running exec", exec),
            Self::Search(reject) => reject.expected_and_found(),
            Self::Rollout(reject) => reject.expected_and_found(),
            Self::Development(reject) => reject.expected_and_found(),
        }
    }

    fn remediation(&self) -> Option<String> {
        Some(match self {
            Self::BadName { .. } | Self::NameTaken { .. } => "choose another name".to_owned(),
            Self::StateTooLarge(_) => "keep large data in the tree and refer to it".to_owned(),
            Self::UnknownRoot { .. } => "import it first: esf root import SOURCE".to_owned(),
            Self::NotSealed { last_sealed: Some(last), .. } => {
                format!("seal it with esf suspend, or use the last sealed node {last}")
            }
            Self::NotSealed { last_sealed: None, .. } => "seal it with esf suspend".to_owned(),
            Self::Terminal { .. } => "evaluate or export it, or fork one of its parents".to_owned(),
            Self::Stale { attempt, node, .. } => {
                format!("the first seal won; release {attempt}, or fork {node} and redo the work")
            }
            Self::AttemptLive { .. } => "use that attempt, release it, or fork the parent again".to_owned(),
            Self::LeaseFenced { .. } => "stop: another holder or recovery took over".to_owned(),
            Self::NothingToSalvage { attempt, .. } => {
                format!("esf retry {attempt} starts again from the same draft")
            }
            Self::StaleGeneration { generation, canonical, .. } => {
                format!("look at {canonical}, then merge and try again with generation {generation}")
            }
            Self::NotDescendant { .. } => {
                "merge it with the canonical node, or drop that one's work with --replace".to_owned()
            }
            Self::Leased { attempt, .. } => format!("suspend or release {attempt} first"),
            Self::Canonical { .. } => "promote another node first".to_owned(),
            Self::UnsealedChanges { .. } => {
                "seal them with esf suspend, or give them up with --discard".to_owned()
            }
            Self::Quota { .. } => "wait for an attempt to end, or raise the group's quota".to_owned(),
            Self::Search(reject) => return reject.remediation(),
            Self::Rollout(reject) => return reject.remediation(),
            Self::Development(reject) => reject.remediation(),
            Self::BadMeta { .. }
            | Self::BadArgument { .. }
            | Self::Pruned { .. }
            | Self::IllegalStep(_)
            | Self::NotRetryable { .. }
            | Self::OtherGroup { .. }
            | Self::ExecEnded { .. } => return None,
        })
    }

    fn context(&self) -> Json {
        match self {
            Self::NotSealed { node, last_sealed } => json!({ "node_id": node, "last_sealed": last_sealed }),
            Self::Terminal { node }
            | Self::Pruned { node }
            | Self::Canonical { node }
            | Self::OtherGroup { node } => json!({ "node_id": node }),
            Self::Stale { attempt, node, .. } | Self::AttemptLive { attempt, node } => {
                json!({ "attempt_id": attempt, "node_id": node })
            }
            Self::LeaseFenced { attempt, current, status, .. } => {
                json!({ "attempt_id": attempt, "epoch": current, "status": status })
            }
            Self::NotRetryable { attempt, .. } | Self::NothingToSalvage { attempt, .. } => {
                json!({ "attempt_id": attempt })
            }
            Self::StaleGeneration { generation, canonical, .. } => {
                json!({ "generation": generation, "canonical_node_id": canonical })
            }
            Self::NotDescendant { node, canonical, generation } => {
                json!({ "node_id": node, "canonical_node_id": canonical, "generation": generation })
            }
            Self::Leased { node, attempt, lease } => {
                json!({ "node_id": node, "attempt_id": attempt, "lease_id": lease })
            }
            Self::UnsealedChanges { count, attempts } => json!({ "unsealed": count, "attempts": attempts }),
            Self::Quota { quota, used, limit } => json!({ "quota": quota, "used": used, "limit": limit }),
            Self::ExecEnded { exec } => json!({ "exec_id": exec }),
            Self::Search(reject) => reject.context(),
            Self::Rollout(reject) => reject.context(),
            Self::Development(reject) => reject.context(),
            Self::BadMeta { .. }
            | Self::BadName { .. }
            | Self::BadArgument { .. }
            | Self::StateTooLarge(_)
            | Self::NameTaken { .. }
            | Self::UnknownRoot { .. }
            | Self::IllegalStep(_) => Json::Null,
        }
    }
}
