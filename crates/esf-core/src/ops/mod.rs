//! The operations as pure decisions: a snapshot and a command go in, records and transitions come out
//! as data, or a typed refusal (design section 4). One file for each verb. Nothing here reads a clock,
//! draws an id or touches a database: `esf-graph` loads the snapshot and commits the decision, its
//! events and its idempotency record in one transaction.

pub mod begin_quiesce;
pub mod cancel;
pub mod commit_merge;
pub mod commit_seal;
pub mod create_group;
pub mod development;
pub mod enqueue;
pub mod evaluate;
pub mod exec;
pub mod fail_attempt;
pub mod fork;
pub mod label;
pub mod lapse;
pub mod promote;
pub mod prune;
pub mod reject;
pub mod release_attempt;
pub mod renew;
pub mod retry;
pub mod rollout;
pub mod search;
pub mod start;
pub mod tag;

pub use reject::Reject;

use serde::{Deserialize, Serialize};

use crate::digest::RootId;
use crate::id::{
    AttemptId, EvaluationId, ExecId, GroupId, LeaseId, NodeId, RolloutId, RunId, SearchId, Seed, SiblingId,
    StoreId,
};
use crate::policy::PolicyDocument;
use crate::record::{Attempt, Evaluation, EventKind, Exec, Group, Json, Lease, Node};
use crate::state::{AttemptStatus, NodeStatus};
use crate::time::{BootMillis, Timestamp};

/// The state plane's boot clock at the time of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootClock {
    /// The boot's id.
    pub boot_id: String,
    /// Milliseconds of `CLOCK_BOOTTIME` in that boot.
    pub millis: BootMillis,
}

/// Who asks, when, and under which idempotency key; comes in with every mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The principal.
    pub actor: String,
    /// The idempotency key: 1 to 255 bytes.
    pub key: String,
    /// Wall-clock time of the request.
    pub now: Timestamp,
    /// Boot clock at the request.
    pub boot: BootClock,
    /// Trace of the request.
    pub trace_id: String,
}

impl Meta {
    /// The same request's `part`, under a sub-key: how a composite command keys its steps.
    pub fn sub(&self, part: &str) -> Self {
        Self { key: format!("{}/{part}", self.key), ..self.clone() }
    }

    /// Checks what came from outside.
    ///
    /// # Errors
    /// `Reject::BadMeta` for an empty or overlong actor or key.
    pub fn check(&self) -> Result<(), Reject> {
        for (field, text) in [("actor", &self.actor), ("key", &self.key)] {
            if !(1..=255).contains(&text.len()) {
                return Err(Reject::BadMeta { field, bytes: text.len() });
            }
        }
        Ok(())
    }
}

/// A request as the decisions see it: what came with it, its store and its operation's name. Ids of
/// new records derive from it, so a repeated request names the same records.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The store in which the records live.
    pub store: StoreId,
    /// The operation's name.
    pub operation: &'static str,
    /// What came with the request.
    pub meta: &'a Meta,
}

impl<'a> Request<'a> {
    /// The seed of this request's record number `ordinal` about `target`.
    pub fn seed(&self, target: &'a [u8], ordinal: u64) -> Seed<'a> {
        Seed {
            store: self.store,
            principal: &self.meta.actor,
            operation: self.operation,
            key: &self.meta.key,
            target,
            ordinal,
        }
    }
}

/// What an operation decided: the reply, the changes of records, and the transitions to log.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<R> {
    /// What the caller is told, now and whenever the same request is repeated.
    pub reply: R,
    /// Applied in order, in one transaction.
    pub changes: Vec<Change>,
    /// Logged in order, in the same transaction.
    pub transitions: Vec<Transition>,
}

impl<R> Decision<R> {
    /// A decision that changes nothing yet.
    pub fn new(reply: R) -> Self {
        Self { reply, changes: Vec::new(), transitions: Vec::new() }
    }

    /// Adds a change.
    pub fn change(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }

    /// Adds a transition.
    pub fn log(mut self, transition: Transition) -> Self {
        self.transitions.push(transition);
        self
    }
}

