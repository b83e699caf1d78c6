//! What is asked of a run and what is answered. The rules are in `esf_core::rollout`; `esf-graph` commits them.
//!
//! Invariant: a step is known by (sibling, trial, index) and an outcome by (sibling, trial): the same again is
//! answered as before, under whatever key; another one is refused.

pub mod reject;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, RootId};
use crate::environment::Environment;
use crate::id::{AttemptId, ExecId, NodeId, PromptId, RunId, SiblingId};
use crate::record::{Evaluator, Json};
use crate::rollout::rules::Wait;
use crate::rollout::{
    CancelReason, Content, Contents, Delivery, GenerationSource, Outcome, Policy, Refill, Task, Unit,
};
use crate::time::BootMillis;

/// Makes a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRun {
    /// A sealed node of the group in which it runs; its prompts begin on it unless they say otherwise.
    pub node: NodeId,
    /// A name for people: 1 to 255 bytes.
    pub name: String,
    /// The policy, at its first version.
    pub policy: Policy,
    /// Settings of the sampler.
    #[serde(default)]
    pub sampler: Json,
    /// Whether what is sampled ages.
    #[serde(default = "live")]
    pub generation_source: GenerationSource,
    /// The environment of its attempts; the group's default when absent.
    #[serde(default)]
    pub environment: Option<Environment>,
    /// Who scores.
    #[serde(default)]
    pub evaluators: Vec<Evaluator>,
    /// How many siblings a prompt has when it does not say: 1 to [`NewPrompt::MAX_SIZE`].
    #[serde(default = "one")]
    pub group_size: u32,
    /// The rewards there are and their weights; any may be named when empty.
    #[serde(default)]
    pub rewards: BTreeMap<String, f64>,
    /// S: how many versions behind a result may be when it is delivered.
    #[serde(default)]
    pub max_staleness: Option<u64>,
    /// How many results a trainer takes in a step.
    #[serde(default)]
    pub batch: Option<u64>,
    /// While so many usable results are untrained, nothing new begins.
    #[serde(default)]
    pub max_ready: Option<u64>,
    /// What is done again by itself.
    #[serde(default = "no_refill")]
    pub refill: Refill,
    /// The most refills of a prompt.
    #[serde(default)]
    pub max_refills: u32,
}

fn live() -> GenerationSource {
    GenerationSource::Live
}

fn no_refill() -> Refill {
    Refill::None
}

fn one() -> u32 {
    1
}

impl CreateRun {
    /// A run on `node` of which nothing else is said.
    pub fn new(node: NodeId, name: impl Into<String>, policy: Policy) -> Self {
        Self {
            node,
            name: name.into(),
            policy,
            sampler: Json::Null,
            generation_source: GenerationSource::Live,
            environment: None,
            evaluators: Vec::new(),
            group_size: 1,
            rewards: BTreeMap::new(),
            max_staleness: None,
            batch: None,
            max_ready: None,
            refill: Refill::None,
            max_refills: 0,
        }
    }
}

/// Publishes a version of a run's policy: what samples from now on. Versions only grow; after a rollback the
/// trainer publishes a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishPolicy {
    /// The run.
    pub run_id: RunId,
    /// The version.
    pub version: u64,
    /// Digest of its weights.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// The adapter on top of them.
    #[serde(default)]
    pub adapter: Option<String>,
}

/// A prompt to be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPrompt {
    /// What it is about.
    pub task: Task,
    /// The sealed node on which its siblings begin; the run's when absent.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// What chance begins with: at most [`crate::rollout::rules::MAX_SEED`].
    #[serde(default)]
    pub seed: u64,
    /// How many siblings it has; as the run says when absent.
    #[serde(default)]
    pub size: Option<u32>,
    /// Further words: JSON of at most [`Content::MAX_INLINE`] bytes.
    #[serde(default)]
    pub extra: Json,
}

impl NewPrompt {
    /// The most siblings of a prompt.
    pub const MAX_SIZE: u32 = 4096;
}

/// Adds prompts to a run, all or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddPrompts {
    /// The run.
    pub run_id: RunId,
    /// The prompts: 1 to [`AddPrompts::MAX`].
    pub prompts: Vec<NewPrompt>,
}

impl AddPrompts {
    /// The most prompts of a request.
    pub const MAX: usize = 10_000;
    /// The most siblings of a request.
    pub const MAX_SIBLINGS: u64 = 100_000;
}

