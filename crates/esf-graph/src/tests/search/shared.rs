//! Equal states as one position: nothing goes in a circle, and visits are those of edges.

use esf_core::ops::prune::Prune;
use esf_core::ops::search::Complete;
use esf_core::search::config::{LeafValue, Solve, Stop, Transpositions};
use esf_core::search::{Config, Position, RolloutStatus, StopReason, Ticket};

use super::{Searching, actions, plain, valued};
use crate::tests::{code, meta};

fn keyed(ticket: &Ticket, key: &str, value: f64) -> Complete {
    Complete { key: Some(key.to_owned()), ..valued(ticket.rollout.rollout_id, value) }
}

fn shared() -> Config {
    Config { transpositions: Transpositions::State, evaluate_root: false, ..plain() }
}

impl Searching {
    /// Takes the action `name` at `at`, to the state `key`.
    fn take(&self, at: &Position, name: &str, key: &str, value: Option<f64>) -> crate::Result<Position> {
        self.take_to(at, name, key, value, &["x", "y", "back"])
    }

    /// Takes the action `name` at `at`, to the state `key` with the actions `names`.
    fn take_to(
        &self,
        at: &Position,
        name: &str,
        key: &str,
        value: Option<f64>,
        names: &[&str],
    ) -> crate::Result<Position> {
        let edges = self.graph().edges_of(at.stats.number)?;
        let edge = edges.iter().find(|edge| edge.action == name).expect("an action").stats.number;
        let selection = self.graph().select(
            &meta(),
            esf_core::ops::search::Select { at: Some(at.stats.number), edge: Some(edge), ..self.ask(1) },
        )?;
        let id = selection.tickets[0].rollout.rollout_id;
        assert_eq!(selection.tickets[0].rollout.path.last().expect("a step").edge, edge);
        let command = Complete {
            key: Some(key.to_owned()),
            value: value.map(|value| vec![value]),
            candidates: Some(actions(names)),
            ..Complete::of(id)
        };
        Ok(self.graph().complete(&meta(), command)?.position)
    }

    fn root_with(&self, names: &[&str]) -> Position {
        let asks = self.one().rollout.rollout_id;
        let going = self.expand(asks, names).ticket;
        self.void(going.rollout.rollout_id, None);
        self.graph().position(self.search.root).expect("root")
    }
}

#[test]
fn two_ways_lead_to_one_position() {
    let searching = Searching::new(shared());
    let root = searching.root_with(&["x", "y"]);
    let x = searching.take(&root, "x", "x", Some(0.5)).expect("x");
    let y = searching.take(&root, "y", "y", Some(0.25)).expect("y");
    let xy = searching.take(&x, "y", "xy", Some(1.0)).expect("xy");
    let yx = searching.take(&y, "x", "xy", None).expect("it has a value");
    assert_eq!(xy.stats.number, yx.stats.number);
    assert_eq!((yx.stats.values, yx.stats.visits), (1, 1), "a visit without a value");
    // A visit through x changes what y's edge keeps of it.
    let deeper = searching.take(&xy, "x", "xyx", Some(-1.0)).expect("deeper");
    assert_eq!(deeper.stats.depth, 3);
    let of_y = searching.graph().edges_of(y.stats.number).expect("edges");
    assert_eq!((of_y[0].stats.child_visits, &of_y[0].stats.child_mean), (2, &vec![0.0]));
    assert_eq!(of_y[0].stats.visits, 1, "visits are of the edge, not of the child");
    searching.sound();
}

#[test]
fn a_new_state_needs_a_value() {
    let searching = Searching::new(shared());
    let root = searching.root_with(&["x", "y"]);
    assert_eq!(code(&searching.take(&root, "x", "x", None).expect_err("nobody knows")), "value_missing");
    let held = searching.graph().tickets_in_flight(searching.id()).expect("tickets");
    assert_eq!(held.len(), 1, "the rollout is still held");
    let done = searching.graph().complete(&meta(), keyed(&held[0], "x", 0.5)).expect("with a value");
    assert_eq!(done.rollout.status, RolloutStatus::Accepted);
}

