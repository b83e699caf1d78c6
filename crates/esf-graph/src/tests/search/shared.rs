//! Equal states as one position: nothing goes in a circle, and visits are those of edges.

use esf_core::ops::search::Complete;
use esf_core::search::config::Transpositions;
use esf_core::search::{Config, Position, RolloutStatus, Ticket};

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
            candidates: Some(actions(&["x", "y", "back"])),
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