/// Where a trial goes on from another sibling's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkFrom {
    /// The sibling, of the same prompt.
    pub sibling_id: SiblingId,
    /// How many of its steps are shared: the first step of the new trial.
    pub step: u64,
    /// The first step whose tokens are the new trial's; `step` when absent, and never before it, since the tokens of
    /// a shared step are the parent's.
    #[serde(default)]
    pub owned_from: Option<u64>,
}

/// A sibling to be begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartSibling {
    /// The sibling.
    pub sibling_id: SiblingId,
    /// The attempt in which it begins, where there is one.
    #[serde(default)]
    pub attempt_id: Option<AttemptId>,
    /// The trial that this one takes the place of, when one goes on.
    #[serde(default)]
    pub supersede: Option<u32>,
    /// Where it goes on from another sibling's steps.
    #[serde(default)]
    pub fork: Option<ForkFrom>,
}

impl StartSibling {
    /// That `sibling_id` begins, and nothing else.
    pub fn of(sibling_id: SiblingId) -> Self {
        Self { sibling_id, attempt_id: None, supersede: None, fork: None }
    }
}

/// Begins trials of siblings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartSiblings {
    /// The run.
    pub run_id: RunId,
    /// These, in this order.
    pub siblings: Vec<StartSibling>,
    /// And so many more that wait, or whose holder's lease ran out: opened prompts before new ones.
    pub next: u32,
    /// For how many milliseconds each is held without a step; for ever when absent.
    pub lease_ms: Option<u64>,
}

impl StartSiblings {
    /// The most siblings of a request.
    pub const MAX: usize = 10_000;
}

/// A trial that has begun: what is needed to run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// The sibling.
    pub sibling_id: SiblingId,
    /// The prompt.
    pub prompt_id: PromptId,
    /// The prompt's place in the run.
    pub prompt_index: u64,
    /// The sibling's place in the prompt.
    pub index: u32,
    /// The revision.
    pub revision: u32,
    /// The trial: comes with every step and with the outcome.
    pub trial: u32,
    /// What the prompt is about.
    pub task: Task,
    /// Further words of the prompt.
    pub extra: Json,
    /// The node on which it begins.
    pub node_id: NodeId,
    /// The root of the prompt's node.
    pub root_id: RootId,
    /// What chance begins with.
    pub seed: u64,
    /// The index of its first step.
    pub first_step: u64,
    /// The policy's version when it began.
    pub policy_version: u64,
}

/// What was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The trials.
    pub begun: Vec<Begun>,
    /// Why not all that was asked for: try again once this is over.
    pub wait: Option<Wait>,
    /// Whether nothing waits to be begun.
    pub exhausted: bool,
}

/// A step to be recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewStep {
    /// Its place: one more than the last.
    pub index: u64,
    /// The node it acted on; the one that the last step left when absent, and no other.
    pub node_before: Option<NodeId>,
    /// The node it left: sealed; the same one when absent.
    pub node_after: Option<NodeId>,
    /// What was done.
    pub action: Option<Content>,
    /// What was seen of it.
    pub observation: Option<Content>,
    /// A reward of this step alone; finite.
    pub reward: Option<f64>,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// The attempt it ran in.
    pub attempt_id: Option<AttemptId>,
    /// The commands it ran: at most [`NewStep::MAX_EXECS`].
    pub exec_ids: Vec<ExecId>,
    /// The policy's version that sampled it; a published one.
    pub policy_version: Option<u64>,
    /// Arrays of numbers.
    pub arrays: Contents,
}

impl NewStep {
    /// The most commands of a step.
    pub const MAX_EXECS: usize = 256;
    /// The most steps of a trial.
    pub const MAX_INDEX: u64 = 1_000_000;
}

/// Steps of one trial; all of them or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordSteps {
    /// The sibling.
    pub sibling_id: SiblingId,
    /// The trial.
    pub trial: u32,
    /// Holds the trial on for so many milliseconds, if it is held under a lease.
    #[serde(default)]
    pub lease_ms: Option<u64>,
    /// The steps, in order; none only holds the trial on.
    pub steps: Vec<NewStep>,
}

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The index that the next step must have.
    pub next: u64,
    /// How many steps were new.
    pub fresh: u64,
    /// The node that the last one left.
    pub node_id: NodeId,
}

/// Ends a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishSibling {
    /// The sibling.
    pub sibling_id: SiblingId,
    /// The trial.
    pub trial: u32,
    /// What came of it.
    pub outcome: Outcome,
}

