//! The records of a run as rows: how each is read back. The columns are those of the statements, in order.

use esf_core::Digest;
use esf_core::id::{NodeId, PromptId, RunId, SiblingId};
use esf_core::rollout::rules::{self, Counts};
use esf_core::rollout::{
    CancelReason, Consumer, Delivery, DeliveryKind, DropReason, GenerationSource, Outcome, Policy,
    PolicyVersion, Prompt, PromptStatus, Refill, RewardStats, Run, RunStatus, SiblingStatus, Step, Task,
    Trial, TrialStatus, Unit,
};
use esf_core::time::BootMillis;

use crate::error::Result;
use crate::records::{optional_time, time};
use crate::row::Columns;

impl Columns<'_> {
    /// A number of 32 bits that is never negative.
    pub(crate) fn u32(&mut self) -> Result<u32> {
        let value: i64 = self.take()?;
        u32::try_from(value).map_err(|_| self.bad(value))
    }
}

/// A run, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct RunRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// How many batches were delivered.
    pub(crate) batches: u64,
    /// The record.
    pub(crate) run: Run,
}

/// Reads a run.
pub(crate) fn run(columns: &mut Columns<'_>) -> Result<RunRow> {
    let number = columns.take()?;
    let run = Run {
        run_id: columns.id()?,
        group_id: columns.id()?,
        node_id: columns.id()?,
        name: columns.take()?,
        policy: Policy {
            name: columns.take()?,
            version: columns.count()?,
            digest: columns.optional_id()?,
            adapter: columns.take()?,
        },
        sampler: columns.json()?,
        generation_source: columns.word(GenerationSource::parse)?,
        environment_digest: columns.id()?,
        evaluators: columns.json()?,
        group_size: columns.u32()?,
        rewards: columns.json()?,
        max_staleness: columns.optional_count()?,
        batch: columns.optional_count()?,
        max_ready: columns.optional_count()?,
        refill: columns.word(Refill::parse)?,
        max_refills: columns.u32()?,
        status: columns.word(RunStatus::parse)?,
        cancelled: columns.optional_word(CancelReason::parse)?,
        counts: Counts {
            prompts: columns.count()?,
            complete: columns.count()?,
            siblings: columns.count()?,
            waiting: columns.count()?,
            running: columns.count()?,
            results: columns.count()?,
            errors: columns.count()?,
            cancelled_siblings: columns.count()?,
            refills: columns.count()?,
            late: columns.count()?,
            sequence: columns.count()?,
            accepted: columns.count()?,
            trained: columns.count()?,
        },
        trainer_step: columns.count()?,
        created_at: time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    };
    Ok(RunRow { number, batches: columns.count()?, run })
}

/// Reads a version of a policy.
pub(crate) fn policy_version(columns: &mut Columns<'_>) -> Result<PolicyVersion> {
    Ok(PolicyVersion {
        version: columns.count()?,
        digest: columns.optional_id()?,
        adapter: columns.take()?,
        published_at: time(columns)?,
    })
}

/// A prompt, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct PromptRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// That of its run.
    pub(crate) run: i64,
    /// The record, without statistics.
    pub(crate) prompt: Prompt,
}

/// Reads a prompt.
pub(crate) fn prompt(columns: &mut Columns<'_>) -> Result<PromptRow> {
    let (number, run) = (columns.take()?, columns.take()?);

    let prompt = Prompt {
        prompt_id: columns.id()?,
        run_id: columns.id()?,
        index: columns.count()?,
        task: Task { id: columns.take()?, digest: columns.optional_id()?, split: columns.take()? },
        node_id: columns.id()?,
        root_id: columns.id()?,
        seed: columns.count()?,
        size: columns.u32()?,
        revision: columns.u32()?,
        refills: columns.u32()?,
        policy_version: columns.optional_count()?,
        status: columns.word(PromptStatus::parse)?,
        sequence: columns.optional_count()?,
        extra: columns.json()?,
        stats: RewardStats::default(),
        created_at: time(columns)?,
    };
    Ok(PromptRow { number, run, prompt })
}

