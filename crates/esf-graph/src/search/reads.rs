//! What can be asked of a search. Each call sees one committed state; none needs the whole tree in memory.

use esf_core::id::{GroupId, NodeId, RolloutId, SearchId};
use esf_core::ops::search::BestLine;
use esf_core::search::{
    BestKind, Edge, EdgeNumber, Position, PositionNumber, Rollout, Search, Ticket, rules,
};
use rusqlite::{Connection, params};

use super::expand;
use super::rows::{self, PositionRow, SearchRow};
use super::select::ticket;
use super::session;
use crate::error::{Error, Result};
use crate::row::{Bytes, count, every, first};
use crate::{Graph, statements};

/// How many positions a walk holds at once.
const BATCH: i64 = 512;

impl Graph {
    /// The search `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn search(&self, id: SearchId) -> Result<Search> {
        self.read(|db| Ok(session::search(db, id)?.search))
    }

    /// The searches of a group, or all of them, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn searches(&self, group: Option<GroupId>) -> Result<Vec<Search>> {
        let rows = self.read(|db| match group {
            Some(group) => every(db, statements::SEARCHES_OF_GROUP, [group.bytes()], rows::search),
            None => every(db, statements::ALL_SEARCHES, [], rows::search),
        })?;
        Ok(rows.into_iter().map(|row| row.search).collect())
    }

    /// The rollout `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn rollout(&self, id: RolloutId) -> Result<Rollout> {
        self.read(|db| Ok(expand::load(db, id)?.rollout))
    }

    /// The ticket of the rollout `id`, whatever became of it.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn ticket(&self, id: RolloutId) -> Result<Ticket> {
        self.read(|db| ticket(db, expand::load(db, id)?))
    }

    /// At most `limit` rollouts of a search, from the ordinal `from` on.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn rollouts(&self, search: SearchId, from: u64, limit: u64) -> Result<Vec<Rollout>> {
        let bound = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.read(|db| {
            let values = params![session::search(db, search)?.number, bound(from), bound(limit)];
            let rows = every(db, statements::ROLLOUTS_FROM, values, rows::rollout)?;
            Ok(rows.into_iter().map(|row| row.rollout).collect())
        })
    }

    /// The tickets of the rollouts of a search that are held, expired or not, oldest first.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn tickets_in_flight(&self, search: SearchId) -> Result<Vec<Ticket>> {
        self.read(|db| {
            let number = session::search(db, search)?.number;
            let rows = every(db, statements::HELD_ROLLOUTS, [number], rows::rollout)?;
            rows.into_iter().map(|row| ticket(db, row)).collect()
        })
    }

    /// The position `number`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn position(&self, number: PositionNumber) -> Result<Position> {
        self.read(|db| record(db, session::position(db, number)?))
    }

    /// The position of a node in a search; the oldest when it has several.
    ///
    /// # Errors
    /// `NotFound` for the search, and failures of the database.
    pub fn position_of_node(&self, search: SearchId, node: NodeId) -> Result<Option<Position>> {
        self.read(|db| {
            let search = session::search(db, search)?;
            let values = params![node.bytes(), search.number];
            let number = first(db, statements::POSITION_OF_NODE, values, |columns| columns.count())?;
            let row = number.map(|number| session::position(db, PositionNumber(number))).transpose()?;
            Ok(row.map(|row| row.record(search.search.search_id)))
        })
    }

    /// The steps by which a position was first reached, as edges, from the root on.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn line_to(&self, number: PositionNumber) -> Result<Vec<Edge>> {
        self.read(|db| {
            let row = session::position(db, number)?;
            let line = session::line(db, row.search, number)?;
            line.into_iter().map(|step| edge(db, step.edge)).collect()
        })
    }

    /// The edges of a position, by ordinal.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn edges_of(&self, number: PositionNumber) -> Result<Vec<Edge>> {
        self.read(|db| {
            session::position(db, number)?;
            whole_edges(db, number)
        })
    }

    /// The edge `number`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn edge(&self, number: EdgeNumber) -> Result<Edge> {
        self.read(|db| edge(db, number))
    }

    /// The best edge of the root, and where it leads; nothing while none was taken.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn best(&self, search: SearchId, kind: BestKind) -> Result<Option<BestLine>> {
        self.read(|db| {
            let search = session::search(db, search)?;
            best(db, &search, kind, search.search.root)
        })
    }

    /// The line of best edges from the root on, by `kind`, as far as it goes.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn principal_variation(&self, search: SearchId, kind: BestKind) -> Result<Vec<BestLine>> {
        self.read(|db| {
            let search = session::search(db, search)?;
            principal(db, &search, kind)
        })
    }

    /// The positions whose own value is worth the most to whose choice the root is, best first; of equals the
    /// most visited, then the oldest. At most `limit`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn top_positions(&self, search: SearchId, limit: usize) -> Result<Vec<Position>> {
        self.read(|db| {
            let search = session::search(db, search)?;
            let top = top(db, &search, limit)?;
            top.into_iter().map(|number| record(db, session::position(db, number)?)).collect()
        })
    }

    /// Shows every position of a search with its edges, by number, without holding more than a few at once.
    /// All are of one committed state.
    ///
    /// # Errors
    /// `NotFound`, failures of the database, and those of `see`, which end the walk.
    pub fn walk_search(
        &self,
        search: SearchId,
        mut see: impl FnMut(Position, Vec<Edge>) -> Result<()>,
    ) -> Result<()> {
        self.read(|db| {
            let search = session::search(db, search)?;
            walk(db, search.number, |row| {
                let edges = whole_edges(db, row.stats.number)?;
                see(row.record(search.search.search_id), edges)
            })
        })
    }
}

