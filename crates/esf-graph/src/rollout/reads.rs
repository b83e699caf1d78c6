//! What can be asked about runs. Each call sees one committed state.

use std::collections::BTreeSet;

use esf_core::BlobId;
use esf_core::id::{GroupId, NodeId, PromptId, RunId, SiblingId};
use esf_core::rollout::{
    Consumer, Content, Contents, Delivery, DeliveryKind, DropReason, PolicyVersion, Prompt, RewardStats, Run,
    Sibling, Step, rules,
};
use rusqlite::{Connection, params};

use super::book::{self, trial_of};
use super::rows::{self, ConsumerRow, DeliveryRow, PromptRow, SiblingRow, State};
use crate::error::{Error, Result};
use crate::row::{Bytes, each, every, first};
use crate::{Graph, load, statements};

/// A bound as the database takes it.
fn limit(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Graph {
    /// The run `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn run(&self, id: RunId) -> Result<Run> {
        self.read(|db| Ok(book::run(db, id)?.run))
    }

    /// The runs of a group, or of all groups, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn runs(&self, group: Option<GroupId>) -> Result<Vec<Run>> {
        self.read(|db| {
            let rows = match group {
                Some(group) => every(db, statements::RUNS_OF_GROUP, [group.bytes()], rows::run)?,
                None => every(db, statements::ALL_RUNS, [], rows::run)?,
            };
            Ok(rows.into_iter().map(|row| row.run).collect())
        })
    }

    /// The published versions of a run's policy, in order.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn policy_versions(&self, run: RunId) -> Result<Vec<PolicyVersion>> {
        self.read(|db| {
            let number = book::run(db, run)?.number;
            every(db, statements::POLICY_VERSIONS_OF_RUN, [number], rows::policy_version)
        })
    }

    /// At most `max` prompts of a run, from the index `from` on.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn prompts(&self, run: RunId, from: u64, max: u64) -> Result<Vec<Prompt>> {
        self.read(|db| {
            let number = book::run(db, run)?.number;
            let values = params![number, limit(from), limit(max)];
            let rows = every(db, statements::PROMPTS_FROM, values, rows::prompt)?;
            rows.into_iter().map(|row| complete(db, row)).collect()
        })
    }

    /// The prompt `id`, with the statistics of its usable siblings.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn prompt(&self, id: PromptId) -> Result<Prompt> {
        self.read(|db| complete(db, book::prompt(db, id)?))
    }

    /// The siblings of a prompt, in order.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn siblings(&self, prompt: PromptId) -> Result<Vec<Sibling>> {
        self.read(|db| {
            let prompt = book::prompt(db, prompt)?;
            let rows = every(db, statements::SIBLINGS_OF_PROMPT, [prompt.number], rows::sibling)?;
            rows.iter().map(|row| whole(db, row, &prompt.prompt)).collect()
        })
    }

    /// The sibling `id`, whole.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn sibling(&self, id: SiblingId) -> Result<Sibling> {
        self.read(|db| {
            let row = book::sibling(db, id)?;
            whole(db, &row, &book::prompt_numbered(db, row.prompt)?.prompt)
        })
    }

    /// At most `max` steps of a sibling from `from` on: of one trial, or of the one that counts. A trial that goes on
    /// from another sibling's has only its own, from its `fork_step` on.
    ///
    /// # Errors
    /// `NotFound` for the sibling or the trial, and failures of the database.
    pub fn steps(&self, id: SiblingId, trial: Option<u32>, from: u64, max: u64) -> Result<Vec<Step>> {
        self.read(|db| {
            let row = book::sibling(db, id)?;
            let number = match trial {
                Some(trial) => Some(trial_of(db, &row, trial)?.number),
                None => row.trial,
            };
            let Some(number) = number else { return Ok(Vec::new()) };
            every(db, statements::STEPS_FROM, params![number, limit(from), limit(max)], rows::step)
        })
    }

    /// At most `max` entries of a run's log from the sequence `from` on: every end there was.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn deliveries(&self, run: RunId, from: u64, max: u64) -> Result<Vec<Delivery>> {
        self.read(|db| {
            let number = book::run(db, run)?.number;
            let values = params![number, limit(from), limit(max)];
            let rows = every(db, statements::DELIVERIES_FROM, values, rows::delivery)?;
            rows.into_iter().map(|row| with_stats(db, number, row)).collect()
        })
    }

    /// An open run that names `node`, in a prompt, a step or an outcome, and so keeps it.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn run_needing(&self, node: NodeId) -> Result<Option<RunId>> {
        self.read(|db| load::run_needing(db, node))
    }

    /// The consumers of a run.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn consumers(&self, run: RunId) -> Result<Vec<Consumer>> {
        self.read(|db| {
            let number = book::run(db, run)?.number;
            let rows = every(db, statements::CONSUMERS_OF_RUN, [number], rows::consumer)?;
            rows.into_iter().map(|row| counted(db, row)).collect()
        })
    }
}

