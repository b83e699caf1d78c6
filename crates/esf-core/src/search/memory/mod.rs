//! A whole search in memory, by the same rules as the durable one: for oracles, simulations and property tests.
//! Actions and keys are the caller's numbers; there are no leases, so whoever holds a rollout gives it back.
//!
//! Facts are kept apart from what is derived of them (`rebuild`): expansions, accepted visits and void rollouts.
//! Invariants: a rollout ends once; N of a position is one for its own value and the visits of its edges;
//! `in_flight` and `asking` are what the held rollouts say; no path of edges leads back to where it began.

mod facts;

use std::collections::BTreeMap;
use std::convert::Infallible;

use super::config::{Config, Transpositions};
use super::rules::wants_value;
use super::select::{Descent, Found, Start, descend};
use super::tree::Tree;
use super::visit::{BadValue, check_value, recompute};
use super::{EdgeNumber, EdgeStats, PositionNumber, PositionStats, RolloutStatus, Stage, Step};
use crate::failure::FailureClass;
pub use facts::{EdgeFact, Fact, Made};

/// A search in memory.
#[derive(Clone, Debug)]
pub struct MemoryTree {
    config: Config,
    positions: Vec<Place>,
    edges: Vec<Link>,
    /// Positions that have edges, in the order in which they got them.
    inner: Vec<PositionNumber>,
    by_key: BTreeMap<u64, PositionNumber>,
    held: BTreeMap<u64, Found>,
    ended: BTreeMap<u64, Ending>,
    facts: Vec<Fact>,
    selected: u64,
    accepted: u64,
}

#[derive(Clone, Debug)]
struct Place {
    stats: PositionStats,
    edges: Vec<EdgeNumber>,
    /// The step by which it was first reached.
    first: Option<Step>,
}

#[derive(Clone, Debug)]
struct Link {
    stats: EdgeStats,
    parent: PositionNumber,
    action: u64,
}

#[derive(Clone, Debug)]
enum Ending {
    Accepted(Box<Outcome>, PositionNumber),
    Void,
}

/// What somebody gets to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The rollout: its ordinal.
    pub rollout: u64,
    /// What was chosen.
    pub found: Found,
    /// The actions from the root to the leaf.
    pub actions: Vec<u64>,
    /// The action to take there, in stage `visit`.
    pub action: Option<u64>,
}

/// What a selection comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// A rollout.
    Work(Work),
    /// None while others are in flight.
    Saturated,
    /// None, whatever comes back.
    Exhausted,
}

/// The actions of a position, each with its prior, in the order of their ordinals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// Action and prior; an action that is known already is left out.
    pub actions: Vec<(u64, f64)>,
    /// Whether there are no others.
    pub exhausted: bool,
    /// Whose choice it is there; as it was when absent.
    pub to_move: Option<u8>,
}

/// What came of a rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The value of the position reached; see `rules::wants_value`.
    pub value: Option<Vec<f64>>,
    /// R of the edge taken; empty is zero.
    pub reward: Vec<f64>,
    /// The edge's discount; the configuration's when absent.
    pub discount: Option<f64>,
    /// Whether it ends there.
    pub terminal: bool,
    /// Whose choice it is there.
    pub to_move: u8,
    /// What equal states have in common.
    pub key: Option<u64>,
    /// The actions there, where they are known at once.
    pub offer: Option<Offer>,
}

/// Why a rollout cannot end so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// It was never selected.
    #[error("rollout {0} was never selected")]
    Unknown(u64),
    /// It was accepted with another outcome.
    #[error("rollout {0} was accepted with another outcome")]
    Ended(u64),
    /// It is void.
    #[error("rollout {0} is void")]
    Void(u64),
    /// It waits for something else.
    #[error("rollout {rollout} waits in stage {}", stage.as_str())]
    Stage {
        /// The rollout.
        rollout: u64,
        /// What it waits for.
        stage: Stage,
    },
    /// A position without a value gets none.
    #[error("the position that rollout {0} reached has no value")]
    ValueMissing(u64),
    /// A value or a reward that cannot be.
    #[error(transparent)]
    BadValue(#[from] BadValue),
}

