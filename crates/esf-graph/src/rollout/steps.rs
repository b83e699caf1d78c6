//! What trials do, turn by turn. Invariants: a trial's steps are dense, each begins on the node that the last one left,
//! and only nodes of the run's group are named; a batch is one commit, a trial's steps are recorded all or none.

use esf_core::NodeId;
use esf_core::ops::rollout::{NewStep, RecordSteps, Recorded, reject};
use esf_core::ops::{Meta, Reject, start};
use esf_core::rollout::{Content, Step, TrialStatus, bad_array};
use rusqlite::params;

use super::book::{self, Book, trial_of};
use super::rows::{self, SiblingRow, TrialRow};
use crate::error::Result;
use crate::row::{Bytes, change, count, every, json as text, optional};
use crate::{Graph, statements};

impl Graph {
    /// Records steps of many trials in one commit. What is refused is in the answers and disturbs no other. The same
    /// step again is answered as before, also after the trial has ended.
    ///
    /// # Errors
    /// Those of the whole. In the answers: `NotFound`; `Rejected` with `TrialOver`, `StepNotNext`, `StepDiffers`,
    /// `NodeMismatch`, `OtherGroup`, `BadArray`, `UnknownPolicyVersion`, `BadArgument`.
    pub fn record_steps(&self, meta: &Meta, batch: Vec<RecordSteps>) -> Result<Vec<Result<Recorded>>> {
        meta.check()?;
        let meta = meta.clone();
        self.inner.writer.run(move |transaction| {
            let mut book = Book::new(transaction.db, &meta);
            let mut answers = Vec::with_capacity(batch.len());
            for item in &batch {
                answers.push(lift(record(&mut book, item))?);
            }
            Ok(answers)
        })
    }
}

