//! How a path is chosen: from the root down by the policy, to something to do that no other rollout holds.
//! Invariants: two rollouts never hold one untried edge nor the same question for actions; only one path is
//! read, and the dead ends it was turned away from, of which there is a bound and none is entered twice;
//! `Saturated` is answered only while some rollout is in flight. What is visited again may be held by several: a
//! small tree that is searched by many would otherwise push its visits from the best edges to those that happen
//! to be free.

use std::collections::HashSet;

use super::config::{Config, Policy, Solve, Ties};
use super::rules::{is_final, widening};
use super::score::{Score, mix, scores};
use super::tree::Tree;
use super::{EdgeNumber, EdgeStats, EdgeStatus, Expansion, PositionNumber, PositionStats, Stage, Step};

/// How often a descent turns back from what others hold before it calls the search saturated.
const DEAD_ENDS: usize = 256;

/// How many inner positions are drawn before selection begins at the root.
const DRAWS: u64 = 8;

/// Where a descent begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The steps from the root to `at`.
    pub path: Vec<Step>,
    /// The position at which it begins.
    pub at: PositionNumber,
    /// The edge to take there, whatever the policy or widening says; the policy's when absent.
    pub edge: Option<EdgeNumber>,
    /// Whether the actions of `at` were just given for this rollout: it chooses of them and does not ask again.
    pub asked: bool,
}

impl Start {
    /// Begins at the root.
    pub fn root(root: PositionNumber) -> Self {
        Self { path: Vec::new(), at: root, edge: None, asked: false }
    }
}

/// Something to do that no other rollout holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What was chosen, from the root on; in stage `visit` its last edge is the one to try.
    pub path: Vec<Step>,
    /// The last position of the path that exists.
    pub leaf: PositionNumber,
    /// What is to be done there.
    pub stage: Stage,
    /// How many more actions are wanted, in stage `expand`; no bound when absent.
    pub want: Option<u32>,
    /// How many edges the leaf has.
    pub known: u32,
}

/// What a descent comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Descent {
    /// Something to do.
    Found(Found),
    /// Everything that is open is held by rollouts in flight.
    Saturated,
    /// Nothing is open, whatever comes back.
    Exhausted,
}

/// Chooses a path by the policy of `config`. `ordinal` is the rollout's: with the seed it decides what is drawn.
///
/// A position that is final, at `max_depth`, or of no more actions is visited again; one whose actions
/// nobody asked for is to be expanded, and so is one that may have more (`widening`); the root, if it has
/// no value and `evaluate_root`, is to be evaluated. Otherwise the policy's best open edge is taken.
///
/// # Errors
/// Those of the tree.
pub fn descend<T: Tree>(config: &Config, tree: &T, start: Start, ordinal: u64) -> Result<Descent, T::Error> {
    let fresh = start.path.is_empty() && start.edge.is_none() && !start.asked;
    if config.policy == Policy::UniformNonleaf && fresh {
        for salt in 0..DRAWS {
            let draw = mix(config.seed ^ mix(ordinal ^ mix(salt)));
            let Some(at) = tree.inner(draw)? else { break };
            let path = tree.line(at)?;
            let found = Walk::new(config, tree, ordinal, Start { path, ..Start::root(at) }).run()?;
            if matches!(&found, Descent::Found(found) if found.stage != Stage::Revisit) {
                return Ok(found);
            }
        }
    }
    Walk::new(config, tree, ordinal, start).run()
}

/// A position on the way down.
struct Frame {
    position: PositionStats,
    edges: Vec<EdgeStats>,
    scores: Vec<Score>,
    /// Whether the edge of this index may be taken, still.
    open: Vec<bool>,
    /// The edge that was taken.
    taken: usize,
    /// What decides ties.
    draw: u64,
}

/// What there is at a position.
enum Arrival {
    /// Something to do.
    Leaf(Stage, Option<u32>),
    /// Edges to choose from.
    Inner(Frame),
    /// Somebody holds what there is.
    Held,
    /// Nothing, for ever.
    Nothing,
}

struct Walk<'a, T> {
    config: &'a Config,
    tree: &'a T,
    ordinal: u64,
    start: Start,
    frames: Vec<Frame>,
    held: bool,
    /// Positions from which it turned back: what there is, others hold, or there is nothing.
    shut: HashSet<PositionNumber>,
    /// Edges of the position looked at last.
    known: usize,
}

