//! What is asked of a tree search and what is answered. The rules are in `esf_core::search`; what they
//! decide is committed by `esf-graph`, along one path, in one transaction.
//!
//! Invariant: a completion's identity is its rollout. The same outcome again is answered as before, however
//! often, in whatever order and under whatever key; another one is refused.

pub mod reject;

use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::Digest;
use crate::failure::FailureClass;
use crate::id::{EvaluationId, NodeId, RolloutId, SearchId};
use crate::search::config::Budget;
use crate::search::{
    Candidates, Config, Edge, EdgeNumber, Position, PositionNumber, Rollout, StopReason, Ticket,
};

/// Makes a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateSearch {
    /// The sealed node at which it begins.
    pub root: NodeId,
    /// How it searches.
    pub config: Config,
}

/// Asks for rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Select {
    /// The search.
    pub search: SearchId,
    /// How many at most: 1 to 10 000.
    pub count: u32,
    /// For how many milliseconds they are held.
    pub lease_ms: u64,
    /// Where they begin; at the root when absent. Their path leads there from the root all the same.
    pub at: Option<PositionNumber>,
    /// The edge that is taken first, whatever the policy says of it.
    pub edge: Option<EdgeNumber>,
}

impl Select {
    /// The most rollouts of one request.
    pub const MAX: u32 = 10_000;
}

/// What was selected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// The rollouts; fewer than asked for when the search stopped or is saturated.
    pub tickets: Vec<Ticket>,
    /// Why the search takes no more.
    pub stopped: Option<StopReason>,
    /// Whether all that is open is held by others: more can be had once they end.
    pub saturated: bool,
}

/// Says what actions there are at the leaf of a rollout in stage `expand`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expand {
    /// The rollout.
    pub rollout: RolloutId,
    /// The actions: at most [`Expand::MAX_ACTIONS`].
    pub candidates: Candidates,
    /// Whose choice it is there; as it was when absent.
    pub to_move: Option<u8>,
}

impl Expand {
    /// The most actions that may be said at once.
    pub const MAX_ACTIONS: usize = 10_000;
}

/// What became of an expansion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expanded {
    /// The same rollout, gone on; void when nothing there may be chosen now.
    pub ticket: Ticket,
    /// How many actions were new.
    pub added: u32,
    /// How many there are.
    pub known: u32,
}

/// Says what came of a rollout in stage `visit` or `revisit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Complete {
    /// The rollout.
    #[serde(rename = "rollout_id")]
    pub rollout: RolloutId,
    /// The sealed node that the action made; none where the caller keeps states itself.
    #[serde(default, rename = "node_id")]
    pub node: Option<NodeId>,
    /// The evaluation of that node from which the value is.
    #[serde(default, rename = "evaluation_id")]
    pub evaluation: Option<EvaluationId>,
    /// The value of the position that was reached; that of the evaluation when absent.
    #[serde(default)]
    pub value: Option<Vec<f64>>,
    /// R: the reward of the action itself; empty means zero.
    #[serde(default)]
    pub reward: Vec<f64>,
    /// How much what follows the action counts, 0 to 1; as the search says when absent.
    #[serde(default)]
    pub discount: Option<f64>,
    /// Whether it ends there. That is the controller's claim, in a search with an evaluator as well: it can end a
    /// line of play, not raise its value, which is the evaluation's.
    #[serde(default)]
    pub terminal: bool,
    /// Whose choice it is there; 0 when absent.
    #[serde(default)]
    pub to_move: Option<u8>,
    /// What equal states have in common, where the caller keeps them.
    #[serde(default)]
    pub key: Option<String>,
    /// What actions there are, when that is known at once; at most [`Expand::MAX_ACTIONS`].
    #[serde(default)]
    pub candidates: Option<Candidates>,
    /// What it cost, in the caller's unit.
    #[serde(default)]
    pub cost: f64,
}

impl Complete {
    /// An outcome of `rollout` of which nothing is said yet.
    pub fn of(rollout: RolloutId) -> Self {
        Self {
            rollout,
            node: None,
            evaluation: None,
            value: None,
            reward: Vec::new(),
            discount: None,
            terminal: false,
            to_move: None,
            key: None,
            candidates: None,
            cost: 0.0,
        }
    }

    /// What tells two outcomes apart.
    pub fn digest(&self) -> Digest {
        canonical::digest("esf rollout outcome v1", self)
    }
}

/// What an outcome made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completed {
    /// The rollout, accepted.
    pub rollout: Rollout,
    /// The position it reached, as it is now.
    pub position: Position,
    /// Whether this request counted it, or found it counted.
    pub fresh: bool,
}

/// Says that nothing came of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoidRollout {
    /// The rollout.
    pub rollout: RolloutId,
    /// The class of failure; none when it is merely given back.
    pub class: Option<FailureClass>,
    /// In words.
    pub reason: String,
    /// The sealed node that its action made all the same, in stage `visit`: a prune of the search names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

/// What a heartbeat brings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The rollouts that are held on.
    pub held: Vec<RolloutId>,
    /// Those that are not any more: their holder may as well stop.
    pub lost: Vec<RolloutId>,
}

/// Changes what a search may spend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetSearch {
    /// The search.
    pub search: SearchId,
    /// What it may spend from now on.
    pub budget: Budget,
}

/// What a prune of a search keeps, beside its root, its principal path and what live rollouts need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// So many positions of the greatest worth, with what leads to them.
    pub best: u32,
    /// Whether positions are kept at which something is still to be tried.
    pub frontier: bool,
}

/// Gives up losing subtrees of a search; their statistics and provenance stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneSearch {
    /// The search.
    pub search: SearchId,
    /// What is kept.
    pub keep: Keep,
    /// Whether it is only said what would be done.
    pub dry_run: bool,
}

/// A node that a search would give up, but that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptNode {
    /// The node.
    pub node_id: NodeId,
    /// Why.
    pub reason: String,
}

/// What a prune of a search came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedSearch {
    /// Edges that may not be chosen any more.
    pub edges: u64,
    /// Positions that cannot be reached any more.
    pub positions: u64,
    /// Nodes that only they had, or that rollouts made and no position has, deepest first: to be pruned from the
    /// graph next. Each prune names them until they are gone.
    pub nodes: Vec<NodeId>,
    /// Nodes of theirs that something else needs.
    pub kept: Vec<KeptNode>,
}

/// An edge and where it leads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestLine {
    /// The edge.
    pub edge: Edge,
    /// Where it leads.
    pub position: Position,
}