/// A sibling as the operations see it.
#[derive(Clone, Debug)]
pub(crate) struct SiblingRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// That of its prompt.
    pub(crate) prompt: i64,
    /// That of its run.
    pub(crate) run: i64,
    /// Its id.
    pub(crate) sibling_id: SiblingId,
    /// Its place in the prompt.
    pub(crate) index: u32,
    /// Its revision.
    pub(crate) revision: u32,
    /// Where that is in its life.
    pub(crate) status: SiblingStatus,
    /// The number in the database of the trial that counts.
    pub(crate) trial: Option<i64>,
    /// How many trials it had.
    pub(crate) trials: u32,
    /// The sequence of this revision's end.
    pub(crate) sequence: Option<u64>,
    /// Whether a sibling of its prompt has ever begun.
    pub(crate) opened: bool,
}

/// Reads a sibling.
pub(crate) fn sibling(columns: &mut Columns<'_>) -> Result<SiblingRow> {
    Ok(SiblingRow {
        number: columns.take()?,
        prompt: columns.take()?,
        run: columns.take()?,
        sibling_id: columns.id()?,
        index: columns.u32()?,
        revision: columns.u32()?,
        status: columns.word(SiblingStatus::parse)?,
        trial: columns.take()?,
        trials: columns.u32()?,
        sequence: columns.optional_count()?,
        opened: columns.take()?,
    })
}

/// A trial, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct TrialRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// The index of its first step.
    pub(crate) first_step: u64,
    /// That of its next one.
    pub(crate) next_step: u64,
    /// The least policy version that its steps named.
    pub(crate) least: Option<u64>,
    /// The greatest one.
    pub(crate) greatest: Option<u64>,
    /// Digest of its late outcome.
    pub(crate) late_digest: Option<Digest>,
    /// The record.
    pub(crate) trial: Trial,
}

/// Reads a trial.
pub(crate) fn trial(columns: &mut Columns<'_>) -> Result<TrialRow> {
    let number = columns.take()?;
    let (first_step, next_step) = (columns.count()?, columns.count()?);
    let (least, greatest) = (columns.optional_count()?, columns.optional_count()?);
    let late_digest = columns.optional_id()?;
    let trial = Trial {
        trial: columns.u32()?,
        revision: columns.u32()?,
        attempt_id: columns.optional_id()?,
        status: columns.word(TrialStatus::parse)?,
        policy_version: columns.count()?,
        parent_sibling: columns.optional_id()?,
        parent_trial: columns.optional_count()?.and_then(|trial| u32::try_from(trial).ok()),
        fork_step: None,
        owned_from_step: columns.optional_count()?,
        steps: next_step.saturating_sub(first_step),
        node_id: columns.id()?,
        late: columns.json()?,
        expires_at: columns.take::<Option<i64>>()?.map(BootMillis),
        boot_id: columns.take()?,
        started_at: time(columns)?,
        ended_at: optional_time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    };
    let fork_step = trial.parent_sibling.map(|_| first_step);
    Ok(TrialRow {
        number,
        first_step,
        next_step,
        least,
        greatest,
        late_digest,
        trial: Trial { fork_step, ..trial },
    })
}

/// Reads a step.
pub(crate) fn step(columns: &mut Columns<'_>) -> Result<Step> {
    let (index, node_before): (u64, NodeId) = (columns.count()?, columns.id()?);
    Ok(Step {
        index,
        node_before,
        node_after: columns.optional_id()?.unwrap_or(node_before),
        action: columns.json()?,
        observation: columns.json()?,
        reward: columns.take()?,
        elapsed_ms: columns.count()?,
        attempt_id: columns.optional_id()?,
        exec_ids: columns.json::<Option<_>>()?.unwrap_or_default(),
        policy_version: columns.optional_count()?,
        arrays: columns.json::<Option<_>>()?.unwrap_or_default(),
    })
}

