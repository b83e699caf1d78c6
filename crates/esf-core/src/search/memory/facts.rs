//! The facts of a search in memory, what each does to the counters, and the whole tree rebuilt from them.
//! Invariant: a rebuilt tree has the counters of the live one, whatever order its facts came in and however
//! often each; in a tree its values are the same too, and where positions are shared they are newer: those above a
//! position that another path changed lag in the live one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Config, Ending, Found, Link, MemoryTree, Outcome, Place, recompute};
use crate::failure::FailureClass;
use crate::search::rules::{blames, closes};
use crate::search::visit::{accept_value, reopens};
use crate::search::{EdgeNumber, EdgeStats, EdgeStatus, Expansion, PositionNumber, PositionStats, Step};

/// Something that happened; its sequence is its identity.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A position got actions, or it turned out that there are no others.
    Expanded {
        /// Its place among the facts.
        sequence: u64,
        /// The position.
        at: PositionNumber,
        /// The edges that it got.
        edges: Vec<EdgeFact>,
        /// Whether there are no others.
        exhausted: bool,
        /// Whose choice it is there, if that was said.
        to_move: Option<u8>,
    },
    /// A rollout was accepted.
    Accepted {
        /// Its place among the facts.
        sequence: u64,
        /// The rollout.
        rollout: u64,
        /// Its path from the root.
        path: Vec<Step>,
        /// The position it reached.
        reached: PositionNumber,
        /// What that was made of, if it was not there before.
        made: Option<Made>,
        /// What came of it.
        outcome: Box<Outcome>,
    },
    /// A rollout came to nothing.
    Void {
        /// Its place among the facts.
        sequence: u64,
        /// The rollout.
        rollout: u64,
        /// The edge that it was to try.
        edge: Option<EdgeNumber>,
        /// Why.
        class: Option<FailureClass>,
    },
    /// An edge was pruned.
    Pruned {
        /// Its place among the facts.
        sequence: u64,
        /// The edge.
        edge: EdgeNumber,
    },
}

/// A new position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Made {
    /// Its distance from the root.
    pub depth: u32,
    /// Whose choice it is.
    pub to_move: u8,
    /// Whether it ends there.
    pub terminal: bool,
    /// What equal states have in common.
    pub key: Option<u64>,
}

/// A new edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeFact {
    /// Its number.
    pub number: EdgeNumber,
    /// Its place among the edges of its position.
    pub ordinal: u32,
    /// The action.
    pub action: u64,
    /// Its prior.
    pub prior: f64,
}

impl Fact {
    /// Its place among the facts.
    pub fn sequence(&self) -> u64 {
        match self {
            Self::Expanded { sequence, .. }
            | Self::Accepted { sequence, .. }
            | Self::Void { sequence, .. }
            | Self::Pruned { sequence, .. } => *sequence,
        }
    }
}

impl MemoryTree {
    /// Rebuilds a tree of its facts, in whatever order and however often each comes, and of what is held.
    pub fn rebuild(config: Config, to_move: u8, facts: &[Fact], held: &BTreeMap<u64, Found>) -> Self {
        let mut tree = Self::new(config, to_move);
        let ordered: BTreeMap<u64, &Fact> = facts.iter().map(|fact| (fact.sequence(), fact)).collect();
        for fact in ordered.into_values() {
            tree.record(fact.clone());
        }
        tree.selected = (tree.ended.len() + held.len()) as u64;
        for (rollout, found) in held {
            tree.hold(*rollout, found.clone());
        }
        for number in tree.leaves_first() {
            let edges = tree.edges_of(number);
            recompute(&tree.config, &mut tree.positions[number.0 as usize].stats, &edges);
        }
        tree
    }

    /// Every counter, for comparison: of positions, then of edges.
    pub fn counters(&self) -> (Vec<PositionCounters>, Vec<EdgeCounters>) {
        let position = |place: &Place| PositionCounters {
            visits: place.stats.visits,
            values: place.stats.values,
            asking: place.stats.asking,
            edges: place.edges.len(),
            depth: place.stats.depth,
            expansion: place.stats.expansion,
            terminal: place.stats.terminal,
        };
        let edge = |link: &Link| EdgeCounters {
            visits: link.stats.visits,
            in_flight: link.stats.in_flight,
            failures: link.stats.failures,
            status: link.stats.status,
            child: link.stats.child,
        };
        (self.positions.iter().map(position).collect(), self.edges.iter().map(edge).collect())
    }

