//! The laws that hold for every search: random worlds, random settings, and workers that do everything they may
//! and some things they may not. After every step: counters are what the facts and the held rollouts say.

use std::collections::{BTreeMap, HashMap};

use esf_core::FailureClass;
use esf_core::search::config::{
    FirstPlay, LeafValue, Normalize, Objective, Policy, Solve, Ties, Transpositions, Widening,
};
use esf_core::search::memory::{Fact, MemoryTree, Offer, Outcome, Refused, Selection, Work};
use esf_core::search::rules::best;
use esf_core::search::{BestKind, Config, EdgeNumber, EdgeStatus, PositionNumber, Stage, Start, Tree};

use crate::play::{Chance, Flow, World, distinct, offer, outcome, search};
use crate::world::{Random, Shape, exact};

fn one_of<T: Clone>(chance: &mut Chance, choices: &[T]) -> T {
    choices[chance.below(choices.len())].clone()
}

fn any_shape(chance: &mut Chance) -> Shape {
    let values = 1 + chance.below(3) as u8;
    let cycles = chance.in_hundred(30);
    let many = chance.in_hundred(40);
    Shape {
        seed: chance.next(),
        actions: 1 + chance.below(6),
        depth: 2 + chance.below(5) as u32,
        states: if many && !cycles { None } else { Some(3 + chance.below(20) as u64) },
        cycles,
        values,
        rewards: chance.in_hundred(50),
        zero_sum: values == 2 && chance.in_hundred(50),
    }
}

fn any_config(chance: &mut Chance, values: u8) -> Config {
    let c = chance.unit() * 3.0;
    let policies = [
        Policy::Ucb1 { c },
        Policy::Puct { c, own_visit: true },
        Policy::Puct { c, own_visit: false },
        Policy::Muzero { c1: c, c2: 19_652.0 },
        Policy::Uniform,
        Policy::UniformNonleaf,
        Policy::Caller,
    ];
    let firsts = [
        FirstPlay::Parent { reduction: 0.0 },
        FirstPlay::Parent { reduction: 0.3 },
        FirstPlay::Value { value: 0.0 },
        FirstPlay::Least,
        FirstPlay::First,
    ];
    let weights = Objective::Weights { weights: (0..values).map(|_| chance.unit() * 2.0 - 0.5).collect() };
    let scales = [Normalize::None, Normalize::Fixed { min: -1.0, max: 1.0 }, Normalize::Siblings];
    let widening = Widening { k: 1.0 + chance.unit(), alpha: chance.unit(), max_children: 4 };
    let config = Config {
        policy: one_of(chance, &policies),
        values,
        objective: one_of(chance, &[Objective::Mover, weights]),
        discount: one_of(chance, &[1.0, 0.9, 0.0]),
        first_play: one_of(chance, &firsts),
        normalize: one_of(chance, &scales),
        virtual_loss: one_of(chance, &[0.0, 1.0, 3.0]),
        widening: one_of(chance, &[None, Some(widening)]),
        transpositions: one_of(chance, &[Transpositions::Off, Transpositions::Root, Transpositions::State]),
        leaf_value: one_of(chance, &[LeafValue::Mean, LeafValue::First]),
        solve: one_of(chance, &[Solve::Off, Solve::Terminal, Solve::Full]),
        best_value: one_of(chance, &[None, Some(1.0)]),
        max_depth: one_of(chance, &[None, Some(1), Some(3)]),
        evaluate_root: chance.in_hundred(80),
        edge_retries: chance.below(3) as u32,
        seed: chance.next(),
        ties: one_of(chance, &[Ties::First, Ties::Seeded]),
        ..Config::default()
    };
    config.check().expect("these are within bounds");
    config
}

/// Workers of a search who do things at random.
struct Unruly {
    tree: MemoryTree,
    root: Random,
    held: Vec<Work>,
    sent: Vec<(u64, Outcome)>,
    chance: Chance,
    exhausted: bool,
}

