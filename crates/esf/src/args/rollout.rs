//! Arguments of rollouts for training. What is said of many at once comes as JSON, an object a line, from a file or
//! standard input; the parsers of those lines are in `crate::rollout`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::execution::{ActivateOptions, Millis, some_time};

/// Rollouts for training: runs, prompts of siblings, steps, one end for each, delivered to trainers
#[derive(Subcommand)]
pub(crate) enum RolloutCommand {
    /// Make a run at a sealed node
    Create(Box<RolloutCreate>),
    /// Add prompts, each a group of siblings, or list them
    Prompts(RolloutPrompts),
    /// Begin trials of siblings
    Start(RolloutStart),
    /// Record steps of trials
    Step(RolloutStep),
    /// Say what came of trials; one end counts for each sibling
    Finish(RolloutFinish),
    /// List runs, or the prompts of one
    Ls(RolloutLs),
    /// Show a run, a prompt or a sibling
    Show(RolloutShow),
    /// Write trajectories out: JSON lines, messages, Parquet, ATIF or trees
    Export(RolloutExport),
    /// Take ended siblings, or whole prompts, under a lease
    Consume(RolloutConsume),
    /// Say which of a batch a trainer used, and in which step
    Ack(RolloutAck),
    /// Hold a batch longer, or give it back
    Hold(RolloutHold),
    /// After a trainer went back: what it used after a step is open again
    Reopen(RolloutReopen),
    /// Give up what has not ended: a run, a prompt or a sibling
    Cancel(RolloutCancel),
    /// Have a sibling or a whole prompt that ended done again
    Refill(RolloutRefill),
    /// Publish a version of the policy
    Publish(RolloutPublish),
    /// Take no more work into a run; what ended can still be consumed
    Close(RolloutClose),
    /// Carry the siblings to their ends: a policy program of yours, sandboxes and evaluators
    Run(Box<RolloutRun>),
    /// Record a trajectory that another program wrote
    Import(RolloutImport),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RefillArg {
    /// Nothing.
    None,
    /// The sibling.
    Sibling,
    /// The whole prompt, once all of it has ended.
    Group,
}

#[derive(Args)]
pub(crate) struct RolloutCreate {
    /// A sealed node: id prefix, GROUP:NAME or GROUP:@
    pub(crate) node: String,
    /// A name for people
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// The policy's name
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: String,
    /// Its first version
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) policy_version: u64,
    /// Digest of its weights
    #[arg(long, value_name = "DIGEST")]
    pub(crate) policy_digest: Option<String>,
    /// The adapter on top of them
    #[arg(long, value_name = "NAME")]
    pub(crate) adapter: Option<String>,
    /// Settings of the sampler: kept as they are said
    #[arg(long, value_name = "JSON")]
    pub(crate) sampler: Option<String>,
    /// The policy that samples is not the one that is trained: nothing ages
    #[arg(long)]
    pub(crate) frozen: bool,
    /// Who scores: an evaluator file, pinned by its digest
    #[arg(long, value_name = "FILE")]
    pub(crate) evaluator: Vec<PathBuf>,
    /// Siblings of a prompt that says nothing else
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) group_size: u32,
    /// A reward and its weight; when some are declared, no others may be given
    #[arg(long, value_name = "NAME=WEIGHT", value_parser = weight)]
    pub(crate) reward: Vec<(String, f64)>,
    /// How many versions behind a result may be when it is delivered
    #[arg(long, value_name = "S")]
    pub(crate) max_staleness: Option<u64>,
    /// Results that a trainer takes in a step; bounds what is begun
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<u64>,
    /// While so many usable results are untrained, nothing new begins
    #[arg(long, value_name = "N")]
    pub(crate) max_ready: Option<u64>,
    /// What is done again by itself after an error that may pass
    #[arg(long, value_enum, default_value_t = RefillArg::None)]
    pub(crate) refill: RefillArg,
    /// Refills of a prompt at most
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) max_refills: u32,
    #[command(flatten)]
    pub(crate) options: ActivateOptions,
}