impl MemoryTree {
    /// A search of one position, which nobody has looked at, where `to_move` has the choice.
    pub fn new(config: Config, to_move: u8) -> Self {
        let mut tree = Self {
            config,
            positions: Vec::new(),
            edges: Vec::new(),
            inner: Vec::new(),
            by_key: BTreeMap::new(),
            held: BTreeMap::new(),
            ended: BTreeMap::new(),
            facts: Vec::new(),
            selected: 0,
            accepted: 0,
        };
        tree.add_position(None, &Made { depth: 0, to_move, terminal: false, key: None });
        tree
    }

    /// The root's number.
    pub const ROOT: PositionNumber = PositionNumber(0);

    /// How it searches.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Rollouts ever selected, and of these those that were accepted.
    pub fn rollouts(&self) -> (u64, u64) {
        (self.selected, self.accepted)
    }

    /// The rollouts that are held, with what they hold.
    pub fn held(&self) -> &BTreeMap<u64, Found> {
        &self.held
    }

    /// What happened, in order.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Every position.
    pub fn positions(&self) -> impl Iterator<Item = &PositionStats> {
        self.positions.iter().map(|place| &place.stats)
    }

    /// The action of an edge.
    pub fn action(&self, edge: EdgeNumber) -> u64 {
        self.link(edge).action
    }

    /// The statistics of a position.
    pub fn stats(&self, number: PositionNumber) -> &PositionStats {
        &self.place(number).stats
    }

    /// The edges of a position, with what is known of their children.
    pub fn edges_of(&self, number: PositionNumber) -> Vec<EdgeStats> {
        let filled = |edge: &EdgeNumber| {
            let mut stats = self.link(*edge).stats.clone();
            if let Some(child) = stats.child {
                let child = self.stats(child);
                stats.child_mean.clone_from(&child.mean);
                stats.child_visits = child.visits;
                stats.child_proven.clone_from(&child.proven);
            }
            stats
        };
        self.place(number).edges.iter().map(filled).collect()
    }

    /// Selects a rollout from the root.
    pub fn select(&mut self) -> Selection {
        self.select_from(Start::root(Self::ROOT))
    }

    /// Selects a rollout from somewhere, perhaps by a given edge.
    pub fn select_from(&mut self, start: Start) -> Selection {
        let Ok(descent) = descend(&self.config, self, start, self.selected);
        match descent {
            Descent::Found(found) => {
                let rollout = self.selected;
                self.selected += 1;
                Selection::Work(self.hold(rollout, found))
            }
            Descent::Saturated => Selection::Saturated,
            Descent::Exhausted => Selection::Exhausted,
        }
    }

    /// Takes the actions of a rollout's leaf; the rollout goes on among them, or is void where they leave it
    /// nothing to do.
    ///
    /// # Errors
    /// When the rollout waits for no actions.
    pub fn expand(&mut self, rollout: u64, offer: &Offer) -> Result<Option<Work>, Refused> {
        let found = self.waiting(rollout)?.clone();
        if found.stage != Stage::Expand {
            return Err(Refused::Stage { rollout, stage: found.stage });
        }
        self.release(rollout);
        self.offer(found.leaf, offer);
        self.recompute_path(&found);
        let start = Start { path: found.path.clone(), at: found.leaf, edge: None, asked: true };
        let Ok(descent) = descend(&self.config, self, start, rollout);
        match descent {
            Descent::Found(next) => Ok(Some(self.hold(rollout, next))),
            Descent::Saturated | Descent::Exhausted => {
                self.end_void(rollout, &found, None);
                Ok(None)
            }
        }
    }

