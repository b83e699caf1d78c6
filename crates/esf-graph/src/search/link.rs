//! Equal states as one position. Invariant: positions and edges have no cycle. Each position has a level,
//! greater than that of every position with an edge to it; an edge against the levels is followed up, and
//! either levels are raised or it would close a cycle, in which case the states stay apart.

use std::collections::{BTreeSet, HashMap};

use esf_core::Digest;
use esf_core::search::{EdgeNumber, PositionNumber, visit};
use rusqlite::{Connection, params};

use super::rows::{self, PositionRow};
use super::session::Session;
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, every, first};
use crate::statements;

/// The place of a position among those above and below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) position: PositionNumber,
    pub(super) level: u32,
    pub(super) depth: u32,
    /// Its depth before.
    was: u32,
}

/// Whether a state has a position already.
pub(super) enum Same {
    /// It has none.
    None,
    /// It has one, from which the edge would lead back to where it begins: the states stay apart, and nothing
    /// else is led to the second one.
    Cycle,
    /// It has this one; an edge to it changes these orders.
    Position(Box<PositionRow>, Vec<Order>),
}

impl Session<'_> {
    /// The position of an equal state, to which an edge from `leaf` may lead.
    pub(super) fn same_state(&self, leaf: &PositionRow, key: Option<Digest>) -> Result<Same> {
        let Some(key) = key else { return Ok(Same::None) };
        let values = params![self.row.number, key.bytes()];
        let number = first(self.db, statements::POSITION_WITH_KEY, values, |columns| columns.count())?;
        let Some(number) = number.map(PositionNumber) else { return Ok(Same::None) };
        match order(self.db, leaf, number)? {
            Some(order) => Ok(Same::Position(Box::new(self.own_position(number)?), order)),
            None => Ok(Same::Cycle),
        }
    }

    /// Has one edge more lead to the position `known`; gives it as it is now. What is not too deep any more to be
    /// expanded is open again, and so is what was proven by that.
    pub(super) fn join(
        &mut self,
        known: PositionNumber,
        edge: EdgeNumber,
        order: &[Order],
    ) -> Result<PositionRow> {
        let number = count(known.0)?;
        change(self.db, statements::INSERT_TRANSPOSITION, params![number, count(edge.0)?], "edge")?;
        change(self.db, statements::COUNT_ENTRY, [number], "position")?;
        let mut reopened = BTreeSet::new();
        for order in order {
            self.forget(order.position);
            let values = params![order.depth, order.level, count(order.position.0)?];
            change(self.db, statements::RAISE_POSITION, values, "position")?;
            if visit::reopens(self.config(), order.was, order.depth) {
                reopened.insert((order.level, order.position));
            }
        }
        self.renew(reopened, false)?;
        // All that rests on these was derived with them.
        self.take_lost();
        self.own_position(known)
    }

    /// Derives positions anew, and those that lead to one that it changes (with `proofs`: that is proven no longer),
    /// each after all that it leads to. Each is there with its level.
    fn renew(&self, mut waiting: BTreeSet<(u32, PositionNumber)>, proofs: bool) -> Result<()> {
        // The deepest first: levels fall towards the root.
        while let Some((_, number)) = waiting.pop_last() {
            let (position, changed) = self.recompute(number)?;
            if changed {
                self.tell_entries(&position)?;
            }
            let lost = self.take_lost().contains(&number);
            let goes_on = if proofs { lost } else { changed };
            if goes_on {
                waiting.extend(self.above(number)?);
            }
        }
        Ok(())
    }

    /// The positions with an edge to the position `number`, each with its level.
    fn above(&self, number: PositionNumber) -> Result<Vec<(u32, PositionNumber)>> {
        let place = [count(number.0)?];
        let edges: Vec<u64> =
            every(self.db, statements::ENTRIES_OF_POSITION, place, |columns| columns.count())?;
        let parents = edges.into_iter().map(|edge| rows::parent(EdgeNumber(edge)));
        parents.map(|parent| Ok((stored(self.db, parent)?.level, parent))).collect()
    }

    /// Derives anew what rests on a proof that is void, by whatever way it leads there. Other changes are left to
    /// the next visit: they cost exactness, not soundness.
    pub(super) fn spread_lost(&self) -> Result<()> {
        let mut waiting = BTreeSet::new();
        for lost in self.take_lost() {
            waiting.extend(self.above(lost)?);
        }
        self.renew(waiting, true)
    }
}

/// What an edge from `from` to `to` changes of levels and depths; nothing when it would close a cycle.
fn order(db: &Connection, from: &PositionRow, to: PositionNumber) -> Result<Option<Vec<Order>>> {
    let mut changed: HashMap<PositionNumber, Order> = HashMap::new();
    let mut waiting = vec![(to, from.level + 1, from.stats.depth + 1)];
    while let Some((position, level, depth)) = waiting.pop() {
        if position == from.stats.number {
            return Ok(None);
        }
        let known = match changed.get(&position) {
            Some(known) => *known,
            None => stored(db, position)?,
        };
        let order = Order { level: known.level.max(level), depth: known.depth.min(depth), ..known };
        if order == known {
            continue;
        }
        changed.insert(position, order);
        let Some(range) = rows::edge_range(position) else { continue };
        let children: Vec<u64> =
            every(db, statements::CHILDREN_OF_POSITION, range, |columns| columns.count())?;
        waiting.extend(
            children.into_iter().map(|child| (PositionNumber(child), order.level + 1, order.depth + 1)),
        );
    }
    Ok(Some(changed.into_values().collect()))
}

fn stored(db: &Connection, position: PositionNumber) -> Result<Order> {
    let read = |columns: &mut crate::row::Columns<'_>| {
        let (level, depth) = (columns.take()?, columns.take()?);
        Ok(Order { position, level, depth, was: depth })
    };
    first(db, statements::ORDER_OF_POSITION, [count(position.0)?], read)?.ok_or_else(|| {
        Error::damaged(format!("an edge leads to position {}, which is not there", position.0))
    })
}
