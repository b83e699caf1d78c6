//! Results go to consumers: each entry is delivered to each consumer at least once, under a lease, until it is
//! acknowledged. Invariants: what is too old, replaced or not wanted is dropped where it would be delivered, and
//! that is remembered; an acknowledgement of what somebody else holds changes nothing; what was trained on is
//! open again only when its trainer went back.

use std::collections::BTreeSet;

use esf_core::id::RunId;
use esf_core::ops::rollout::{Ack, Acked, Batch, Consume, Delivered, HoldBatch, Reopen, Reopened, reject};
use esf_core::ops::{Decision, Meta, Reject, Request, start};
use esf_core::record::EventKind;
use esf_core::rollout::{Consumer, DeliveryKind, DropReason, RunStatus, Unit, rules};
use esf_core::time::BootMillis;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::book::{self, Book, about};
use super::create::check_text;
use super::finish::recount;
use super::reads::{delivery, with_stats};
use super::rows::{self, ConsumerRow, Consumption, DeliveryRow, State};
use crate::error::{Error, Result};
use crate::row::{change, count, every, first, json as text};
use crate::{Graph, statements};

/// The most entries that one request looks at.
const MOST_LOOKED_AT: u64 = 50_000;

/// How many entries are looked for at once.
const AT_ONCE: u64 = 512;

/// What is remembered of a delivery; the entries are read again.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Remembered {
    batch: Option<u64>,
    sequences: Vec<u64>,
    expires_at: BootMillis,
    dropped: u64,
    drained: bool,
}

impl Graph {
    /// Delivers entries of a run's log to a consumer, which has them until its lease ends. The same request again gets
    /// the same batch.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `ConsumerDiffers` or `BadArgument`; `IdempotencyConflict`.
    pub fn consume(&self, meta: &Meta, command: Consume) -> Result<Batch> {
        let (run_id, consumer) = (command.run_id, command.consumer.clone());
        let answer = self
            .mutate(meta, "consume", &command.clone(), move |db, request| consume(db, request, &command))?;
        let Remembered { batch, sequences, expires_at, dropped, drained } = answer.reply;
        let deliveries = self.read(|db| delivered(db, run_id, &sequences))?;
        Ok(Batch { run_id, consumer, batch, expires_at, deliveries, dropped, drained })
    }

    /// The entries of a batch, whoever holds them now.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn batch(&self, run: RunId, batch: u64) -> Result<Vec<Delivered>> {
        self.read(|db| {
            let number = book::run(db, run)?.number;
            let sequences = of_batch(db, number, batch)?.ok_or_else(|| Error::not_found("batch", batch))?.1;
            delivered(db, run, &sequences)
        })
    }

    /// Acknowledges entries: trained on, or filtered. Twice is as once.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `NeverLeased`, `LeaseLost`, `AckDiffers` or `BadArgument`, and nothing is
    /// acknowledged; `IdempotencyConflict`.
    pub fn ack(&self, meta: &Meta, command: Ack) -> Result<Acked> {
        let answer =
            self.mutate(meta, "ack", &command.clone(), move |db, request| ack(db, request, &command))?;
        Ok(answer.reply)
    }

    /// Holds the entries of a batch on, or gives them back; how many. A heartbeat, which needs no key of its own.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `NeverLeased`.
    pub fn hold_batch(&self, meta: &Meta, command: HoldBatch) -> Result<u64> {
        let boot = meta.boot.clone();
        self.inner.writer.run(move |transaction| {
            let db = transaction.db;
            let run = book::run(db, command.run_id)?.number;
            let (row, sequences) = held(db, run, &command.consumer, command.batch)?;
            let batch = count(command.batch)?;
            let until = (command.lease_ms > 0).then(|| start::expiry(boot.millis, command.lease_ms).0);
            let state = if until.is_some() { State::Leased } else { State::Available };
            let mut changed = 0;
            for sequence in sequences {
                let boot = until.map(|_| &boot.boot_id);
                let values = params![state.as_str(), until, boot, row.number, count(sequence)?, batch];
                changed += db.prepare_cached(statements::HOLD_CONSUMPTION)?.execute(values)? as u64;
            }
            Ok(changed)
        })
    }

    /// After a trainer went back to a step: what it trained on later is delivered to it again. What it filtered stays
    /// so.
    ///
    /// # Errors
    /// `NotFound` for the run; `Rejected` with `NeverLeased` for a consumer that never was; `IdempotencyConflict`.
    pub fn reopen(&self, meta: &Meta, command: Reopen) -> Result<Reopened> {
        let answer =
            self.mutate(meta, "reopen", &command.clone(), move |db, request| reopen(db, request, &command))?;
        Ok(answer.reply)
    }
}