    /// Accepts a rollout, once: the same outcome again changes nothing. Answers the position it reached.
    ///
    /// # Errors
    /// When the rollout is not held, waits for actions, or the outcome is none that it can have.
    pub fn complete(&mut self, rollout: u64, outcome: &Outcome) -> Result<PositionNumber, Refused> {
        if let Some(Ending::Accepted(accepted, reached)) = self.ended.get(&rollout) {
            return if **accepted == *outcome { Ok(*reached) } else { Err(Refused::Ended(rollout)) };
        }
        let found = self.waiting(rollout)?.clone();
        outcome.value.as_ref().map_or(Ok(()), |value| check_value(&self.config, value))?;
        if !outcome.reward.is_empty() {
            check_value(&self.config, &outcome.reward)?;
        }
        let (reached, made) = match (found.stage, found.path.last()) {
            (Stage::Expand, _) => return Err(Refused::Stage { rollout, stage: Stage::Expand }),
            (Stage::Visit, Some(step)) => self.reached(*step, outcome),
            (Stage::Visit | Stage::Revisit, _) => (Some(found.leaf), None),
        };
        let known = reached.map_or(0, |reached| self.stats(reached).values);
        if outcome.value.is_none() && known == 0 {
            return Err(Refused::ValueMissing(rollout));
        }
        self.release(rollout);
        let reached = reached.unwrap_or(PositionNumber(self.positions.len() as u64));
        self.record(Fact::Accepted {
            sequence: self.facts.len() as u64,
            rollout,
            path: found.path.clone(),
            reached,
            made,
            outcome: Box::new(outcome.clone()),
        });
        if let Some(offer) = &outcome.offer {
            self.offer(reached, offer);
        }
        self.recompute(reached);
        self.recompute_path(&found);
        Ok(reached)
    }

    /// Ends a rollout without a visit. Its last edge, if it was to be tried, may be closed for it.
    ///
    /// # Errors
    /// When it is not held.
    pub fn void(&mut self, rollout: u64, class: Option<FailureClass>) -> Result<(), Refused> {
        if let Some(Ending::Void) = self.ended.get(&rollout) {
            return Ok(());
        }
        let found = self.waiting(rollout)?.clone();
        self.release(rollout);
        self.end_void(rollout, &found, class);
        Ok(())
    }

    /// Takes an edge out of selection, with what is below it; its statistics stay.
    pub fn prune(&mut self, edge: EdgeNumber) {
        self.record(Fact::Pruned { sequence: self.facts.len() as u64, edge });
    }

    /// What became of a rollout.
    pub fn status(&self, rollout: u64) -> Option<RolloutStatus> {
        match self.ended.get(&rollout) {
            Some(Ending::Accepted(..)) => Some(RolloutStatus::Accepted),
            Some(Ending::Void) => Some(RolloutStatus::Void),
            None => self.held.contains_key(&rollout).then_some(RolloutStatus::Selected),
        }
    }

    /// Whether a rollout that reached this position should bring a value of it.
    pub fn wants_value(&self, number: PositionNumber) -> bool {
        wants_value(&self.config, self.stats(number))
    }

    fn waiting(&self, rollout: u64) -> Result<&Found, Refused> {
        match (self.held.get(&rollout), self.ended.get(&rollout)) {
            (Some(found), _) => Ok(found),
            (None, Some(Ending::Accepted(..))) => Err(Refused::Ended(rollout)),
            (None, Some(Ending::Void)) => Err(Refused::Void(rollout)),
            (None, None) => Err(Refused::Unknown(rollout)),
        }
    }

    fn hold(&mut self, rollout: u64, found: Found) -> Work {
        self.count_held(&found, |count| count + 1);
        self.held.insert(rollout, found.clone());
        let mut actions: Vec<u64> = found.path.iter().map(|step| self.action(step.edge)).collect();
        let action = if found.stage == Stage::Visit { actions.pop() } else { None };
        Work { rollout, found, actions, action }
    }

    fn release(&mut self, rollout: u64) {
        if let Some(found) = self.held.remove(&rollout) {
            self.count_held(&found, |count| count - 1);
        }
    }

    fn count_held(&mut self, found: &Found, change: impl Fn(u32) -> u32) {
        for step in &found.path {
            let edge = &mut self.link_mut(step.edge).stats;
            edge.in_flight = change(edge.in_flight);
        }
        if found.stage == Stage::Expand || (found.stage == Stage::Revisit && found.path.is_empty()) {
            let leaf = &mut self.place_mut(found.leaf).stats;
            leaf.asking = change(leaf.asking);
        }
    }

