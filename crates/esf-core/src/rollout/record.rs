//! The records of a run. Field names are the names in JSON. Invariants: a sibling's id outlives its revisions and
//! trials; each (sibling, revision) has at most one terminal delivery; sequences are dense from 1.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CancelReason, Content, Contents, Outcome, RewardStats, SiblingStatus};
use crate::digest::{Digest, EnvironmentDigest, RootId};
use crate::id::{AttemptId, ExecId, GroupId, NodeId, PromptId, RunId, SiblingId};
use crate::record::{Evaluator, Json, text_forms};
use crate::time::{BootMillis, Timestamp};

/// Whether a run takes more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunStatus {
    /// It does, and what it needs is kept.
    Open,
    /// Nothing new begins; what was recorded can still be consumed.
    Finished,
    /// It was given up.
    Cancelled,
}

text_forms!(RunStatus { Open = "open", Finished = "finished", Cancelled = "cancelled" });

/// Whether the policy that samples is the one that is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GenerationSource {
    /// It is: what it samples ages as versions are published.
    Live,
    /// It is not: what it samples never ages.
    Frozen,
}

text_forms!(GenerationSource { Live = "live", Frozen = "frozen" });

/// What is done again by itself after an error that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Nothing.
    None,
    /// The sibling.
    Sibling,
    /// The whole prompt, once all of its siblings have ended.
    Group,
}

text_forms!(Refill { None = "none", Sibling = "sibling", Group = "group" });

/// A policy as the caller names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Its version: the last one published.
    pub version: u64,
    /// Digest of its weights, where the caller has one.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// The adapter on top of them.
    #[serde(default)]
    pub adapter: Option<String>,
}

/// A version of a run's policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// The version.
    pub version: u64,
    /// Digest of its weights.
    pub digest: Option<Digest>,
    /// The adapter on top of them.
    pub adapter: Option<String>,
    /// When it was published.
    pub published_at: Timestamp,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub run_id: RunId,
    /// The group of its nodes.
    pub group_id: GroupId,
    /// The node on which its prompts begin that do not say otherwise.
    pub node_id: NodeId,
    /// A name for people.
    pub name: String,
    /// The policy, at its current version.
    pub policy: Policy,
    /// Settings of the sampler, as the caller says them.
    pub sampler: Json,
    /// Whether what is sampled ages.
    pub generation_source: GenerationSource,
    /// The environment of its attempts.
    pub environment_digest: EnvironmentDigest,
    /// Who scores.
    pub evaluators: Vec<Evaluator>,
    /// How many siblings a prompt has when it does not say.
    pub group_size: u32,
    /// The rewards there are and their weights; any may be named when empty.
    pub rewards: BTreeMap<String, f64>,
    /// S: how many versions behind a live result may be when it is delivered; no bound when absent.
    pub max_staleness: Option<u64>,
    /// How many results a trainer takes in a step; no admission control when absent.
    pub batch: Option<u64>,
    /// While so many usable results are untrained, nothing new begins; no bound when absent.
    pub max_ready: Option<u64>,
    /// What is done again by itself.
    pub refill: Refill,
    /// The most refills of a prompt.
    pub max_refills: u32,
    /// Whether it takes more work.
    pub status: RunStatus,
    /// Why it was given up.
    pub cancelled: Option<CancelReason>,
    /// How much there is of everything.
    #[serde(flatten)]
    pub counts: super::rules::Counts,
    /// The last step that a trainer acknowledged; 0 before the first.
    pub trainer_step: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// Trace of the request that made it.
    pub trace_id: String,
}

/// What a prompt is about, in the caller's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The task's name or number.
    pub id: String,
    /// Digest of its definition.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// The part of a data set it is from.
    #[serde(default)]
    pub split: Option<String>,
}

/// Whether a prompt waits for siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromptStatus {
    /// Some have not ended.
    Open,
    /// All have ended.
    Complete,
    /// It was given up.
    Cancelled,
}