impl Unruly {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let root = any_shape(&mut chance).start();
        let config = any_config(&mut chance, root.guess().len() as u8);
        let tree = MemoryTree::new(config, root.to_move());
        Self { tree, root, held: Vec::new(), sent: Vec::new(), chance, exhausted: false }
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            _ if self.held.is_empty() => self.select(),
            0..40 => self.select(),
            40..85 => self.work(),
            85..93 => self.give_up(),
            93..97 => self.forge(),
            97..99 => self.select_by_name(),
            _ => self.prune(),
        }
    }

    fn select(&mut self) {
        match self.tree.select() {
            Selection::Work(work) => self.held.push(work),
            Selection::Saturated => assert!(!self.held.is_empty(), "saturated while nothing is in flight"),
            Selection::Exhausted => self.exhausted = true,
        }
    }

    /// Begins at some position, perhaps by one of its edges.
    fn select_by_name(&mut self) {
        let Ok(Some(at)) = self.tree.inner(self.chance.next()) else { return };
        let Ok(path) = self.tree.line(at);
        let edges = self.tree.edges_of(at);
        let edge = self.chance.in_hundred(70).then(|| edges[self.chance.below(edges.len())].number);
        if let Selection::Work(work) = self.tree.select_from(Start { path, at, edge, asked: false }) {
            if let Some(edge) = edge {
                assert!(
                    work.found.path.iter().any(|step| step.edge == edge),
                    "it goes by the edge that was named"
                );
            }
            self.held.push(work);
        }
    }

    /// Does the work of some rollout.
    fn work(&mut self) {
        let work = self.held.swap_remove(self.chance.below(self.held.len()));
        if work.found.stage == Stage::Expand {
            let offer = self.offer(&work);
            self.held.extend(self.tree.expand(work.rollout, &offer).expect("it waits for them"));
            return;
        }
        let mut outcome = outcome(&self.root, &work, self.chance.in_hundred(50));
        if work.action.is_none() && self.tree.stats(work.found.leaf).values > 0 && self.chance.in_hundred(50)
        {
            outcome.value = None;
        }
        self.tree.complete(work.rollout, &outcome).expect("it is held");
        self.sent.push((work.rollout, outcome));
    }

    /// What a proposer says that is not always complete, repeats itself, and sometimes has nothing.
    fn offer(&mut self, work: &Work) -> Offer {
        let mut offer = offer(&self.root, work);
        if self.chance.in_hundred(60) {
            let some = self.chance.below(offer.actions.len() + 1);
            let first = offer.actions.first().copied();
            offer.actions.rotate_left(some);
            offer.actions.truncate(some);
            offer.actions.extend(first);
            offer.exhausted = self.chance.in_hundred(20);
        }
        offer
    }

    fn give_up(&mut self) {
        let work = self.held.swap_remove(self.chance.below(self.held.len()));
        let class = match self.chance.in_hundred(40) {
            true => None,
            false => Some(one_of(&mut self.chance, &FailureClass::ALL)),
        };
        self.tree.void(work.rollout, class).expect("it is held");
        self.tree.void(work.rollout, None).expect("the same again");
        let late = outcome(&self.root, &work, false);
        assert_eq!(self.tree.complete(work.rollout, &late), Err(Refused::Void(work.rollout)));
    }

    /// Outcomes that are refused, or were accepted before, change nothing.
    fn forge(&mut self) {
        let facts = self.tree.facts().len();
        let counters = self.tree.counters();
        let work = &self.held[self.chance.below(self.held.len())];
        let values = usize::from(self.tree.config().values);
        for value in
            [vec![f64::NAN; values], vec![f64::INFINITY; values], vec![0.0; values + 1], vec![1e300; values]]
        {
            let outcome = Outcome { value: Some(value.clone()), ..Outcome::default() };
            assert!(self.tree.complete(work.rollout, &outcome).is_err());
            let outcome = Outcome { value: Some(vec![0.0; values]), reward: value, ..Outcome::default() };
            assert!(self.tree.complete(work.rollout, &outcome).is_err());
        }
        assert_eq!(self.tree.complete(u64::MAX, &Outcome::default()), Err(Refused::Unknown(u64::MAX)));
        if let Some((rollout, outcome)) = self.sent.last() {
            self.tree.complete(*rollout, outcome).expect("the same again");
        }
        assert_eq!(self.tree.facts().len(), facts);
        assert_eq!(self.tree.counters(), counters);
    }

    /// Prunes an edge that nobody is below.
    fn prune(&mut self) {
        let Ok(Some(at)) = self.tree.inner(self.chance.next()) else { return };
        let edges = self.tree.edges_of(at);
        let edge = &edges[self.chance.below(edges.len())];
        if edge.in_flight == 0 {
            self.tree.prune(edge.number);
        }
    }

    fn give_all_back(&mut self) {
        for work in std::mem::take(&mut self.held) {
            self.tree.void(work.rollout, None).expect("it is held");
        }
    }
}