    /// The position that an edge leads to by an outcome: one that is there, or what a new one is made of.
    fn reached(&self, step: Step, outcome: &Outcome) -> (Option<PositionNumber>, Option<Made>) {
        let depth = self.stats(step.position).depth + 1;
        let key = outcome.key.filter(|_| self.config.transpositions != Transpositions::Off);
        let equal = key.and_then(|key| self.by_key.get(&key).copied());
        match equal {
            Some(equal) if !self.leads_to(equal, step.position) => (Some(equal), None),
            // It would close a cycle: a position of its own, that no other edge is led to.
            Some(_) | None => {
                let key = if equal.is_none() { key } else { None };
                let made = Made { depth, to_move: outcome.to_move, terminal: outcome.terminal, key };
                (None, Some(made))
            }
        }
    }

    fn leads_to(&self, from: PositionNumber, to: PositionNumber) -> bool {
        let mut seen = std::collections::BTreeSet::from([from]);
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            let children = self.place(at).edges.iter().filter_map(|edge| self.link(*edge).stats.child);
            open.extend(children.filter(|child| seen.insert(*child)));
        }
        false
    }

    fn offer(&mut self, at: PositionNumber, offer: &Offer) {
        let known: Vec<u64> = self.place(at).edges.iter().map(|edge| self.action(*edge)).collect();
        let mut edges: Vec<EdgeFact> = Vec::new();
        for (action, prior) in &offer.actions {
            if known.contains(action) || edges.iter().any(|edge| edge.action == *action) {
                continue;
            }
            let number = EdgeNumber((self.edges.len() + edges.len()) as u64);
            let ordinal = (known.len() + edges.len()) as u32;
            edges.push(EdgeFact { number, ordinal, action: *action, prior: *prior });
        }
        // A proposer that has nothing new is not asked again.
        let exhausted = offer.exhausted || edges.is_empty();
        let to_move = offer.to_move;
        self.record(Fact::Expanded { sequence: self.facts.len() as u64, at, edges, exhausted, to_move });
    }

    fn end_void(&mut self, rollout: u64, found: &Found, class: Option<FailureClass>) {
        let edge = found.path.last().filter(|_| found.stage == Stage::Visit).map(|step| step.edge);
        self.record(Fact::Void { sequence: self.facts.len() as u64, rollout, edge, class });
        self.recompute_path(found);
    }

    fn record(&mut self, fact: Fact) {
        self.apply(&fact);
        self.facts.push(fact);
    }

    fn recompute(&mut self, number: PositionNumber) {
        let edges = self.edges_of(number);
        recompute(&self.config, &mut self.positions[number.0 as usize].stats, &edges);
    }

    /// Recomputes the leaf and every position above it, on the way that was taken.
    fn recompute_path(&mut self, found: &Found) {
        self.recompute(found.leaf);
        for step in found.path.iter().rev().filter(|step| step.position != found.leaf) {
            self.recompute(step.position);
        }
    }

    fn place(&self, number: PositionNumber) -> &Place {
        &self.positions[number.0 as usize]
    }

    fn place_mut(&mut self, number: PositionNumber) -> &mut Place {
        &mut self.positions[number.0 as usize]
    }

    fn link(&self, number: EdgeNumber) -> &Link {
        &self.edges[number.0 as usize]
    }

    fn link_mut(&mut self, number: EdgeNumber) -> &mut Link {
        &mut self.edges[number.0 as usize]
    }
}

impl Tree for MemoryTree {
    type Error = Infallible;

    fn position(&self, number: PositionNumber) -> Result<PositionStats, Infallible> {
        Ok(self.stats(number).clone())
    }

    fn edges(&self, number: PositionNumber) -> Result<Vec<EdgeStats>, Infallible> {
        Ok(self.edges_of(number))
    }

    fn inner(&self, draw: u64) -> Result<Option<PositionNumber>, Infallible> {
        match self.inner.len() as u64 {
            0 => Ok(None),
            count => Ok(Some(self.inner[(draw % count) as usize])),
        }
    }

    fn line(&self, number: PositionNumber) -> Result<Vec<Step>, Infallible> {
        let mut steps = Vec::new();
        let mut at = number;
        while let Some(step) = self.place(at).first {
            steps.push(step);
            at = step.position;
        }
        steps.reverse();
        Ok(steps)
    }
}
