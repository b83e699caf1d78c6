//! `promote`: compare-and-swap of the canonical node. Invariant: of any number of promotions that
//! expect one generation at most one succeeds, and none drops somebody's work unless told to.

use serde::Serialize;

use crate::id::NodeId;
use crate::ops::{Change, Decision, Reject, Request, Transition, fork};
use crate::record::{EventKind, Group, Node};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Promote {
    /// The sealed node.
    pub node: NodeId,
    /// The generation that the caller saw.
    pub expect: u64,
    /// Whether it may leave out the work of the canonical node.
    pub replace: bool,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The node.
    pub node: Node,
    /// Its nearest sealed ancestor, looked up when it is a draft.
    pub last_sealed: Option<NodeId>,
    /// Its group.
    pub group: Group,
    /// Whether the node is the canonical one or descends from it.
    pub descends: bool,
}

/// Decides.
///
/// # Errors
/// `NotSealed`, `Terminal`, `Pruned`, `StaleGeneration` with the current generation and canonical node,
/// `NotDescendant`.
pub fn decide(
    snapshot: &Snapshot,
    command: &Promote,
    request: &Request<'_>,
) -> Result<Decision<Group>, Reject> {
    fork::forkable(&snapshot.node, snapshot.last_sealed)?;
    let group = &snapshot.group;
    expect(group, command.expect)?;
    if !snapshot.descends && !command.replace {
        return Err(Reject::NotDescendant {
            node: command.node,
            canonical: group.canonical_node_id,
            generation: group.generation,
        });
    }
    let promoted =
        Group { canonical_node_id: command.node, generation: group.generation + 1, ..group.clone() };
    let detail = serde_json::json!({
        "generation": promoted.generation,
        "from_node_id": group.canonical_node_id,
        "replace": command.replace && !snapshot.descends,
        "actor": request.meta.actor,
    });
    Ok(Decision::new(promoted.clone())
        .change(Change::MoveCanonical {
            group_id: group.group_id,
            node_id: command.node,
            was: group.generation,
            generation: promoted.generation,
        })
        .log(Transition::of_node(EventKind::Promoted, &snapshot.node).detail(detail)))
}

/// Refuses a caller who looked at another generation.
///
/// # Errors
/// `StaleGeneration`.
pub fn expect(group: &Group, expected: u64) -> Result<(), Reject> {
    if group.generation == expected {
        return Ok(());
    }
    Err(Reject::StaleGeneration {
        expected,
        generation: group.generation,
        canonical: group.canonical_node_id,
    })
}