text_forms!(PromptStatus { Open = "open", Complete = "complete", Cancelled = "cancelled" });

/// A prompt: a group of siblings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Its id.
    pub prompt_id: PromptId,
    /// The run.
    pub run_id: RunId,
    /// Its place in the run, from 0.
    pub index: u64,
    /// What it is about.
    pub task: Task,
    /// The sealed node on which its siblings begin.
    pub node_id: NodeId,
    /// That node's root.
    pub root_id: RootId,
    /// What chance begins with.
    pub seed: u64,
    /// How many siblings it has.
    pub size: u32,
    /// Raised when the whole prompt is done again.
    pub revision: u32,
    /// How often something of it was done again.
    pub refills: u32,
    /// The policy's version when its first sibling began.
    pub policy_version: Option<u64>,
    /// Whether it waits for siblings.
    pub status: PromptStatus,
    /// The sequence of its last group event.
    pub sequence: Option<u64>,
    /// Further words of the caller.
    pub extra: Json,
    /// The rewards of its usable siblings, as they are now.
    pub stats: RewardStats,
    /// When it was added.
    pub created_at: Timestamp,
}

/// A sibling: one logical rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sibling {
    /// Its id.
    pub sibling_id: SiblingId,
    /// The prompt.
    pub prompt_id: PromptId,
    /// The run.
    pub run_id: RunId,
    /// Its place in the prompt, from 0.
    pub index: u32,
    /// Raised when it is done again after it ended.
    pub revision: u32,
    /// What chance begins with, for this revision.
    pub seed: u64,
    /// Where it is in its revision's life.
    pub status: SiblingStatus,
    /// The trial that counts; none before the first of this revision.
    pub trial: Option<u32>,
    /// Every trial, in order.
    pub trials: Vec<Trial>,
    /// How many steps the trial that counts has recorded.
    pub steps: u64,
    /// How it ended; null while it has not.
    pub outcome: Option<Outcome>,
    /// Why it was given up.
    pub cancelled: Option<CancelReason>,
    /// Digest of the outcome, as it was given.
    pub outcome_digest: Option<Digest>,
    /// The sequence of the revision's terminal event.
    pub sequence: Option<u64>,
    /// Trace of the request that began the trial that counts.
    pub trace_id: String,
}

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrialStatus {
    /// It goes on.
    Running,
    /// Its outcome is the sibling's.
    Counted,
    /// Another trial took its place.
    Superseded,
    /// Its sibling was given up.
    Cancelled,
}

text_forms!(TrialStatus {
    Running = "running",
    Counted = "counted",
    Superseded = "superseded",
    Cancelled = "cancelled",
});

/// One physical try of a sibling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its number within the sibling, from 0, whatever the revision: what fences steps and outcomes.
    pub trial: u32,
    /// The revision it is for.
    pub revision: u32,
    /// The attempt it began in, where there is one.
    pub attempt_id: Option<AttemptId>,
    /// What became of it.
    pub status: TrialStatus,
    /// The policy's version when it began.
    pub policy_version: u64,
    /// The sibling whose steps it goes on from.
    pub parent_sibling: Option<SiblingId>,
    /// That one's trial.
    pub parent_trial: Option<u32>,
    /// The step of it that is this one's first; the steps before are shared.
    pub fork_step: Option<u64>,
    /// The first step whose tokens are this trial's to train on.
    pub owned_from_step: Option<u64>,
    /// How many steps it recorded.
    pub steps: u64,
    /// The node after its last step.
    pub node_id: NodeId,
    /// An outcome that came too late to count: evidence.
    pub late: Option<Outcome>,
    /// When another may take its place, on the boot clock of `boot_id`; never when absent.
    pub expires_at: Option<BootMillis>,
    /// The boot in which it was leased.
    pub boot_id: Option<String>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Who runs it.
    pub created_by: String,
    /// Trace of the request that began it.
    pub trace_id: String,
}

