//! `commit_merge`: records what a three-way merge came to. Invariant: it never moves the canonical
//! node, it is refused at another generation than expected, and conflicts are data on a draft, which
//! cannot be promoted.

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::manifest::RootPin;
use crate::ops::{Change, Decision, Reject, Request, Transition, promote};
use crate::record::{Changed, EventKind, Group, Json, LogicalState, MergeTerms, Node};
use crate::state::NodeStatus;

/// What a merge came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeOutcome {
    /// It was clean.
    Merged,
    /// These paths conflict; *ours* is in the tree there.
    Conflicted {
        /// One object for each: path, kind, base, ours, theirs.
        conflicts: Vec<Json>,
    },
}

/// What is asked for; the root comes with its proof, or is that of the first parent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommitMerge {
    /// The merged nodes, *ours* first; two or more.
    pub parents: Vec<NodeId>,
    /// The common base.
    pub base: Option<NodeId>,
    /// The generation that the caller saw.
    pub expect: u64,
    /// What it came to.
    pub outcome: MergeOutcome,
    /// What changed against *ours*.
    pub changed: Changed,
    /// The logical state; that of *ours* when absent.
    pub state: Option<LogicalState>,
    /// Options that are on record.
    pub options: Json,
    /// Where the tree comes from.
    pub provenance: Json,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The merged nodes, in order.
    pub parents: Vec<Node>,
    /// Their group.
    pub group: Group,
}

/// How a merge ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The node is sealed.
    Merged,
    /// The node is a draft that carries the conflicts.
    Conflicted,
}

/// The reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeReply {
    /// How it ended.
    pub outcome: Verdict,
    /// The node: sealed, or a draft with the conflicts in `merge`.
    pub node: Node,
    /// The conflicts.
    pub conflicts: Vec<Json>,
}

/// Decides.
///
/// # Errors
/// `BadArgument` for fewer than two parents or one named twice, `OtherGroup`, `NotSealed`, `Pruned`,
/// `StaleGeneration`.
pub fn decide(
    snapshot: &Snapshot,
    command: &CommitMerge,
    root: Option<RootPin>,
    request: &Request<'_>,
) -> Result<Decision<MergeReply>, Reject> {
    let ours = check_parents(snapshot)?;
    promote::expect(&snapshot.group, command.expect)?;
    let root = match (root, ours.root()) {
        (Some(root), _) | (None, Some(root)) => root,
        (None, None) => return Err(Reject::NotSealed { node: ours.node_id, last_sealed: None }),
    };
    let conflicts = match &command.outcome {
        MergeOutcome::Merged => Vec::new(),
        MergeOutcome::Conflicted { conflicts } => conflicts.clone(),
    };
    let outcome = match &command.outcome {
        MergeOutcome::Merged => Verdict::Merged,
        MergeOutcome::Conflicted { conflicts: _ } => Verdict::Conflicted,
    };
    let node = merge_node(snapshot, command, ours, root, outcome, request);
    let detail =
        serde_json::json!({ "outcome": outcome, "conflicts": conflicts.len(), "merge": node.parents });
    Ok(Decision::new(MergeReply { outcome, node: node.clone(), conflicts })
        .log(Transition::of_node(EventKind::NodeCreated, &node).detail(detail))
        .change(Change::InsertNode(Box::new(node))))
}

fn check_parents(snapshot: &Snapshot) -> Result<&Node, Reject> {
    let parents = &snapshot.parents;
    let bad = |found: String| Reject::BadArgument {
        argument: "parents",
        expected: "two or more different sealed nodes of one group".to_owned(),
        found,
    };
    let [ours, _, ..] = parents.as_slice() else { return Err(bad(parents.len().to_string())) };
    for (index, node) in parents.iter().enumerate() {
        if node.group_id != ours.group_id {
            return Err(Reject::OtherGroup { node: node.node_id });
        }
        match node.status {
            NodeStatus::Sealed | NodeStatus::Terminal => {}
            NodeStatus::Draft => return Err(Reject::NotSealed { node: node.node_id, last_sealed: None }),
            NodeStatus::Pruned => return Err(Reject::Pruned { node: node.node_id }),
        }
        if parents[..index].iter().any(|other| other.node_id == node.node_id) {
            return Err(bad(format!("{} twice", node.node_id)));
        }
    }
    Ok(ours)
}

fn merge_node(
    snapshot: &Snapshot,
    command: &CommitMerge,
    ours: &Node,
    root: RootPin,
    outcome: Verdict,
    request: &Request<'_>,
) -> Node {
    let meta = request.meta;
    let sealed = match outcome {
        Verdict::Merged => Some(root),
        Verdict::Conflicted => None,
    };
    let conflicts = match &command.outcome {
        MergeOutcome::Merged => Vec::new(),
        MergeOutcome::Conflicted { conflicts } => conflicts.clone(),
    };
    let base = match outcome {
        Verdict::Merged => ours.root(),
        Verdict::Conflicted => Some(root),
    };
    let logical_state = command.state.clone().unwrap_or_else(|| ours.logical_state.clone());
    let target: Vec<u8> = command.parents.iter().flat_map(|parent| *parent.as_bytes()).collect();
    Node {
        node_id: NodeId::derive(&request.seed(&target, 0)),
        group_id: ours.group_id,
        parents: command.parents.clone(),
        root_id: sealed.map(|root| root.root),
        attrs_id: sealed.map(|root| root.attrs),
        base_root_id: base.map(|root| root.root),
        base_attrs_id: base.map(|root| root.attrs),
        state_id: logical_state.id(),
        logical_state,
        status: if sealed.is_some() { NodeStatus::Sealed } else { NodeStatus::Draft },
        attempt_id: None,
        message: None,
        result: Json::Null,
        provenance: command.provenance.clone(),
        changed: Some(command.changed),
        merge: Some(MergeTerms {
            base: command.base,
            generation: snapshot.group.generation,
            conflicts,
            options: command.options.clone(),
        }),
        tags: Vec::new(),
        depth: 1 + snapshot.parents.iter().map(|parent| parent.depth).max().unwrap_or(0),
        created_at: meta.now,
        created_by: meta.actor.clone(),
        sealed_at: sealed.map(|_| meta.now),
        pruned_at: None,
        trace_id: meta.trace_id.clone(),
        statement_digest: None,
    }
}
