//! Plays a search to its end as workers would: several rollouts in flight, completed in random order, some
//! outcomes delivered again later, actions told with a completion or when they are asked for.

use std::collections::BTreeSet;

use esf_core::search::memory::{MemoryTree, Offer, Outcome, Refused, Selection, Work};
use esf_core::search::{EdgeNumber, Stage};

/// Numbers that look like chance, the same for a seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let drawn = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        drawn ^ (drawn >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn in_hundred(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A state with actions: what a search searches.
pub(crate) trait World: Clone {
    fn to_move(&self) -> u8;
    /// The actions with their priors; none where it ends.
    fn actions(&self) -> Vec<(u64, f64)>;
    fn act(&mut self, action: u64);
    /// What it is worth if it ends here.
    fn outcome(&self) -> Option<Vec<f64>>;
    /// A guess of what it is worth; the same whenever it is asked.
    fn guess(&self) -> Vec<f64>;
    /// The reward of having taken the last action; empty for none.
    fn reward(&self) -> Vec<f64> {
        Vec::new()
    }
    /// The same for equal states, and different for others.
    fn key(&self) -> u64;
}

/// How the work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// Rollouts to be accepted.
    pub(crate) rollouts: u64,
    /// Rollouts in flight at one time.
    pub(crate) in_flight: usize,
    /// In how many of a hundred cases an old outcome is delivered again.
    pub(crate) again: usize,
}

/// What a rollout brings in this world.
pub(crate) fn outcome<W: World>(root: &W, work: &Work, told: bool) -> Outcome {
    let mut state = root.clone();
    work.actions.iter().chain(&work.action).for_each(|action| state.act(*action));
    let exact = state.outcome();
    let offer = (told && exact.is_none() && work.action.is_some()).then(|| Offer {
        actions: state.actions(),
        exhausted: true,
        to_move: None,
    });
    Outcome {
        terminal: exact.is_some(),
        value: Some(exact.unwrap_or_else(|| state.guess())),
        reward: if work.action.is_some() { state.reward() } else { Vec::new() },
        to_move: state.to_move(),
        key: Some(state.key()),
        offer,
        ..Outcome::default()
    }
}

/// The actions of a rollout's leaf.
pub(crate) fn offer<W: World>(root: &W, work: &Work) -> Offer {
    let mut state = root.clone();
    work.actions.iter().for_each(|action| state.act(*action));
    Offer { actions: state.actions(), exhausted: true, to_move: None }
}

/// Searches until so many rollouts are accepted, or nothing is left to do.
pub(crate) fn search<W: World>(tree: &mut MemoryTree, root: &W, flow: Flow, chance: &mut Chance) {
    let mut held: Vec<Work> = Vec::new();
    let mut sent: Vec<(u64, Outcome)> = Vec::new();
    let mut ended = false;
    while !(ended && held.is_empty()) {
        while !ended && held.len() < flow.in_flight && tree.rollouts().1 + (held.len() as u64) < flow.rollouts
        {
            match tree.select() {
                Selection::Work(work) => held.push(work),
                Selection::Saturated => {
                    assert!(!held.is_empty(), "saturated while nothing is in flight");
                    break;
                }
                Selection::Exhausted => ended = true,
            }
            distinct(&held);
        }
        if held.is_empty() {
            break;
        }
        let work = held.swap_remove(chance.below(held.len()));
        if work.found.stage == Stage::Expand {
            let next = tree.expand(work.rollout, &offer(root, &work)).expect("it waits for them");
            held.extend(next);
            distinct(&held);
            continue;
        }
        let outcome = outcome(root, &work, chance.in_hundred(50));
        let reached = tree.complete(work.rollout, &outcome).expect("it is held");
        sent.push((work.rollout, outcome));
        if chance.in_hundred(flow.again) {
            again(tree, &sent[chance.below(sent.len())], chance);
            assert_eq!(tree.complete(work.rollout, &sent[sent.len() - 1].1), Ok(reached), "and it stays so");
        }
    }
}

/// Delivers an outcome again, and a forged one for the same rollout: neither changes anything.
fn again(tree: &mut MemoryTree, sent: &(u64, Outcome), chance: &mut Chance) {
    let (rollout, outcome) = sent;
    let facts = tree.facts().len();
    tree.complete(*rollout, outcome).expect("the same again");
    let forged = Outcome { value: Some(vec![chance.unit(); tree.config().values.into()]), ..outcome.clone() };
    assert_eq!(tree.complete(*rollout, &forged), Err(Refused::Ended(*rollout)));
    assert_eq!(tree.void(*rollout, None), Err(Refused::Ended(*rollout)));
    assert_eq!(tree.facts().len(), facts);
}

/// No two rollouts try one edge.
pub(crate) fn distinct(held: &[Work]) {
    let mut tried: BTreeSet<EdgeNumber> = BTreeSet::new();
    for work in held.iter().filter(|work| work.found.stage == Stage::Visit) {
        let edge = work.found.path.last().expect("a visit takes an edge").edge;
        assert!(tried.insert(edge), "two rollouts try {edge:?}");
    }
}
