//! `SandboxGroup`: owns one checkpoint graph and its canonical generation.

use serde::{Deserialize, Serialize};

use crate::digest::PolicyDigest;
use crate::environment::Environment;
use crate::id::{GroupId, NodeId};
use crate::policy::Policy;
use crate::time::Timestamp;

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its id.
    pub group_id: GroupId,
    /// Its name, unique in the store.
    pub name: String,
    /// The node that stands for the project now.
    pub canonical_node_id: NodeId,
    /// Counts the promotions; a promotion names the one it expects.
    pub generation: u64,
    /// Its rules.
    pub policy: Policy,
    /// Digest of the policy's text.
    pub policy_digest: PolicyDigest,
    /// Where the first root came from, such as `directory:NAME`; provenance, never opened again.
    pub source: String,
    /// Environment of attempts that do not say another.
    pub default_environment: Environment,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// Trace of the request that made it.
    pub trace_id: String,
}
