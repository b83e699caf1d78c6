//! Making a search, and selecting rollouts: a path each, held under a lease.
//! Invariants: visits in flight are written with the rollouts that cause them, in one transaction; a rollout
//! whose lease is over is void before anything is selected past it; a leaf whose node is gone is not given out.

use std::sync::mpsc::sync_channel;

use esf_core::id::{RolloutId, SearchId};
use esf_core::ops::search::{CreateSearch, Select, Selection, reject};
use esf_core::ops::{Decision, Meta, Reject, Request, Transition, start};
use esf_core::record::{EventKind, Json};
use esf_core::search::{
    Descent, EdgeNumber, Found, PositionNumber, Rollout, RolloutStatus, Search, SearchStatus, Stage, Start,
    Step, StopReason, Ticket, Tree, descend,
};
use esf_core::state::NodeStatus;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::complete::position_key;
use super::rows::{self, PositionRow, RolloutRow, Values};
use super::session::{self, Session};
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, every, first, json as text, optional};
use crate::{Graph, load, statements};

/// What is remembered of a selection: which rollouts it was. Tickets are rebuilt.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Selected {
    from: u64,
    count: u64,
    stopped: Option<StopReason>,
    saturated: bool,
}

impl Graph {
    /// Makes a search that begins at a sealed node.
    ///
    /// # Errors
    /// `Rejected` with `BadConfig`, `NotSealed`, `Terminal` or `Pruned`; `IdempotencyConflict`.
    pub fn create_search(&self, meta: &Meta, command: CreateSearch) -> Result<Search> {
        let answer = self.mutate(meta, "create_search", &command.clone(), move |db, request| {
            create(db, request, command)
        })?;
        Ok(answer.reply)
    }

    /// Selects at most `count` rollouts, in one commit. The same request again gets the same rollouts, as
    /// they are then.
    ///
    /// # Errors
    /// `NotFound` for the search, or for a position or edge that is not its own; `Rejected` with
    /// `BadArgument`, or `Pruned` when the node at which it begins is gone.
    pub fn select(&self, meta: &Meta, command: Select) -> Result<Selection> {
        // The tickets that were built within the transaction are taken along, to spare a second look.
        let (saw, seen) = sync_channel(1);
        let answer = self.mutate(meta, "select", &command, move |db, request| {
            let (decision, tickets) = select(db, request, &command)?;
            saw.try_send(tickets).ok();
            Ok(decision)
        })?;
        let Selected { from, count, stopped, saturated } = answer.reply;
        let tickets = match seen.try_recv() {
            Ok(tickets) if answer.fresh => tickets,
            Ok(_) | Err(_) => self.tickets(command.search, from, count)?,
        };
        Ok(Selection { tickets, stopped, saturated })
    }

    fn tickets(&self, search: SearchId, from: u64, limit: u64) -> Result<Vec<Ticket>> {
        self.read(|db| {
            let search = session::search(db, search)?;
            let values = params![search.number, count(from)?, count(limit)?];
            let rows = every(db, statements::ROLLOUTS_FROM, values, rows::rollout)?;
            rows.into_iter().map(|row| ticket(db, row)).collect()
        })
    }
}

fn create(db: &Connection, request: &Request<'_>, command: CreateSearch) -> Result<Decision<Search>> {
    let (meta, config) = (request.meta, command.config);
    config.check().map_err(|error| reject::Reject::BadConfig { found: error.to_string() })?;
    let node = load::node(db, command.root)?;
    match node.status {
        NodeStatus::Sealed => {}
        NodeStatus::Terminal => return Err(Reject::Terminal { node: node.node_id }.into()),
        NodeStatus::Pruned => return Err(Reject::Pruned { node: node.node_id }.into()),
        NodeStatus::Draft => {
            let last_sealed = load::last_sealed_of_draft(db, &node)?;
            return Err(Reject::NotSealed { node: node.node_id, last_sealed }.into());
        }
    }
    let search_id = SearchId::derive(&request.seed(command.root.as_bytes(), 0));
    let config_digest = config.digest();
    let values = params![
        search_id.bytes(),
        node.group_id.bytes(),
        node.node_id.bytes(),
        text(&config)?,
        config_digest.bytes(),
        meta.now.0,
        meta.actor,
        meta.trace_id,
    ];
    change(db, statements::INSERT_SEARCH, values, "search")?;
    let mut session = Session::begin(db, meta, search_id)?;
    let number = session.row.number;
    let key = position_key(&config, Some(&node), None);
    let mut root = PositionRow::unseen(number, None, 0);
    (root.node_id, root.key) = (Some(node.node_id), key);
    root.stats.number = next_position(db)?;
    insert_position(db, &root)?;
    change(db, statements::SET_SEARCH_ROOT, params![count(root.stats.number.0)?, number], "search")?;
    session.row.search.root = root.stats.number;
    session.row.search.positions = 1;
    let created = Transition {
        node_id: Some(node.node_id),
        root_id: node.root_id,
        ..Transition::new(EventKind::SearchCreated)
    };
    session.log(created);
    let (row, transitions) = session.finish()?;
    Ok(Decision { reply: row.search, changes: Vec::new(), transitions })
}