/// One change of a record. `was` is what the snapshot saw: the store refuses when it is no longer so.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new group, with its policy's text.
    InsertGroup(Box<Group>, Box<PolicyDocument>),
    /// The canonical node moves from the generation `was` to the next.
    MoveCanonical {
        /// The group.
        group_id: GroupId,
        /// Its new canonical node.
        node_id: NodeId,
        /// The generation that was expected.
        was: u64,
        /// The generation from now on.
        generation: u64,
    },
    /// A new node.
    InsertNode(Box<Node>),
    /// A node after a step.
    UpdateNode {
        /// The node as it is from now on.
        node: Box<Node>,
        /// Its status before.
        was: NodeStatus,
    },
    /// A node goes out of sight.
    PruneNode {
        /// The node.
        node_id: NodeId,
        /// Its status before.
        was: NodeStatus,
        /// When.
        at: Timestamp,
    },
    /// A node gets a name.
    InsertTag {
        /// The group in which the name is unique.
        group_id: GroupId,
        /// The name.
        name: String,
        /// The node.
        node_id: NodeId,
        /// Who named it.
        created_by: String,
        /// When.
        created_at: Timestamp,
    },
    /// A name is taken away.
    DeleteTag {
        /// The group.
        group_id: GroupId,
        /// The name.
        name: String,
    },
    /// A new attempt.
    InsertAttempt(Box<Attempt>),
    /// An attempt after a step.
    UpdateAttempt {
        /// The attempt as it is from now on.
        attempt: Box<Attempt>,
        /// Its status before.
        was: AttemptStatus,
    },
    /// A new lease.
    InsertLease(Lease),
    /// A lease after a renewal, a release or a lapse.
    UpdateLease(Lease),
    /// A new exec.
    InsertExec(Box<Exec>),
    /// An exec after its end.
    UpdateExec(Box<Exec>),
    /// A new evaluation.
    InsertEvaluation(Box<Evaluation>),
}

/// A transition to log; sequence, time, actor and trace are added where it is committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// What happens.
    pub kind: EventKind,
    /// The group.
    pub group_id: Option<GroupId>,
    /// The node.
    pub node_id: Option<NodeId>,
    /// The attempt.
    pub attempt_id: Option<AttemptId>,
    /// The lease.
    pub lease_id: Option<LeaseId>,
    /// The exec.
    pub exec_id: Option<ExecId>,
    /// The evaluation.
    pub evaluation_id: Option<EvaluationId>,
    /// The root.
    pub root_id: Option<RootId>,
    /// The search.
    pub search_id: Option<SearchId>,
    /// The rollout.
    pub rollout_id: Option<RolloutId>,
    /// The run.
    pub run_id: Option<RunId>,
    /// The sibling of a run.
    pub sibling_id: Option<SiblingId>,
    /// What else there is to say.
    pub detail: Json,
}

impl Transition {
    /// A transition that is about nothing yet.
    pub fn new(kind: EventKind) -> Self {
        Self {
            kind,
            group_id: None,
            node_id: None,
            attempt_id: None,
            lease_id: None,
            exec_id: None,
            evaluation_id: None,
            root_id: None,
            search_id: None,
            rollout_id: None,
            run_id: None,
            sibling_id: None,
            detail: Json::Null,
        }
    }

    /// A transition of `node`: its root, or else the root on which it begins.
    pub fn of_node(kind: EventKind, node: &Node) -> Self {
        Self {
            group_id: Some(node.group_id),
            node_id: Some(node.node_id),
            attempt_id: node.attempt_id,
            root_id: node.root_id.or(node.base_root_id),
            ..Self::new(kind)
        }
    }

    /// A transition of `attempt`.
    pub fn of_attempt(kind: EventKind, attempt: &Attempt) -> Self {
        Self {
            group_id: Some(attempt.group_id),
            node_id: Some(attempt.node_id),
            attempt_id: Some(attempt.attempt_id),
            lease_id: attempt.lease_id,
            ..Self::new(kind)
        }
    }

    /// Adds what else there is to say.
    pub fn detail(mut self, detail: Json) -> Self {
        self.detail = detail;
        self
    }

    /// Adds the root.
    pub fn root(mut self, root_id: Option<RootId>) -> Self {
        self.root_id = root_id;
        self
    }
}

#[cfg(test)]
mod tests;
