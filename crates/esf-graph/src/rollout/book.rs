//! What one transaction does to runs: their rows are read once, counted on, and written back at its end.
//! Invariant: a run's counts are changed in the transaction that changes what they count.

use std::collections::{HashMap, HashSet};

use esf_core::id::{NodeId, PromptId, RunId, SiblingId};
use esf_core::ops::rollout::reject;
use esf_core::ops::{Meta, Reject, Transition};
use esf_core::record::{EventKind, Node};
use esf_core::rollout::{Run, RunStatus};
use esf_core::state::NodeStatus;
use rusqlite::{Connection, params};

use super::rows::{self, PromptRow, RunRow, SiblingRow, TrialRow};
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, first};
use crate::{load, statements};

/// The runs that a transaction has touched, and what it will log.
pub(super) struct Book<'a> {
    pub(super) db: &'a Connection,
    pub(super) meta: &'a Meta,
    runs: HashMap<i64, RunRow>,
    published: HashSet<(i64, u64)>,
    fitting: HashSet<(i64, NodeId)>,
    transitions: Vec<Transition>,
}

impl<'a> Book<'a> {
    /// An empty one.
    pub(super) fn new(db: &'a Connection, meta: &'a Meta) -> Self {
        Self {
            db,
            meta,
            runs: HashMap::new(),
            published: HashSet::new(),
            fitting: HashSet::new(),
            transitions: Vec::new(),
        }
    }

    /// The run `id`, remembered; its number.
    pub(super) fn open(&mut self, id: RunId) -> Result<i64> {
        let row = run(self.db, id)?;
        let number = row.number;
        self.runs.entry(number).or_insert(row);
        Ok(number)
    }

    /// The run `id`, which must take more work.
    pub(super) fn open_active(&mut self, id: RunId) -> Result<i64> {
        let number = self.open(id)?;
        let run = &self.row(number)?.run;
        if run.status == RunStatus::Open {
            return Ok(number);
        }
        Err(reject::Reject::RunOver { run: id, status: run.status }.into())
    }

    /// The row of a run, to be counted on.
    pub(super) fn row(&mut self, number: i64) -> Result<&mut RunRow> {
        if !self.runs.contains_key(&number) {
            let row = first(self.db, statements::RUN_BY_NUMBER, [number], rows::run)?
                .ok_or_else(|| Error::damaged(format!("there is no run number {number}")))?;
            self.runs.insert(number, row);
        }
        self.runs.get_mut(&number).ok_or_else(|| Error::damaged("a run was lost"))
    }

    /// The record of a run.
    pub(super) fn run(&mut self, number: i64) -> Result<&mut Run> {
        Ok(&mut self.row(number)?.run)
    }

    /// Adds a transition about a run.
    pub(super) fn log(&mut self, number: i64, transition: Transition) -> Result<()> {
        let run = self.run(number)?;
        let (group_id, run_id) = (Some(run.group_id), Some(run.run_id));
        self.transitions.push(Transition { group_id, run_id, ..transition });
        Ok(())
    }

    /// Writes the runs back and gives what is to be logged.
    pub(super) fn close(self) -> Result<Vec<Transition>> {
        for row in self.runs.values() {
            save(self.db, row)?;
        }
        Ok(self.transitions)
    }

    /// Refuses a version of the policy that was never published.
    pub(super) fn check_published(&mut self, number: i64, version: u64) -> Result<()> {
        if self.published.contains(&(number, version)) {
            return Ok(());
        }
        let values = params![number, count(version.min(i64::MAX.unsigned_abs()))?];
        let found = first(self.db, statements::POLICY_VERSION, values, rows::policy_version)?;
        if found.is_some_and(|found| found.version == version) {
            self.published.insert((number, version));
            return Ok(());
        }
        let run = self.run(number)?;
        let (run, current) = (run.run_id, run.policy.version);
        Err(reject::Reject::UnknownPolicyVersion { run, version, current }.into())
    }

