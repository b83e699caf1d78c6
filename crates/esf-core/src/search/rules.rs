//! The rules of a search that are not selection: what a value is worth to whom, which move is best, when to
//! stop, when an edge is given up, how many actions a position may have, and what priors come to.
//! Pure: the records in, the answer out.

use super::config::{Config, LeafValue, Objective, Policy, Solve};
use super::score::Scale;
use super::{EdgeNumber, EdgeStats, EdgeStatus, Expansion, PositionStats, Search, StopReason};
use crate::failure::FailureClass;
use crate::record::text_forms;
use crate::time::Timestamp;

/// The greatest size of a number in a value: sums of such never leave what an `f64` holds.
pub const MAX_VALUE: f64 = 1e100;

/// Which edge is called the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BestKind {
    /// The most visited; of equals, that of the greater value.
    #[default]
    Robust,
    /// The one of the greatest value.
    Max,
    /// The one whose value, less `c / sqrt(n)`, is the greatest (Chaslot 2008).
    Secure,
    /// The one of the greatest value among those that are proven.
    Finished,
}

text_forms!(BestKind { Robust = "robust", Max = "max", Secure = "secure", Finished = "finished" });

/// What a vector of values is worth to the one whose choice it is; what is missing is zero.
pub fn worth(config: &Config, to_move: u8, value: &[f64]) -> f64 {
    match &config.objective {
        Objective::Mover => value.get(usize::from(to_move)).copied().unwrap_or(0.0),
        Objective::Weights { weights } => {
            value.iter().zip(weights).map(|(value, weight)| value * weight).sum()
        }
    }
}

/// `R + gamma V` of an edge, where V is the value of its child; one number of it.
pub(super) fn edge_value(edge: &EdgeStats, child: &[f64], index: usize) -> f64 {
    let reward = edge.reward.get(index).copied().unwrap_or(0.0);
    reward + edge.discount * child.get(index).copied().unwrap_or(0.0)
}

/// What taking an edge is worth to the mover: by its child's proven value if `exact` and there is one, else
/// by its mean; none while it was never taken.
pub(super) fn edge_worth(config: &Config, to_move: u8, edge: &EdgeStats, exact: bool) -> Option<f64> {
    let child = match &edge.child_proven {
        Some(proven) if exact => proven,
        Some(_) | None => &edge.child_mean,
    };
    if child.is_empty() {
        return None;
    }
    Some(match &config.objective {
        Objective::Mover => edge_value(edge, child, usize::from(to_move)),
        Objective::Weights { weights } => {
            weights.iter().enumerate().map(|(index, weight)| weight * edge_value(edge, child, index)).sum()
        }
    })
}

/// Whether nothing below a position can change its value: selection ends there.
pub fn is_final(config: &Config, position: &PositionStats) -> bool {
    position.terminal || (config.solve == Solve::Full && position.proven.is_some())
}

/// Whether a rollout that ends at a position shall bring a value of it: always the first, and others where
/// they are averaged and the position is not final. Without one, such a rollout counts as a visit only.
pub fn wants_value(config: &Config, position: &PositionStats) -> bool {
    position.values == 0 || (config.leaf_value == LeafValue::Mean && !is_final(config, position))
}

/// How many actions a position of `visits` visits may have: `k N^alpha` rounded up, at least 1, at most
/// `max_children`; no bound without widening (Coulom 2007, Couëtoux 2011).
pub fn widening(config: &Config, visits: u64) -> Option<u32> {
    let widening = config.widening?;
    let allowed = (widening.k * (visits as f64).powf(widening.alpha)).ceil();
    Some((allowed.min(f64::from(u32::MAX)) as u32).clamp(1, widening.max_children.max(1)))
}

