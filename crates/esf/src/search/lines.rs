//! Lines through a search's tree, read from the graph: the best state that was found and how it is reached.

use esf_control::picture::edge_name;
use esf_core::Problem;
use esf_core::record::Json;
use esf_core::search::{Position, Search, rules};
use esf_store::Store;
use serde_json::{Value, json};

/// A position and how it is reached.
pub(super) struct BestPosition {
    pub(super) position: Position,
    /// The worth of its own value to the one who chooses at the root.
    pub(super) reward: f64,
    /// The actions from the root.
    pub(super) actions: Vec<Json>,
    /// The same for people.
    pub(super) names: Vec<String>,
}

impl BestPosition {
    /// The contract's JSON.
    pub(super) fn json(&self) -> Value {
        json!({
            "node_id": self.position.node_id,
            "root_id": self.position.root_id,
            "position": self.position.stats.number,
            "reward": self.reward,
            "visits": self.position.stats.visits,
            "evaluation_id": self.position.evaluation_id,
            "actions": self.actions,
            "names": self.names,
        })
    }
}

/// The position whose own value is the best; nothing before there is a value.
pub(super) fn best_position(store: &Store, search: &Search) -> Result<Option<BestPosition>, Problem> {
    let graph = store.graph();
    let top = graph.top_positions(search.search_id, 1).map_err(|error| error.problem())?;
    let Some(position) = top.into_iter().next().filter(|top| !top.stats.value.is_empty()) else {
        return Ok(None);
    };
    let line = graph.line_to(position.stats.number).map_err(|error| error.problem())?;
    Ok(Some(BestPosition {
        reward: reward(search, to_move(store, search)?, &position),
        names: line.iter().map(edge_name).collect(),
        actions: line.into_iter().map(|edge| edge.action).collect(),
        position,
    }))
}

/// The best value that any position has; looks at all of them.
pub(super) fn best_reward(store: &Store, search: &Search) -> Result<Option<f64>, Problem> {
    let top = store.graph().top_positions(search.search_id, 1).map_err(|error| error.problem())?;
    let Some(top) = top.first().filter(|top| !top.stats.value.is_empty()) else { return Ok(None) };
    Ok(Some(reward(search, to_move(store, search)?, top)))
}

/// Whose choice it is at the root.
pub(super) fn to_move(store: &Store, search: &Search) -> Result<u8, Problem> {
    let root = store.graph().position(search.root).map_err(|error| error.problem())?;
    Ok(root.stats.to_move)
}

fn reward(search: &Search, to_move: u8, position: &Position) -> f64 {
    rules::worth(&search.config, to_move, &position.stats.value)
}

/// A number as people read it.
pub(super) fn number(value: f64) -> String {
    format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A vector of values as people read it.
pub(super) fn values(values: &[f64]) -> String {
    match values {
        [] => "-".to_owned(),
        values => values.iter().map(|value| number(*value)).collect::<Vec<_>>().join(" "),
    }
}
