//! How siblings end, and prompts with them: outcomes, what is given up, what is done again. Invariants: a revision has
//! one terminal event, whoever says so and how often; the group event is made with the last of them; an outcome of
//! a trial that does not count any more is kept beside it as evidence.

use esf_core::Digest;
use esf_core::id::{NodeId, SiblingId};
use esf_core::ops::rollout::{
    Cancel, CancelReply, FinishSibling, Finished, Late, RefillAgain, Refilled, Target, reject,
};
use esf_core::ops::{Decision, Meta, Reject, Request};
use esf_core::record::EventKind;
use esf_core::rollout::{
    CancelReason, Outcome, PromptStatus, Refill, RunStatus, SiblingStatus, TrialStatus, rules,
};
use rusqlite::{Connection, params};
use serde_json::json;

use super::book::{self, Book, about, trial_of};
use super::reads::delivery;
use super::rows::{self, PromptRow, SiblingRow, TrialRow};
use super::start::about_sibling;
use super::steps::lift;
use crate::error::Result;
use crate::row::{Bytes, change, count, every, first, json as text, optional};
use crate::{Graph, apply, statements};

impl Graph {
    /// Ends trials with their outcomes, many in one commit. What is refused is in the answers and disturbs no other.
    /// The same outcome again is answered as before.
    ///
    /// # Errors
    /// Those of the whole. In the answers: `NotFound`; `Rejected` with `AlreadyFinished`, `BadOutcome`,
    /// `NodeMismatch`, `OtherGroup`, `UnknownPolicyVersion`, `BadSpan`.
    pub fn finish_siblings(&self, meta: &Meta, batch: Vec<FinishSibling>) -> Result<Vec<Result<Finished>>> {
        meta.check()?;
        let meta = meta.clone();
        self.inner.writer.run(move |transaction| {
            let mut book = Book::new(transaction.db, &meta);
            let mut answers = Vec::with_capacity(batch.len());
            for item in batch {
                answers.push(lift(finish(&mut book, item))?);
            }
            let transitions = book.close()?;
            apply::commit(transaction, &meta, &[], &transitions)?;
            Ok(answers)
        })
    }

    /// Gives up what has not ended, with a terminal event for each sibling. A run that is given up takes no more work.
    ///
    /// # Errors
    /// `NotFound`; `IdempotencyConflict`.
    pub fn cancel_rollouts(&self, meta: &Meta, command: Cancel) -> Result<CancelReply> {
        let answer =
            self.mutate(meta, "cancel_rollouts", &command, move |db, request| cancel(db, request, command))?;
        Ok(answer.reply)
    }

    /// Has a sibling, or a whole prompt, done again after it ended: what it brought is replaced by what it brings then.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `RunOver`, `NotEnded`, `NoRefill`, `AlreadyUsed`, or `BadArgument` for a run;
    /// `IdempotencyConflict`.
    pub fn refill(&self, meta: &Meta, command: RefillAgain) -> Result<Refilled> {
        let answer =
            self.mutate(meta, "refill", &command, move |db, request| refill(db, request, command))?;
        Ok(answer.reply)
    }
}

/// What ends a revision.
struct End<'a> {
    trial: Option<i64>,
    status: SiblingStatus,
    cancelled: Option<CancelReason>,
    node: Option<NodeId>,
    span: Option<(u64, u64)>,
    outcome: Option<(&'a Outcome, Digest)>,
}

fn finish(book: &mut Book<'_>, item: FinishSibling) -> Result<Finished> {
    let sibling = book::sibling(book.db, item.sibling_id)?;
    let trial = trial_of(book.db, &sibling, item.trial)?;
    let given = item.outcome.digest();
    if trial.trial.status == TrialStatus::Counted {
        return repeated(book, &sibling, &trial, given);
    }
    let declared = book.run(sibling.run)?.rewards.clone();
    let outcome = item
        .outcome
        .complete(&declared)
        .map_err(|problem| reject::Reject::BadOutcome { sibling: item.sibling_id, problem })?;
    if trial.trial.status != TrialStatus::Running {
        return late(book, &sibling, &trial, &outcome, given);
    }
    let node = outcome.node_id.unwrap_or(trial.trial.node_id);
    book.check_node(sibling.run, node, || format!("the end of {}", item.sibling_id))?;
    let span = span(book, &sibling, &trial, &outcome)?;
    let outcome = Outcome {
        node_id: Some(node),
        policy_version_start: Some(span.0),
        policy_version_end: Some(span.1),
        ..outcome
    };
    let end = End {
        trial: Some(trial.number),
        status: outcome.status(),
        cancelled: None,
        node: Some(node),
        span: Some(span),
        outcome: Some((&outcome, given)),
    };
    let sequence = end_sibling(book, &sibling, &end)?;
    let (group_sequence, refilled) = settle(book, &sibling, &outcome)?;
    let (sibling_id, revision) = (sibling.sibling_id, sibling.revision);
    Ok(Finished::Counted { sibling_id, revision, sequence, group_sequence, refilled })
}