    /// Does what a fact says to the counters; N, Q and proven values are left to recomputation.
    pub(super) fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::Expanded { at, edges, exhausted, to_move, .. } => {
                if self.place(*at).edges.is_empty() && !edges.is_empty() {
                    self.inner.push(*at);
                }
                edges.iter().for_each(|edge| self.add_edge(*at, edge));
                let stats = &mut self.place_mut(*at).stats;
                stats.to_move = to_move.unwrap_or(stats.to_move);
                if stats.expansion != Expansion::Exhausted {
                    stats.expansion = if *exhausted { Expansion::Exhausted } else { Expansion::Open };
                }
            }
            Fact::Accepted { rollout, path, reached, made, outcome, .. } => {
                if let Some(made) = made {
                    self.add_position(path.last().copied(), made);
                }
                if let Some(step) = path.last() {
                    self.lead(*step, *reached, outcome);
                }
                path.iter().for_each(|step| self.link_mut(step.edge).stats.visits += 1);
                let stats = &mut self.positions[reached.0 as usize].stats;
                // Of the root nobody could say it before.
                stats.terminal |= path.is_empty() && outcome.terminal;
                if let Some(value) = &outcome.value {
                    accept_value(&self.config, stats, value);
                }
                self.accepted += 1;
                self.ended.insert(*rollout, Ending::Accepted(outcome.clone(), *reached));
            }
            Fact::Void { rollout, edge, class, .. } => {
                self.ended.insert(*rollout, Ending::Void);
                if let Some(edge) = edge.filter(|_| blames(*class)) {
                    self.fail(edge, *class);
                }
            }
            Fact::Pruned { edge, .. } => self.link_mut(*edge).stats.status = EdgeStatus::Pruned,
        }
    }

    fn fail(&mut self, edge: EdgeNumber, class: Option<FailureClass>) {
        let failures = self.link(edge).stats.failures + 1;
        let closed = closes(&self.config, failures, class);
        let stats = &mut self.link_mut(edge).stats;
        stats.failures = failures;
        if stats.status == EdgeStatus::Open {
            stats.status = closed.unwrap_or(EdgeStatus::Open);
        }
    }

    /// Lets an edge lead to a position, unless it leads somewhere already.
    fn lead(&mut self, step: Step, to: PositionNumber, outcome: &Outcome) {
        let discount = outcome.discount.unwrap_or(self.config.discount);
        let depth = self.stats(step.position).depth + 1;
        if self.link(step.edge).stats.child.is_none() {
            self.bring_near(to, depth);
            let edge = &mut self.link_mut(step.edge).stats;
            edge.child = Some(to);
            edge.reward.clone_from(&outcome.reward);
            edge.discount = discount;
        }
    }

    /// Lowers the depth of a position that was reached by a shorter way, and of what is below it; what was proven
    /// only because it was too deep is open again, and so is what was proven by that.
    fn bring_near(&mut self, position: PositionNumber, depth: u32) {
        let mut nearer = vec![(position, depth)];
        let mut before: BTreeMap<PositionNumber, u32> = BTreeMap::new();
        while let Some((at, depth)) = nearer.pop() {
            if depth < self.stats(at).depth {
                before.entry(at).or_insert(self.stats(at).depth);
                self.place_mut(at).stats.depth = depth;
                let children = self.place(at).edges.iter().filter_map(|edge| self.link(*edge).stats.child);
                nearer.extend(children.map(|child| (child, depth + 1)));
            }
        }
        let reopened = |(at, from): (PositionNumber, u32)| {
            reopens(&self.config, from, self.stats(at).depth).then_some(at)
        };
        let reopened: BTreeSet<PositionNumber> = before.into_iter().filter_map(reopened).collect();
        if !reopened.is_empty() {
            self.reopen(reopened);
        }
    }

    /// Recomputes positions, and those that lead to one that it changes, each after all that it leads to.
    fn reopen(&mut self, mut waiting: BTreeSet<PositionNumber>) {
        for number in self.leaves_first() {
            if !waiting.remove(&number) {
                continue;
            }
            let before = self.stats(number).clone();
            self.recompute(number);
            if *self.stats(number) != before {
                let above = self.edges.iter().filter(|link| link.stats.child == Some(number));
                waiting.extend(above.map(|link| link.parent));
            }
        }
    }

    pub(super) fn add_position(&mut self, first: Option<Step>, made: &Made) {
        let number = PositionNumber(self.positions.len() as u64);
        let stats = PositionStats {
            number,
            to_move: made.to_move,
            terminal: made.terminal,
            ..PositionStats::unseen(made.depth)
        };
        if let Some(key) = made.key {
            self.by_key.insert(key, number);
        }
        self.positions.push(Place { stats, edges: Vec::new(), first });
    }

    fn add_edge(&mut self, parent: PositionNumber, edge: &EdgeFact) {
        let untried = EdgeStats::untried(edge.prior, self.config.discount);
        let stats = EdgeStats { number: edge.number, ordinal: edge.ordinal, ..untried };
        self.place_mut(parent).edges.push(edge.number);
        self.edges.push(Link { stats, parent, action: edge.action });
    }

    /// Every position after all that it leads to.
    fn leaves_first(&self) -> Vec<PositionNumber> {
        let mut waits: Vec<usize> = vec![0; self.positions.len()];
        let mut parents: Vec<Vec<PositionNumber>> = vec![Vec::new(); self.positions.len()];
        for link in &self.edges {
            if let Some(child) = link.stats.child {
                waits[link.parent.0 as usize] += 1;
                parents[child.0 as usize].push(link.parent);
            }
        }
        let mut order: Vec<PositionNumber> =
            (0..waits.len()).filter(|n| waits[*n] == 0).map(|n| PositionNumber(n as u64)).collect();
        let mut next = 0;
        while next < order.len() {
            for parent in &parents[order[next].0 as usize] {
                waits[parent.0 as usize] -= 1;
                if waits[parent.0 as usize] == 0 {
                    order.push(*parent);
                }
            }
            next += 1;
        }
        order
    }
}

/// The counters of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionCounters {
    /// N.
    pub visits: u64,
    /// Values of its own.
    pub values: u64,
    /// Rollouts that wait at it.
    pub asking: u32,
    /// Edges it has.
    pub edges: usize,
    /// Its distance from the root.
    pub depth: u32,
    /// What is known of its actions.
    pub expansion: Expansion,
    /// Whether it ends there.
    pub terminal: bool,
}

/// The counters of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeCounters {
    /// N.
    pub visits: u64,
    /// Rollouts that go through it.
    pub in_flight: u32,
    /// Rollouts that failed at it.
    pub failures: u32,
    /// Whether it may be chosen.
    pub status: EdgeStatus,
    /// Where it leads.
    pub child: Option<PositionNumber>,
}