/// A refusal is the item's own; any other failure is the whole batch's.
pub(super) fn lift<T>(answer: Result<T>) -> Result<Result<T>> {
    use crate::error::Error;
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(error @ (Error::Rejected(_) | Error::NotFound { .. })) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

fn record(book: &mut Book<'_>, item: &RecordSteps) -> Result<Recorded> {
    let sibling = book::sibling(book.db, item.sibling_id)?;
    let mut trial = trial_of(book.db, &sibling, item.trial)?;
    let known = check_known(book, item, &trial)?;
    let fresh = &item.steps[known..];
    if trial.trial.status != TrialStatus::Running && (!fresh.is_empty() || item.steps.is_empty()) {
        return Err(over(book, &sibling, &trial)?.into());
    }
    let steps = check_fresh(book, &sibling, &trial, fresh)?;
    for step in &steps {
        insert(book, trial.number, step)?;
        trial.next_step = step.index + 1;
        trial.trial.node_id = step.node_after;
        let version = step.policy_version;
        trial.least = trial.least.into_iter().chain(version).min();
        trial.greatest = trial.greatest.into_iter().chain(version).max();
    }
    let boot = &book.meta.boot;
    let held = trial.trial.expires_at.zip(item.lease_ms);
    let expires = held.map(|(_, lease_ms)| start::expiry(boot.millis, lease_ms)).or(trial.trial.expires_at);
    if !steps.is_empty() || held.is_some() && trial.trial.status == TrialStatus::Running {
        let values = params![
            count(trial.next_step)?,
            trial.trial.node_id.bytes(),
            trial.least.map(count).transpose()?,
            trial.greatest.map(count).transpose()?,
            expires.map(|at| at.0),
            held.map(|_| &boot.boot_id).or(trial.trial.boot_id.as_ref()),
            trial.number,
        ];
        change(book.db, statements::ADVANCE_TRIAL, values, "trial")?;
    }
    Ok(Recorded { next: trial.next_step, fresh: steps.len() as u64, node_id: trial.trial.node_id })
}

/// Why a trial takes nothing more.
pub(super) fn over(book: &Book<'_>, sibling: &SiblingRow, trial: &TrialRow) -> Result<reject::Reject> {
    let current = match sibling.trial {
        Some(number) => Some(book::trial_numbered(book.db, number)?.trial.trial),
        None => None,
    };
    let cancelled = match (trial.trial.status, sibling.sequence) {
        (TrialStatus::Cancelled, Some(sequence)) => {
            super::reads::delivery(book.db, sibling.run, sequence)?.delivery.cancelled
        }
        _ => None,
    };
    Ok(reject::Reject::TrialOver {
        sibling: sibling.sibling_id,
        trial: trial.trial.trial,
        current,
        status: sibling.status,
        cancelled,
    })
}

/// How many of the steps were recorded already, as they are.
fn check_known(book: &Book<'_>, item: &RecordSteps, trial: &TrialRow) -> Result<usize> {
    let Some(from) = item.steps.first().map(|step| step.index).filter(|index| *index < trial.next_step)
    else {
        return Ok(0);
    };
    let most = count(item.steps.len() as u64)?;
    let values = params![trial.number, count(from)?, most];
    let recorded = every(book.db, statements::STEPS_FROM, values, rows::step)?;
    for (found, step) in recorded.iter().zip(&item.steps) {
        let before = step.node_before.unwrap_or(found.node_before);
        let after = step.node_after.unwrap_or(found.node_before);
        if *found != complete(step, before, after) {
            let (sibling, index) = (item.sibling_id, step.index);
            return Err(reject::Reject::StepDiffers { sibling, index }.into());
        }
    }
    Ok(recorded.len())
}

fn complete(step: &NewStep, node_before: NodeId, node_after: NodeId) -> Step {
    Step {
        index: step.index,
        node_before,
        node_after,
        action: step.action.clone(),
        observation: step.observation.clone(),
        reward: step.reward,
        elapsed_ms: step.elapsed_ms,
        attempt_id: step.attempt_id,
        exec_ids: step.exec_ids.clone(),
        policy_version: step.policy_version,
        arrays: step.arrays.clone(),
    }
}

/// Checks new steps; as they will be recorded.
fn check_fresh(
    book: &mut Book<'_>,
    sibling: &SiblingRow,
    trial: &TrialRow,
    steps: &[NewStep],
) -> Result<Vec<Step>> {
    let (mut next, mut node) = (trial.next_step, trial.trial.node_id);
    let mut complete_steps = Vec::with_capacity(steps.len());
    for step in steps {
        if step.index != next || next >= NewStep::MAX_INDEX {
            return Err(reject::Reject::StepNotNext {
                sibling: sibling.sibling_id,
                index: step.index,
                next: next.min(NewStep::MAX_INDEX - 1),
            }
            .into());
        }
        let what = || format!("step {} of {}", step.index, sibling.sibling_id);
        if let Some(given) = step.node_before.filter(|given| *given != node) {
            return Err(reject::Reject::NodeMismatch {
                what: what(),
                node: given,
                expected: format!("the node that the last step left, {node}"),
                found: "another".to_owned(),
            }
            .into());
        }
        let after = step.node_after.unwrap_or(node);
        if after != node {
            book.check_node(sibling.run, after, what)?;
        }
        check_content(book, sibling, step)?;
        complete_steps.push(complete(step, node, after));
        (next, node) = (next + 1, after);
    }
    Ok(complete_steps)
}

fn check_content(book: &mut Book<'_>, sibling: &SiblingRow, step: &NewStep) -> Result<()> {
    let bad = |argument, expected: String, found: String| {
        Err(Reject::BadArgument {
            argument,
            expected,
            found: format!("{found} in step {} of {}", step.index, sibling.sibling_id),
        }
        .into())
    };
    for (argument, content) in [("action", &step.action), ("observation", &step.observation)] {
        if let Some(found) = content.as_ref().and_then(Content::problem) {
            let expected = format!("at most {} bytes inline, more as an artifact", Content::MAX_INLINE);
            return bad(argument, expected, found);
        }
    }
    if let Some(reward) = step.reward.filter(|reward| !reward.is_finite()) {
        return bad("reward", "a finite number".to_owned(), reward.to_string());
    }
    if step.exec_ids.len() > NewStep::MAX_EXECS {
        return bad("exec_ids", format!("at most {}", NewStep::MAX_EXECS), step.exec_ids.len().to_string());
    }
    if i64::try_from(step.elapsed_ms).is_err() {
        return bad("elapsed_ms", "a number up to 2^63 - 1".to_owned(), step.elapsed_ms.to_string());
    }
    if let Some((name, expected, found)) = bad_array(&step.arrays) {
        let (sibling, index) = (sibling.sibling_id, step.index);
        return Err(reject::Reject::BadArray { sibling, index, name, expected, found }.into());
    }
    if let Some(version) = step.policy_version {
        book.check_published(sibling.run, version)?;
    }
    Ok(())
}

fn insert(book: &Book<'_>, trial: i64, step: &Step) -> Result<()> {
    let changed = (step.node_after != step.node_before).then_some(&step.node_after);
    let contents = [&step.action, &step.observation];
    let artifacts =
        contents.iter().filter(|content| content.as_ref().and_then(Content::artifact).is_some()).count()
            + step.arrays.len();
    let values = params![
        trial,
        count(step.index)?,
        step.node_before.bytes(),
        optional(changed),
        text(&step.action)?,
        text(&step.observation)?,
        step.reward,
        count(step.elapsed_ms)?,
        optional(step.attempt_id.as_ref()),
        if step.exec_ids.is_empty() { None } else { text(&step.exec_ids)? },
        step.policy_version.map(count).transpose()?,
        if step.arrays.is_empty() { None } else { text(&step.arrays)? },
        count(artifacts as u64)?,
    ];
    change(book.db, statements::INSERT_STEP, values, "step")
}
