//! The records of a search. A *position* is a state of the search, most often a sealed node; an *edge* is an
//! action at a position; a *rollout* is a selected path, held under a lease until it is accepted or void.
//! Invariants: counts are of accepted visits only; what is derived (N, Q, proven values, visits in flight)
//! can be recomputed from the facts at any time; values are finite.

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, RootId};
use crate::failure::FailureClass;
use crate::id::{EvaluationId, GroupId, NodeId, RolloutId, SearchId};
use crate::record::{Json, text_forms};
use crate::search::Config;
use crate::time::{BootMillis, Timestamp};

/// A position's number: its place in the store, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PositionNumber(pub u64);

/// An edge's number: its place in the store, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EdgeNumber(pub u64);

/// Whether a search takes more rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SearchStatus {
    /// It does.
    Open,
    /// It stopped: by budget, by its rules, or because somebody said so.
    Stopped,
}

text_forms!(SearchStatus { Open = "open", Stopped = "stopped" });

/// Why a search takes no more rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// So many rollouts were accepted as its budget has.
    Rollouts,
    /// So many attempts were made as its budget has.
    Attempts,
    /// Its time is over.
    Wall,
    /// Its cost is used up.
    Cost,
    /// The wanted reward was found.
    Reward,
    /// The value of its root is proven.
    Proven,
    /// No rollout that is left could change the best move.
    Margin,
    /// Every edge is closed, lost, pruned or proven.
    Exhausted,
    /// Somebody stopped it.
    User,
}

text_forms!(StopReason {
    Rollouts = "rollouts",
    Attempts = "attempts",
    Wall = "wall",
    Cost = "cost",
    Reward = "reward",
    Proven = "proven",
    Margin = "margin",
    Exhausted = "exhausted",
    User = "user",
});

/// A search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// Its id.
    pub search_id: SearchId,
    /// The group of its nodes.
    pub group_id: GroupId,
    /// The sealed node at which it begins.
    pub root_node_id: NodeId,
    /// The position of that node.
    pub root: PositionNumber,
    /// How it searches.
    pub config: Config,
    /// Digest of `config`.
    pub config_digest: Digest,
    /// Whether it takes more rollouts.
    pub status: SearchStatus,
    /// Why not, when it does not.
    pub stopped: Option<StopReason>,
    /// Rollouts ever selected; the next one's ordinal.
    pub selected: u64,
    /// Rollouts accepted.
    pub accepted: u64,
    /// Rollouts that came to nothing.
    pub void: u64,
    /// What was spent, in the caller's unit.
    pub cost: f64,
    /// Positions it has.
    pub positions: u64,
    /// Edges it has.
    pub edges: u64,
    /// Raised by every change of its statistics: readers see whether what they hold is old.
    pub stats_rev: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// Trace of the request that made it.
    pub trace_id: String,
}

impl Search {
    /// Rollouts that are held under a lease.
    pub fn in_flight(&self) -> u64 {
        self.selected - self.accepted - self.void
    }
}

/// What is known of the actions at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expansion {
    /// Nobody has been asked for any.
    Unasked,
    /// Some are known, and more may be had.
    Open,
    /// All are known.
    Exhausted,
}

text_forms!(Expansion { Unasked = "unasked", Open = "open", Exhausted = "exhausted" });

/// A state of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// What selection looks at.
    #[serde(flatten)]
    pub stats: PositionStats,
    /// The search.
    pub search_id: SearchId,
    /// The sealed node; null where the caller keeps states itself.
    pub node_id: Option<NodeId>,
    /// That node's root.
    pub root_id: Option<RootId>,
    /// What equal states have in common, where transpositions are asked for.
    pub key: Option<Digest>,
    /// The evaluation that gave its value last.
    pub evaluation_id: Option<EvaluationId>,
}

/// What selection and backpropagation need of a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionStats {
    /// Its number.
    pub number: PositionNumber,
    /// Its least distance from the root.
    pub depth: u32,
    /// Whose choice it is: an index into values; 0 in a search of one.
    pub to_move: u8,
    /// Whether it ends there.
    pub terminal: bool,
    /// What is known of its actions.
    pub expansion: Expansion,
    /// Rollouts in flight that wait for its actions or, at the root, for its first value.
    pub asking: u32,
    /// Leaf values accepted for it.
    pub values: u64,
    /// U: of these, the mean or the first (`Config::leaf_value`); empty while there is none.
    pub value: Vec<f64>,
    /// N: one for its own value, if it has one, and the visits of its edges.
    pub visits: u64,
    /// Q: the mean value from here on, or the proven one; empty while there is none.
    pub mean: Vec<f64>,
    /// Its value when no more search can change it.
    pub proven: Option<Vec<f64>>,
}

impl PositionStats {
    /// Those of a position that nobody has seen yet, at a depth. Its number is 0 until it is stored.
    pub fn unseen(depth: u32) -> Self {
        Self {
            number: PositionNumber(0),
            depth,
            to_move: 0,
            terminal: false,
            expansion: Expansion::Unasked,
            asking: 0,
            values: 0,
            value: Vec::new(),
            visits: 0,
            mean: Vec::new(),
            proven: None,
        }
    }
}

/// Whether an edge may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeStatus {
    /// It may.
    Open,
    /// It may not: the action failed.
    Closed,
    /// It may not: it was given up after failures that say nothing of the action. What it is worth stays unknown.
    Lost,
    /// It may not: its subtree was pruned.
    Pruned,
}

text_forms!(EdgeStatus { Open = "open", Closed = "closed", Lost = "lost", Pruned = "pruned" });