/// The priors of open edges, as shares of their sum; zero for the others. Where the sum is 1 (to 5 digits) they
/// stay as they are, and where it is zero each has the same.
pub fn priors(edges: &[EdgeStats]) -> Vec<f64> {
    let open = |edge: &&EdgeStats| edge.status == EdgeStatus::Open;
    let greatest = edges.iter().filter(open).map(|edge| edge.prior).fold(0.0, f64::max);
    let of = |edge: &EdgeStats| match edge.status {
        EdgeStatus::Open if greatest > 0.0 => edge.prior / greatest,
        EdgeStatus::Open => 1.0,
        EdgeStatus::Closed | EdgeStatus::Lost | EdgeStatus::Pruned => 0.0,
    };
    // By the greatest first: the sum of great numbers may be more than an `f64` holds.
    let sum: f64 = edges.iter().map(of).sum();
    if greatest > 0.0 && (sum * greatest - 1.0).abs() < 1e-5 {
        return edges.iter().map(|edge| of(edge) * greatest).collect();
    }
    edges.iter().map(|edge| of(edge) / sum).collect()
}

/// The best edge of a position; none while none was taken (or, for `Finished`, is proven). Closed edges are
/// not looked at; pruned ones are, by the statistics they keep. Ties go to more visits, then to the greater
/// value, then to the lower ordinal.
///
/// What is proven comes before all else where it settles the matter: an edge proven as the best there is, and
/// any proven edge of a proven position. With `Solve::Full` a proven edge is not visited again, so that its
/// visits say nothing: `Robust` takes it if its value is no less than that of the most visited other.
pub fn best(
    config: &Config,
    kind: BestKind,
    position: &PositionStats,
    edges: &[EdgeStats],
) -> Option<EdgeNumber> {
    let scale = Scale::of(config, position, edges);
    let ranked = edges.iter().filter_map(|edge| Ranked::of(config, position, edge));
    let key = |edge: &Ranked| {
        let by = match kind {
            _ if edge.settles => edge.worth,
            BestKind::Robust => edge.visits,
            BestKind::Max | BestKind::Finished => edge.worth,
            BestKind::Secure if edge.proven => scale.apply(edge.worth),
            BestKind::Secure => scale.apply(edge.worth) - confidence(config) / edge.visits.sqrt(),
        };
        (edge.settles, by, edge.visits, edge.worth)
    };
    let (proven, open): (Vec<Ranked>, Vec<Ranked>) = match (kind, config.solve) {
        (BestKind::Finished, _) => (ranked.filter(|edge| edge.finished).collect(), Vec::new()),
        (BestKind::Robust, Solve::Full) => ranked.partition(|edge| edge.proven),
        _ => (Vec::new(), ranked.collect()),
    };
    let first = |edges: Vec<Ranked>, key: &dyn Fn(&Ranked) -> (bool, f64, f64, f64)| {
        edges.into_iter().reduce(|best, edge| if key(&edge) > key(&best) { edge } else { best })
    };
    let exact = first(proven, &|edge| (edge.settles, edge.worth, edge.visits, 0.0));
    let found = match (exact, first(open, &key)) {
        (Some(exact), Some(open)) if open.worth > exact.worth && !exact.settles => Some(open),
        (Some(exact), _) => Some(exact),
        (None, open) => open,
    };
    found.map(|edge| edge.number)
}

/// An edge as `best` looks at it.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    number: EdgeNumber,
    visits: f64,
    worth: f64,
    /// Whether its child has a proven value.
    finished: bool,
    /// And that counts.
    proven: bool,
    /// And there is nothing better.
    settles: bool,
}

impl Ranked {
    fn of(config: &Config, position: &PositionStats, edge: &EdgeStats) -> Option<Self> {
        if edge.status == EdgeStatus::Closed || edge.visits == 0 {
            return None;
        }
        let counts = config.solve != Solve::Off;
        let worth = edge_worth(config, position.to_move, edge, counts)?;
        let finished = edge.child_proven.is_some();
        let proven = counts && finished;
        let all = config.solve == Solve::Full && position.proven.is_some();
        let settles = proven && (all || config.best_value.is_some_and(|most| worth >= most));
        Some(Self { number: edge.number, visits: edge.visits as f64, worth, finished, proven, settles })
    }
}