    /// Refuses a node that is not a sealed one of the run's group.
    pub(super) fn check_node(&mut self, number: i64, node: NodeId, what: impl Fn() -> String) -> Result<()> {
        if self.fitting.contains(&(number, node)) {
            return Ok(());
        }
        let group = self.run(number)?.group_id;
        let found = load::node(self.db, node)?;
        if found.group_id != group {
            return Err(Reject::OtherGroup { node }.into());
        }
        if !matches!(found.status, NodeStatus::Sealed | NodeStatus::Terminal) {
            return Err(reject::Reject::NodeMismatch {
                what: what(),
                node,
                expected: "a sealed or terminal node".to_owned(),
                found: found.status.as_str().to_owned(),
            }
            .into());
        }
        self.fitting.insert((number, node));
        Ok(())
    }
}

/// The run `id`.
pub(super) fn run(db: &Connection, id: RunId) -> Result<RunRow> {
    first(db, statements::RUN_BY_ID, [id.bytes()], rows::run)?.ok_or_else(|| Error::not_found("run", id))
}

/// The prompt `id`.
pub(super) fn prompt(db: &Connection, id: PromptId) -> Result<PromptRow> {
    first(db, statements::PROMPT_BY_ID, [id.bytes()], rows::prompt)?
        .ok_or_else(|| Error::not_found("prompt", id))
}

/// The prompt with a number.
pub(super) fn prompt_numbered(db: &Connection, number: i64) -> Result<PromptRow> {
    first(db, statements::PROMPT_BY_NUMBER, [number], rows::prompt)?
        .ok_or_else(|| Error::damaged(format!("there is no prompt number {number}")))
}

/// The sibling `id`.
pub(super) fn sibling(db: &Connection, id: SiblingId) -> Result<SiblingRow> {
    first(db, statements::SIBLING_BY_ID, [id.bytes()], rows::sibling)?
        .ok_or_else(|| Error::not_found("sibling", id))
}

/// The trial with a number.
pub(super) fn trial_numbered(db: &Connection, number: i64) -> Result<TrialRow> {
    first(db, statements::TRIAL_BY_NUMBER, [number], rows::trial)?
        .ok_or_else(|| Error::damaged(format!("there is no trial number {number}")))
}

/// A sibling's trial.
pub(super) fn trial_of(db: &Connection, sibling: &SiblingRow, trial: u32) -> Result<TrialRow> {
    first(db, statements::TRIAL_OF_SIBLING, params![sibling.number, trial], rows::trial)?
        .ok_or_else(|| Error::not_found("trial", format!("{} of {}", trial, sibling.sibling_id)))
}

/// A node on which work begins: sealed, and not terminal.
pub(super) fn beginning(db: &Connection, id: NodeId) -> Result<Node> {
    let node = load::node(db, id)?;
    match node.status {
        NodeStatus::Sealed => Ok(node),
        NodeStatus::Terminal => Err(Reject::Terminal { node: id }.into()),
        NodeStatus::Pruned => Err(Reject::Pruned { node: id }.into()),
        NodeStatus::Draft => {
            let last_sealed = load::last_sealed_of_draft(db, &node)?;
            Err(Reject::NotSealed { node: id, last_sealed }.into())
        }
    }
}

/// A transition of `kind` about nothing else.
pub(super) fn about(kind: EventKind) -> Transition {
    Transition::new(kind)
}

fn save(db: &Connection, row: &RunRow) -> Result<()> {
    let (run, counts) = (&row.run, &row.run.counts);
    let values = params![
        count(run.policy.version)?,
        run.policy.digest.as_ref().map(Bytes::bytes),
        run.policy.adapter,
        run.status.as_str(),
        run.cancelled.map(|reason| reason.as_str()),
        count(counts.prompts)?,
        count(counts.complete)?,
        count(counts.siblings)?,
        count(counts.waiting)?,
        count(counts.running)?,
        count(counts.results)?,
        count(counts.errors)?,
        count(counts.cancelled_siblings)?,
        count(counts.refills)?,
        count(counts.late)?,
        count(counts.sequence)?,
        count(counts.accepted)?,
        count(counts.trained)?,
        count(row.batches)?,
        count(run.trainer_step)?,
        row.number,
    ];
    change(db, statements::UPDATE_RUN, values, "run")
}