/// Stores a position under a number that no other ever had.
pub(super) fn insert_position(db: &Connection, row: &PositionRow) -> Result<()> {
    let stats = &row.stats;
    let values = params![
        count(stats.number.0)?,
        row.search,
        row.entry.map(|edge| count(edge.0)).transpose()?,
        row.entries,
        stats.depth,
        row.level,
        stats.to_move,
        stats.terminal,
        stats.expansion.as_str(),
        row.edge_count,
        row.place,
        count(stats.values)?,
        Values(&stats.value),
        count(stats.visits)?,
        Values(&stats.mean),
        Values(stats.proven.as_deref().unwrap_or_default()),
        optional(row.node_id.as_ref()),
        optional(row.key.as_ref()),
        optional(row.evaluation_id.as_ref()),
    ];
    change(db, statements::INSERT_POSITION, values, "position")
}

/// The number of the next position. Positions are never deleted, so none is used twice.
pub(super) fn next_position(db: &Connection) -> Result<PositionNumber> {
    let last = first(db, statements::LAST_POSITION, [], |columns| columns.count())?.unwrap_or(0);
    Ok(PositionNumber(last + 1))
}

/// What a descent came to, with the leaf it found.
pub(super) enum Way {
    Found(Found, Box<PositionRow>),
    Saturated,
    Exhausted,
}

type Selecting = (Decision<Selected>, Vec<Ticket>);

fn select(db: &Connection, request: &Request<'_>, command: &Select) -> Result<Selecting> {
    if !(1..=Select::MAX).contains(&command.count) {
        let (expected, found) = (format!("1 to {}", Select::MAX), command.count.to_string());
        return Err(Reject::BadArgument { argument: "count", expected, found }.into());
    }
    let mut session = Session::begin(db, request.meta, command.search)?;
    session.lapse()?;
    let start = begin(&session, command)?;
    let root = session.search().root;
    if session.search().status == SearchStatus::Open {
        let (stats, edges) = (session.position(root)?, session.edges(root)?);
        session.stop_if_enough(&stats, &edges);
    }
    let from = session.search().selected;
    let (mut tickets, mut saturated) = (Vec::new(), false);
    while tickets.len() < command.count as usize && session.search().status == SearchStatus::Open {
        let (ordinal, budget) = (session.search().selected, session.config().budget);
        if budget.attempts.is_some_and(|most| ordinal >= most) {
            session.stop(StopReason::Attempts);
            break;
        }
        // No more than can be accepted, if all that are in flight are.
        let unended = session.search().accepted + session.search().in_flight();
        if budget.rollouts.is_some_and(|most| unended >= most) {
            saturated = true;
            break;
        }
        match session.find(&start, ordinal)? {
            Way::Found(found, leaf) => tickets.push(session.take(request, command, found, &leaf)?),
            Way::Saturated => saturated = true,
            Way::Exhausted if start == Start::root(root) && session.search().in_flight() == 0 => {
                session.stop(StopReason::Exhausted);
            }
            Way::Exhausted => {}
        }
        if session.search().selected == ordinal {
            break;
        }
    }
    let count = session.search().selected - from;
    if count > 0 {
        let detail = json!({ "from": from, "count": count });
        session.log(Transition::new(EventKind::RolloutsSelected).detail(detail));
    }
    let stopped = session.search().stopped;
    let (_, transitions) = session.finish()?;
    let reply = Selected { from, count, stopped, saturated };
    Ok((Decision { reply, changes: Vec::new(), transitions }, tickets))
}

/// Where the selection begins.
fn begin(session: &Session<'_>, command: &Select) -> Result<Start> {
    let of_edge = command.edge.map(rows::parent);
    let at = match (command.at, of_edge) {
        (Some(at), Some(parent)) if at != parent => {
            let (expected, found) = (format!("an edge of position {}", at.0), format!("one of {}", parent.0));
            return Err(Reject::BadArgument { argument: "edge", expected, found }.into());
        }
        (at, parent) => at.or(parent),
    };
    let Some(at) = at else { return Ok(Start::root(session.search().root)) };
    let path = session.line(at)?;
    if let Some(edge) = command.edge
        && !session.edges(at)?.iter().any(|known| known.number == edge)
    {
        return Err(Error::not_found("edge", edge.0));
    }
    Ok(Start { path, at, edge: command.edge, asked: false })
}