/// An action at a position, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// What selection looks at.
    #[serde(flatten)]
    pub stats: EdgeStats,
    /// Where it begins.
    pub parent: PositionNumber,
    /// What is done, as the proposer said it.
    pub action: Json,
    /// Digest of the action, or of the key that the proposer gave for it: equal ones are one edge.
    pub action_digest: Digest,
    /// A short name for people.
    pub name: Option<String>,
    /// Why it may not be chosen any more.
    pub closed_because: Option<String>,
}

/// What selection and backpropagation need of an edge, and of the position it leads to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeStats {
    /// Its number.
    pub number: EdgeNumber,
    /// Its place among the edges of its position, from 0.
    pub ordinal: u32,
    /// How likely the proposer thinks it is.
    pub prior: f64,
    /// Where it leads; null until it was taken once.
    pub child: Option<PositionNumber>,
    /// R: the reward of taking it; empty means zero.
    pub reward: Vec<f64>,
    /// How much what follows counts.
    pub discount: f64,
    /// N: accepted visits.
    pub visits: u64,
    /// Rollouts in flight that go through it.
    pub in_flight: u32,
    /// Whether it may be chosen.
    pub status: EdgeStatus,
    /// Rollouts through it, as their last edge, that came to nothing.
    pub failures: u32,
    /// Q of its child; empty while there is none.
    pub child_mean: Vec<f64>,
    /// N of its child.
    pub child_visits: u64,
    /// The child's proven value.
    pub child_proven: Option<Vec<f64>>,
}

impl EdgeStats {
    /// Those of an edge that nobody has taken. Its number and ordinal are 0 until it is stored.
    pub fn untried(prior: f64, discount: f64) -> Self {
        Self {
            number: EdgeNumber(0),
            ordinal: 0,
            prior,
            child: None,
            reward: Vec::new(),
            discount,
            visits: 0,
            in_flight: 0,
            status: EdgeStatus::Open,
            failures: 0,
            child_mean: Vec::new(),
            child_visits: 0,
            child_proven: None,
        }
    }
}

/// An action that a proposer offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// What is to be done: any JSON.
    pub action: Json,
    /// A short name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How likely it is: not negative; 1 when not said. They are normalised over a position's edges where a policy needs it.
    #[serde(default = "one")]
    pub prior: f64,
    /// Equal keys are the same action; the action itself decides when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// What a proposer says of a position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Candidates {
    /// The actions, in the order of their ordinals.
    pub actions: Vec<Candidate>,
    /// Whether there are no others.
    pub exhausted: bool,
}

/// One choice on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Where.
    pub position: PositionNumber,
    /// What was chosen.
    pub edge: EdgeNumber,
}

/// What a rollout waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Actions at its leaf, after which it goes on.
    Expand,
    /// The outcome of its last edge's action, which nobody has taken yet.
    Visit,
    /// Another value of its leaf, or none where the leaf is terminal.
    Revisit,
}

text_forms!(Stage { Expand = "expand", Visit = "visit", Revisit = "revisit" });

/// Where a rollout is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RolloutStatus {
    /// Held under a lease.
    Selected,
    /// Counted, once and for ever.
    Accepted,
    /// Not counted, for ever.
    Void,
}

text_forms!(RolloutStatus { Selected = "selected", Accepted = "accepted", Void = "void" });

/// A selected path and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Its id.
    pub rollout_id: RolloutId,
    /// The search.
    pub search_id: SearchId,
    /// Its place among the search's rollouts, from 0.
    pub ordinal: u64,
    /// What was chosen, from the root on.
    pub path: Vec<Step>,
    /// The last position of the path that exists.
    pub leaf: PositionNumber,
    /// What it waits for.
    pub stage: Stage,
    /// Where it is in its life.
    pub status: RolloutStatus,
    /// The value it brought.
    pub value: Vec<f64>,
    /// The position it reached.
    pub reached: Option<PositionNumber>,
    /// The node it made.
    pub node_id: Option<NodeId>,
    /// The evaluation its value is from.
    pub evaluation_id: Option<EvaluationId>,
    /// Why it is void: a class where there is one, and words.
    pub void: Option<Void>,
    /// What it cost, in the caller's unit.
    pub cost: f64,
    /// When its lease ends, on the boot clock of `boot_id`.
    pub expires_at: BootMillis,
    /// The boot in which it was leased.
    pub boot_id: String,
    /// When it was selected.
    pub selected_at: Timestamp,
    /// When it was accepted or void.
    pub ended_at: Option<Timestamp>,
    /// Who holds it.
    pub created_by: String,
    /// Trace of the request that selected it.
    pub trace_id: String,
}

/// Why a rollout came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Void {
    /// The class of failure; none when it was merely given back.
    pub class: Option<FailureClass>,
    /// In words.
    pub reason: String,
}

/// A rollout as its holder gets it: with what is needed to do its work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ticket {
    /// The rollout.
    #[serde(flatten)]
    pub rollout: Rollout,
    /// The sealed node of its leaf: what an action is applied to.
    pub leaf_node_id: Option<NodeId>,
    /// The actions from the root to the leaf; in stage `visit` the action to take is apart.
    pub actions: Vec<Json>,
    /// The action to take, in stage `visit`.
    pub action: Option<Json>,
    /// Its name for people.
    pub action_name: Option<String>,
    /// How many actions are wanted, in stage `expand`; no bound when absent.
    pub want: Option<u32>,
    /// How many the leaf has already.
    pub known: u32,
}
