//! What a visit makes of the statistics along its path: U of the position it reached, then N, Q and the
//! proven value of each position of the path, from the leaf up, each from its own value and its edges alone.
//! Invariant: nothing here adds to what was derived before, so a repeated recomputation changes nothing.

use super::config::{Config, LeafValue, Solve};
use super::rules::{MAX_VALUE, edge_value, worth};
use super::{EdgeStats, EdgeStatus, Expansion, PositionStats};

/// A value that no position can have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadValue {
    /// It has another length than the search's values.
    #[error("expected {expected} numbers, one for each value of the search, found {found}")]
    Length {
        /// How many a value has.
        expected: u8,
        /// How many were given.
        found: usize,
    },
    /// One of its numbers is not finite, or beyond 1e100 in either direction.
    #[error("expected a finite number of at most 1e100 at index {index}, found {found}")]
    Number {
        /// Which.
        index: usize,
        /// The number, as text: JSON has no word for what is not finite.
        found: String,
    },
}

/// Checks a value, or a reward that is not empty.
///
/// # Errors
/// `BadValue` when its length is not `Config::values`, or a number is not finite or beyond 1e100.
pub fn check_value(config: &Config, value: &[f64]) -> Result<(), BadValue> {
    if value.len() != usize::from(config.values) {
        return Err(BadValue::Length { expected: config.values, found: value.len() });
    }
    match value.iter().position(|number| !number.is_finite() || number.abs() > MAX_VALUE) {
        Some(index) => Err(BadValue::Number { index, found: value[index].to_string() }),
        None => Ok(()),
    }
}

/// Takes one more value of a position into U: into their mean, or only if it is the first.
///
/// `value` was checked by [`check_value`]; N and Q are left to [`recompute`].
pub fn accept_value(config: &Config, position: &mut PositionStats, value: &[f64]) {
    position.values += 1;
    match config.leaf_value {
        _ if position.values == 1 => position.value = value.to_vec(),
        LeafValue::First => {}
        LeafValue::Mean => {
            let count = position.values as f64;
            for (mean, value) in position.value.iter_mut().zip(value) {
                *mean += (value - *mean) / count;
            }
        }
    }
}

/// Computes N, Q and the proven value of a position from U and all of its edges:
/// `N = own + sum n`, `Q = (own U + sum n (R + gamma Q(child))) / N`, where `own` is 1 if it has a value of its
/// own and else 0 (the form of KataGo's `docs/GraphSearch.md`, by visits of edges and not of children, which
/// is what keeps it sound where positions are shared). The Q of a proven position is its proven value; with
/// `Solve::Full` that of any position is at least, to its mover, the best that is proven of its edges.
pub fn recompute(config: &Config, position: &mut PositionStats, edges: &[EdgeStats]) {
    let own = u64::from(position.values > 0);
    position.visits = own + edges.iter().map(|edge| edge.visits).sum::<u64>();
    average(config, position, edges);
    let (proven, bound) = proven(config, position, edges);
    position.proven = proven;
    if let Some(exact) = position.proven.as_ref().or(bound.as_ref()) {
        position.mean.clone_from(exact);
    }
}

/// Whether a position whose depth is lowered may lose a value that was proven for `max_depth` alone, so that it is
/// to be recomputed: it could not be expanded, and now it can. Where that changes it, so are those that lead to it,
/// each after all that it leads to, as far up as something changes.
pub fn reopens(config: &Config, from: u32, to: u32) -> bool {
    let settles = config.solve == Solve::Full && config.leaf_value == LeafValue::First;
    settles && config.max_depth.is_some_and(|depth| to < depth && depth <= from)
}

fn average(config: &Config, position: &mut PositionStats, edges: &[EdgeStats]) {
    let mut mean = std::mem::take(&mut position.mean);
    mean.clear();
    mean.resize(usize::from(config.values), 0.0);
    let mut weight = 0_u64;
    if position.values > 0 {
        weight += 1;
        mean.iter_mut().zip(&position.value).for_each(|(sum, value)| *sum += value);
    }
    // An edge whose child has no value yet counts in N and says nothing of Q.
    for edge in edges.iter().filter(|edge| edge.visits > 0 && !edge.child_mean.is_empty()) {
        weight += edge.visits;
        for (index, sum) in mean.iter_mut().enumerate() {
            *sum += edge.visits as f64 * edge_value(edge, &edge.child_mean, index);
        }
    }
    match weight {
        0 => mean.clear(),
        _ => mean.iter_mut().for_each(|sum| *sum /= weight as f64),
    }
    position.mean = mean;
}

/// The value that no more search can change; and, where there is none, a proven one that is worth more to the
/// mover than the mean.
///
/// A terminal position's is its own. With `Solve::Full` (MCTS-Solver, Winands 2008, for values of any kind):
/// that of an edge proven as the best there is; the best of the proven edges where all actions are known
/// and every edge that is not closed (one that is lost or pruned, too) is proven; and, where only the first value of a leaf counts, the value of
/// a position that cannot be expanded.
fn proven(
    config: &Config,
    position: &PositionStats,
    edges: &[EdgeStats],
) -> (Option<Vec<f64>>, Option<Vec<f64>>) {
    let own = || (position.values > 0).then(|| position.value.clone());
    if position.terminal {
        return (own(), None);
    }
    if config.solve != Solve::Full {
        return (None, None);
    }
    let settled = config.leaf_value == LeafValue::First;
    if config.max_depth.is_some_and(|depth| position.depth >= depth) {
        return (if settled { own() } else { None }, None);
    }
    let best = best_proven(config, position, edges);
    let unproven = |edge: &EdgeStats| edge.status != EdgeStatus::Closed && edge.child_proven.is_none();
    let all = position.expansion == Expansion::Exhausted && !edges.iter().any(unproven);
    match best {
        Some((worth, value)) if all || config.best_value.is_some_and(|most| worth >= most) => {
            (Some(value), None)
        }
        None if all && settled => (own(), None),
        Some((found, value)) if found > worth(config, position.to_move, &position.mean) => {
            (None, Some(value))
        }
        Some(_) | None => (None, None),
    }
}

/// The best of the edges that are proven and not closed, to the mover: its worth and its value.
fn best_proven(config: &Config, position: &PositionStats, edges: &[EdgeStats]) -> Option<(f64, Vec<f64>)> {
    let mut best: Option<(f64, Vec<f64>)> = None;
    for edge in edges.iter().filter(|edge| edge.status != EdgeStatus::Closed) {
        let Some(exact) = &edge.child_proven else { continue };
        let value: Vec<f64> = (0..exact.len()).map(|index| edge_value(edge, exact, index)).collect();
        let worth = worth(config, position.to_move, &value);
        if best.as_ref().is_none_or(|(known, _)| worth > *known) {
            best = Some((worth, value));
        }
    }
    best
}
