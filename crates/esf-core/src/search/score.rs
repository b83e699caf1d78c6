//! What each edge of a position scores: the formulas of the policies, on values brought to one scale, seen by
//! the one whose choice it is, with rollouts in flight as visits that brought a loss.
//! Invariant: the same records and draw give the same scores, bit for bit.

use super::config::{Config, FirstPlay, Normalize, Policy, Solve};
use super::rules::{edge_worth, priors, worth};
use super::{EdgeStats, PositionStats};

/// How values become comparable: `(value - least) / span`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    shift: f64,
    span: f64,
    /// The least of the position's own value and its edges'; none while there is none.
    least: Option<f64>,
}

impl Scale {
    /// mctx (`qtransform_by_parent_and_siblings`) widens a span of nothing to so much.
    const EPSILON: f64 = 1e-8;

    /// The scale that `Config::normalize` asks for at this position.
    pub(super) fn of(config: &Config, position: &PositionStats, edges: &[EdgeStats]) -> Self {
        let own = (!position.mean.is_empty()).then(|| worth(config, position.to_move, &position.mean));
        let (mut least, mut most) = (own, own);
        let exact = config.solve != Solve::Off;
        for edge in edges.iter().filter(|edge| edge.visits > 0) {
            let Some(value) = edge_worth(config, position.to_move, edge, exact) else { continue };
            least = Some(least.map_or(value, |least| least.min(value)));
            most = Some(most.map_or(value, |most| most.max(value)));
        }
        let (shift, span) = match config.normalize {
            Normalize::None => (0.0, 1.0),
            Normalize::Fixed { min, max } => (min, max - min),
            Normalize::Siblings => {
                let shift = least.unwrap_or(0.0);
                (shift, (most.unwrap_or(0.0) - shift).max(Self::EPSILON))
            }
        };
        Self { shift, span, least }
    }

    pub(super) fn apply(&self, value: f64) -> f64 {
        (value - self.shift) / self.span
    }
}

/// What an edge scores. Compared by fields: what must come first does so whatever the others score.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Score {
    /// Whether it comes before every edge that is not so.
    pub(super) first: bool,
    /// The policy's number.
    pub(super) value: f64,
}

/// The score of every edge, in their order. `draw` decides what the policy leaves to chance.
///
/// For PUCT and MuZero: `scaled Q + exploration`, where a rollout in flight counts as a visit and as a value
/// of `-virtual_loss` on that scale: `Q' = (n Q - l vl) / (n + l)`. An edge to a terminal (or, with
/// `Solve::Full`, a proven) position has its exact value as Q and no exploration, as in OpenSpiel.
pub(super) fn scores(
    config: &Config,
    position: &PositionStats,
    edges: &[EdgeStats],
    draw: u64,
) -> Vec<Score> {
    let chance = |edge: &EdgeStats| unit(mix(draw ^ mix(u64::from(edge.ordinal) + 1)));
    let untried = |edge: &EdgeStats| edge.child.is_none();
    match config.policy {
        Policy::Uniform => edges.iter().map(|edge| Score { first: false, value: chance(edge) }).collect(),
        Policy::UniformNonleaf => {
            edges.iter().map(|edge| Score { first: untried(edge), value: chance(edge) }).collect()
        }
        Policy::Caller => edges
            .iter()
            .map(|edge| match untried(edge) {
                true => Score { first: true, value: edge.prior },
                false => Score { first: false, value: chance(edge) },
            })
            .collect(),
        Policy::Ucb1 { .. } | Policy::Puct { .. } | Policy::Muzero { .. } => {
            by_value(config, position, edges)
        }
    }
}

fn by_value(config: &Config, position: &PositionStats, edges: &[EdgeStats]) -> Vec<Score> {
    let exact = config.solve != Solve::Off;
    let scale = Scale::of(config, position, edges);
    let exploration = Exploration::of(config, position, edges);
    let shares = match config.policy {
        Policy::Puct { .. } | Policy::Muzero { .. } => priors(edges),
        Policy::Ucb1 { .. } | Policy::Uniform | Policy::UniformNonleaf | Policy::Caller => Vec::new(),
    };
    let score = |(index, edge): (usize, &EdgeStats)| {
        let (visits, held) = (edge.visits as f64, f64::from(edge.in_flight));
        let bonus = exploration.bonus(shares.get(index).copied().unwrap_or(0.0), visits + held);
        let Some(value) = edge_worth(config, position.to_move, edge, exact) else {
            return match first_play(config, position, &scale) {
                Some(value) => Score { first: false, value: value + bonus },
                None => Score { first: true, value: bonus },
            };
        };
        let value = scale.apply(value);
        let value = match edge.in_flight {
            0 => value,
            _ => (visits * value - held * config.virtual_loss) / (visits + held),
        };
        let known = exact && edge.child_proven.is_some();
        Score { first: false, value: if known { value } else { value + bonus } }
    };
    edges.iter().enumerate().map(score).collect()
}

/// What an edge counts as that was never taken, on the scale; none if it comes before all others.
fn first_play(config: &Config, position: &PositionStats, scale: &Scale) -> Option<f64> {
    if let Policy::Ucb1 { .. } = config.policy {
        return None;
    }
    match config.first_play {
        FirstPlay::First => None,
        FirstPlay::Value { value } => Some(scale.apply(value)),
        FirstPlay::Least => Some(scale.least.map_or(0.0, |least| scale.apply(least))),
        FirstPlay::Parent { reduction } => {
            let own = (!position.mean.is_empty()).then(|| worth(config, position.to_move, &position.mean));
            Some(own.map_or(0.0, |own| scale.apply(own)) - reduction)
        }
    }
}

/// The part of a score that falls with an edge's visits, but for them and the prior.
#[derive(Clone, Copy, Debug)]
enum Exploration {
    /// `c sqrt(ln N / n)`.
    Logarithm { c: f64, logarithm: f64 },
    /// `factor P / (1 + n)`.
    Prior { factor: f64 },
}

impl Exploration {
    fn of(config: &Config, position: &PositionStats, edges: &[EdgeStats]) -> Self {
        let held: u64 = edges.iter().map(|edge| u64::from(edge.in_flight)).sum();
        let all = (position.visits + held) as f64;
        match config.policy {
            Policy::Puct { c, own_visit } => {
                let of_edges = || edges.iter().map(|edge| edge.visits).sum::<u64>() + held;
                let visits = if own_visit { all } else { of_edges() as f64 };
                // The prior decides the first visit too, as in lc0 and KataGo: the plain formula says nothing there.
                Self::Prior { factor: c * visits.max(1.0).sqrt() }
            }
            Policy::Muzero { c1, c2 } => {
                Self::Prior { factor: all.sqrt() * (c1 + ((all + c2 + 1.0) / c2).ln()) }
            }
            Policy::Ucb1 { c } => Self::Logarithm { c, logarithm: all.max(1.0).ln() },
            Policy::Uniform | Policy::UniformNonleaf | Policy::Caller => Self::Prior { factor: 0.0 },
        }
    }

    fn bonus(self, prior: f64, visits: f64) -> f64 {
        match self {
            // An untried edge comes first whatever its bonus is.
            Self::Logarithm { c, logarithm } => c * (logarithm / visits.max(1.0)).sqrt(),
            Self::Prior { factor } => factor * prior / (1.0 + visits),
        }
    }
}

/// A step of SplitMix64 (Steele 2014): every number once, in an order that looks like chance.
pub(super) fn mix(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    seed ^ (seed >> 31)
}

/// A number from 0 to 1, of the 53 upper bits.
fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1_u64 << 53) as f64
}
