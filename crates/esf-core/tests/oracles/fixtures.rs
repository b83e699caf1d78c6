//! The visits of mctx (`muzero_policy`) and of OpenSpiel (`MCTSBot`) on trees that are written down in
//! `mctx.json` and `openspiel.json` by `scripts/search-oracles`: the same visits of each move, and values to 1e-5.

use std::collections::BTreeMap;

use esf_core::search::Config;
use esf_core::search::config::{FirstPlay, Normalize, Policy, Solve};
use esf_core::search::memory::{MemoryTree, Offer, Outcome, Selection};
use serde::Deserialize;

/// What an oracle saw of one state.
#[derive(Deserialize)]
struct Node {
    path: Vec<u64>,
    #[serde(default)]
    to_move: u8,
    #[serde(default)]
    terminal: bool,
    #[serde(default)]
    reward: Option<f64>,
    value: Numbers,
    priors: Vec<f64>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Numbers {
    One(f64),
    Each(Vec<f64>),
}

impl Node {
    fn outcome(&self) -> Outcome {
        let value = match &self.value {
            Numbers::One(value) => vec![*value],
            Numbers::Each(values) => values.clone(),
        };
        let actions = (0..).zip(self.priors.iter().copied()).collect();
        Outcome {
            value: Some(value),
            reward: self.reward.into_iter().collect(),
            terminal: self.terminal,
            to_move: self.to_move,
            offer: (!self.terminal).then_some(Offer { actions, exhausted: true, to_move: None }),
            ..Outcome::default()
        }
    }
}

/// Runs so many rollouts, one at a time, over a tree that is written down.
fn replay(config: Config, nodes: &[Node], rollouts: u64) -> MemoryTree {
    let nodes: BTreeMap<&[u64], &Node> = nodes.iter().map(|node| (node.path.as_slice(), node)).collect();
    let mut tree = MemoryTree::new(config, nodes[[].as_slice()].to_move);
    for ordinal in 0..rollouts {
        let Selection::Work(work) = tree.select() else { panic!("rollout {ordinal} finds nothing to do") };
        let path: Vec<u64> = work.actions.iter().copied().chain(work.action).collect();
        let node = nodes.get(path.as_slice());
        let mut outcome =
            node.unwrap_or_else(|| panic!("rollout {ordinal}: the oracle was never at {path:?}")).outcome();
        if work.action.is_none() && !path.is_empty() {
            outcome = Outcome::default();
        }
        tree.complete(work.rollout, &outcome).expect("held");
    }
    tree
}

fn close(found: f64, expected: f64, of: &str) {
    assert!((found - expected).abs() < 1e-5, "{of}: found {found}, expected {expected}");
}

#[derive(Deserialize)]
struct MctxCase {
    simulations: u64,
    discount: f64,
    c1: f64,
    c2: f64,
    nodes: Vec<Node>,
    root_visits: Vec<u64>,
    root_q: Vec<f64>,
    root_value: f64,
}

#[test]
fn visits_and_values_are_those_of_mctx() {
    let cases: Vec<MctxCase> = serde_json::from_str(include_str!("mctx.json")).unwrap();
    assert_eq!(cases.len(), 12);
    for (number, case) in cases.iter().enumerate() {
        let config = Config {
            policy: Policy::Muzero { c1: case.c1, c2: case.c2 },
            discount: case.discount,
            first_play: FirstPlay::Least,
            normalize: Normalize::Siblings,
            solve: Solve::Off,
            ..Config::default()
        };
        let tree = replay(config, &case.nodes, case.simulations + 1);
        let edges = tree.edges_of(MemoryTree::ROOT);
        let visits: Vec<u64> = edges.iter().map(|edge| edge.visits).collect();
        assert_eq!(visits, case.root_visits, "case {number}");
        close(tree.stats(MemoryTree::ROOT).mean[0], case.root_value, "value of the root");
        for (edge, expected) in edges.iter().zip(&case.root_q).filter(|(edge, _)| edge.visits > 0) {
            close(edge.reward[0] + edge.discount * edge.child_mean[0], *expected, "Q of an action");
        }
    }
}

#[derive(Deserialize)]
struct OpenSpielCase {
    game: String,
    policy: String,
    c: f64,
    simulations: u64,
    nodes: Vec<Node>,
    root_visits: Vec<u64>,
    root_totals: Vec<f64>,
}

#[test]
fn visits_and_totals_are_those_of_openspiel() {
    let cases: Vec<OpenSpielCase> = serde_json::from_str(include_str!("openspiel.json")).unwrap();
    assert_eq!(cases.len(), 10);
    for (number, case) in cases.iter().enumerate() {
        let of = format!("case {number}, {} {}", case.game, case.policy);
        let config = Config {
            policy: match case.policy.as_str() {
                "ucb1" => Policy::Ucb1 { c: case.c },
                _ => Policy::Puct { c: case.c, own_visit: true },
            },
            values: 2,
            first_play: FirstPlay::Value { value: 0.0 },
            normalize: Normalize::None,
            solve: Solve::Terminal,
            ..Config::default()
        };
        let tree = replay(config, &case.nodes, case.simulations);
        let root = tree.stats(MemoryTree::ROOT).clone();
        assert_eq!(root.visits, case.simulations, "{of}");
        let edges = tree.edges_of(MemoryTree::ROOT);
        let visits: Vec<u64> = edges.iter().map(|edge| edge.visits).collect();
        assert_eq!(visits, case.root_visits, "{of}");
        for (edge, expected) in edges.iter().zip(&case.root_totals).filter(|(edge, _)| edge.visits > 0) {
            close(edge.visits as f64 * edge.child_mean[usize::from(root.to_move)], *expected, &of);
        }
    }
}