fn delivered(db: &Connection, run: RunId, sequences: &[u64]) -> Result<Vec<Delivered>> {
    let number = book::run(db, run)?.number;
    let entry = |sequence: &u64| with_stats(db, number, delivery(db, number, *sequence)?);
    sequences
        .iter()
        .map(|sequence| {
            let delivery = entry(sequence)?;
            let siblings = delivery.members.iter().map(entry).collect::<Result<_>>()?;
            Ok(Delivered { delivery, siblings })
        })
        .collect()
}

/// The consumer of a batch, and the batch's entries.
fn of_batch(db: &Connection, run: i64, batch: u64) -> Result<Option<(i64, Vec<u64>)>> {
    let values = params![run, count(batch.min(i64::MAX.unsigned_abs()))?];
    first(db, statements::BATCH_OF_RUN, values, |c| Ok((c.take()?, c.json()?)))
}

/// A consumer and what it got in a batch.
fn held(db: &Connection, run: i64, name: &str, batch: u64) -> Result<(ConsumerRow, Vec<u64>)> {
    let never = || {
        let (consumer, what) = (name.to_owned(), format!("batch {batch}"));
        Error::from(reject::Reject::NeverLeased { consumer, what })
    };
    let row = named(db, run, name)?.ok_or_else(never)?;
    match of_batch(db, run, batch)? {
        Some((consumer, sequences)) if consumer == row.number => Ok((row, sequences)),
        Some(_) | None => Err(never()),
    }
}

fn named(db: &Connection, run: i64, name: &str) -> Result<Option<ConsumerRow>> {
    first(db, statements::CONSUMER_OF_RUN, params![run, name], rows::consumer)
}

fn consume(db: &Connection, request: &Request<'_>, command: &Consume) -> Result<Decision<Remembered>> {
    check_text("consumer", &command.consumer)?;
    if !(1..=Consume::MAX).contains(&command.max) {
        return Err(Reject::BadArgument {
            argument: "max",
            expected: format!("1 to {}", Consume::MAX),
            found: command.max.to_string(),
        }
        .into());
    }
    let mut book = Book::new(db, request.meta);
    let run = book.open(command.run_id)?;
    let row = consumer(&book, run, command)?;
    let expires_at = start::expiry(request.meta.boot.millis, command.lease_ms);
    let batch = book.row(run)?.batches + 1;
    let mut taking =
        Taking { book, run, row, batch, expires_at, taken: Vec::new(), dropped: 0, looked_at: 0 };
    taking.take(command.max as usize)?;
    let drained = taking.drained()?;
    let Taking { mut book, row, taken, dropped, .. } = taking;
    let batch = if taken.is_empty() { None } else { Some(insert_batch(&mut book, run, &row, &taken)?) };
    let offered = params![count(row.offered)?, row.number];
    change(db, statements::OFFER, offered, "consumer")?;
    if dropped > 0 {
        advance(&book, run, &row)?;
    }
    let reply = Remembered { batch, sequences: taken, expires_at, dropped, drained };
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}

/// The consumer of a request, made when it is not known.
fn consumer(book: &Book<'_>, run: i64, command: &Consume) -> Result<ConsumerRow> {
    if let Some(row) = named(book.db, run, &command.consumer)? {
        let Consumer { unit, usable_only, .. } = row.consumer;
        let (wanted, only) = (command.unit.unwrap_or(unit), command.usable_only.unwrap_or(usable_only));
        if (wanted, only) != (unit, usable_only) {
            let words = |unit: Unit, only| format!("unit {}, usable_only {only}", unit.as_str());
            return Err(reject::Reject::ConsumerDiffers {
                consumer: command.consumer.clone(),
                recorded: words(unit, usable_only),
                given: words(wanted, only),
            }
            .into());
        }
        return Ok(row);
    }
    let values = params![
        run,
        command.consumer,
        command.unit.unwrap_or(Unit::Sibling).as_str(),
        command.usable_only.unwrap_or(false),
        book.meta.now.0,
        book.meta.actor,
    ];
    change(book.db, statements::INSERT_CONSUMER, values, "consumer")?;
    named(book.db, run, &command.consumer)?.ok_or_else(|| Error::damaged("a consumer was not stored"))
}

