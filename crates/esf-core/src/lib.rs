//! Vocabulary and rules of Ephemeral Sandbox Fabric: ids, digests, records, transitions, manifests
//! as values, and merge. Pure: nothing here reads a clock, a file or the environment.
//! `docs/glossary.md` defines the words; `ARCHITECTURE.md` says who may depend on whom.

pub mod canonical;
pub mod development;
pub mod diff;
pub mod digest;
pub mod environment;
pub mod failure;
pub mod id;
pub mod manifest;
pub mod merge;
pub mod name;
pub mod ops;
pub mod policy;
pub mod problem;
pub mod record;
pub mod rollout;
pub mod search;
pub mod state;
pub mod time;
pub mod units;

pub use digest::{AttrsId, BlobId, Digest, EnvironmentDigest, PolicyDigest, RootId, StateId, TreeId};
pub use failure::FailureClass;
pub use id::{
    AttemptId, EvaluationId, ExecId, GroupId, LeaseId, NodeId, PromptId, RolloutId, RunId, SearchId,
    SiblingId, StoreId, WorkerId,
};
pub use name::Name;
pub use problem::{Class, Problem};
pub use time::Timestamp;