/// What must hold of a tree, whatever happened.
fn lawful(tree: &MemoryTree) {
    let mut through: BTreeMap<EdgeNumber, u32> = BTreeMap::new();
    let mut waiting: BTreeMap<PositionNumber, u32> = BTreeMap::new();
    for found in tree.held().values() {
        found.path.iter().for_each(|step| *through.entry(step.edge).or_default() += 1);
        if found.stage == Stage::Expand || found.path.is_empty() {
            *waiting.entry(found.leaf).or_default() += 1;
        }
    }
    let accepted = |fact: &&Fact| matches!(fact, Fact::Accepted { path, .. } if !path.is_empty());
    let taken = tree.facts().iter().filter(accepted).count() as u64;
    let root = tree.stats(MemoryTree::ROOT);
    assert_eq!(
        root.visits,
        u64::from(root.values > 0) + taken,
        "N of the root: itself, and every accepted path"
    );
    for position in tree.positions() {
        let edges = tree.edges_of(position.number);
        let visits: u64 = edges.iter().map(|edge| edge.visits).sum();
        assert_eq!(position.visits, u64::from(position.values > 0) + visits);
        assert_eq!(position.asking, waiting.get(&position.number).copied().unwrap_or(0));
        assert!(position.asking <= 1, "one rollout asks");
        assert!(position.mean.iter().chain(&position.value).all(|number| number.is_finite()));
        assert_eq!(position.mean.is_empty(), position.visits == 0);
        for edge in &edges {
            assert_eq!(edge.in_flight, through.get(&edge.number).copied().unwrap_or(0));
            assert!(edge.child.is_some() || (edge.visits == 0 && edge.in_flight <= 1));
            assert_eq!(edge.child.is_some(), edge.visits > 0);
            assert!(!matches!(edge.status, EdgeStatus::Closed | EdgeStatus::Lost) || edge.failures > 0);
            if let Some(child) = edge.child {
                assert!(tree.stats(child).depth <= position.depth + 1, "depth is the least distance");
            }
        }
    }
}

/// Facts that came twice, and in any order.
pub(crate) fn shuffled(facts: &[Fact], chance: &mut Chance) -> Vec<Fact> {
    let mut facts = facts.to_vec();
    for _ in 0..facts.len() / 3 {
        facts.push(facts[chance.below(facts.len())].clone());
    }
    for last in (1..facts.len()).rev() {
        facts.swap(last, chance.below(last + 1));
    }
    facts
}

/// Counters rebuilt of a shuffled log, in which some facts are twice, are those of the live tree.
pub(crate) fn rebuilt(tree: &MemoryTree, to_move: u8, chance: &mut Chance) {
    let facts = shuffled(tree.facts(), chance);
    let again = MemoryTree::rebuild(tree.config().clone(), to_move, &facts, tree.held());
    assert_eq!(again.counters(), tree.counters());
    assert_eq!(again.rollouts(), tree.rollouts());
    assert_eq!(again.facts(), tree.facts());
    if tree.config().transpositions == Transpositions::Off {
        assert!(again.positions().eq(tree.positions()), "in a tree the values are the same, bit for bit");
    }
}