/// The answer to an outcome that counts already, if it is the same.
fn repeated(book: &mut Book<'_>, sibling: &SiblingRow, trial: &TrialRow, given: Digest) -> Result<Finished> {
    let read = |c: &mut crate::row::Columns<'_>| Ok((c.count()?, c.id::<Digest>()?, c.u32()?));
    let (sequence, recorded, revision) = first(book.db, statements::END_OF_TRIAL, [trial.number], read)?
        .ok_or_else(|| crate::Error::damaged("a trial that counts has no end"))?;
    if recorded != given {
        let (sibling, trial) = (sibling.sibling_id, trial.trial.trial);
        return Err(reject::Reject::AlreadyFinished { sibling, trial, recorded, given }.into());
    }
    let values = params![sibling.run, count(sequence + 1)?, sibling.prompt];
    let group_sequence = first(book.db, statements::GROUP_OF_END, values, |c| c.count())?;
    Ok(Finished::Counted {
        sibling_id: sibling.sibling_id,
        revision,
        sequence,
        group_sequence,
        refilled: sibling.revision > revision,
    })
}

/// Keeps an outcome that came too late.
fn late(
    book: &mut Book<'_>,
    sibling: &SiblingRow,
    trial: &TrialRow,
    outcome: &Outcome,
    given: Digest,
) -> Result<Finished> {
    match trial.late_digest {
        Some(recorded) if recorded != given => {
            let (sibling, trial) = (sibling.sibling_id, trial.trial.trial);
            return Err(reject::Reject::AlreadyFinished { sibling, trial, recorded, given }.into());
        }
        Some(_) => {}
        None => {
            let values = params![given.bytes(), text(outcome)?, trial.number];
            change(book.db, statements::KEEP_LATE, values, "late outcome")?;
            book.run(sibling.run)?.counts.late += 1;
        }
    }
    let cancelled = trial.trial.status == TrialStatus::Cancelled;
    let because = if cancelled { Late::Cancelled } else { Late::Superseded };
    Ok(Finished::Late { sibling_id: sibling.sibling_id, trial: trial.trial.trial, because })
}

/// The versions that sampled an outcome: as it says, or else as its steps and its beginning do.
fn span(
    book: &mut Book<'_>,
    sibling: &SiblingRow,
    trial: &TrialRow,
    outcome: &Outcome,
) -> Result<(u64, u64)> {
    let began = trial.trial.policy_version;
    let start =
        outcome.policy_version_start.unwrap_or_else(|| trial.least.map_or(began, |least| least.min(began)));
    let end = outcome.policy_version_end.unwrap_or_else(|| trial.greatest.unwrap_or(began).max(start));
    for version in [start, end] {
        book.check_published(sibling.run, version)?;
    }
    if start > end {
        return Err(reject::Reject::BadSpan { start, end }.into());
    }
    Ok((start, end))
}

