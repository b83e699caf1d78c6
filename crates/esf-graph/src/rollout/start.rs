//! Siblings begin: those that are named, and those whose turn it is. Invariants: a sibling has one trial that goes on;
//! who takes its place says which one; nothing begins that the run has no room for.

use esf_core::id::{AttemptId, SiblingId};
use esf_core::ops::rollout::{Begun, ForkFrom, StartSibling, StartSiblings, Started, reject};
use esf_core::ops::{Decision, Meta, Reject, Request, Transition, start};
use esf_core::record::EventKind;
use esf_core::rollout::{SiblingStatus, rules};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::book::{self, Book, about, trial_numbered, trial_of};
use super::rows::{self, SiblingRow};
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, every, first, optional};
use crate::{Graph, load, statements};

/// What is remembered of a request: from which all else follows.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Remembered {
    trials: Vec<(SiblingId, u32)>,
    wait: Option<rules::Wait>,
    exhausted: bool,
}

/// Where a trial begins.
struct Beginning {
    node: esf_core::NodeId,
    first_step: u64,
    parent: Option<i64>,
    owned_from: Option<u64>,
}

impl Graph {
    /// Begins trials of siblings, as many as the run has room for: the named ones in their order, then those that
    /// wait. The same request again gets the same trials.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `RunOver`, `NotWaiting`, `TrialOver`, `BadFork`, `BadArgument`;
    /// `IdempotencyConflict`. Nothing has begun then.
    pub fn start_siblings(&self, meta: &Meta, command: StartSiblings) -> Result<Started> {
        let answer = self.mutate(meta, "start_siblings", &command.clone(), move |db, request| {
            begin_all(db, request, &command)
        })?;
        let Remembered { trials, wait, exhausted } = answer.reply;
        let begun = self.read(|db| trials.iter().map(|(id, trial)| begun(db, *id, *trial)).collect())?;
        Ok(Started { begun, wait, exhausted })
    }
}

fn begin_all(
    db: &Connection,
    request: &Request<'_>,
    command: &StartSiblings,
) -> Result<Decision<Remembered>> {
    let wanted = command.siblings.len().saturating_add(command.next as usize);
    if !(1..=StartSiblings::MAX).contains(&wanted) {
        return Err(Reject::BadArgument {
            argument: "siblings",
            expected: format!("1 to {}, named or next", StartSiblings::MAX),
            found: wanted.to_string(),
        }
        .into());
    }
    let mut book = Book::new(db, request.meta);
    let run = book.open_active(command.run_id)?;
    let mut starting = Starting { book, run, lease_ms: command.lease_ms, trials: Vec::new(), wait: None };
    for named in &command.siblings {
        if !starting.begin(named)? {
            break;
        }
    }
    let mut exhausted = false;
    if starting.wait.is_none() && command.next > 0 {
        exhausted = !starting.begin_next(u64::from(command.next))?;
    }
    let Starting { mut book, trials, wait, .. } = starting;
    if !trials.is_empty() {
        let version = book.run(run)?.policy.version;
        let detail = json!({ "count": trials.len(), "policy_version": version });
        book.log(run, about(EventKind::SiblingsStarted).detail(detail))?;
    }
    let reply = Remembered { trials, wait, exhausted };
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}

struct Starting<'a> {
    book: Book<'a>,
    run: i64,
    lease_ms: Option<u64>,
    trials: Vec<(SiblingId, u32)>,
    wait: Option<rules::Wait>,
}