fn confidence(config: &Config) -> f64 {
    match config.policy {
        Policy::Ucb1 { c } | Policy::Puct { c, .. } => c,
        Policy::Muzero { c1, .. } => c1,
        Policy::Uniform | Policy::UniformNonleaf | Policy::Caller => 1.0,
    }
}

/// Whether a search has enough, and why. `best_reward` is the greatest worth, to the mover of the root, of
/// any position's own value; `now` is of the clock that `Search::created_at` is from.
pub fn stop(
    config: &Config,
    search: &Search,
    root: &PositionStats,
    edges: &[EdgeStats],
    best_reward: Option<f64>,
    now: Timestamp,
) -> Option<StopReason> {
    let enough = search.accepted >= config.stop.min_rollouts;
    let reached = |reward: f64| best_reward.is_some_and(|best| best >= reward);
    let spent = u64::try_from(now.0.saturating_sub(search.created_at.0)).unwrap_or(0);
    let budget = &config.budget;
    // What was found comes before what was spent: it is the better news.
    if enough && config.stop.reward.is_some_and(reached) {
        Some(StopReason::Reward)
    } else if is_final(config, root) && root.proven.is_some() {
        Some(StopReason::Proven)
    } else if exhausted(config, root, edges) {
        Some(StopReason::Exhausted)
    } else if budget.rollouts.is_some_and(|most| search.accepted >= most) {
        Some(StopReason::Rollouts)
    } else if budget.attempts.is_some_and(|most| search.selected >= most) {
        Some(StopReason::Attempts)
    } else if budget.wall_ms.is_some_and(|most| spent >= most) {
        Some(StopReason::Wall)
    } else if budget.cost.is_some_and(|most| search.cost >= most) {
        Some(StopReason::Cost)
    } else if enough && config.stop.margin && decided(config, search, edges) {
        Some(StopReason::Margin)
    } else {
        None
    }
}

/// Whether every edge of the root is closed, lost, pruned or proven, and no other is to be had.
fn exhausted(config: &Config, root: &PositionStats, edges: &[EdgeStats]) -> bool {
    let done = |edge: &EdgeStats| {
        edge.status != EdgeStatus::Open || (config.solve != Solve::Off && edge.child_proven.is_some())
    };
    root.expansion == Expansion::Exhausted
        && (root.values > 0 || !config.evaluate_root)
        && edges.iter().all(done)
        && edges.iter().all(|edge| edge.in_flight == 0)
}

/// Whether the rollouts that are left are fewer than the lead of the most visited edge.
fn decided(config: &Config, search: &Search, edges: &[EdgeStats]) -> bool {
    let by_rollouts = config.budget.rollouts.map(|most| most.saturating_sub(search.accepted));
    let unended = search.in_flight();
    let by_attempts = config.budget.attempts.map(|most| most.saturating_sub(search.selected) + unended);
    let Some(left) = by_rollouts.into_iter().chain(by_attempts).min() else { return false };
    let (mut first, mut second) = (0, 0);
    for visits in edges.iter().filter(|edge| edge.status != EdgeStatus::Closed).map(|edge| edge.visits) {
        if visits > first {
            (first, second) = (visits, first);
        } else {
            second = second.max(visits);
        }
    }
    first - second > left
}

/// Whether a rollout that came to nothing so is a failure of the edge it was to try; one that was given back,
/// cancelled or stale says nothing of the action.
pub fn blames(class: Option<FailureClass>) -> bool {
    !matches!(class, None | Some(FailureClass::Cancelled | FailureClass::Stale))
}

/// What becomes of an open edge by a rollout that was to try it and came to nothing; none while it stays open.
/// `failures` are all that [`blames`] counts, with this one. A class that may pass (`retryable`) says nothing of
/// the action: it is lost after `edge_retries` more. Any other closes it at once.
pub fn closes(config: &Config, failures: u32, class: Option<FailureClass>) -> Option<EdgeStatus> {
    match class {
        Some(class) if class.retryable() => (failures > config.edge_retries).then_some(EdgeStatus::Lost),
        Some(_) | None => blames(class).then_some(EdgeStatus::Closed),
    }
}