fn record(db: &Connection, row: PositionRow) -> Result<Position> {
    let search = first(db, statements::SEARCH_BY_NUMBER, [row.search], rows::search)?
        .ok_or_else(|| Error::damaged(format!("position {} has no search", row.stats.number.0)))?;
    Ok(row.record(search.search.search_id))
}

fn whole_edges(db: &Connection, position: PositionNumber) -> Result<Vec<Edge>> {
    let Some(range) = rows::edge_range(position) else { return Ok(Vec::new()) };
    every(db, statements::EDGES_FROM, range, rows::edge)
}

fn edge(db: &Connection, number: EdgeNumber) -> Result<Edge> {
    let place = i64::try_from(number.0).unwrap_or(-1);
    first(db, statements::EDGES_FROM, [place, place], rows::edge)?
        .ok_or_else(|| Error::not_found("edge", number.0))
}

/// The best edge of a position.
pub(super) fn best(
    db: &Connection,
    search: &SearchRow,
    kind: BestKind,
    at: PositionNumber,
) -> Result<Option<BestLine>> {
    let position = session::position(db, at)?;
    let edges = session::edges(db, at)?;
    let Some(number) = rules::best(&search.search.config, kind, &position.stats, &edges) else {
        return Ok(None);
    };
    let edge = edge(db, number)?;
    let Some(child) = edge.stats.child else { return Ok(None) };
    let position = session::position(db, child)?.record(search.search.search_id);
    Ok(Some(BestLine { edge, position }))
}

/// The line of best edges from the root on.
pub(super) fn principal(db: &Connection, search: &SearchRow, kind: BestKind) -> Result<Vec<BestLine>> {
    let (mut line, mut at) = (Vec::new(), search.search.root);
    // Without cycles it ends by itself.
    while let Some(next) = best(db, search, kind, at)? {
        at = next.position.stats.number;
        line.push(next);
    }
    Ok(line)
}

/// The numbers of the positions of the greatest worth, best first.
pub(super) fn top(db: &Connection, search: &SearchRow, limit: usize) -> Result<Vec<PositionNumber>> {
    let config = &search.search.config;
    let mover = session::position(db, search.search.root)?.stats.to_move;
    let mut top: Vec<((f64, u64), PositionNumber)> = Vec::new();
    if limit == 0 {
        return Ok(Vec::new());
    }
    walk(db, search.number, |row| {
        if row.stats.value.is_empty() {
            return Ok(());
        }
        let key = (rules::worth(config, mover, &row.stats.value), row.stats.visits);
        // Of equals, the older comes first.
        let place = top.partition_point(|(known, _)| *known >= key);
        if place < limit {
            top.insert(place, (key, row.stats.number));
            top.truncate(limit);
        }
        Ok(())
    })?;
    Ok(top.into_iter().map(|(_, number)| number).collect())
}

/// Shows every position of the search with this number in the database, by number.
pub(super) fn walk(
    db: &Connection,
    search: i64,
    mut see: impl FnMut(PositionRow) -> Result<()>,
) -> Result<()> {
    let mut from = 0;
    loop {
        let rows = every(db, statements::POSITIONS_FROM, params![search, from, BATCH], rows::position)?;
        let Some(last) = rows.last() else { return Ok(()) };
        from = count(last.stats.number.0)? + 1;
        rows.into_iter().try_for_each(&mut see)?;
    }
}