/// Records the terminal event of a sibling's revision; its sequence.
fn end_sibling(book: &mut Book<'_>, sibling: &SiblingRow, end: &End<'_>) -> Result<u64> {
    let now = book.meta.now;
    let usable = end.outcome.is_some_and(|(outcome, _)| outcome.usable == Some(true));
    let counts = &mut book.run(sibling.run)?.counts;
    counts.sequence += 1;
    let sequence = counts.sequence;
    match sibling.status {
        SiblingStatus::Running => counts.running -= 1,
        SiblingStatus::Waiting => counts.waiting -= 1,
        SiblingStatus::Result | SiblingStatus::Error | SiblingStatus::Cancelled => {}
    }
    match end.status {
        SiblingStatus::Result => counts.results += 1,
        SiblingStatus::Error => counts.errors += 1,
        SiblingStatus::Cancelled => counts.cancelled_siblings += 1,
        SiblingStatus::Waiting | SiblingStatus::Running => {}
    }
    counts.accepted += rules::contribution(usable, 0, 0).0;
    let values = params![
        sibling.run,
        count(sequence)?,
        sibling.prompt,
        sibling.number,
        sibling.revision,
        end.trial,
        end.status.as_str(),
        end.cancelled.map(|reason| reason.as_str()),
        usable,
        end.outcome.and_then(|(outcome, _)| outcome.reward),
        optional(end.node.as_ref()),
        end.span.map(|span| count(span.0)).transpose()?,
        end.span.map(|span| count(span.1)).transpose()?,
        end.outcome.map(|(outcome, _)| text(outcome)).transpose()?.flatten(),
        end.outcome.as_ref().map(|(_, digest)| digest.bytes()),
        now.0,
    ];
    change(book.db, statements::INSERT_SIBLING_DELIVERY, values, "terminal event")?;
    if let Some(trial) = end.trial {
        let status = if end.outcome.is_some() { TrialStatus::Counted } else { TrialStatus::Cancelled };
        change(book.db, statements::END_TRIAL, params![status.as_str(), now.0, trial], "trial")?;
    }
    let values = params![end.status.as_str(), count(sequence)?, sibling.number];
    change(book.db, statements::END_SIBLING, values, "sibling")?;
    let detail = json!({
        "sequence": sequence, "revision": sibling.revision, "status": end.status,
        "reward": end.outcome.and_then(|(outcome, _)| outcome.reward), "usable": usable, "cancelled": end.cancelled
    });
    let mut ended = about_sibling(EventKind::SiblingEnded, sibling.sibling_id).detail(detail);
    ended.node_id = end.node;
    book.log(sibling.run, ended)?;
    Ok(sequence)
}

/// What follows from the end of a sibling: it is done again, or its prompt may have ended. The sequence of the group
/// event, and whether something is done again.
fn settle(book: &mut Book<'_>, sibling: &SiblingRow, outcome: &Outcome) -> Result<(Option<u64>, bool)> {
    let run = book.run(sibling.run)?;
    let (mode, most, open) = (run.refill, run.max_refills, run.status == RunStatus::Open);
    let passes = |outcome: &Outcome| {
        outcome.failure.as_ref().is_some_and(|failure| !failure.gradable && failure.retryable)
    };
    if mode == Refill::Sibling && open && passes(outcome) {
        let prompt = book::prompt_numbered(book.db, sibling.prompt)?;
        if prompt.prompt.refills < most {
            again(book, sibling)?;
            let refills = prompt.prompt.refills + 1;
            change(
                book.db,
                statements::REFILL_PROMPT,
                params![prompt.prompt.revision, refills, prompt.number],
                "prompt",
            )?;
            log_refill(book, &prompt, Some(sibling.sibling_id), refills)?;
            return Ok((None, true));
        }
    }
    let left = one_less(book, sibling.prompt)?;
    if left > 0 {
        return Ok((None, false));
    }
    let prompt = book::prompt_numbered(book.db, sibling.prompt)?;
    if mode == Refill::Group && open && prompt.prompt.refills < most {
        let members = every(book.db, statements::SIBLINGS_OF_PROMPT, [prompt.number], rows::sibling)?;
        let mut broken = false;
        for member in &members {
            let end = member.sequence.map(|sequence| delivery(book.db, member.run, sequence)).transpose()?;
            broken |= end.and_then(|end| end.delivery.outcome).is_some_and(|outcome| passes(&outcome));
        }
        if broken {
            regenerate(book, &prompt, &members)?;
            return Ok((None, true));
        }
    }
    Ok((Some(end_prompt(book, &prompt)?), false))
}

/// Counts one sibling less as open; how many are left. A prompt without one is complete from here on.
fn one_less(book: &Book<'_>, prompt: i64) -> Result<u64> {
    first(book.db, statements::CLOSE_ONE, [prompt], |columns| columns.count())?
        .ok_or_else(|| crate::Error::damaged("a prompt was lost"))
}

/// A sibling waits again, in the next revision.
fn again(book: &mut Book<'_>, sibling: &SiblingRow) -> Result<()> {
    if let Some(sequence) =
        first(book.db, statements::SEQUENCE_OF_SIBLING, [sibling.number], |c| c.optional_count())?.flatten()
    {
        give_up(book, sibling.run, sequence)?;
    }
    let values = params![sibling.revision + 1, sibling.number];
    change(book.db, statements::AGAIN, values, "sibling")?;
    let counts = &mut book.run(sibling.run)?.counts;
    counts.waiting += 1;
    counts.refills += 1;
    Ok(())
}