#[derive(Args)]
pub(crate) struct RolloutPrompts {
    /// A run
    pub(crate) run: String,
    /// Add these, all or none: a JSON object a line: task {id, digest, split}, node, seed, size, extra
    #[arg(long, value_name = "FILE|-")]
    pub(crate) add: Option<PathBuf>,
    /// List from this place on
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub(crate) from: u64,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) most: u64,
}

#[derive(Args)]
pub(crate) struct RolloutStart {
    /// A run
    pub(crate) run: String,
    /// Siblings of it; without any, those that wait, prompts that are begun first
    pub(crate) siblings: Vec<String>,
    /// How many that wait; one when no sibling is named
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) next: Option<u32>,
    /// How long each is held without a step; for ever when not said
    #[arg(long, value_name = "DUR", value_parser = some_time)]
    pub(crate) lease: Option<Millis>,
    /// The attempt in which the one sibling begins
    #[arg(long, value_name = "ATTEMPT")]
    pub(crate) attempt: Option<String>,
    /// Take the place of this trial of the one sibling
    #[arg(long, value_name = "TRIAL")]
    pub(crate) supersede: Option<u32>,
    /// The one sibling goes on from steps of another
    #[arg(long, value_name = "SIBLING", requires = "fork_step")]
    pub(crate) fork: Option<String>,
    /// How many of its steps are shared
    #[arg(long, value_name = "STEP", requires = "fork")]
    pub(crate) fork_step: Option<u64>,
}

