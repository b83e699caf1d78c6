//! One search within one transaction: what the rules look at, and the writes that all operations share.
//! Invariants: one path is read and written, whatever the size of the tree; what an edge keeps of its child
//! equals the child; the search's row is written once, by `finish`.

use std::cell::RefCell;
use std::collections::HashMap;

use esf_core::id::SearchId;
use esf_core::ops::search::reject;
use esf_core::ops::{Meta, Transition};
use esf_core::record::EventKind;
use esf_core::search::config::Objective;
use esf_core::search::{
    Config, EdgeNumber, EdgeStats, Expansion, PositionNumber, PositionStats, Search, SearchStatus, Step,
    StopReason, Tree, rules, visit,
};
use rusqlite::{Connection, params};
use serde_json::json;

use super::rows::{self, MOST_EDGES, PositionRow, SearchRow, Values};
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, each, every, first, optional};
use crate::statements;

/// A search, being worked on.
pub(super) struct Session<'a> {
    /// The database, within a savepoint.
    pub(super) db: &'a Connection,
    /// Who asks.
    pub(super) meta: &'a Meta,
    /// The search as it will be.
    pub(super) row: SearchRow,
    /// What is to be logged.
    pub(super) transitions: Vec<Transition>,
    seen: RefCell<Seen>,
    /// Positions that were proven and are not any more, whose parents do not know it yet.
    lost: RefCell<Vec<PositionNumber>>,
}

/// What was read of positions and edges, with what was written since: it is as the database has it. A transaction
/// of many rollouts meets those near the root again and again.
#[derive(Default)]
struct Seen {
    positions: HashMap<PositionNumber, PositionStats>,
    edges: HashMap<PositionNumber, Vec<EdgeStats>>,
    kept: usize,
}

impl Seen {
    /// How many edges and positions are kept at most, whatever the transaction goes through.
    const MOST: usize = 40_000;

    fn make_room(&mut self, more: usize) {
        self.kept += more;
        if self.kept > Self::MOST {
            *self = Self { kept: more, ..Self::default() };
        }
    }

    fn edge(&mut self, number: EdgeNumber) -> Option<&mut EdgeStats> {
        let edges = self.edges.get_mut(&rows::parent(number))?;
        edges.get_mut((number.0 % MOST_EDGES) as usize)
    }
}

impl From<reject::Reject> for Error {
    fn from(reject: reject::Reject) -> Self {
        Self::Rejected(reject.into())
    }
}

/// The search `id`.
pub(super) fn search(db: &Connection, id: SearchId) -> Result<SearchRow> {
    first(db, statements::SEARCH_BY_ID, [id.bytes()], rows::search)?
        .ok_or_else(|| Error::not_found("search", id))
}

/// The position `number`, whole.
pub(super) fn position(db: &Connection, number: PositionNumber) -> Result<PositionRow> {
    let place = i64::try_from(number.0).unwrap_or(-1);
    first(db, statements::POSITION_BY_NUMBER, [place], rows::position)?
        .ok_or_else(|| Error::not_found("position", number.0))
}

/// The edges of the position `number`, by ordinal.
pub(super) fn edges(db: &Connection, number: PositionNumber) -> Result<Vec<EdgeStats>> {
    let Some(range) = rows::edge_range(number) else { return Ok(Vec::new()) };
    every(db, statements::STATS_OF_EDGES, range, rows::edge_stats)
}

impl<'a> Session<'a> {
    /// Begins to work on the search `id`.
    pub(super) fn begin(db: &'a Connection, meta: &'a Meta, id: SearchId) -> Result<Self> {
        Ok(Self::on(db, meta, search(db, id)?))
    }

    /// Begins to work on the search with this number in the database.
    pub(super) fn of_number(db: &'a Connection, meta: &'a Meta, number: i64) -> Result<Self> {
        let row = first(db, statements::SEARCH_BY_NUMBER, [number], rows::search)?
            .ok_or_else(|| Error::damaged(format!("no search has the number {number}")))?;
        Ok(Self::on(db, meta, row))
    }

    fn on(db: &'a Connection, meta: &'a Meta, row: SearchRow) -> Self {
        let (seen, lost) = (RefCell::default(), RefCell::default());
        Self { db, meta, row, transitions: Vec::new(), seen, lost }
    }