/// A turn of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its place, dense; from 0, or from the trial's `fork_step`.
    pub index: u64,
    /// The node it acted on.
    pub node_before: NodeId,
    /// The node it left; the same one when nothing changed.
    pub node_after: NodeId,
    /// What was done.
    pub action: Option<Content>,
    /// What was seen of it.
    pub observation: Option<Content>,
    /// A reward of this step alone.
    pub reward: Option<f64>,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// The attempt it ran in.
    pub attempt_id: Option<AttemptId>,
    /// The commands it ran.
    pub exec_ids: Vec<ExecId>,
    /// The policy's version that sampled it; published.
    pub policy_version: Option<u64>,
    /// Arrays of numbers, by name.
    pub arrays: Contents,
}

/// What a delivery is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeliveryKind {
    /// A revision of a sibling ended.
    Sibling,
    /// All siblings of a prompt have ended.
    Group,
}

text_forms!(DeliveryKind { Sibling = "sibling", Group = "group" });

/// An entry of a run's log of ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its place in the log: dense, from 1.
    pub sequence: u64,
    /// What it is about.
    pub kind: DeliveryKind,
    /// The run.
    pub run_id: RunId,
    /// The prompt.
    pub prompt_id: PromptId,
    /// The prompt's place in the run.
    pub prompt_index: u64,
    /// The sibling; none for a group.
    pub sibling_id: Option<SiblingId>,
    /// The sibling's place in the prompt.
    pub sibling_index: Option<u32>,
    /// The sibling's revision, or the prompt's.
    pub revision: u32,
    /// The trial that ended; none for a group, or for a sibling that never began.
    pub trial: Option<u32>,
    /// How the sibling ended.
    pub status: Option<SiblingStatus>,
    /// Its outcome; none for a group, or when it was cancelled.
    pub outcome: Option<Outcome>,
    /// Why it was given up.
    pub cancelled: Option<CancelReason>,
    /// Whether it may be trained on; for a group, whether any member may.
    pub usable: bool,
    /// The least policy version in it; of its usable members for a group.
    pub policy_version_start: Option<u64>,
    /// The greatest one.
    pub policy_version_end: Option<u64>,
    /// The entries of a group's siblings, by their sequences, in order of the siblings.
    pub members: Vec<u64>,
    /// Rewards of a group's usable members.
    pub stats: Option<RewardStats>,
    /// When it was recorded.
    pub at: Timestamp,
}

/// What a consumer takes one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Siblings.
    Sibling,
    /// Whole prompts.
    Group,
}

text_forms!(Unit { Sibling = "sibling", Group = "group" });

/// Why a consumer does not train on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It was too old when it was to be delivered.
    Stale,
    /// The consumer said so, and remembers.
    Filtered,
    /// A newer revision took its place.
    Superseded,
    /// It may not be trained on, and the consumer wants no others.
    Unusable,
}

text_forms!(DropReason {
    Stale = "stale",
    Filtered = "filtered",
    Superseded = "superseded",
    Unusable = "unusable",
});

/// A named consumer of a run: one trainer, of however many processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    /// Its name, unique within the run.
    pub consumer: String,
    /// What it takes one by one.
    pub unit: Unit,
    /// Whether it wants only what may be trained on.
    pub usable_only: bool,
    /// Everything up to here is trained or dropped.
    pub cursor: u64,
    /// Entries it holds, or held under a lease that ran out.
    pub leased: u64,
    /// Entries it trained on.
    pub trained: u64,
    /// Entries dropped as too old.
    pub stale: u64,
    /// Entries it filtered.
    pub filtered: u64,
    /// Entries of which a newer revision took the place.
    pub superseded: u64,
    /// Entries that may not be trained on.
    pub unusable: u64,
    /// The last step it acknowledged.
    pub trainer_step: u64,
}