/// Whether no path of edges comes back to where it was.
fn acyclic(tree: &MemoryTree) -> bool {
    // 1: on the way; 2: seen to its end.
    fn ends(tree: &MemoryTree, at: PositionNumber, seen: &mut BTreeMap<PositionNumber, u8>) -> bool {
        match seen.insert(at, 1) {
            Some(1) => return false,
            Some(_) => {}
            None => {
                let children = tree.edges_of(at).into_iter().filter_map(|edge| edge.child);
                if !children.into_iter().all(|child| ends(tree, child, seen)) {
                    return false;
                }
            }
        }
        seen.insert(at, 2);
        true
    }
    ends(tree, MemoryTree::ROOT, &mut BTreeMap::new())
}

#[test]
fn every_search_keeps_its_counters() {
    for seed in 0..240 {
        let mut unruly = Unruly::new(seed);
        for step in 0..150 {
            unruly.step();
            distinct(&unruly.held);
            if step % 10 == 0 {
                lawful(&unruly.tree);
            }
        }
        lawful(&unruly.tree);
        rebuilt(&unruly.tree, unruly.root.to_move(), &mut unruly.chance);
        unruly.give_all_back();
        lawful(&unruly.tree);
        assert!(unruly.tree.held().is_empty());
        let (positions, edges) = unruly.tree.counters();
        assert!(edges.iter().all(|edge| edge.in_flight == 0), "seed {seed}: a virtual loss is left");
        assert!(positions.iter().all(|position| position.asking == 0));
        assert!(acyclic(&unruly.tree), "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_search() {
    for seed in 0..40 {
        let run = |change: u64| {
            let mut unruly = Unruly::new(seed);
            if change > 0 {
                let config = Config { seed: change, ..unruly.tree.config().clone() };
                unruly.tree = MemoryTree::new(config, unruly.root.to_move());
            }
            (0..120).for_each(|_| unruly.step());
            unruly.tree.facts().to_vec()
        };
        assert_eq!(run(0), run(0), "seed {seed}");
        // What draws is not the same under another seed, at least once.
        if seed == 39 {
            let differs = (0..40).any(|seed| {
                let facts = |drawn: u64| {
                    let config = Config { policy: Policy::Uniform, seed: drawn, ..Config::default() };
                    let shape = Shape { values: 1, ..any_shape(&mut Chance(seed)) };
                    let mut tree = MemoryTree::new(config, 0);
                    let flow = Flow { rollouts: 30, in_flight: 1, again: 0 };
                    search(&mut tree, &Shape { zero_sum: false, ..shape }.start(), flow, &mut Chance(1));
                    tree.facts().to_vec()
                };
                facts(1) != facts(2)
            });
            assert!(differs);
        }
    }
}

/// In a world whose actions lead back, equal states are one position unless that would close a cycle.
#[test]
fn cycles_are_refused() {
    let mut refused = 0;
    for seed in 0..30 {
        let shape = Shape {
            seed,
            actions: 3,
            depth: 0,
            states: Some(6),
            cycles: true,
            values: 1,
            rewards: false,
            zero_sum: false,
        };
        let config = Config { transpositions: Transpositions::State, ..Config::default() };
        let mut tree = MemoryTree::new(config, 0);
        let root = shape.start();
        search(&mut tree, &root, Flow { rollouts: 80, in_flight: 8, again: 10 }, &mut Chance(seed));
        assert!(acyclic(&tree), "seed {seed}");
        lawful(&tree);
        let made = |fact: &Fact| match fact {
            Fact::Accepted { made: Some(made), .. } => Some(made.key.is_none()),
            Fact::Accepted { .. } | Fact::Expanded { .. } | Fact::Void { .. } | Fact::Pruned { .. } => None,
        };
        let made: Vec<bool> = tree.facts().iter().filter_map(made).collect();
        refused += made.iter().filter(|alone| **alone).count();
        assert!(made.iter().filter(|alone| !**alone).count() <= 6, "one position for each state");
    }
    assert!(refused > 30, "{refused} positions are apart because their edge would close a cycle");
}

/// A proven value is that of a full look-ahead, and a search that goes on until nothing is open has proven its
/// root and found the move.
#[test]
fn proven_values_are_exact() {
    let mut solved = 0;
    for seed in 0..150 {
        let mut chance = Chance(seed);
        let zero_sum = chance.in_hundred(50);
        let values = if zero_sum { 2 } else { 1 + chance.below(2) as u8 };
        let shape = Shape {
            cycles: false,
            values,
            zero_sum,
            rewards: !zero_sum && chance.in_hundred(50),
            depth: 2 + chance.below(3) as u32,
            actions: 1 + chance.below(3),
            ..any_shape(&mut chance)
        };
        let config = Config {
            solve: Solve::Full,
            max_depth: None,
            widening: None,
            objective: Objective::Mover,
            discount: if zero_sum { 1.0 } else { 0.9 },
            // The best there is only where that is so.
            best_value: zero_sum.then_some(1.0),
            ..any_config(&mut chance, values)
        };
        let root = shape.start();
        let mut tree = MemoryTree::new(config.clone(), root.to_move());
        let flow = Flow { rollouts: 400, in_flight: 1 + chance.below(12), again: 20 };
        search(&mut tree, &root, flow, &mut chance);
        lawful(&tree);
        let again =
            |fact: &&Fact| matches!(fact, Fact::Accepted { made: None, path, .. } if !path.is_empty());
        if config.transpositions == Transpositions::Off {
            assert_eq!(
                tree.facts().iter().find(again),
                None,
                "seed {seed}: what is solved was visited again"
            );
        }
        solved += u64::from(proven_are_exact(&tree, &root, seed));
    }
    assert!(solved > 100, "{solved} of 150 worlds were solved");
}

/// Compares every proven value, and the best move where the root is proven; answers whether it is.
fn proven_are_exact(tree: &MemoryTree, root: &Random, seed: u64) -> bool {
    let config = tree.config();
    let mut known = HashMap::new();
    for position in tree.positions() {
        let Some(proven) = &position.proven else { continue };
        let Ok(line) = tree.line(position.number);
        let mut state = *root;
        line.iter().for_each(|step| state.act(tree.action(step.edge)));
        let expected = exact(config, &state, &mut known);
        let near = proven.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-9);
        assert!(near, "seed {seed}: proven {proven:?}, by look-ahead {expected:?}");
    }
    let stats = tree.stats(MemoryTree::ROOT);
    if stats.proven.is_none() {
        return false;
    }
    let mover = usize::from(root.to_move());
    let edge = best(config, BestKind::Robust, stats, &tree.edges_of(MemoryTree::ROOT)).expect("it has edges");
    let mut after = *root;
    after.act(tree.action(edge));
    let reward = after.reward().get(mover).copied().unwrap_or(0.0);
    let value = reward + config.discount * exact(config, &after, &mut known)[mover];
    assert!(
        (value - exact(config, root, &mut known)[mover]).abs() < 1e-9,
        "seed {seed}: the best move is best"
    );
    true
}

/// A proposer that says there are others and never has any is asked twice, not for ever.
#[test]
fn who_repeats_himself_is_not_asked_again() {
    let widening = Some(Widening { k: 9.0, alpha: 0.5, max_children: 64 });
    let mut tree = MemoryTree::new(Config { widening, evaluate_root: false, ..Config::default() }, 0);
    let offer = Offer { actions: vec![(5, 1.0)], exhausted: false, to_move: None };
    let outcome = Outcome { value: Some(vec![0.0]), terminal: true, ..Outcome::default() };
    let mut asked = 0;
    for _ in 0..10 {
        let Selection::Work(work) = tree.select() else { panic!("there is an action") };
        let work = if work.found.stage == Stage::Expand {
            asked += 1;
            tree.expand(work.rollout, &offer).expect("it waits for them").expect("there is an action")
        } else {
            work
        };
        tree.complete(work.rollout, &outcome).expect("it is held");
    }
    assert_eq!(asked, 2);
}