    /// Writes the search's row; gives what is to be logged.
    pub(super) fn finish(self) -> Result<(SearchRow, Vec<Transition>)> {
        let search = &self.row.search;
        let values = params![
            search.status.as_str(),
            search.stopped.map(StopReason::as_str),
            count(search.selected)?,
            count(search.accepted)?,
            count(search.void)?,
            search.cost,
            count(search.positions)?,
            count(self.row.expanded)?,
            count(search.edges)?,
            self.row.best,
            self.row.number,
        ];
        change(self.db, statements::UPDATE_SEARCH, values, "search")?;
        let mut row = self.row;
        row.search.stats_rev += 1;
        Ok((row, self.transitions))
    }

    /// Does `work`; when it fails, nothing of it stays, here or in the database.
    pub(super) fn whole_or_not<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (row, logged) = (self.row.clone(), self.transitions.len());
        self.db.prepare_cached("SAVEPOINT outcome")?.execute([])?;
        let done = work(self);
        if done.is_err() {
            self.row = row;
            self.transitions.truncate(logged);
            *self.seen.borrow_mut() = Seen::default();
            self.lost.borrow_mut().clear();
            if self.db.is_autocommit() {
                // A failing disk ended the whole transaction, and so this part of it.
                return done;
            }
            self.db.prepare_cached("ROLLBACK TO outcome")?.execute([])?;
        }
        self.db.prepare_cached("RELEASE outcome")?.execute([])?;
        done
    }

    /// The settings.
    pub(super) fn config(&self) -> &Config {
        &self.row.search.config
    }

    /// The record.
    pub(super) fn search(&self) -> &Search {
        &self.row.search
    }

    /// Logs a transition of this search.
    pub(super) fn log(&mut self, transition: Transition) {
        let search = &self.row.search;
        self.transitions.push(Transition {
            group_id: Some(search.group_id),
            search_id: Some(search.search_id),
            ..transition
        });
    }

    /// The position `number`, whole, if it is of this search.
    pub(super) fn own_position(&self, number: PositionNumber) -> Result<PositionRow> {
        position(self.db, number).and_then(|row| match row.search == self.row.number {
            true => Ok(row),
            false => Err(Error::not_found("position", number.0)),
        })
    }

    /// Stops the search, if it is open.
    pub(super) fn stop(&mut self, reason: StopReason) {
        if self.search().status == SearchStatus::Open {
            self.row.search.status = SearchStatus::Stopped;
            self.row.search.stopped = Some(reason);
            self.log(Transition::new(EventKind::SearchStopped).detail(json!({ "reason": reason.as_str() })));
        }
    }

    /// Stops the search if its rules say so, by its root and the root's edges as they are now.
    pub(super) fn stop_if_enough(&mut self, root: &PositionStats, edges: &[EdgeStats]) {
        let row = &self.row;
        // Before the root's actions are known, nobody may have said whose choice they are.
        let judged = !by_mover(self.config()) || root.terminal || root.expansion != Expansion::Unasked;
        let best = row.best.filter(|_| judged);
        let reason = rules::stop(&row.search.config, &row.search, root, edges, best, self.meta.now);
        if let Some(reason) = reason {
            self.stop(reason);
        }
    }

    /// Judges the accepted values anew: the root is the choice of `mover`.
    pub(super) fn judge(&mut self, mover: u8) -> Result<()> {
        if !by_mover(self.config()) {
            return Ok(());
        }
        let mut best: Option<f64> = None;
        each(self.db, statements::CHECK_VALUES, [self.row.number], |columns| {
            columns.count()?;
            let worth = rules::worth(self.config(), mover, &columns.values()?);
            best = Some(best.map_or(worth, |best| best.max(worth)));
            Ok(())
        })?;
        self.row.best = best;
        Ok(())
    }

    /// Adds `by` to the visits in flight of the edges of `steps`.
    pub(super) fn hold(&self, steps: &[Step], by: i32) -> Result<()> {
        for step in steps {
            change(self.db, statements::HOLD_EDGE, params![by, count(step.edge.0)?], "edge")?;
            if let Some(edge) = self.seen.borrow_mut().edge(step.edge) {
                edge.in_flight = edge.in_flight.wrapping_add_signed(by);
            }
        }
        Ok(())
    }

    /// Adds `by` to the rollouts that ask at the position `number`.
    pub(super) fn ask(&self, number: PositionNumber, by: i32) -> Result<()> {
        if let Some(position) = self.seen.borrow_mut().positions.get_mut(&number) {
            position.asking = position.asking.wrapping_add_signed(by);
        }
        change(self.db, statements::ASK_POSITION, params![by, count(number.0)?], "position")
    }

    /// Reads a position and its edges anew when they are needed next: something else of them was written.
    pub(super) fn forget(&self, number: PositionNumber) {
        let mut seen = self.seen.borrow_mut();
        seen.positions.remove(&number);
        seen.edges.remove(&number);
    }

    /// Counts a visit of an edge, and writes what it keeps of the position it leads to.
    pub(super) fn visit_edge(&self, number: EdgeNumber, child: &PositionStats) -> Result<()> {
        let values = params![
            count(child.visits)?,
            Values(&child.mean),
            Values(child.proven.as_deref().unwrap_or_default()),
            count(number.0)?,
        ];
        change(self.db, statements::VISIT_EDGE, values, "edge")?;
        if let Some(edge) = self.seen.borrow_mut().edge(number) {
            edge.visits += 1;
            edge.in_flight = edge.in_flight.wrapping_sub(1);
            keep(edge, child);
        }
        Ok(())
    }

    /// Derives N, Q and the proven value of a position anew, and writes them if they changed; gives the position
    /// and whether they did.
    pub(super) fn recompute(&self, number: PositionNumber) -> Result<(PositionStats, bool)> {
        let mut position = Tree::position(self, number)?;
        let before = position.clone();
        self.with_edges(number, |edges| visit::recompute(self.config(), &mut position, edges))?;
        let changed = position != before;
        self.note_lost(&before, &position);
        if changed {
            self.write_stats(&position)?;
        }
        Ok((position, changed))
    }

    /// Notes it when a position was proven before and is not now.
    pub(super) fn note_lost(&self, before: &PositionStats, now: &PositionStats) {
        if before.proven.is_some() && now.proven.is_none() {
            self.lost.borrow_mut().push(now.number);
        }
    }

    /// What was noted so since it was asked for last.
    pub(super) fn take_lost(&self) -> Vec<PositionNumber> {
        self.lost.take()
    }

    /// Shows the edges of a position to `see`.
    pub(super) fn with_edges<T>(
        &self,
        number: PositionNumber,
        see: impl FnOnce(&[EdgeStats]) -> T,
    ) -> Result<T> {
        if let Some(edges) = self.seen.borrow().edges.get(&number) {
            return Ok(see(edges));
        }
        let edges = edges(self.db, number)?;
        let result = see(&edges);
        let mut seen = self.seen.borrow_mut();
        seen.make_room(edges.len());
        seen.edges.insert(number, edges);
        Ok(result)
    }

    /// Writes what was derived for a position.
    pub(super) fn write_stats(&self, stats: &PositionStats) -> Result<()> {
        let values = params![
            count(stats.values)?,
            Values(&stats.value),
            count(stats.visits)?,
            Values(&stats.mean),
            Values(stats.proven.as_deref().unwrap_or_default()),
            count(stats.number.0)?,
        ];
        change(self.db, statements::UPDATE_POSITION_STATS, values, "position")?;
        if let Some(position) = self.seen.borrow_mut().positions.get_mut(&stats.number) {
            position.clone_from(stats);
        }
        Ok(())
    }

    /// Writes a position after an expansion or a value.
    pub(super) fn write_position(&self, position: &PositionRow) -> Result<()> {
        let stats = &position.stats;
        self.forget(stats.number);
        let values = params![
            stats.to_move,
            stats.terminal,
            stats.expansion.as_str(),
            position.edge_count,
            position.place,
            count(stats.values)?,
            Values(&stats.value),
            count(stats.visits)?,
            Values(&stats.mean),
            Values(stats.proven.as_deref().unwrap_or_default()),
            optional(position.evaluation_id.as_ref()),
            count(stats.number.0)?,
        ];
        change(self.db, statements::UPDATE_POSITION, values, "position")
    }

    /// Writes what every edge that leads to a position keeps of it.
    pub(super) fn tell_entries(&self, child: &PositionStats) -> Result<()> {
        let number = count(child.number.0)?;
        let entries: Vec<u64> =
            every(self.db, statements::ENTRIES_OF_POSITION, [number], |columns| columns.count())?;
        for edge in entries {
            if let Some(edge) = self.seen.borrow_mut().edge(EdgeNumber(edge)) {
                keep(edge, child);
            }
            let values = params![
                count(child.visits)?,
                Values(&child.mean),
                Values(child.proven.as_deref().unwrap_or_default()),
                count(edge)?,
            ];
            change(self.db, statements::UPDATE_EDGE_CHILD, values, "edge")?;
        }
        Ok(())
    }
}