struct Taking<'a> {
    book: Book<'a>,
    run: i64,
    row: ConsumerRow,
    batch: u64,
    expires_at: BootMillis,
    taken: Vec<u64>,
    dropped: u64,
    looked_at: u64,
}

impl Taking<'_> {
    /// Takes at most `max` entries, old ones that are free again before new ones.
    fn take(&mut self, max: usize) -> Result<()> {
        let (db, boot) = (self.book.db, self.book.meta.boot.clone());
        let mut after = 0;
        while self.goes_on(max) {
            let values =
                params![self.row.number, count(after)?, boot.boot_id, boot.millis.0, count(AT_ONCE)?];
            let free: Vec<u64> = every(db, statements::FREE_CONSUMPTIONS, values, |c| c.count())?;
            let Some(last) = free.last().copied() else { break };
            for sequence in free {
                if !self.goes_on(max) {
                    return Ok(());
                }
                self.look_at(sequence)?;
            }
            after = last;
        }
        let kind = kind(self.row.consumer.unit);
        while self.goes_on(max) {
            let values = params![self.run, kind.as_str(), count(self.row.offered)?, count(AT_ONCE)?];
            let new: Vec<u64> = every(db, statements::NEW_ENTRIES, values, |c| c.count())?;
            if new.is_empty() {
                break;
            }
            for sequence in new {
                if !self.goes_on(max) {
                    return Ok(());
                }
                self.look_at(sequence)?;
                self.row.offered = sequence;
            }
        }
        Ok(())
    }

    fn goes_on(&self, max: usize) -> bool {
        self.taken.len() < max && self.looked_at < MOST_LOOKED_AT
    }

    /// Leases an entry, or drops it.
    fn look_at(&mut self, sequence: u64) -> Result<()> {
        self.looked_at += 1;
        let entry = delivery(self.book.db, self.run, sequence)?;
        if let Some(reason) = self.unwanted(&entry)? {
            let step = self.book.run(self.run)?.trainer_step;
            set(&self.book, &self.row, sequence, &State::Dropped, None, Some(step), Some(reason))?;
            if rules::loses(reason) && reason != DropReason::Superseded {
                give_up_with_members(&mut self.book, self.run, &entry, 1, 0)?;
            }
            self.dropped += 1;
            return Ok(());
        }
        let boot = &self.book.meta.boot;
        let batch = count(self.batch)?;
        let values = params![self.row.number, count(sequence)?, batch, self.expires_at.0, boot.boot_id];
        change(self.book.db, statements::LEASE_ENTRY, values, "consumption")?;
        self.taken.push(sequence);
        Ok(())
    }

    fn unwanted(&mut self, entry: &DeliveryRow) -> Result<Option<DropReason>> {
        let run = self.book.run(self.run)?;
        Ok(if entry.current != Some(entry.delivery.sequence) {
            Some(DropReason::Superseded)
        } else if self.row.consumer.usable_only && !entry.delivery.usable {
            Some(DropReason::Unusable)
        } else if rules::is_stale(run, entry.delivery.policy_version_start) {
            Some(DropReason::Stale)
        } else {
            None
        })
    }

    /// Whether the run is over and all of it is trained or dropped.
    fn drained(&mut self) -> Result<bool> {
        if self.book.run(self.run)?.status == RunStatus::Open || !self.taken.is_empty() {
            return Ok(false);
        }
        let db = self.book.db;
        let open = first(db, statements::OPEN_CONSUMPTION, params![self.row.number], |c| c.count())?;
        let kind = kind(self.row.consumer.unit);
        let values = params![self.run, kind.as_str(), count(self.row.offered)?, 1];
        let new = first(db, statements::NEW_ENTRIES, values, |c| c.count())?;
        Ok(open.is_none() && new.is_none())
    }
}

const fn kind(unit: Unit) -> DeliveryKind {
    match unit {
        Unit::Sibling => DeliveryKind::Sibling,
        Unit::Group => DeliveryKind::Group,
    }
}

