//! How a search searches. TOML or JSON, read strictly; stored with the search under its digest.
//! Sources: UCB1 (Auer 2002), PUCT as in AlphaZero (Silver 2018) and MuZero (Schrittwieser 2020),
//! progressive widening (Coulom 2007), value normalisation as in mctx.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The settings of a search; every default is written here and in `docs/search.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How an edge is chosen.
    pub policy: Policy,
    /// How many values a reward has: one for each player or objective.
    pub values: u8,
    /// What of a vector of values is maximised.
    pub objective: Objective,
    /// How much what follows an edge counts, where its rollout does not say.
    pub discount: f64,
    /// What an edge counts as that was never taken.
    pub first_play: FirstPlay,
    /// How values are brought to one scale before they are compared.
    pub normalize: Normalize,
    /// What a rollout in flight is taken to have lost the mover, on the scale on which values are compared.
    pub virtual_loss: f64,
    /// How many actions a position may have by its visits; all that are proposed when absent.
    pub widening: Option<Widening>,
    /// Which states are one.
    pub transpositions: Transpositions,
    /// What several values of one leaf make.
    pub leaf_value: LeafValue,
    /// What proven values are used for.
    pub solve: Solve,
    /// The best value there is: a proven win. Used by `solve` and `stop`.
    pub best_value: Option<f64>,
    /// Positions at this depth are not expanded.
    pub max_depth: Option<u32>,
    /// Whether the first rollout is an evaluation of the root itself, before anything is chosen.
    pub evaluate_root: bool,
    /// How often an edge is tried again after a failure that may pass.
    pub edge_retries: u32,
    /// What may be spent.
    pub budget: Budget,
    /// When it is good enough.
    pub stop: Stop,
    /// Decides ties and everything drawn.
    pub seed: u64,
    /// How ties are decided.
    pub ties: Ties,
    /// Only evaluations of the evaluator with this digest count; when absent, values are the caller's.
    pub evaluator: Option<Digest>,
}

impl Default for Config {
    /// PUCT with c 1.25, one value, no discount, the parent's value for untried edges, values normalised
    /// among siblings, a virtual loss of 1, no widening, no transpositions, means, terminal solving of
    /// exact values, an evaluated root, two retries, no budget, ties to the lowest ordinal.
    fn default() -> Self {
        Self {
            policy: Policy::Puct { c: 1.25, own_visit: false },
            values: 1,
            objective: Objective::Mover,
            discount: 1.0,
            first_play: FirstPlay::Parent { reduction: 0.0 },
            normalize: Normalize::Siblings,
            virtual_loss: 1.0,
            widening: None,
            transpositions: Transpositions::Off,
            leaf_value: LeafValue::Mean,
            solve: Solve::Terminal,
            best_value: None,
            max_depth: None,
            evaluate_root: true,
            edge_retries: 2,
            budget: Budget::default(),
            stop: Stop::default(),
            seed: 0,
            ties: Ties::First,
            evaluator: None,
        }
    }
}

/// How an edge is chosen. N is of the position, n of the edge, P its prior, Q its value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Policy {
    /// `Q + c sqrt(ln N / n)`; an untried edge first.
    Ucb1 {
        /// c; 1.414 when not said.
        #[serde(default = "ucb1_c")]
        c: f64,
    },
    /// AlphaZero: `Q + c P sqrt(N) / (1 + n)`.
    Puct {
        /// c; 1.25 when not said.
        #[serde(default = "puct_c")]
        c: f64,
        /// Whether N has the position's own value in it (OpenSpiel) or only visits of its edges (AlphaZero).
        #[serde(default)]
        own_visit: bool,
    },
    /// MuZero: `Q + P sqrt(N) / (1 + n) (c1 + ln((N + c2 + 1) / c2))`, N with the position's own.
    Muzero {
        /// c1; 1.25 when not said.
        #[serde(default = "puct_c")]
        c1: f64,
        /// c2; 19652 when not said.
        #[serde(default = "muzero_c2")]
        c2: f64,
    },
    /// Any open edge, each as likely, level by level.
    Uniform,
    /// A position that is no leaf, each as likely, then an edge of it (Tree-GRPO).
    UniformNonleaf,
    /// The caller names the edge of each rollout, or the position at which it begins.
    Caller,
}

fn ucb1_c() -> f64 {
    std::f64::consts::SQRT_2
}

fn puct_c() -> f64 {
    1.25
}

fn muzero_c2() -> f64 {
    19_652.0
}

/// What of a vector of values is maximised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Objective {
    /// The value of whose choice it is.
    Mover,
    /// The sum of the values, each times its weight.
    Weights {
        /// One for each value.
        weights: Vec<f64>,
    },
}

/// What an edge counts as that was never taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FirstPlay {
    /// Its position's value less so much.
    Parent {
        /// How much, on the scale on which values are compared; nothing when not said.
        #[serde(default)]
        reduction: f64,
    },
    /// So much.
    Value {
        /// The value, before it is brought to that scale.
        value: f64,
    },
    /// The least of what it is compared with (mctx).
    Least,
    /// More than any that was: every edge once before one twice.
    First,
}

/// How values are brought to one scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Normalize {
    /// Not at all.
    None,
    /// From `min..max` to 0..1.
    Fixed {
        /// The least value there is.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// To 0..1 by the least and greatest of the position's own and its edges' values (mctx).
    Siblings,
}

/// A position may have `k N^alpha` actions, and no more than `max_children`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Widening {
    /// k.
    pub k: f64,
    /// alpha.
    pub alpha: f64,
    /// The most, whatever N is.
    pub max_children: u32,
}

impl Default for Widening {
    fn default() -> Self {
        Self { k: 2.0, alpha: 0.5, max_children: 64 }
    }
}

/// Which states are one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transpositions {
    /// None: a tree.
    Off,
    /// Those of equal root.
    Root,
    /// Those of equal root and logical state, or of equal key where the caller keeps states.
    State,
}

/// What several values of one leaf make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafValue {
    /// Their mean.
    Mean,
    /// The first.
    First,
}

/// What proven values are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Solve {
    /// Nothing (mctx).
    Off,
    /// An edge to a terminal position counts as its exact value, without exploration (OpenSpiel).
    Terminal,
    /// And positions all of whose actions are proven, or one of them as the best there is, are proven; what is
    /// proven is not visited again while anything else is open.
    Full,
}

/// What may be spent; absent means not bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Accepted rollouts.
    pub rollouts: Option<u64>,
    /// Rollouts selected, accepted or not.
    pub attempts: Option<u64>,
    /// Milliseconds since the search was made.
    pub wall_ms: Option<u64>,
    /// Cost, in the caller's unit.
    pub cost: Option<f64>,
}

/// When it is good enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// A value that some position has.
    pub reward: Option<f64>,
    /// But not before so many rollouts are accepted.
    pub min_rollouts: u64,
    /// When the budget's remaining rollouts cannot change the most visited edge of the root.
    pub margin: bool,
}

/// How ties are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// The lowest ordinal.
    First,
    /// Drawn from the seed.
    Seeded,
}
