//! `create_group`: a graph from an existing immutable root. The canonical node is that root, sealed.

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::id::{GroupId, NodeId};
use crate::manifest::RootPin;
use crate::ops::{Change, Decision, Reject, Request, Transition, label};
use crate::policy::PolicyDocument;
use crate::record::{EventKind, Group, Json, LogicalState, Node};
use crate::state::NodeStatus;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CreateGroup {
    /// The group's name, unique in the store.
    pub name: String,
    /// A root that was registered before.
    pub root: RootPin,
    /// The group's rules.
    pub policy: PolicyDocument,
    /// Where the root came from, such as `directory:NAME`; never a whole path of this machine.
    pub source: String,
    /// Environment of attempts that do not say another.
    pub default_environment: Environment,
    /// Where the root came from, in full; kept with the canonical node.
    pub provenance: Json,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Whether the root is registered.
    pub root_known: bool,
    /// The group that has the name already.
    pub name_taken_by: Option<GroupId>,
}

/// The group and its canonical node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Created {
    /// The group.
    pub group: Group,
    /// Its canonical node.
    pub node: Node,
}

/// Decides.
///
/// # Errors
/// `BadName`, `NameTaken`, `UnknownRoot`.
pub fn decide(
    snapshot: &Snapshot,
    command: &CreateGroup,
    request: &Request<'_>,
) -> Result<Decision<Created>, Reject> {
    label::check(&command.name)?;
    if let Some(group) = snapshot.name_taken_by {
        return Err(Reject::NameTaken { name: command.name.clone(), by: group.to_string() });
    }
    if !snapshot.root_known {
        return Err(Reject::UnknownRoot { root: command.root });
    }
    let seed = request.seed(command.name.as_bytes(), 0);
    let group_id = GroupId::derive(&seed);
    let node = canonical_node(command, request, group_id, NodeId::derive(&seed));
    let group = Group {
        group_id,
        name: command.name.clone(),
        canonical_node_id: node.node_id,
        generation: 0,
        policy: command.policy.policy().clone(),
        policy_digest: command.policy.digest(),
        source: command.source.clone(),
        default_environment: command.default_environment.clone(),
        created_at: request.meta.now,
        created_by: request.meta.actor.clone(),
        trace_id: request.meta.trace_id.clone(),
    };
    let created = Transition {
        group_id: Some(group_id),
        node_id: Some(node.node_id),
        root_id: node.root_id,
        ..Transition::new(EventKind::GroupCreated)
    };
    let imported = Transition::of_node(EventKind::NodeCreated, &node);
    Ok(Decision::new(Created { group: group.clone(), node: node.clone() })
        .change(Change::InsertNode(Box::new(node)))
        .change(Change::InsertGroup(Box::new(group), Box::new(command.policy.clone())))
        .log(created)
        .log(imported))
}

fn canonical_node(command: &CreateGroup, request: &Request<'_>, group_id: GroupId, node_id: NodeId) -> Node {
    let logical_state = LogicalState::empty();
    Node {
        node_id,
        group_id,
        parents: Vec::new(),
        root_id: Some(command.root.root),
        attrs_id: Some(command.root.attrs),
        base_root_id: None,
        base_attrs_id: None,
        state_id: logical_state.id(),
        logical_state,
        status: NodeStatus::Sealed,
        attempt_id: None,
        message: None,
        result: Json::Null,
        provenance: command.provenance.clone(),
        changed: None,
        merge: None,
        tags: Vec::new(),
        depth: 0,
        created_at: request.meta.now,
        created_by: request.meta.actor.clone(),
        sealed_at: Some(request.meta.now),
        pruned_at: None,
        trace_id: request.meta.trace_id.clone(),
        statement_digest: None,
    }
}