fn insert_batch(book: &mut Book<'_>, run: i64, row: &ConsumerRow, taken: &[u64]) -> Result<u64> {
    let counted = book.row(run)?;
    counted.batches += 1;
    let batch = counted.batches;
    let values = params![
        run,
        count(batch)?,
        row.number,
        text(&taken)?,
        book.meta.now.0,
        book.meta.actor,
        book.meta.trace_id
    ];
    change(book.db, statements::INSERT_BATCH, values, "batch")?;
    Ok(batch)
}

/// Changes how an entry, and the siblings of a group, count.
fn give_up_with_members(
    book: &mut Book<'_>,
    run: i64,
    entry: &DeliveryRow,
    dropped: i64,
    trained: i64,
) -> Result<()> {
    recount(book, run, entry.delivery.sequence, dropped, trained)?;
    for member in &entry.delivery.members {
        recount(book, run, *member, dropped, trained)?;
    }
    Ok(())
}

fn set(
    book: &Book<'_>,
    row: &ConsumerRow,
    sequence: u64,
    state: &State,
    batch: Option<u64>,
    step: Option<u64>,
    reason: Option<DropReason>,
) -> Result<()> {
    let values = params![
        row.number,
        count(sequence)?,
        state.as_str(),
        batch.map(count).transpose()?,
        step.map(count).transpose()?,
        reason.map(DropReason::as_str),
    ];
    change(book.db, statements::SET_CONSUMPTION, values, "consumption")
}

/// Moves the cursor to where nothing before is open; where that is.
fn advance(book: &Book<'_>, run: i64, row: &ConsumerRow) -> Result<u64> {
    let db = book.db;
    let open = first(db, statements::OPEN_CONSUMPTION, params![row.number], |c| c.count())?;
    let offered =
        first(db, statements::CONSUMER_OF_RUN, params![run, row.consumer.consumer], rows::consumer)?
            .map_or(row.offered, |row| row.offered);
    let cursor = open.map_or(offered, |open| open - 1);
    change(db, statements::MOVE_CURSOR, params![count(cursor)?, row.number], "cursor")?;
    Ok(cursor)
}

fn ack(db: &Connection, request: &Request<'_>, command: &Ack) -> Result<Decision<Acked>> {
    let mut book = Book::new(db, request.meta);
    let run = book.open(command.run_id)?;
    if command.trainer_step == 0 || i64::try_from(command.trainer_step).is_err() {
        return Err(Reject::BadArgument {
            argument: "trainer_step",
            expected: "the step that used them, from 1".to_owned(),
            found: command.trainer_step.to_string(),
        }
        .into());
    }
    let (row, delivered) = held(db, run, &command.consumer, command.batch)?;
    let (mut trained, mut filtered) = (Vec::new(), Vec::new());
    let mut repeated = 0;
    for (sequence, filter) in asked(command, &delivered)? {
        match judge(db, &row, command, sequence, filter)? {
            true if filter => filtered.push(sequence),
            true => trained.push(sequence),
            false => repeated += 1,
        }
    }
    let (batch, step) = (Some(command.batch), Some(command.trainer_step));
    for sequence in &trained {
        set(&book, &row, *sequence, &State::Trained, batch, step, None)?;
        let entry = delivery(db, run, *sequence)?;
        give_up_with_members(&mut book, run, &entry, 0, 1)?;
    }
    for sequence in &filtered {
        set(&book, &row, *sequence, &State::Dropped, batch, step, Some(DropReason::Filtered))?;
        let entry = delivery(db, run, *sequence)?;
        give_up_with_members(&mut book, run, &entry, 1, 0)?;
    }
    if !trained.is_empty() || !filtered.is_empty() {
        let step = row.consumer.trainer_step.max(command.trainer_step);
        change(db, statements::STEP_CONSUMER, params![count(step)?, row.number], "consumer")?;
        let run_row = book.run(run)?;
        run_row.trainer_step = run_row.trainer_step.max(command.trainer_step);
        let detail = json!({
            "consumer": command.consumer, "batch": command.batch, "trainer_step": command.trainer_step,
            "trained": trained.len(), "filtered": filtered.len()
        });
        book.log(run, about(EventKind::Acknowledged).detail(detail))?;
    }
    let cursor = advance(&book, run, &row)?;
    let reply = Acked { trained: trained.len() as u64, filtered: filtered.len() as u64, repeated, cursor };
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}