/// Why an outcome did not count; it is kept as evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Late {
    /// Another trial had taken its place.
    Superseded,
    /// The sibling had been given up.
    Cancelled,
}

/// What an outcome did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Finished {
    /// It is the terminal event of its revision.
    Counted {
        /// The sibling.
        sibling_id: SiblingId,
        /// The revision.
        revision: u32,
        /// Its place in the run's log.
        sequence: u64,
        /// The place of the group event, if it was the last of its prompt.
        group_sequence: Option<u64>,
        /// Whether the sibling, or its whole prompt, is to be done again.
        refilled: bool,
    },
    /// It counts nowhere.
    Late {
        /// The sibling.
        sibling_id: SiblingId,
        /// The trial.
        trial: u32,
        /// Why.
        because: Late,
    },
}

/// What is to be given up, or done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A run.
    Run(RunId),
    /// A prompt.
    Prompt(PromptId),
    /// A sibling.
    Sibling(SiblingId),
}

/// Gives up what has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// What.
    pub target: Target,
    /// Why.
    pub reason: CancelReason,
}

/// What was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReply {
    /// How many siblings.
    pub siblings: u64,
    /// How many prompts are complete by that.
    pub prompts: u64,
}

/// Does again what has ended: a sibling, or a whole prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefillAgain {
    /// What; not a run.
    pub target: Target,
}

/// What waits again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refilled {
    /// The prompt.
    pub prompt_id: PromptId,
    /// Its siblings that wait again, with their new revisions.
    pub siblings: Vec<(SiblingId, u32)>,
    /// How many refills the prompt has had.
    pub refills: u32,
}

/// Takes entries of a run's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consume {
    /// The run.
    pub run_id: RunId,
    /// The consumer's name: 1 to 255 bytes. One that is not known is made.
    pub consumer: String,
    /// What it takes one by one; as at its first request, and siblings when it never said.
    pub unit: Option<Unit>,
    /// Whether it wants only what may be trained on; as at its first request, and no when it never said.
    pub usable_only: Option<bool>,
    /// How many at most: 1 to [`Consume::MAX`].
    pub max: u32,
    /// For how many milliseconds they are its own.
    pub lease_ms: u64,
}

impl Consume {
    /// The most entries of a request.
    pub const MAX: u32 = 10_000;
}

/// An entry that was delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivered {
    /// The entry.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// Of a group: the entries of its siblings, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Delivery>,
}

/// What was delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The run.
    pub run_id: RunId,
    /// The consumer.
    pub consumer: String,
    /// The batch's number within the run, from 1: what is acknowledged. None when nothing was delivered.
    pub batch: Option<u64>,
    /// When its lease ends, on the boot clock of the request.
    pub expires_at: BootMillis,
    /// The entries.
    pub deliveries: Vec<Delivered>,
    /// How many entries were dropped on the way, as too old, superseded or unusable.
    pub dropped: u64,
    /// Whether the run is over and nothing is left for this consumer, leased or not.
    pub drained: bool,
}

/// Acknowledges entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The run.
    pub run_id: RunId,
    /// The consumer.
    pub consumer: String,
    /// The batch they were delivered in.
    pub batch: u64,
    /// Which of them were trained on; all that are not in `filtered` when absent.
    pub sequences: Option<Vec<u64>>,
    /// Those that are not to be trained on, and not to be sampled again.
    pub filtered: Vec<u64>,
    /// The trainer's step that used them: from 1.
    pub trainer_step: u64,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acked {
    /// How many entries were new to it as trained on.
    pub trained: u64,
    /// How many as filtered.
    pub filtered: u64,
    /// How many it knew already.
    pub repeated: u64,
    /// Everything up to here is trained or dropped.
    pub cursor: u64,
}

/// Gives entries back before their lease ends, or holds them on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldBatch {
    /// The run.
    pub run_id: RunId,
    /// The consumer.
    pub consumer: String,
    /// The batch.
    pub batch: u64,
    /// For how many milliseconds from now on; zero gives the entries back.
    pub lease_ms: u64,
}

/// After a trainer went back: what was trained on after a step is open again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reopen {
    /// The run.
    pub run_id: RunId,
    /// The consumer.
    pub consumer: String,
    /// The last step that stays.
    pub after_step: u64,
}

/// What is open again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reopened {
    /// How many entries.
    pub reopened: u64,
    /// Everything up to here is trained or dropped.
    pub cursor: u64,
}