#[derive(Args)]
pub(crate) struct RolloutStep {
    /// A sibling
    #[arg(required_unless_present = "batch", conflicts_with = "batch", requires_all = ["trial", "index"])]
    pub(crate) sibling: Option<String>,
    /// Its trial, as `start` gave it
    #[arg(long, value_name = "TRIAL")]
    pub(crate) trial: Option<u32>,
    /// The step's place
    #[arg(long, value_name = "I")]
    pub(crate) index: Option<u64>,
    /// What was done: a JSON object, array or string, or else the text itself, exactly as typed (a number, too)
    #[arg(long, value_name = "JSON|TEXT", allow_hyphen_values = true)]
    pub(crate) action: Option<String>,
    /// What was seen of it, likewise
    #[arg(long, value_name = "JSON|TEXT", allow_hyphen_values = true)]
    pub(crate) observation: Option<String>,
    /// The sealed node that it left; the one before when not said
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// A reward of this step alone
    #[arg(long, value_name = "X", value_parser = super::search::finite, allow_hyphen_values = true)]
    pub(crate) reward: Option<f64>,
    /// The policy's version that sampled it
    #[arg(long, value_name = "N")]
    pub(crate) policy_version: Option<u64>,
    /// An array of numbers: a raw little-endian file of bool, u8, u16, u32, i32, i64, f16, bf16, f32 or f64
    #[arg(long, value_name = "NAME=DTYPE:FILE")]
    pub(crate) array: Vec<String>,
    /// Many at once, a JSON object a line: sibling_id, trial, index, node_after, action, observation, reward, elapsed_ms,
    /// exec_ids, policy_version, arrays {name: [numbers] or {dtype, file}}
    #[arg(long = "from", value_name = "FILE|-")]
    pub(crate) batch: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RolloutFinish {
    /// A sibling
    #[arg(required_unless_present = "batch", conflicts_with = "batch", requires = "trial")]
    pub(crate) sibling: Option<String>,
    /// Its trial, as `start` gave it
    #[arg(long, value_name = "TRIAL")]
    pub(crate) trial: Option<u32>,
    /// A named reward; `null` is not scored
    #[arg(long, value_name = "NAME=SCORE", value_parser = score)]
    pub(crate) reward: Vec<(String, Option<f64>)>,
    /// It ended by itself
    #[arg(long)]
    pub(crate) terminated: bool,
    /// What cut it off: turns, tokens, time, output or quota
    #[arg(long, value_name = "REASON")]
    pub(crate) truncated: Option<String>,
    /// The class of failure, such as infra_lost; what follows from it is its class's
    #[arg(long, value_name = "CLASS")]
    pub(crate) failure: Option<String>,
    /// In which stage it failed
    #[arg(long, value_name = "STAGE", requires = "failure", default_value = "agent")]
    pub(crate) stage: String,
    /// Why it stopped, in words
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) stop_reason: String,
    /// It may not be trained on
    #[arg(long)]
    pub(crate) unusable: bool,
    /// Many at once, a JSON object a line: sibling_id, trial, outcome {rewards, reward, metrics, terminated, truncated,
    /// stop_reason, failure, usable, cost, …}
    #[arg(long = "from", value_name = "FILE|-")]
    pub(crate) batch: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RolloutLs {
    /// A group, whose runs are listed, or a run, whose prompts are; all runs when not said
    pub(crate) at: Option<String>,
}

#[derive(Args)]
pub(crate) struct RolloutShow {
    /// A run, a prompt or a sibling
    pub(crate) what: String,
    /// Of a sibling: this trial's steps
    #[arg(long, value_name = "TRIAL")]
    pub(crate) trial: Option<u32>,
    /// Of a sibling: steps from this one on
    #[arg(long, value_name = "STEP", default_value_t = 0)]
    pub(crate) from: u64,
    /// Of a sibling: steps at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) most: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrajectoryFormat {
    /// Everything, a JSON object a rollout.
    Jsonl,
    /// Chat messages, a JSON object a rollout.
    Messages,
    /// A row a rollout, with token arrays as lists.
    Parquet,
    /// A directory of ATIF v1.8 documents, one a rollout.
    Atif,
    /// A JSON object a prompt: shared steps once, by their owner.
    Tree,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnlyArg {
    /// Results that may be trained on.
    Usable,
    /// Results.
    Result,
    /// Errors.
    Error,
    /// What was given up.
    Cancelled,
}

#[derive(Args)]
pub(crate) struct RolloutExport {
    /// A run
    pub(crate) run: String,
    /// The shape
    #[arg(long, value_enum)]
    pub(crate) format: TrajectoryFormat,
    /// Where; must not exist
    #[arg(long, value_name = "PATH")]
    pub(crate) to: PathBuf,
    /// Only rollouts that ended so; all that ended when not said
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<OnlyArg>,
    /// Messages as two columns, `prompt` and `completion`
    #[arg(long)]
    pub(crate) split_prompt: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnitArg {
    /// Siblings, as they end.
    Sibling,
    /// Whole prompts.
    Group,
}

#[derive(Args)]
pub(crate) struct RolloutConsume {
    /// A run
    pub(crate) run: String,
    /// The consumer's name; a new one begins at the run's first entry
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// What it takes one by one; as at its first time when not said
    #[arg(long, value_enum)]
    pub(crate) unit: Option<UnitArg>,
    /// Only what may be trained on
    #[arg(long)]
    pub(crate) usable_only: bool,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) max: u32,
    /// How long they are its own
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "10m")]
    pub(crate) lease: Millis,
}

#[derive(Args)]
pub(crate) struct RolloutAck {
    /// A run
    pub(crate) run: String,
    /// The consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// The batch, as `consume` gave it
    #[arg(long, value_name = "N")]
    pub(crate) batch: u64,
    /// The trainer's step that used it, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) trainer_step: u64,
    /// Only these entries of it; all that are not filtered when not said
    #[arg(long, value_name = "SEQ[,SEQ…]", value_delimiter = ',')]
    pub(crate) sequences: Option<Vec<u64>>,
    /// These are not to be trained on, and not to be sampled again
    #[arg(long, value_name = "SEQ[,SEQ…]", value_delimiter = ',')]
    pub(crate) filtered: Vec<u64>,
}

#[derive(Args)]
pub(crate) struct RolloutHold {
    /// A run
    pub(crate) run: String,
    /// The consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// The batch
    #[arg(long, value_name = "N")]
    pub(crate) batch: u64,
    /// How long from now on
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "10m")]
    pub(crate) lease: Millis,
    /// Give it back instead
    #[arg(long)]
    pub(crate) release: bool,
}