/// The entries that an acknowledgement is about, and whether each is filtered.
fn asked(command: &Ack, delivered: &[u64]) -> Result<Vec<(u64, bool)>> {
    let known: BTreeSet<u64> = delivered.iter().copied().collect();
    let filtered: BTreeSet<u64> = command.filtered.iter().copied().collect();
    let trained: BTreeSet<u64> = match &command.sequences {
        Some(sequences) => sequences.iter().copied().collect(),
        None => known.difference(&filtered).copied().collect(),
    };
    if let Some(both) = trained.intersection(&filtered).next() {
        return Err(Reject::BadArgument {
            argument: "filtered",
            expected: "other entries than those that were trained on".to_owned(),
            found: both.to_string(),
        }
        .into());
    }
    if let Some(unknown) = trained.union(&filtered).find(|sequence| !known.contains(sequence)) {
        let what = format!("entry {unknown} in batch {}", command.batch);
        return Err(reject::Reject::NeverLeased { consumer: command.consumer.clone(), what }.into());
    }
    let trained = trained.into_iter().map(|sequence| (sequence, false));
    Ok(trained.chain(filtered.into_iter().map(|sequence| (sequence, true))).collect())
}

/// Whether an acknowledgement of an entry is new (true), or as it was before.
fn judge(db: &Connection, row: &ConsumerRow, command: &Ack, sequence: u64, filter: bool) -> Result<bool> {
    let values = params![row.number, count(sequence)?];
    let entry = first(db, statements::CONSUMPTION_OF, values, rows::consumption)?
        .ok_or_else(|| Error::damaged(format!("entry {sequence} of a batch was never delivered")))?;
    let Consumption { state, batch, step, reason } = entry;
    let given =
        if filter { "filtered".to_owned() } else { format!("trained in step {}", command.trainer_step) };
    let differs = |recorded: String| Err(reject::Reject::AckDiffers { sequence, recorded, given }.into());
    match batch {
        Some(current) if current != command.batch => {
            return Err(reject::Reject::LeaseLost { sequence, batch: command.batch, current }.into());
        }
        Some(_) => {}
        None if state == State::Dropped => {
            return differs(reason.map_or_else(String::new, |reason| reason.as_str().to_owned()));
        }
        None => return differs("open again, after its trainer went back".to_owned()),
    }
    match (state, reason) {
        // Nobody took it meanwhile, so a lease that merely ran out does not matter.
        (State::Leased | State::Available, _) => Ok(true),
        (State::Trained, _) if !filter && step == Some(command.trainer_step) => Ok(false),
        (State::Trained, _) => differs(format!("trained in step {}", step.unwrap_or_default())),
        (State::Dropped, Some(DropReason::Filtered)) if filter => Ok(false),
        (State::Dropped, reason) => differs(reason.map_or_else(String::new, |r| r.as_str().to_owned())),
    }
}

fn reopen(db: &Connection, request: &Request<'_>, command: &Reopen) -> Result<Decision<Reopened>> {
    let mut book = Book::new(db, request.meta);
    let run = book.open(command.run_id)?;
    let Some(row) = named(db, run, &command.consumer)? else {
        let (consumer, what) = (command.consumer.clone(), "anything".to_owned());
        return Err(reject::Reject::NeverLeased { consumer, what }.into());
    };
    let after = command.after_step.min(i64::MAX.unsigned_abs());
    let sequences: Vec<u64> =
        every(db, statements::TRAINED_AFTER, params![row.number, count(after)?], |c| c.count())?;
    for sequence in &sequences {
        set(&book, &row, *sequence, &State::Available, None, None, None)?;
        let entry = delivery(db, run, *sequence)?;
        give_up_with_members(&mut book, run, &entry, 0, -1)?;
    }
    let step = row.consumer.trainer_step.min(after);
    change(db, statements::STEP_CONSUMER, params![count(step)?, row.number], "consumer")?;
    let latest = first(db, statements::LATEST_STEP, [run], |c| c.optional_count())?.flatten();
    book.run(run)?.trainer_step = latest.unwrap_or(0);
    let detail = json!({
        "consumer": command.consumer, "after_step": command.after_step, "reopened": sequences.len()
    });
    book.log(run, about(EventKind::Reopened).detail(detail))?;
    let cursor = advance(&book, run, &row)?;
    let reply = Reopened { reopened: sequences.len() as u64, cursor };
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}
