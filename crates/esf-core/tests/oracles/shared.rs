//! What is particular where equal states are one position: a descent reads each once, and a shorter way opens
//! again what was proven only because it was too deep. And what is lost proves nothing.

use std::cell::Cell;
use std::convert::Infallible;

use esf_core::FailureClass;
use esf_core::search::config::{FirstPlay, LeafValue, Policy, Solve, Transpositions};
use esf_core::search::memory::{MemoryTree, Offer, Outcome, Selection};
use esf_core::search::visit::recompute;
use esf_core::search::{
    Config, Descent, EdgeNumber, EdgeStats, EdgeStatus, Expansion, PositionNumber, PositionStats, Start,
    Step, Tree, descend,
};

use crate::fan::{edge, position};

/// Actions that commute, each of which can be taken once, all tried in every order; then one more, which is held.
struct Lattice {
    actions: u32,
    reads: Cell<usize>,
}

impl Tree for Lattice {
    type Error = Infallible;

    fn position(&self, number: PositionNumber) -> Result<PositionStats, Infallible> {
        self.reads.set(self.reads.get() + 1);
        Ok(PositionStats { number, depth: number.0.count_ones(), ..position(0.0, 2) })
    }

    fn edges(&self, number: PositionNumber) -> Result<Vec<EdgeStats>, Infallible> {
        let of = |(ordinal, action): (u32, u32)| EdgeStats {
            number: EdgeNumber(number.0 * 64 + u64::from(action)),
            child: Some(PositionNumber(number.0 | 1 << action)),
            ..edge(ordinal, 1.0, 1, 0.0)
        };
        let left = (0..self.actions).filter(|action| number.0 >> action & 1 == 0);
        let edges: Vec<EdgeStats> = (0..).zip(left).map(of).collect();
        Ok(match edges.is_empty() {
            true => vec![EdgeStats { in_flight: 1, ..edge(0, 1.0, 0, 0.0) }],
            false => edges,
        })
    }

    fn inner(&self, _: u64) -> Result<Option<PositionNumber>, Infallible> {
        Ok(Some(PositionNumber(0)))
    }

    fn line(&self, _: PositionNumber) -> Result<Vec<Step>, Infallible> {
        Ok(Vec::new())
    }
}

#[test]
fn a_descent_turns_back_from_a_position_once() {
    for (actions, most) in [(1, 2), (6, 64), (7, 128), (12, 300), (40, 300)] {
        let lattice = Lattice { actions, reads: Cell::new(0) };
        let config = Config { transpositions: Transpositions::State, ..Config::default() };
        let Ok(found) = descend(&config, &lattice, Start::root(PositionNumber(0)), 0);
        assert_eq!(found, Descent::Saturated, "{actions} actions");
        assert!(
            lattice.reads.get() <= most,
            "{actions} actions: {} positions were read",
            lattice.reads.get()
        );
    }
}

/// root -a-> 1 -b-> 2 -c-> 3 -w-> 4, a win; and root -d-> 2. The long way is searched to its end before the short
/// one is tried: 3 is settled by its own value there, and so are 2 and 1 by that.
#[test]
fn a_shorter_way_opens_again_what_was_too_deep() {
    let config = Config {
        policy: Policy::Puct { c: 0.01, own_visit: true },
        first_play: FirstPlay::Value { value: -1.0 },
        transpositions: Transpositions::State,
        leaf_value: LeafValue::First,
        solve: Solve::Full,
        max_depth: Some(3),
        best_value: Some(1.0),
        ..Config::default()
    };
    let after = |state: u64, action: u64| match (state, action as u8) {
        (0, b'a') => 1,
        (0, b'd') => 2,
        _ => state + 1,
    };
    let actions = |state: u64| -> Vec<(u64, f64)> {
        let names: &[u8] = [b"ad".as_slice(), b"b", b"c", b"w", b""][state as usize];
        names.iter().map(|name| (u64::from(*name), 1.0)).collect()
    };
    let mut tree = MemoryTree::new(config, 0);
    let mut order = Vec::new();
    for _ in 0..30 {
        let Selection::Work(work) = tree.select() else { break };
        let at = work.actions.iter().chain(&work.action).fold(0, |state, action| after(state, *action));
        let offer = Offer { actions: actions(at), exhausted: true, to_move: None };
        order.push(at);
        let outcome = Outcome {
            value: Some(vec![if at == 4 { 1.0 } else { 0.0 }]),
            terminal: at == 4,
            key: Some(at),
            offer: (at != 4).then_some(offer),
            ..Outcome::default()
        };
        tree.complete(work.rollout, &outcome).expect("it is held");
    }
    assert_eq!(order, [0, 1, 2, 3, 2, 4], "the win is 3 steps away");
    assert_eq!(tree.stats(MemoryTree::ROOT).proven, Some(vec![1.0]));
}

#[test]
fn what_is_lost_proves_nothing() {
    let config = Config { solve: Solve::Full, leaf_value: LeafValue::First, ..Config::default() };
    let proven = |statuses: [EdgeStatus; 2]| {
        let mut edges = [edge(0, 1.0, 1, 0.5), edge(1, 1.0, 0, 0.0)];
        edges[0].child_proven = Some(vec![0.5]);
        edges.iter_mut().zip(statuses).for_each(|(edge, status)| edge.status = status);
        let mut position = PositionStats { expansion: Expansion::Exhausted, ..position(0.0, 2) };
        recompute(&config, &mut position, &edges);
        position.proven
    };
    assert_eq!(proven([EdgeStatus::Open, EdgeStatus::Closed]), Some(vec![0.5]));
    assert_eq!(proven([EdgeStatus::Open, EdgeStatus::Lost]), None);

    // A search whose only action was lost ends, and has proven nothing.
    for (class, expected) in [(FailureClass::UserExit, Some(vec![0.0])), (FailureClass::InfraLost, None)] {
        let mut tree = MemoryTree::new(Config { edge_retries: 1, ..config.clone() }, 0);
        let offer = Offer { actions: vec![(1, 1.0)], exhausted: true, to_move: None };
        let root = Outcome { value: Some(vec![0.0]), offer: Some(offer), ..Outcome::default() };
        let Selection::Work(work) = tree.select() else { panic!("the root has no value") };
        tree.complete(work.rollout, &root).expect("it is held");
        while let Selection::Work(work) = tree.select() {
            assert_eq!(work.action, Some(1));
            tree.void(work.rollout, Some(class)).expect("it is held");
        }
        assert_eq!(tree.stats(MemoryTree::ROOT).proven, expected, "{class:?}");
    }
}