#[test]
fn an_edge_that_would_close_a_cycle_leads_to_a_position_of_its_own() {
    let searching = Searching::new(shared());
    let root = searching.root_with(&["x", "y"]);
    let x = searching.take(&root, "x", "x", Some(0.5)).expect("x");
    let xx = searching.take(&x, "x", "xx", Some(0.5)).expect("xx");
    let xxx = searching.take(&xx, "x", "xxx", Some(0.5)).expect("xxx");
    let back = searching.take(&xxx, "back", "x", Some(0.5)).expect("a copy of x");
    assert_ne!(back.stats.number, x.stats.number);
    assert_eq!((back.key, back.stats.depth), (None, 4));
    let itself = searching.take(&xx, "y", "xx", Some(0.5)).expect("a copy of xx");
    assert_ne!(itself.stats.number, xx.stats.number);
    // Against the levels, but not in a circle: y came later and is nearer the root.
    let y = searching.take(&root, "y", "xxx", None).expect("xxx is known");
    assert_eq!((y.stats.number, y.stats.depth), (xxx.stats.number, 1));
    let copy = searching.graph().position(back.stats.number).expect("below it");
    assert_eq!(copy.stats.depth, 2, "what is below is nearer, too");
    searching.sound();
}

#[test]
fn edges_against_the_order_raise_levels_and_never_close_a_circle() {
    let searching = Searching::new(shared());
    let root = searching.root_with(&["a", "b", "c", "d"]);
    let make = |name: &str| searching.take(&root, name, name, Some(0.5)).expect("a state");
    let (a, b, c, d) = (make("a"), make("b"), make("c"), make("d"));
    let joined = |from: &Position, action: &str, key: &str, to: &Position| {
        let reached = searching.take(from, action, key, Some(0.5)).expect("a way");
        assert_eq!(reached.stats.number == to.stats.number, action != "back", "{action} {key}");
    };
    joined(&d, "x", "c", &c);
    joined(&c, "x", "b", &b);
    joined(&b, "x", "a", &a);
    joined(&a, "back", "d", &d);
    joined(&b, "back", "d", &d);
    joined(&d, "y", "a", &a);
    searching.sound();
}

#[test]
fn states_stay_apart_unless_asked() {
    let searching = Searching::new(Config { evaluate_root: false, ..plain() });
    let root = searching.root_with(&["x", "y"]);
    let x = searching.take(&root, "x", "same", Some(0.5)).expect("x");
    let y = searching.take(&root, "y", "same", Some(0.5)).expect("y");
    assert_ne!(x.stats.number, y.stats.number);
    searching.sound();
}

#[test]
fn nodes_of_one_root_are_one_position() {
    let config = Config { transpositions: Transpositions::Root, evaluate_root: false, ..plain() };
    let searching = Searching::new(config);
    searching.root_with(&["x", "y"]);
    let nodes = ["one", "two"].map(|_| searching.fixture.sealed(searching.root, "same tree").node.node_id);
    let tickets = searching.select(2).tickets;
    let done: Vec<Position> = tickets
        .iter()
        .zip(nodes)
        .map(|(ticket, node)| {
            let command = Complete { node: Some(node), ..valued(ticket.rollout.rollout_id, 0.5) };
            searching.graph().complete(&meta(), command).expect("a child").position
        })
        .collect();
    assert_eq!(done[0].stats.number, done[1].stats.number);
    assert_eq!(done[1].node_id, Some(nodes[0]), "the first one's node stands for both");
    let rollouts = searching.graph().rollouts(searching.id(), 0, 10).expect("rollouts");
    let made: Vec<_> = rollouts.iter().filter_map(|rollout| rollout.node_id).collect();
    assert_eq!(made, nodes, "each rollout keeps the node it made");
    searching.sound();
}

/// The root leads over a and b to X, whose action c leads to Y, where nothing may be tried any more.
fn deep() -> (Searching, [Position; 4]) {
    let searching = Searching::new(Config {
        leaf_value: LeafValue::First,
        solve: Solve::Full,
        best_value: Some(1.0),
        max_depth: Some(3),
        stop: Stop { reward: Some(1.0), ..Stop::default() },
        ..shared()
    });
    let root = searching.root_with(&["a", "d"]);
    let a = searching.take_to(&root, "a", "A", Some(0.1), &["b"]).expect("A");
    let x = searching.take_to(&a, "b", "X", Some(0.1), &["c"]).expect("X");
    let y = searching.take_to(&x, "c", "Y", Some(0.2), &["w"]).expect("Y");
    (searching, [root, a, x, y])
}

