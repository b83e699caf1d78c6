//! `SandboxNode`: a selectable, immutable checkpoint with parentage and logical state, or a draft.
//! Invariant: `root_id` and `attrs_id` are set exactly when the node was ever sealed.

use serde::{Deserialize, Serialize};

use crate::digest::{AttrsId, Digest, RootId, StateId};
use crate::id::{AttemptId, GroupId, NodeId};
use crate::manifest::RootPin;
use crate::record::{Json, LogicalState};
use crate::state::{IllegalStep, NodeState, NodeStatus, NodeStep};
use crate::time::Timestamp;

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub node_id: NodeId,
    /// Its group.
    pub group_id: GroupId,
    /// The nodes it was made from: none for an import, one for a fork, several for a merge.
    pub parents: Vec<NodeId>,
    /// The sealed tree; null while a draft.
    pub root_id: Option<RootId>,
    /// Times, owners and xattrs of the sealed tree; null while a draft.
    pub attrs_id: Option<AttrsId>,
    /// The tree on which work begins; null for an import.
    pub base_root_id: Option<RootId>,
    /// Its times, owners and xattrs.
    pub base_attrs_id: Option<AttrsId>,
    /// Canonical JSON beside the tree.
    pub logical_state: LogicalState,
    /// Digest of the logical state.
    pub state_id: StateId,
    /// Draft, sealed, terminal or pruned.
    pub status: NodeStatus,
    /// The attempt that produced it; null for imports, merges and drafts.
    pub attempt_id: Option<AttemptId>,
    /// What the sealer said about it.
    pub message: Option<String>,
    /// What the sealing attempt reported; sealed together with the tree.
    pub result: Json,
    /// Where it comes from; sealed together with the tree.
    pub provenance: Json,
    /// What changed against the base, counted at the seal.
    pub changed: Option<Changed>,
    /// The terms of a merge; conflicts are here, and *ours* is in the tree.
    pub merge: Option<MergeTerms>,
    /// Names that were given to it in its group, ascending.
    pub tags: Vec<String>,
    /// One more than its deepest parent; 0 for an import.
    pub depth: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it was sealed.
    pub sealed_at: Option<Timestamp>,
    /// When it was pruned.
    pub pruned_at: Option<Timestamp>,
    /// Trace of the request that made it.
    pub trace_id: String,
    /// Digest of the signed statement about it, once there is one.
    pub statement_digest: Option<Digest>,
}

/// How many entries a seal changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Changed {
    /// New entries.
    pub added: u64,
    /// Entries with other content or attributes.
    pub modified: u64,
    /// Entries that are gone.
    pub deleted: u64,
    /// Bytes of new and modified files.
    pub bytes: u64,
}

/// On what terms a merge node was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeTerms {
    /// The common base.
    pub base: Option<NodeId>,
    /// The generation at which the merge was made.
    pub generation: u64,
    /// The conflicts, as data; empty when it was clean.
    pub conflicts: Vec<Json>,
    /// Options of the merge that are on record, such as line merging.
    pub options: Json,
}

impl Node {
    /// The sealed tree; `None` while a draft.
    pub fn root(&self) -> Option<RootPin> {
        Some(RootPin { root: self.root_id?, attrs: self.attrs_id? })
    }

    /// The tree on which work begins; `None` for an import.
    pub fn base_root(&self) -> Option<RootPin> {
        Some(RootPin { root: self.base_root_id?, attrs: self.base_attrs_id? })
    }

    /// The state with its data.
    pub fn state(&self) -> NodeState {
        match (self.status, self.root()) {
            (NodeStatus::Draft, _) | (NodeStatus::Sealed | NodeStatus::Terminal, None) => NodeState::Draft,
            (NodeStatus::Sealed, Some(root)) => NodeState::Sealed { root },
            (NodeStatus::Terminal, Some(root)) => NodeState::Terminal { root },
            (NodeStatus::Pruned, root) => NodeState::Pruned { root },
        }
    }

    /// Takes one step at `now`.
    ///
    /// # Errors
    /// `IllegalStep` when the state machine has no such edge; the node is unchanged then.
    pub fn take(&mut self, step: NodeStep, now: Timestamp) -> Result<(), IllegalStep> {
        let next = self.state().step(step)?;
        self.status = next.status();
        match next {
            NodeState::Draft => {}
            NodeState::Sealed { root } | NodeState::Terminal { root } => {
                self.root_id = Some(root.root);
                self.attrs_id = Some(root.attrs);
                self.sealed_at.get_or_insert(now);
            }
            NodeState::Pruned { root: _ } => self.pruned_at = Some(now),
        }
        Ok(())
    }
}
