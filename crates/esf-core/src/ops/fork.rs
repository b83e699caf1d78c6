//! `fork`: drafts that refer to a sealed parent. Invariant: O(1) metadata each and nothing else,
//! whatever the size of the tree or of the logical state; the stored reply is O(1) for the whole call.

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, Seed, StoreId};
use crate::manifest::RootPin;
use crate::ops::{Change, Decision, Reject, Request, Transition};
use crate::record::{EventKind, Json, Node};
use crate::state::NodeStatus;
use crate::time::Timestamp;

/// Most children of one call.
pub const MAX: u32 = 100_000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fork {
    /// The sealed parent.
    pub parent: NodeId,
    /// How many children.
    pub count: u32,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The parent.
    pub parent: Node,
    /// Its nearest sealed ancestor, looked up when it is a draft.
    pub last_sealed: Option<NodeId>,
}

/// What was forked; with the parent, from which the children's records follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The parent.
    pub parent: NodeId,
    /// How many children.
    pub count: u32,
    /// When.
    pub at: Timestamp,
    /// Who asked.
    pub actor: String,
    /// Under which key.
    pub key: String,
    /// In which operation, for a fork that is part of a larger one.
    pub operation: String,
    /// In which trace.
    pub trace_id: String,
}

/// Decides.
///
/// # Errors
/// `NotSealed` naming the last sealed node, `Terminal`, `Pruned`, `BadArgument`.
pub fn decide(
    snapshot: &Snapshot,
    command: &Fork,
    request: &Request<'_>,
) -> Result<Decision<Forked>, Reject> {
    let root = forkable(&snapshot.parent, snapshot.last_sealed)?;
    if !(1..=MAX).contains(&command.count) {
        return Err(Reject::BadArgument {
            argument: "count",
            expected: format!("1 to {MAX}"),
            found: command.count.to_string(),
        });
    }
    let forked = forked(&snapshot.parent, command.count, request);
    let mut decision = Decision::new(forked.clone());
    decision.changes.reserve(command.count as usize);
    decision.transitions.reserve(command.count as usize);
    for ordinal in 0..u64::from(command.count) {
        let child = child(&snapshot.parent, root, &forked, request.store, ordinal);
        decision.transitions.push(Transition::of_node(EventKind::NodeCreated, &child));
        decision.changes.push(Change::InsertNode(Box::new(child)));
    }
    Ok(decision)
}

/// The tree on which children of `parent` begin.
///
/// # Errors
/// `NotSealed` naming the last sealed node, `Terminal`, `Pruned`.
pub fn forkable(parent: &Node, last_sealed: Option<NodeId>) -> Result<RootPin, Reject> {
    let node = parent.node_id;
    match (parent.status, parent.root()) {
        (NodeStatus::Sealed, Some(root)) => Ok(root),
        (NodeStatus::Draft, _) | (NodeStatus::Sealed, None) => Err(Reject::NotSealed { node, last_sealed }),
        (NodeStatus::Terminal, _) => Err(Reject::Terminal { node }),
        (NodeStatus::Pruned, _) => Err(Reject::Pruned { node }),
    }
}

/// What a fork of `count` children under `request` is, as stored.
pub fn forked(parent: &Node, count: u32, request: &Request<'_>) -> Forked {
    Forked {
        parent: parent.node_id,
        count,
        at: request.meta.now,
        actor: request.meta.actor.clone(),
        key: request.meta.key.clone(),
        operation: request.operation.to_owned(),
        trace_id: request.meta.trace_id.clone(),
    }
}

/// The children's records as they were when they were made: the reply, now and on every repetition.
/// The parent's root and state never change after its seal, so neither does this.
pub fn children(parent: &Node, forked: &Forked, store: StoreId) -> Vec<Node> {
    let Some(root) = parent.root() else { return Vec::new() };
    (0..u64::from(forked.count)).map(|ordinal| child(parent, root, forked, store, ordinal)).collect()
}

/// One child.
pub fn child(parent: &Node, root: RootPin, forked: &Forked, store: StoreId, ordinal: u64) -> Node {
    let seed = Seed {
        store,
        principal: &forked.actor,
        operation: &forked.operation,
        key: &forked.key,
        target: parent.node_id.as_bytes(),
        ordinal,
    };
    Node {
        node_id: NodeId::derive(&seed),
        group_id: parent.group_id,
        parents: vec![parent.node_id],
        root_id: None,
        attrs_id: None,
        base_root_id: Some(root.root),
        base_attrs_id: Some(root.attrs),
        logical_state: parent.logical_state.clone(),
        state_id: parent.state_id,
        status: NodeStatus::Draft,
        attempt_id: None,
        message: None,
        result: Json::Null,
        provenance: Json::Null,
        changed: None,
        merge: None,
        tags: Vec::new(),
        depth: parent.depth + 1,
        created_at: forked.at,
        created_by: forked.actor.clone(),
        sealed_at: None,
        pruned_at: None,
        trace_id: forked.trace_id.clone(),
        statement_digest: None,
    }
}