impl<'a, T: Tree> Walk<'a, T> {
    fn new(config: &'a Config, tree: &'a T, ordinal: u64, start: Start) -> Self {
        Self { config, tree, ordinal, start, frames: Vec::new(), held: false, shut: HashSet::new(), known: 0 }
    }

    fn run(mut self) -> Result<Descent, T::Error> {
        let mut arriving = Some(self.start.at);
        // Each position is shut once, so that these are the dead ends.
        while self.shut.len() < DEAD_ENDS {
            if let Some(at) = arriving.take().filter(|at| !self.shut.contains(at)) {
                match self.arrive(at)? {
                    Arrival::Leaf(stage, want) => return Ok(self.found(at, stage, want)),
                    Arrival::Inner(frame) => self.frames.push(frame),
                    Arrival::Nothing => drop(self.shut.insert(at)),
                    Arrival::Held => {
                        self.held = true;
                        self.shut.insert(at);
                    }
                }
            }
            let Some(frame) = self.frames.last_mut() else { break };
            match frame.choose(self.config) {
                Some(Some(child)) => arriving = Some(child),
                Some(None) => {
                    let leaf = frame.position.number;
                    self.known = frame.edges.len();
                    return Ok(self.found(leaf, Stage::Visit, None));
                }
                None => {
                    self.shut.insert(frame.position.number);
                    self.frames.pop();
                }
            }
        }
        Ok(if self.held { Descent::Saturated } else { Descent::Exhausted })
    }

    fn found(self, leaf: PositionNumber, stage: Stage, want: Option<u32>) -> Descent {
        let mut path = self.start.path;
        path.extend(self.frames.iter().map(Frame::step));
        let known = u32::try_from(self.known).unwrap_or(u32::MAX);
        Descent::Found(Found { path, leaf, stage, want, known })
    }

    /// Looks at a position: is there something to do, or something to choose from?
    fn arrive(&mut self, at: PositionNumber) -> Result<Arrival, T::Error> {
        let config = self.config;
        let starts = self.frames.is_empty();
        let root = starts && self.start.path.is_empty();
        let forced = if starts { self.start.edge } else { None };
        let position = self.tree.position(at)?;
        self.known = 0;
        if let Some(edge) = forced {
            let edges = self.tree.edges(at)?;
            return Ok(self.forced(position, edges, edge));
        }
        if root && position.values == 0 && config.evaluate_root {
            return Ok(if position.asking > 0 { Arrival::Held } else { Arrival::Leaf(Stage::Revisit, None) });
        }
        if is_final(config, &position) || config.max_depth.is_some_and(|depth| position.depth >= depth) {
            return Ok(self.revisit(root, &position));
        }
        if position.expansion == Expansion::Unasked {
            let want = widening(config, position.visits);
            return Ok(if position.asking > 0 { Arrival::Held } else { Arrival::Leaf(Stage::Expand, want) });
        }
        let edges = self.tree.edges(at)?;
        self.known = edges.len();
        let choices = edges.iter().filter(|edge| may_choose(config, edge)).count();
        let open = edges.iter().filter(|edge| edge.status == EdgeStatus::Open).count();
        let held: u64 = edges.iter().map(|edge| u64::from(edge.in_flight)).sum();
        let allowed = widening(config, position.visits + held).map(|allowed| allowed as usize);
        let mut asked = false;
        if position.expansion == Expansion::Open && !(starts && self.start.asked) {
            let most = config.widening.map_or(usize::MAX, |widening| widening.max_children as usize);
            if edges.len() < most && (choices == 0 || allowed.is_some_and(|allowed| open < allowed)) {
                if position.asking == 0 {
                    let want = allowed
                        .map(|allowed| allowed.saturating_sub(open).clamp(1, most - edges.len()) as u32);
                    return Ok(Arrival::Leaf(Stage::Expand, want));
                }
                asked = true;
            }
        }
        match choices {
            0 if asked => Ok(Arrival::Held),
            0 => Ok(self.revisit(root, &position)),
            _ => Ok(Arrival::Inner(self.frame(position, edges, allowed))),
        }
    }