/// An entry counts as dropped once more.
pub(super) fn give_up(book: &mut Book<'_>, run: i64, sequence: u64) -> Result<()> {
    recount(book, run, sequence, 1, 0)
}

/// Changes how many dropped an entry and trained on it, and what the run counts of it.
pub(super) fn recount(
    book: &mut Book<'_>,
    run: i64,
    sequence: u64,
    dropped: i64,
    trained: i64,
) -> Result<()> {
    let mut row = delivery(book.db, run, sequence)?;
    let before = row.contribution();
    row.dropped_by = row.dropped_by.saturating_add_signed(dropped);
    row.trained_by = row.trained_by.saturating_add_signed(trained);
    let after = row.contribution();
    let values = params![count(row.dropped_by)?, count(row.trained_by)?, run, count(sequence)?];
    change(book.db, statements::COUNT_DELIVERY, values, "entry")?;
    let counts = &mut book.run(run)?.counts;
    counts.accepted = counts.accepted + after.0 - before.0;
    counts.trained = counts.trained + after.1 - before.1;
    Ok(())
}

/// Every sibling of a prompt that has ended waits again.
fn regenerate(book: &mut Book<'_>, prompt: &PromptRow, members: &[SiblingRow]) -> Result<()> {
    for member in members {
        again(book, member)?;
    }
    let (revision, refills) = (prompt.prompt.revision + 1, prompt.prompt.refills + 1);
    reopen(book, prompt, members.len() as u64)?;
    change(book.db, statements::REFILL_PROMPT, params![revision, refills, prompt.number], "prompt")?;
    log_refill(book, prompt, None, refills)
}

/// A prompt waits for `more` siblings again.
fn reopen(book: &mut Book<'_>, prompt: &PromptRow, more: u64) -> Result<()> {
    if let Some(sequence) = prompt.prompt.sequence {
        give_up(book, prompt.run, sequence)?;
        book.run(prompt.run)?.counts.complete -= 1;
    }
    change(book.db, statements::REOPEN_PROMPT, params![count(more)?, prompt.number], "prompt")
}

fn log_refill(
    book: &mut Book<'_>,
    prompt: &PromptRow,
    sibling: Option<SiblingId>,
    refills: u32,
) -> Result<()> {
    let detail = json!({ "prompt_id": prompt.prompt.prompt_id, "refills": refills });
    let mut refilled = about(EventKind::Refilled).detail(detail);
    refilled.sibling_id = sibling;
    book.log(prompt.run, refilled)
}

/// Records the group event of a prompt whose siblings have all ended; its sequence.
fn end_prompt(book: &mut Book<'_>, prompt: &PromptRow) -> Result<u64> {
    let siblings = every(book.db, statements::SIBLINGS_OF_PROMPT, [prompt.number], rows::sibling)?;
    let members: Vec<u64> = siblings.iter().filter_map(|sibling| sibling.sequence).collect();
    let usable = every(book.db, statements::SPANS_OF_PROMPT, [prompt.number], |c| {
        Ok((c.optional_count()?, c.optional_count()?))
    })?;
    let start = usable.iter().filter_map(|span| span.0).min();
    let end = usable.iter().filter_map(|span| span.1).max();
    let counts = &mut book.run(prompt.run)?.counts;
    counts.sequence += 1;
    counts.complete += 1;
    let sequence = counts.sequence;
    let values = params![
        prompt.run,
        count(sequence)?,
        prompt.number,
        prompt.prompt.revision,
        !usable.is_empty(),
        start.map(count).transpose()?,
        end.map(count).transpose()?,
        text(&members)?,
        book.meta.now.0,
    ];
    change(book.db, statements::INSERT_GROUP_DELIVERY, values, "group event")?;
    let given_up = siblings.iter().all(|sibling| sibling.status == SiblingStatus::Cancelled);
    let status = if given_up { PromptStatus::Cancelled } else { PromptStatus::Complete };
    change(
        book.db,
        statements::END_PROMPT,
        params![status.as_str(), count(sequence)?, prompt.number],
        "prompt",
    )?;
    let detail = json!({ "prompt_id": prompt.prompt.prompt_id, "sequence": sequence, "status": status, "usable": usable.len() });
    book.log(prompt.run, about(EventKind::PromptEnded).detail(detail))?;
    Ok(sequence)
}