#[derive(Args)]
pub(crate) struct RolloutReopen {
    /// A run
    pub(crate) run: String,
    /// The consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: String,
    /// The last step of the trainer that stays; 0 opens all
    #[arg(long, value_name = "STEP")]
    pub(crate) after: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CancelArg {
    /// Somebody said so.
    User,
    /// Its policy version had become too old.
    Stale,
    /// There was more than could be done.
    Overload,
    /// A budget was used up.
    Budget,
}

#[derive(Args)]
pub(crate) struct RolloutCancel {
    /// A run, a prompt or a sibling
    pub(crate) what: String,
    /// Why
    #[arg(long, value_enum, default_value_t = CancelArg::User)]
    pub(crate) reason: CancelArg,
}

#[derive(Args)]
pub(crate) struct RolloutRefill {
    /// A prompt or a sibling
    pub(crate) what: String,
}

#[derive(Args)]
pub(crate) struct RolloutPublish {
    /// A run
    pub(crate) run: String,
    /// The version: above the last one
    #[arg(long, value_name = "N")]
    pub(crate) version: u64,
    /// Digest of its weights
    #[arg(long, value_name = "DIGEST")]
    pub(crate) digest: Option<String>,
    /// The adapter on top of them
    #[arg(long, value_name = "NAME")]
    pub(crate) adapter: Option<String>,
}

#[derive(Args)]
pub(crate) struct RolloutClose {
    /// A run
    pub(crate) run: String,
}

/// When what a sibling did is sealed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointArg {
    /// Once, at its end
    End,
    /// After each turn that changed something; processes end then
    Turn,
}

#[derive(Args)]
pub(crate) struct RolloutRun {
    /// A run
    pub(crate) run: String,
    /// The policy: a program of this machine that answers each line on its standard input with a line
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) policy: Vec<String>,
    /// Siblings at a time, each with a process of the policy
    #[arg(short = 'j', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: u32,
    /// How long the policy may think about a turn
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "5m")]
    pub(crate) policy_timeout: Millis,
    /// Turns of a sibling at most; then it is truncated
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) max_turns: u64,
    /// Tokens that the policy may say it sampled for a sibling
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,
    /// Time of a sibling at most
    #[arg(long, value_name = "DUR", value_parser = some_time)]
    pub(crate) wall: Option<Millis>,
    /// How long a command may run; one that takes longer is an observation
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "3m")]
    pub(crate) turn_timeout: Millis,
    /// An evaluator whose reward is a reward of its name; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) evaluator: Vec<PathBuf>,
    /// When to seal
    #[arg(long, value_name = "WHEN", default_value = "end")]
    pub(crate) checkpoint: CheckpointArg,
    /// Bytes of each output stream that the policy is shown
    #[arg(long, value_name = "SIZE", value_parser = super::execution::size, default_value = "16k")]
    pub(crate) observation: super::execution::Size,
    /// How long a sibling is this program's without a step
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "30m")]
    pub(crate) lease: Millis,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// What mini-swe-agent writes, `mini-swe-agent-1.1`.
    MiniSweAgent,
}

#[derive(Args)]
pub(crate) struct RolloutImport {
    /// The file
    pub(crate) file: PathBuf,
    /// The run that it belongs to; a prompt of one sibling is added to it
    #[arg(long, value_name = "RUN")]
    pub(crate) run: String,
    /// What wrote it
    #[arg(long, value_enum, default_value_t = ImportFormat::MiniSweAgent)]
    pub(crate) format: ImportFormat,
    /// The task's name; the file's name when not said
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    /// A named reward, scored elsewhere
    #[arg(long, value_name = "NAME=SCORE", value_parser = score)]
    pub(crate) reward: Vec<(String, Option<f64>)>,
}

fn pair(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => Err(format!("expected NAME=NUMBER, found {text:?}")),
    }
}

fn weight(text: &str) -> Result<(String, f64), String> {
    let (name, value) = pair(text)?;
    Ok((name.to_owned(), super::search::finite(value)?))
}

fn score(text: &str) -> Result<(String, Option<f64>), String> {
    let (name, value) = pair(text)?;
    let score = if value == "null" { None } else { Some(super::search::finite(value)?) };
    Ok((name.to_owned(), score))
}
