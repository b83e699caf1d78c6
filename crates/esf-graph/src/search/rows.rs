//! The records of a search as rows: how each is read back, and how values are held in a column. The columns
//! are those of the statements, in order.

use esf_core::failure::FailureClass;
use esf_core::id::{EvaluationId, NodeId, SearchId};
use esf_core::search::{
    Edge, EdgeNumber, EdgeStats, EdgeStatus, Expansion, Position, PositionNumber, PositionStats, Rollout,
    RolloutStatus, Search, SearchStatus, Stage, Step, StopReason, Void,
};
use esf_core::state::NodeStatus;
use esf_core::time::BootMillis;
use esf_core::{Digest, RootId};
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};

use crate::error::Result;
use crate::records::{optional_time, time};
use crate::row::Columns;

/// How many bits of an edge's number are its ordinal; the rest is its position.
const ORDINAL_BITS: u32 = 20;

/// How many edges a position may have.
pub(crate) const MOST_EDGES: u64 = 1 << ORDINAL_BITS;

/// The number of the edge `ordinal` of `position`.
pub(crate) fn edge_number(position: PositionNumber, ordinal: u32) -> EdgeNumber {
    EdgeNumber(position.0 << ORDINAL_BITS | u64::from(ordinal))
}

/// The position at which an edge begins.
pub(crate) fn parent(edge: EdgeNumber) -> PositionNumber {
    PositionNumber(edge.0 >> ORDINAL_BITS)
}

/// The first and the last number that an edge of `position` may have, as the database has them.
pub(crate) fn edge_range(position: PositionNumber) -> Option<[i64; 2]> {
    let first = i64::try_from(position.0).ok().filter(|number| *number < 1 << 42)? << ORDINAL_BITS;
    Some([first, first + (1 << ORDINAL_BITS) - 1])
}

/// A step by its edge.
pub(crate) fn step(edge: EdgeNumber) -> Step {
    Step { position: parent(edge), edge }
}

/// A value in a column: a number when there is one, a JSON array when there are several, null for none.
pub(crate) struct Values<'a>(pub(crate) &'a [f64]);

impl ToSql for Values<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(match self.0 {
            [] => Value::Null,
            [one] => Value::Real(*one),
            several => Value::Text(
                serde_json::to_string(several)
                    .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?,
            ),
        }))
    }
}

impl Columns<'_> {
    /// A value; empty for null.
    pub(crate) fn values(&mut self) -> Result<Vec<f64>> {
        let found = match self.take_ref()? {
            ValueRef::Null => Ok(Vec::new()),
            ValueRef::Real(one) => Ok(vec![one]),
            ValueRef::Text(text) => serde_json::from_slice(text).map_err(|error| error.to_string()),
            ValueRef::Integer(_) | ValueRef::Blob(_) => Err("no value".to_owned()),
        };
        found.map_err(|what| self.bad(what))
    }

    /// A value that null means none of.
    fn optional_values(&mut self) -> Result<Option<Vec<f64>>> {
        Ok(Some(self.values()?).filter(|values| !values.is_empty()))
    }

    fn small(&mut self) -> Result<u32> {
        let value: i64 = self.take()?;
        u32::try_from(value).map_err(|_| self.bad(value))
    }

    fn edge(&mut self) -> Result<EdgeNumber> {
        self.count().map(EdgeNumber)
    }

    fn position(&mut self) -> Result<PositionNumber> {
        self.count().map(PositionNumber)
    }

    fn optional_position(&mut self) -> Result<Option<PositionNumber>> {
        Ok(self.optional_count()?.map(PositionNumber))
    }
}

/// A search, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct SearchRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// How many of its positions have edges.
    pub(crate) expanded: u64,
    /// The greatest worth of an accepted value.
    pub(crate) best: Option<f64>,
    /// The record.
    pub(crate) search: Search,
}

/// Reads a search.
pub(crate) fn search(columns: &mut Columns<'_>) -> Result<SearchRow> {
    let number = columns.take()?;
    let (search_id, group_id, root_node_id) = (columns.id()?, columns.id()?, columns.id()?);
    let root = columns.position()?;
    let (config, config_digest) = (columns.json()?, columns.id()?);
    let status = columns.word(SearchStatus::parse)?;
    let stopped = columns.optional_word(StopReason::parse)?;
    let (selected, accepted, void) = (columns.count()?, columns.count()?, columns.count()?);
    let cost = columns.take()?;
    let (positions, expanded, edges) = (columns.count()?, columns.count()?, columns.count()?);
    let best = columns.take()?;
    let search = Search {
        search_id,
        group_id,
        root_node_id,
        root,
        config,
        config_digest,
        status,
        stopped,
        selected,
        accepted,
        void,
        cost,
        positions,
        edges,
        stats_rev: columns.count()?,
        created_at: time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    };
    Ok(SearchRow { number, expanded, best, search })
}

/// Reads what selection needs of a position.
pub(crate) fn position_stats(columns: &mut Columns<'_>) -> Result<PositionStats> {
    let number = columns.position()?;
    let (depth, to_move) = (columns.small()?, columns.take()?);
    Ok(PositionStats {
        number,
        depth,
        to_move,
        terminal: columns.take()?,
        expansion: columns.word(Expansion::parse)?,
        asking: columns.small()?,
        values: columns.count()?,
        value: columns.values()?,
        visits: columns.count()?,
        mean: columns.values()?,
        proven: columns.optional_values()?,
    })
}