/// An entry of a run's log, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryRow {
    /// How often it was given up: by consumers, and by a newer revision.
    pub(crate) dropped_by: u64,
    /// How many consumers trained on it.
    pub(crate) trained_by: u64,
    /// Digest of the outcome as it was given.
    pub(crate) digest: Option<Digest>,
    /// The sequence that its sibling, or its prompt, has now.
    pub(crate) current: Option<u64>,
    /// The reward.
    pub(crate) reward: Option<f64>,
    /// The record.
    pub(crate) delivery: Delivery,
}

impl DeliveryRow {
    /// What it adds to `accepted` and to `trained`; a group adds nothing, its siblings do.
    pub(crate) fn contribution(&self) -> (u64, u64) {
        let usable = self.delivery.usable && self.delivery.kind == DeliveryKind::Sibling;
        rules::contribution(usable, self.dropped_by, self.trained_by)
    }
}

/// Reads an entry of a run's log.
pub(crate) fn delivery(columns: &mut Columns<'_>) -> Result<DeliveryRow> {
    let (dropped_by, trained_by, digest) = (columns.count()?, columns.count()?, columns.optional_id()?);
    let (current, reward) = (columns.optional_count()?, columns.take()?);
    let outcome: Option<Outcome> = columns.json()?;
    let delivery = Delivery {
        outcome,
        sequence: columns.count()?,
        kind: columns.word(DeliveryKind::parse)?,
        run_id: columns.id::<RunId>()?,
        prompt_id: columns.id::<PromptId>()?,
        prompt_index: columns.count()?,
        sibling_id: columns.optional_id()?,
        sibling_index: columns.optional_count()?.and_then(|index| u32::try_from(index).ok()),
        revision: columns.u32()?,
        trial: columns.optional_count()?.and_then(|trial| u32::try_from(trial).ok()),
        status: columns.optional_word(SiblingStatus::parse)?,
        cancelled: columns.optional_word(CancelReason::parse)?,
        usable: columns.take()?,
        policy_version_start: columns.optional_count()?,
        policy_version_end: columns.optional_count()?,
        members: columns.json::<Option<_>>()?.unwrap_or_default(),
        stats: None,
        at: time(columns)?,
    };
    Ok(DeliveryRow { dropped_by, trained_by, digest, current, reward, delivery })
}

/// A consumer, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// Nothing beyond here was looked at.
    pub(crate) offered: u64,
    /// The record, without counts.
    pub(crate) consumer: Consumer,
}

/// Reads a consumer.
pub(crate) fn consumer(columns: &mut Columns<'_>) -> Result<ConsumerRow> {
    let (number, offered) = (columns.take()?, columns.count()?);
    let consumer = Consumer {
        consumer: columns.take()?,
        unit: columns.word(Unit::parse)?,
        usable_only: columns.take()?,
        cursor: columns.count()?,
        trainer_step: columns.count()?,
        leased: 0,
        trained: 0,
        stale: 0,
        filtered: 0,
        superseded: 0,
        unusable: 0,
    };
    Ok(ConsumerRow { number, offered, consumer })
}

/// What a consumer did with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It may have it again.
    Available,
    /// It has it, until then.
    Leased,
    /// It trained on it.
    Trained,
    /// It does not want it.
    Dropped,
}

impl State {
    /// The word in the schema.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Leased => "leased",
            Self::Trained => "trained",
            Self::Dropped => "dropped",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Available, Self::Leased, Self::Trained, Self::Dropped].into_iter().find(|s| s.as_str() == text)
    }
}

/// An entry as a consumer has it.
#[derive(Clone, Debug)]
pub(crate) struct Consumption {
    /// What was done with it.
    pub(crate) state: State,
    /// The batch it was delivered in last; none once it was open again.
    pub(crate) batch: Option<u64>,
    /// The step that trained on it, or that filtered it.
    pub(crate) step: Option<u64>,
    /// Why it was dropped.
    pub(crate) reason: Option<DropReason>,
}

/// Reads an entry as a consumer has it.
pub(crate) fn consumption(columns: &mut Columns<'_>) -> Result<Consumption> {
    Ok(Consumption {
        state: columns.word(State::parse)?,
        batch: columns.optional_count()?,
        step: columns.optional_count()?,
        reason: columns.optional_word(DropReason::parse)?,
    })
}