#[test]
fn a_proof_by_depth_ends_when_a_shorter_way_is_found() {
    let (searching, line) = deep();
    let proven = || {
        let read =
            |at: &Position| searching.graph().position(at.stats.number).expect("position").stats.proven;
        line.each_ref().map(|at| read(at).is_some())
    };
    assert_eq!(proven(), [false, true, true, true]);
    searching.take_to(&line[0], "d", "X", None, &[]).expect("the shorter way");
    assert_eq!(proven(), [false; 4], "A, too, to which no rollout came");
    searching.sound();
    let ticket = searching.one();
    let visit = match ticket.rollout.stage {
        esf_core::search::Stage::Expand => searching.expand(ticket.rollout.rollout_id, &["w"]).ticket,
        _ => ticket,
    };
    assert_eq!(visit.action, Some(serde_json::json!("w")));
    let win = Complete { terminal: true, ..keyed(&visit, "WIN", 1.0) };
    searching.graph().complete(&meta(), win).expect("the win");
    assert_eq!(searching.now().stopped, Some(StopReason::Reward));
    assert_eq!(searching.graph().position(line[2].stats.number).expect("X").stats.proven, Some(vec![1.0]));
    searching.sound();
}

#[test]
fn a_proof_that_is_none_is_found() {
    let (searching, line) = deep();
    let db = rusqlite::Connection::open(&searching.fixture.path).expect("open");
    let change = "UPDATE positions SET proven = 0.5 WHERE number = $1";
    db.execute(change, [line[0].stats.number.0 as i64]).expect("damage");
    let findings = searching.graph().check_search(searching.id()).expect("check");
    assert!(findings.iter().any(|found| found.contains("proof of position")), "{findings:?}");
}

#[test]
fn a_state_whose_node_was_pruned_gets_a_position_that_lives() {
    let config = Config { transpositions: Transpositions::Root, evaluate_root: false, ..plain() };
    let searching = Searching::new(config);
    searching.root_with(&["x", "y"]);
    let [one, two] = ["one", "two"].map(|_| searching.fixture.sealed(searching.root, "tree").node.node_id);
    let reach = |node| {
        let command = Complete { node: Some(node), ..valued(searching.one().rollout.rollout_id, 0.5) };
        searching.graph().complete(&meta(), command).expect("a child").position
    };
    let first = reach(one);
    searching.graph().stop_search(&meta(), searching.id()).expect("stop");
    let gone = Prune { node: one, discard: false, unsealed: Default::default() };
    searching.graph().prune(&meta(), gone).expect("prune");
    let budget = esf_core::ops::search::BudgetSearch { search: searching.id(), budget: Default::default() };
    searching.graph().budget_search(&meta(), budget).expect("open");
    let second = reach(two);
    assert_ne!(second.stats.number, first.stats.number);
    assert_eq!(second.node_id, Some(two));
    assert_eq!(searching.one().leaf_node_id, Some(two), "it is gone on with");
    searching.sound();
}

#[test]
fn what_no_position_stands_on_is_named_by_a_prune() {
    let config = Config { transpositions: Transpositions::Root, evaluate_root: false, ..plain() };
    let searching = Searching::new(config);
    searching.root_with(&["x", "y", "z"]);
    let seal = |name: &str| searching.fixture.sealed(searching.root, name).node.node_id;
    let (one, two, failed, stranger) = (seal("tree"), seal("tree"), seal("other"), seal("stranger"));
    let below = searching.fixture.sealed(stranger, "below").node.node_id;
    for node in [one, two] {
        let command = Complete { node: Some(node), ..valued(searching.one().rollout.rollout_id, 0.5) };
        searching.graph().complete(&meta(), command).expect("a child");
    }
    let void = |node| esf_core::ops::search::VoidRollout {
        rollout: searching.one().rollout.rollout_id,
        class: Some(esf_core::FailureClass::UserExit),
        reason: "no verdict".to_owned(),
        node: Some(node),
    };
    let mut command = void(below);
    let refused = searching.graph().void_rollout(&meta(), command.clone()).expect_err("not of its leaf");
    assert_eq!(code(&refused), "not_child");
    command.node = Some(failed);
    let done = searching.graph().void_rollout(&meta(), command).expect("void");
    assert_eq!(done.node_id, Some(failed));
    let prune = |dry_run| esf_core::ops::search::PruneSearch {
        search: searching.id(),
        keep: esf_core::ops::search::Keep { best: 1, frontier: true },
        dry_run,
    };
    for dry_run in [true, false, false] {
        let mut nodes = searching.graph().prune_search(&meta(), prune(dry_run)).expect("prune").nodes;
        nodes.sort();
        let mut expected = vec![two, failed];
        expected.sort();
        assert_eq!(nodes, expected, "until they are gone");
    }
    for node in [two, failed] {
        let gone = Prune { node, discard: false, unsealed: Default::default() };
        searching.graph().prune(&meta(), gone).expect("prune");
    }
    assert_eq!(searching.graph().prune_search(&meta(), prune(false)).expect("prune").nodes, []);
    searching.sound();
}