/// Adds the artifacts that steps name, of prompts whose node was not pruned.
pub(crate) fn artifacts(db: &Connection, blobs: &mut BTreeSet<BlobId>) -> Result<()> {
    each(db, statements::ARTIFACTS_OF_STEPS, [], |columns| {
        let contents: [Option<Content>; 2] = [columns.json()?, columns.json()?];
        let arrays: Option<Contents> = columns.json()?;
        blobs.extend(contents.iter().flatten().filter_map(Content::artifact));
        blobs.extend(arrays.iter().flat_map(|arrays| arrays.values()).map(|array| array.digest));
        Ok(())
    })
}

/// The entry `sequence` of the run with a number.
pub(super) fn delivery(db: &Connection, run: i64, sequence: u64) -> Result<DeliveryRow> {
    first(db, statements::DELIVERY_OF_RUN, params![run, limit(sequence)], rows::delivery)?
        .ok_or_else(|| Error::damaged(format!("a run has no entry {sequence}")))
}

/// The record of an entry, with the statistics of a group.
pub(super) fn with_stats(db: &Connection, run: i64, row: DeliveryRow) -> Result<Delivery> {
    let mut delivery = row.delivery;
    if delivery.kind == DeliveryKind::Group {
        let member =
            |sequence: &u64| self::delivery(db, run, *sequence).map(|row| (row.delivery.usable, row.reward));
        let members = delivery.members.iter().map(member).collect::<Result<Vec<_>>>()?;
        delivery.stats = Some(RewardStats::of(members));
    }
    Ok(delivery)
}

fn complete(db: &Connection, row: PromptRow) -> Result<Prompt> {
    let rewards = every(db, statements::REWARDS_OF_PROMPT, [row.number], |c| Ok((c.take()?, c.take()?)))?;
    Ok(Prompt { stats: RewardStats::of(rewards), ..row.prompt })
}

fn whole(db: &Connection, row: &SiblingRow, prompt: &Prompt) -> Result<Sibling> {
    let trials = every(db, statements::TRIALS_OF_SIBLING, [row.number], rows::trial)?;
    let current = trials.iter().find(|trial| Some(trial.number) == row.trial);
    let end = row.sequence.map(|sequence| delivery(db, row.run, sequence)).transpose()?;
    Ok(Sibling {
        sibling_id: row.sibling_id,
        prompt_id: prompt.prompt_id,
        run_id: prompt.run_id,
        index: row.index,
        revision: row.revision,
        seed: rules::sibling_seed(prompt.seed, row.index, row.revision),
        status: row.status,
        trial: current.map(|trial| trial.trial.trial),
        steps: current.map_or(0, |trial| trial.trial.steps),
        trace_id: current.map_or_else(String::new, |trial| trial.trial.trace_id.clone()),
        outcome_digest: end.as_ref().and_then(|end| end.digest),
        cancelled: end.as_ref().and_then(|end| end.delivery.cancelled),
        outcome: end.and_then(|end| end.delivery.outcome),
        sequence: row.sequence,
        trials: trials.into_iter().map(|trial| trial.trial).collect(),
    })
}

fn counted(db: &Connection, row: ConsumerRow) -> Result<Consumer> {
    let mut consumer = row.consumer;
    each(db, statements::CONSUMPTION_COUNTS, [row.number], |columns| {
        let state = columns.word(State::parse)?;
        let reason = columns.optional_word(DropReason::parse)?;
        let number = columns.count()?;
        match (state, reason) {
            (State::Leased, _) => consumer.leased = number,
            (State::Trained, _) => consumer.trained = number,
            (State::Dropped, Some(DropReason::Stale)) => consumer.stale = number,
            (State::Dropped, Some(DropReason::Filtered)) => consumer.filtered = number,
            (State::Dropped, Some(DropReason::Superseded)) => consumer.superseded = number,
            (State::Dropped, Some(DropReason::Unusable)) => consumer.unusable = number,
            (State::Available, _) | (State::Dropped, None) => {}
        }
        Ok(())
    })?;
    Ok(consumer)
}
