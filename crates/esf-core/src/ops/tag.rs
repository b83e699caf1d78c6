//! `tag` and `untag`: names for nodes. A tagged node is kept by prune; a name is never moved in silence.

use serde::{Deserialize, Serialize};

use crate::id::{GroupId, NodeId};
use crate::ops::{Change, Decision, Reject, Request, Transition, label};
use crate::record::{EventKind, Node};
use crate::state::NodeStatus;

/// What is asked for: a name for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tag {
    /// The node.
    pub node: NodeId,
    /// The name, unique in its group.
    pub name: String,
}

/// What is asked for: to take a name away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untag {
    /// The group.
    pub group: GroupId,
    /// The name.
    pub name: String,
}

/// A name that was taken away, and from which node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Untagged {
    /// The name.
    pub name: String,
    /// The node that had it; null when none had.
    pub node_id: Option<NodeId>,
}

/// Decides about a new name. `holder` is the node that has it already.
///
/// # Errors
/// `BadName`, `NameTaken`, `Pruned`.
pub fn decide(
    node: &Node,
    holder: Option<NodeId>,
    command: &Tag,
    request: &Request<'_>,
) -> Result<Decision<Node>, Reject> {
    label::check(&command.name)?;
    if node.status == NodeStatus::Pruned {
        return Err(Reject::Pruned { node: node.node_id });
    }
    match holder {
        Some(holder) if holder == node.node_id => return Ok(Decision::new(node.clone())),
        Some(holder) => {
            return Err(Reject::NameTaken { name: command.name.clone(), by: holder.to_string() });
        }
        None => {}
    }
    let mut tagged = node.clone();
    tagged.tags.push(command.name.clone());
    tagged.tags.sort();
    let detail = serde_json::json!({ "name": command.name });
    Ok(Decision::new(tagged)
        .change(Change::InsertTag {
            group_id: node.group_id,
            name: command.name.clone(),
            node_id: node.node_id,
            created_by: request.meta.actor.clone(),
            created_at: request.meta.now,
        })
        .log(Transition::of_node(EventKind::NodeTagged, node).detail(detail)))
}

/// Decides about taking a name away. `holder` is the node that has it.
///
/// # Errors
/// None; the signature is that of all decisions.
pub fn untag(holder: Option<&Node>, command: &Untag, _: &Request<'_>) -> Result<Decision<Untagged>, Reject> {
    let reply = Untagged { name: command.name.clone(), node_id: holder.map(|node| node.node_id) };
    let Some(node) = holder else { return Ok(Decision::new(reply)) };
    let detail = serde_json::json!({ "name": command.name });
    Ok(Decision::new(reply)
        .change(Change::DeleteTag { group_id: command.group, name: command.name.clone() })
        .log(Transition::of_node(EventKind::NodeUntagged, node).detail(detail)))
}