impl Starting<'_> {
    /// Begins `wanted` siblings whose turn it is; whether there were so many.
    fn begin_next(&mut self, wanted: u64) -> Result<bool> {
        let db = self.book.db;
        let boot = self.book.meta.boot.clone();
        let values = params![self.run, boot.boot_id, boot.millis.0, count(wanted)?];
        let lapsed = every(db, statements::LAPSED_TRIALS, values, |c| Ok((c.id()?, c.u32()?)))?;
        let values = params![self.run, count(wanted)?];
        let waiting = every(db, statements::NEXT_SIBLINGS, values, |c| c.id())?;
        let lapsed = lapsed
            .into_iter()
            .map(|(id, trial)| StartSibling { supersede: Some(trial), ..StartSibling::of(id) });
        let turns: Vec<_> = lapsed.chain(waiting.into_iter().map(StartSibling::of)).collect();
        let enough = turns.len() as u64 >= wanted;
        for turn in turns.into_iter().take(usize::try_from(wanted).unwrap_or(usize::MAX)) {
            if !self.begin(&turn)? {
                return Ok(true);
            }
        }
        Ok(enough)
    }

    /// Begins one; false when there is no room.
    fn begin(&mut self, command: &StartSibling) -> Result<bool> {
        let db = self.book.db;
        let row = book::sibling(db, command.sibling_id)?;
        if row.run != self.run {
            return Err(Error::not_found("sibling of this run", command.sibling_id));
        }
        self.check_turn(&row, command)?;
        self.check_attempt(command.attempt_id)?;
        let beginning = self.beginning(&row, command.fork)?;
        if row.status == SiblingStatus::Waiting {
            if let (0, wait) = rules::room(self.book.run(self.run)?) {
                self.wait = wait;
                return Ok(false);
            }
            let counts = &mut self.book.run(self.run)?.counts;
            counts.waiting -= 1;
            counts.running += 1;
        }
        if let Some(old) = row.trial {
            let values = params!["superseded", self.book.meta.now.0, old];
            change(db, statements::END_TRIAL, values, "superseded trial")?;
        }
        let trial = self.insert(&row, command.attempt_id, &beginning)?;
        change(db, statements::RUN_SIBLING, params![trial, row.number], "sibling")?;
        if !row.opened {
            let version = count(self.book.run(self.run)?.policy.version)?;
            change(db, statements::OPEN_PROMPT_ROW, params![version, row.prompt], "prompt")?;
            db.prepare_cached(statements::OPEN_SIBLINGS)?.execute([row.prompt])?;
        }
        self.trials.push((row.sibling_id, row.trials));
        Ok(true)
    }

    fn check_turn(&self, row: &SiblingRow, command: &StartSibling) -> Result<()> {
        let current = match (row.status, row.trial) {
            (SiblingStatus::Running, Some(trial)) => Some(trial_numbered(self.book.db, trial)?.trial.trial),
            _ => None,
        };
        match (row.status, command.supersede, current) {
            (SiblingStatus::Waiting, None, _) => Ok(()),
            (SiblingStatus::Running, Some(given), Some(current)) if given == current => Ok(()),
            (status, Some(trial), current) => Err(reject::Reject::TrialOver {
                sibling: row.sibling_id,
                trial,
                current,
                status,
                cancelled: None,
            }
            .into()),
            (status, None, trial) => {
                Err(reject::Reject::NotWaiting { sibling: row.sibling_id, status, trial }.into())
            }
        }
    }

    fn check_attempt(&mut self, attempt: Option<AttemptId>) -> Result<()> {
        let Some(id) = attempt else { return Ok(()) };
        let attempt = load::attempt(self.book.db, id)?;
        if attempt.group_id == self.book.run(self.run)?.group_id {
            return Ok(());
        }
        Err(Reject::OtherGroup { node: attempt.node_id }.into())
    }

    fn beginning(&self, row: &SiblingRow, fork: Option<ForkFrom>) -> Result<Beginning> {
        let db = self.book.db;
        let Some(fork) = fork else {
            let node = book::prompt_numbered(db, row.prompt)?.prompt.node_id;
            return Ok(Beginning { node, first_step: 0, parent: None, owned_from: None });
        };
        let parent = book::sibling(db, fork.sibling_id)?;
        let refuse = |expected: String, found: String| {
            let (sibling, step) = (row.sibling_id, fork.step);
            Err(reject::Reject::BadFork { sibling, parent: fork.sibling_id, step, expected, found }.into())
        };
        if parent.prompt != row.prompt || parent.number == row.number {
            return refuse("another sibling of the same prompt".to_owned(), fork.sibling_id.to_string());
        }
        let Some(trial) = parent.trial else {
            return refuse("a sibling that has begun".to_owned(), parent.status.as_str().to_owned());
        };
        let trial = trial_numbered(db, trial)?;
        if !(trial.first_step..=trial.next_step).contains(&fork.step) {
            return refuse(format!("{} to {}", trial.first_step, trial.next_step), fork.step.to_string());
        }
        let owned_from = fork.owned_from.unwrap_or(fork.step);
        if owned_from < fork.step {
            return refuse(format!("owned_from of {} or more", fork.step), owned_from.to_string());
        }
        let node = if fork.step == trial.next_step {
            trial.trial.node_id
        } else {
            let values = params![trial.number, count(fork.step)?, 1];
            first(db, statements::STEPS_FROM, values, rows::step)?
                .ok_or_else(|| Error::damaged("a trial lacks a step"))?
                .node_before
        };
        let parent = Some(trial.number);
        Ok(Beginning { node, first_step: fork.step, parent, owned_from: Some(owned_from) })
    }

    fn insert(&mut self, row: &SiblingRow, attempt: Option<AttemptId>, beginning: &Beginning) -> Result<i64> {
        let meta = self.book.meta;
        let version = count(self.book.run(self.run)?.policy.version)?;
        let expires = self.lease_ms.map(|lease_ms| start::expiry(meta.boot.millis, lease_ms).0);
        let values = params![
            row.number,
            self.run,
            row.trials,
            row.revision,
            optional(attempt.as_ref()),
            version,
            beginning.parent,
            count(beginning.first_step)?,
            beginning.owned_from.map(count).transpose()?,
            beginning.node.bytes(),
            expires,
            expires.map(|_| &meta.boot.boot_id),
            meta.now.0,
            meta.actor,
            meta.trace_id,
        ];
        first(self.book.db, statements::INSERT_TRIAL, values, |columns| columns.take())?
            .ok_or_else(|| Error::damaged("a trial was not stored"))
    }
}

/// A trial that has begun, as its runner gets it.
fn begun(db: &Connection, id: SiblingId, trial: u32) -> Result<Begun> {
    let row = book::sibling(db, id)?;
    let prompt = book::prompt_numbered(db, row.prompt)?.prompt;
    let begun = trial_of(db, &row, trial)?;
    let node_id = match first(db, statements::STEPS_FROM, params![begun.number, 0, 1], rows::step)? {
        Some(step) => step.node_before,
        None => begun.trial.node_id,
    };
    Ok(Begun {
        sibling_id: id,
        prompt_id: prompt.prompt_id,
        prompt_index: prompt.index,
        index: row.index,
        revision: begun.trial.revision,
        trial,
        seed: rules::sibling_seed(prompt.seed, row.index, begun.trial.revision),
        task: prompt.task,
        extra: prompt.extra,
        node_id,
        root_id: prompt.root_id,
        first_step: begun.first_step,
        policy_version: begun.trial.policy_version,
    })
}

/// A transition about a sibling.
pub(super) fn about_sibling(kind: EventKind, sibling: SiblingId) -> Transition {
    Transition { sibling_id: Some(sibling), ..Transition::new(kind) }
}