impl Tree for Session<'_> {
    type Error = Error;

    fn position(&self, number: PositionNumber) -> Result<PositionStats> {
        if let Some(position) = self.seen.borrow().positions.get(&number) {
            return Ok(position.clone());
        }
        let place = [count(number.0)?];
        let position = first(self.db, statements::STATS_OF_POSITION, place, rows::position_stats)?
            .ok_or_else(|| Error::not_found("position", number.0))?;
        let mut seen = self.seen.borrow_mut();
        seen.make_room(1);
        seen.positions.insert(number, position.clone());
        Ok(position)
    }

    fn edges(&self, number: PositionNumber) -> Result<Vec<EdgeStats>> {
        self.with_edges(number, <[EdgeStats]>::to_vec)
    }

    fn inner(&self, draw: u64) -> Result<Option<PositionNumber>> {
        let Some(place) = draw.checked_rem(self.row.expanded) else { return Ok(None) };
        let values = params![self.row.number, count(place)?];
        first(self.db, statements::POSITION_AT_PLACE, values, |columns| columns.count().map(PositionNumber))
    }

    fn line(&self, number: PositionNumber) -> Result<Vec<Step>> {
        line(self.db, self.row.number, number)
    }
}

/// Whether what a value is worth depends on whose choice it is.
fn by_mover(config: &Config) -> bool {
    config.values > 1 && config.objective == Objective::Mover
}