fn cancel(db: &Connection, request: &Request<'_>, command: Cancel) -> Result<Decision<CancelReply>> {
    let mut book = Book::new(db, request.meta);
    let open = match command.target {
        Target::Run(id) => {
            let number = book.open(id)?;
            every(db, statements::OPEN_SIBLINGS_OF_RUN, [number], rows::sibling)?
        }
        Target::Prompt(id) => {
            let prompt = book::prompt(db, id)?;
            let mut siblings = every(db, statements::SIBLINGS_OF_PROMPT, [prompt.number], rows::sibling)?;
            siblings.retain(|sibling| !sibling.status.is_terminal());
            siblings
        }
        Target::Sibling(id) => {
            let sibling = book::sibling(db, id)?;
            if sibling.status.is_terminal() { Vec::new() } else { vec![sibling] }
        }
    };
    let mut reply = CancelReply { siblings: open.len() as u64, prompts: 0 };
    for sibling in &open {
        let end = End {
            trial: sibling.trial,
            status: SiblingStatus::Cancelled,
            cancelled: Some(command.reason),
            node: None,
            span: None,
            outcome: None,
        };
        end_sibling(&mut book, sibling, &end)?;
        if one_less(&book, sibling.prompt)? == 0 {
            end_prompt(&mut book, &book::prompt_numbered(db, sibling.prompt)?)?;
            reply.prompts += 1;
        }
    }
    if let Target::Run(id) = command.target {
        let number = book.open(id)?;
        if book.run(number)?.status != RunStatus::Cancelled {
            let run = book.run(number)?;
            run.status = RunStatus::Cancelled;
            run.cancelled = Some(command.reason);
            let detail =
                json!({ "status": "cancelled", "reason": command.reason, "siblings": reply.siblings });
            book.log(number, about(EventKind::RunOver).detail(detail))?;
        }
    }
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}

fn refill(db: &Connection, request: &Request<'_>, command: RefillAgain) -> Result<Decision<Refilled>> {
    let mut book = Book::new(db, request.meta);
    let (prompt, one) = match command.target {
        Target::Run(id) => {
            return Err(Reject::BadArgument {
                argument: "target",
                expected: "a prompt or a sibling".to_owned(),
                found: id.to_string(),
            }
            .into());
        }
        Target::Prompt(id) => (book::prompt(db, id)?, None),
        Target::Sibling(id) => {
            let sibling = book::sibling(db, id)?;
            (book::prompt_numbered(db, sibling.prompt)?, Some(sibling))
        }
    };
    let id = prompt.prompt.prompt_id;
    let run = book.open_active(prompt.prompt.run_id)?;
    let most = book.run(run)?.max_refills;
    if prompt.prompt.refills >= most {
        let refills = prompt.prompt.refills;
        return Err(reject::Reject::NoRefill { prompt: id, refills, most }.into());
    }
    let whole = one.is_none();
    let members = match one {
        Some(sibling) => vec![sibling],
        None => every(db, statements::SIBLINGS_OF_PROMPT, [prompt.number], rows::sibling)?,
    };
    if members.iter().any(|member| !member.status.is_terminal()) {
        return Err(reject::Reject::NotEnded { prompt: id }.into());
    }
    for sequence in members.iter().filter_map(|member| member.sequence).chain(prompt.prompt.sequence) {
        check_unused(&book, &prompt, sequence)?;
    }
    let refills = prompt.prompt.refills + 1;
    if whole {
        regenerate(&mut book, &prompt, &members)?;
    } else {
        again(&mut book, &members[0])?;
        reopen(&mut book, &prompt, 1)?;
        let values = params![prompt.prompt.revision, refills, prompt.number];
        change(db, statements::REFILL_PROMPT, values, "prompt")?;
        log_refill(&mut book, &prompt, Some(members[0].sibling_id), refills)?;
    }
    let siblings = members.iter().map(|member| (member.sibling_id, member.revision + 1)).collect();
    let reply = Refilled { prompt_id: id, siblings, refills };
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}

/// Refuses an entry that a consumer trained on or filtered: it is not sampled again.
fn check_unused(book: &Book<'_>, prompt: &PromptRow, sequence: u64) -> Result<()> {
    let read = |c: &mut crate::row::Columns<'_>| Ok((c.take::<String>()?, c.take::<bool>()?));
    match first(book.db, statements::USER_OF_ENTRY, params![prompt.run, count(sequence)?], read)? {
        None => Ok(()),
        Some((consumer, trained)) => Err(reject::Reject::AlreadyUsed {
            prompt: prompt.prompt.prompt_id,
            consumer,
            how: if trained { "trained" } else { "filtered" },
        }
        .into()),
    }
}