impl Session<'_> {
    /// Descends from `start` for the rollout `ordinal`. Leaves whose node was pruned are noticed: nothing
    /// leads there any more.
    pub(super) fn find(&mut self, start: &Start, ordinal: u64) -> Result<Way> {
        loop {
            let found = match descend(self.config(), self, start.clone(), ordinal)? {
                Descent::Found(found) => found,
                Descent::Saturated => return Ok(Way::Saturated),
                Descent::Exhausted => return Ok(Way::Exhausted),
            };
            let leaf = self.own_position(found.leaf)?;
            let gone = !leaf.stats.terminal && leaf.node_status == Some(NodeStatus::Pruned);
            match leaf.node_id.filter(|_| gone) {
                Some(node) if found.leaf == start.at => return Err(Reject::Pruned { node }.into()),
                Some(_) => self.shut(found.leaf, "its node was pruned")?,
                None => return Ok(Way::Found(found, Box::new(leaf))),
            }
        }
    }

    /// Shuts every edge that leads to the position `number`, for it was given up.
    fn shut(&self, number: PositionNumber, because: &str) -> Result<()> {
        let place = count(number.0)?;
        let entries: Vec<u64> =
            every(self.db, statements::ENTRIES_OF_POSITION, [place], |columns| columns.count())?;
        for edge in entries {
            self.forget(rows::parent(EdgeNumber(edge)));
            change(self.db, statements::PRUNE_EDGE, params![because, count(edge)?], "edge")?;
        }
        change(self.db, statements::PRUNE_POSITION, [place], "position")
    }

    /// Gives out what was found, as the next rollout.
    fn take(
        &mut self,
        request: &Request<'_>,
        command: &Select,
        found: Found,
        leaf: &PositionRow,
    ) -> Result<Ticket> {
        let search = &self.row.search;
        let meta = self.meta;
        let rollout = Rollout {
            rollout_id: RolloutId::derive(&request.seed(search.search_id.as_bytes(), search.selected)),
            search_id: search.search_id,
            ordinal: search.selected,
            path: found.path,
            leaf: found.leaf,
            stage: found.stage,
            status: RolloutStatus::Selected,
            value: Vec::new(),
            reached: None,
            node_id: None,
            evaluation_id: None,
            void: None,
            cost: 0.0,
            expires_at: start::expiry(meta.boot.millis, command.lease_ms),
            boot_id: meta.boot.boot_id.clone(),
            selected_at: meta.now,
            ended_at: None,
            created_by: meta.actor.clone(),
            trace_id: meta.trace_id.clone(),
        };
        insert_rollout(self.db, self.row.number, &rollout, found.want)?;
        self.hold(&rollout.path, 1)?;
        if asks(&rollout) {
            self.ask(rollout.leaf, 1)?;
        }
        self.row.search.selected += 1;
        complete_ticket(self.db, rollout, found.want, leaf)
    }
}

/// Whether a rollout counts among those that ask at its leaf: for actions, or for the root's first value.
pub(super) fn asks(rollout: &Rollout) -> bool {
    rollout.stage == Stage::Expand || (rollout.stage == Stage::Revisit && rollout.path.is_empty())
}

fn insert_rollout(db: &Connection, search: i64, rollout: &Rollout, want: Option<u32>) -> Result<()> {
    let values = params![
        rollout.rollout_id.bytes(),
        search,
        count(rollout.ordinal)?,
        rows::steps(&rollout.path),
        count(rollout.leaf.0)?,
        rollout.stage.as_str(),
        want,
        rollout.expires_at.0,
        rollout.boot_id,
        rollout.selected_at.0,
        rollout.created_by,
        rollout.trace_id,
    ];
    change(db, statements::INSERT_ROLLOUT, values, "rollout")
}

/// The ticket of a stored rollout.
pub(super) fn ticket(db: &Connection, row: RolloutRow) -> Result<Ticket> {
    let leaf = session::position(db, row.rollout.leaf)?;
    complete_ticket(db, row.rollout, row.wanted, &leaf)
}

/// A ticket, with what its holder needs.
pub(super) fn complete_ticket(
    db: &Connection,
    rollout: Rollout,
    want: Option<u32>,
    leaf: &PositionRow,
) -> Result<Ticket> {
    let (line, last): (&[Step], _) = match (rollout.stage, rollout.path.as_slice()) {
        (Stage::Visit, [line @ .., last]) => (line, Some(last)),
        (Stage::Visit | Stage::Expand | Stage::Revisit, line) => (line, None),
    };
    let action = |step: &Step| -> Result<(Json, Option<String>)> {
        let edge = count(step.edge.0)?;
        first(db, statements::ACTION_OF_EDGE, [edge], |columns| Ok((columns.json()?, columns.take()?)))?
            .ok_or_else(|| Error::damaged(format!("edge {edge} has no action")))
    };
    let actions = line.iter().map(|step| Ok(action(step)?.0)).collect::<Result<Vec<Json>>>()?;
    let (action, action_name) = match last {
        Some(step) => {
            let (action, name) = action(step)?;
            (Some(action), name)
        }
        None => (None, None),
    };
    Ok(Ticket {
        leaf_node_id: leaf.node_id,
        actions,
        action,
        action_name,
        want,
        known: leaf.edge_count,
        rollout,
    })
}