/// What an edge keeps of the position it leads to.
fn keep(edge: &mut EdgeStats, child: &PositionStats) {
    edge.child_visits = child.visits;
    edge.child_mean.clone_from(&child.mean);
    edge.child_proven.clone_from(&child.proven);
}

/// The steps by which the position `number` of the search with this number in the database was first reached.
pub(super) fn line(db: &Connection, search: i64, number: PositionNumber) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut at = number;
    loop {
        let place = i64::try_from(at.0).unwrap_or(-1);
        let entry = first(db, statements::ENTRY_OF_POSITION, params![place, search], |columns| {
            Ok(columns.optional_count()?.map(EdgeNumber))
        })?;
        let entry = entry.ok_or_else(|| Error::not_found("position", at.0))?;
        let Some(edge) = entry else { break };
        steps.push(rows::step(edge));
        at = rows::parent(edge);
    }
    steps.reverse();
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use esf_core::search::StopReason;

    use super::Session;
    use crate::error::Error;
    use crate::tests::meta;
    use crate::tests::search::{Searching, plain};

    #[test]
    fn what_fails_half_way_leaves_nothing() {
        let (searching, ticket) = Searching::begun(plain());
        let (id, path) = (searching.id(), ticket.rollout.path.clone());
        let before = searching.now();
        let work = searching.graph().inner.writer.run(move |transaction| {
            let meta = meta();
            let mut session = Session::begin(transaction.db, &meta, id)?;
            let failed: Result<(), Error> = session.whole_or_not(|session| {
                session.hold(&path, 1)?;
                session.row.search.accepted += 1;
                session.stop(StopReason::User);
                Err(Error::not_found("something", 1))
            });
            assert!(failed.is_err() && session.transitions.is_empty());
            session.finish().map(|_| ())
        });
        work.expect("the rest is committed");
        let after = searching.now();
        assert_eq!((after.accepted, after.status), (before.accepted, before.status));
        searching.sound();
    }
}