    /// A position below which there is nothing to choose: visited again, but for the root.
    fn revisit(&self, root: bool, position: &PositionStats) -> Arrival {
        match position.values {
            1.. if root => Arrival::Nothing,
            0 if root && position.asking > 0 => Arrival::Held,
            _ => Arrival::Leaf(Stage::Revisit, None),
        }
    }

    fn forced(&mut self, position: PositionStats, edges: Vec<EdgeStats>, number: EdgeNumber) -> Arrival {
        let open: Vec<bool> = edges
            .iter()
            .map(|edge| edge.number == number && edge.status == EdgeStatus::Open && !self.is_held(edge))
            .collect();
        let scores = vec![Score { first: false, value: 0.0 }; edges.len()];
        self.held |= edges.iter().any(|edge| edge.number == number && self.is_held(edge));
        Arrival::Inner(Frame { position, edges, scores, open, taken: 0, draw: 0 })
    }

    fn is_held(&self, edge: &EdgeStats) -> bool {
        edge.child.is_none() && edge.in_flight > 0
    }

    /// The choice at a position: of its open edges, less those that others are trying and those that it may
    /// not have yet.
    fn frame(&mut self, position: PositionStats, edges: Vec<EdgeStats>, allowed: Option<usize>) -> Frame {
        // By the step and not by the position: its number is the store's, and the same search draws the same in any.
        let step = (self.start.path.len() + self.frames.len()) as u64;
        let draw = mix(self.config.seed ^ mix(self.ordinal ^ mix(step)));
        let scores = scores(self.config, &position, &edges, draw);
        let mut open: Vec<bool> = edges.iter().map(|edge| may_choose(self.config, edge)).collect();
        for (edge, open) in edges.iter().zip(&mut open) {
            if *open && self.is_held(edge) {
                self.held = true;
                *open = false;
            }
        }
        if let Some(allowed) = allowed {
            hide(self.config, &edges, &mut open, allowed);
        }
        Frame { position, edges, scores, open, taken: 0, draw }
    }
}

/// Whether the policy may choose an edge. Where everything is solved that can be, what is proven is not
/// visited again: it could only cost.
fn may_choose(config: &Config, edge: &EdgeStats) -> bool {
    edge.status == EdgeStatus::Open && (config.solve != Solve::Full || edge.child_proven.is_none())
}

/// Shuts the untried edges beyond what a position may have: those of the least priors, of equals the last. What
/// is solved takes no place: else a position could have nothing left but what it may not have yet.
fn hide(config: &Config, edges: &[EdgeStats], open: &mut [bool], allowed: usize) {
    let begun = |edge: &&EdgeStats| may_choose(config, edge) && (edge.child.is_some() || edge.in_flight > 0);
    let room = allowed.saturating_sub(edges.iter().filter(begun).count());
    let mut untried: Vec<usize> =
        (0..edges.len()).filter(|index| open[*index] && edges[*index].child.is_none()).collect();
    if untried.len() > room {
        untried.sort_by(|a, b| edges[*b].prior.total_cmp(&edges[*a].prior));
        untried[room..].iter().for_each(|index| open[*index] = false);
    }
}

impl Frame {
    /// Takes the best edge that is open still, and answers where it leads: `Some(None)` if nobody knows yet.
    fn choose(&mut self, config: &Config) -> Option<Option<PositionNumber>> {
        let mut best: Option<usize> = None;
        for index in (0..self.edges.len()).filter(|index| self.open[*index]) {
            let better = best.is_none_or(|known| {
                let (found, known) = (self.rank(config, index), self.rank(config, known));
                found > known
            });
            if better {
                best = Some(index);
            }
        }
        let taken = best?;
        self.open[taken] = false;
        self.taken = taken;
        Some(self.edges[taken].child)
    }

    /// The score, and what decides where it is equal.
    fn rank(&self, config: &Config, index: usize) -> (Score, u64) {
        let tie = match config.ties {
            Ties::First => 0,
            Ties::Seeded => mix(self.draw ^ mix(!(index as u64))),
        };
        (self.scores[index], tie)
    }

    fn step(&self) -> Step {
        Step { position: self.position.number, edge: self.edges[self.taken].number }
    }
}