/// A position whole, with what only the database needs.
#[derive(Clone, Debug)]
pub(crate) struct PositionRow {
    /// What selection looks at.
    pub(crate) stats: PositionStats,
    /// Number of its search.
    pub(crate) search: i64,
    /// The edge by which it was first reached.
    pub(crate) entry: Option<EdgeNumber>,
    /// How many edges lead to it.
    pub(crate) entries: u32,
    /// Greater than that of every position with an edge to it.
    pub(crate) level: u32,
    /// How many edges it has.
    pub(crate) edge_count: u32,
    /// Its place among those of its search that have edges.
    pub(crate) place: Option<i64>,
    /// Whether it was given up.
    pub(crate) pruned: bool,
    /// Its node.
    pub(crate) node_id: Option<NodeId>,
    /// What equal states have in common.
    pub(crate) key: Option<Digest>,
    /// The evaluation that gave its value last.
    pub(crate) evaluation_id: Option<EvaluationId>,
    /// Its node's root.
    pub(crate) root_id: Option<RootId>,
    /// Its node's status.
    pub(crate) node_status: Option<NodeStatus>,
}

impl PositionRow {
    /// A position that nobody has seen yet, at a depth that is its level; its number comes when it is stored.
    pub(crate) fn unseen(search: i64, entry: Option<EdgeNumber>, depth: u32) -> Self {
        Self {
            stats: PositionStats::unseen(depth),
            search,
            entry,
            entries: u32::from(entry.is_some()),
            level: depth,
            edge_count: 0,
            place: None,
            pruned: false,
            node_id: None,
            key: None,
            evaluation_id: None,
            root_id: None,
            node_status: None,
        }
    }

    /// The record.
    pub(crate) fn record(self, search_id: SearchId) -> Position {
        Position {
            stats: self.stats,
            search_id,
            node_id: self.node_id,
            root_id: self.root_id,
            key: self.key,
            evaluation_id: self.evaluation_id,
        }
    }
}

/// Reads a position whole.
pub(crate) fn position(columns: &mut Columns<'_>) -> Result<PositionRow> {
    Ok(PositionRow {
        stats: position_stats(columns)?,
        search: columns.take()?,
        entry: columns.optional_count()?.map(EdgeNumber),
        entries: columns.small()?,
        level: columns.small()?,
        edge_count: columns.small()?,
        place: columns.take()?,
        pruned: columns.take()?,
        node_id: columns.optional_id()?,
        key: columns.optional_id()?,
        evaluation_id: columns.optional_id()?,
        root_id: columns.optional_id()?,
        node_status: columns.optional_word(NodeStatus::parse)?,
    })
}

/// Reads what selection needs of an edge.
pub(crate) fn edge_stats(columns: &mut Columns<'_>) -> Result<EdgeStats> {
    let number = columns.edge()?;
    Ok(EdgeStats {
        number,
        ordinal: u32::try_from(number.0 % MOST_EDGES).expect("less than 2^20"),
        prior: columns.take()?,
        child: columns.optional_position()?,
        reward: columns.values()?,
        discount: columns.take()?,
        visits: columns.count()?,
        in_flight: columns.small()?,
        status: columns.word(EdgeStatus::parse)?,
        failures: columns.small()?,
        child_mean: columns.values()?,
        child_visits: columns.count()?,
        child_proven: columns.optional_values()?,
    })
}

/// Reads an edge whole.
pub(crate) fn edge(columns: &mut Columns<'_>) -> Result<Edge> {
    let stats = edge_stats(columns)?;
    Ok(Edge {
        parent: parent(stats.number),
        stats,
        closed_because: columns.take()?,
        action: columns.json()?,
        action_digest: columns.id()?,
        name: columns.take()?,
    })
}

/// A rollout, and what is kept beside its record.
#[derive(Clone, Debug)]
pub(crate) struct RolloutRow {
    /// Its number in the database.
    pub(crate) number: i64,
    /// Number of its search.
    pub(crate) search: i64,
    /// How many actions are wanted, in stage `expand`.
    pub(crate) wanted: Option<u32>,
    /// What tells its outcome from others.
    pub(crate) outcome: Option<Digest>,
    /// The record.
    pub(crate) rollout: Rollout,
}

/// Reads a rollout.
pub(crate) fn rollout(columns: &mut Columns<'_>) -> Result<RolloutRow> {
    let number = columns.take()?;
    let (rollout_id, search, search_id) = (columns.id()?, columns.take()?, columns.id()?);
    let ordinal = columns.count()?;
    let steps: Vec<u64> = columns.json()?;
    let leaf = columns.position()?;
    let stage = columns.word(Stage::parse)?;
    let wanted = columns.take()?;
    let status = columns.word(RolloutStatus::parse)?;
    let outcome = columns.optional_id()?;
    let value = columns.values()?;
    let reached = columns.optional_position()?;
    let (node_id, evaluation_id) = (columns.optional_id()?, columns.optional_id()?);
    let class = columns.optional_word(FailureClass::parse)?;
    let void = columns.take::<Option<String>>()?.map(|reason| Void { class, reason });
    let cost = columns.take()?;
    let (expires_at, boot_id) = (BootMillis(columns.take()?), columns.take()?);
    let (selected_at, ended_at) = (time(columns)?, optional_time(columns)?);
    let rollout = Rollout {
        rollout_id,
        search_id,
        ordinal,
        path: steps.into_iter().map(|edge| step(EdgeNumber(edge))).collect(),
        leaf,
        stage,
        status,
        value,
        reached,
        node_id,
        evaluation_id,
        void,
        cost,
        expires_at,
        boot_id,
        selected_at,
        ended_at,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    };
    Ok(RolloutRow { number, search, wanted, outcome, rollout })
}

/// The steps of a path as their column has them.
pub(crate) fn steps(path: &[Step]) -> String {
    let mut text = String::with_capacity(2 + 16 * path.len());
    text.push('[');
    for (index, step) in path.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&step.edge.0.to_string());
    }
    text.push(']');
    text
}
