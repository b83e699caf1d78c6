//! The life of a rollout.

use esf_core::search::{EdgeStatus, RolloutStatus, Stage};
use serde_json::json;

use super::{Searching, plain};
use crate::tests::code;

#[test]
fn the_root_is_valued_expanded_and_visited() {
    let searching = Searching::new(plain());
    let first = searching.one();
    assert_eq!(first.rollout.stage, Stage::Revisit);
    assert_eq!(first.leaf_node_id, Some(searching.root));
    searching.value(first.rollout.rollout_id, 0.5).expect("value");
    let second = searching.one();
    assert_eq!(second.rollout.stage, Stage::Expand);
    let expanded = searching.expand(second.rollout.rollout_id, &["a", "b", "a"]);
    assert_eq!((expanded.added, expanded.known), (2, 2));
    let ticket = expanded.ticket;
    assert_eq!((ticket.rollout.stage, &ticket.action), (Stage::Visit, &Some(json!("a"))));
    assert_eq!(ticket.rollout.rollout_id, second.rollout.rollout_id);
    let other = searching.one();
    assert_eq!(other.action, Some(json!("b")), "two never hold one untried edge");
    assert!(searching.select(1).saturated);

    let done = searching.value(ticket.rollout.rollout_id, 1.0).expect("value");
    assert!(done.fresh);
    assert_eq!(done.rollout.status, RolloutStatus::Accepted);
    assert_eq!((done.position.stats.visits, &done.position.stats.mean), (1, &vec![1.0]));
    let root = searching.graph().position(searching.search.root).expect("root");
    assert_eq!((root.stats.visits, root.stats.mean), (2, vec![0.75]));
    let edges = searching.graph().edges_of(searching.search.root).expect("edges");
    assert_eq!((edges[0].stats.visits, edges[0].stats.in_flight), (1, 0));
    assert_eq!((edges[1].stats.visits, edges[1].stats.in_flight), (0, 1));
    searching.void(other.rollout.rollout_id, None);
    let edges = searching.graph().edges_of(searching.search.root).expect("edges");
    assert_eq!((edges[1].stats.in_flight, edges[1].stats.status), (0, EdgeStatus::Open));
    let search = searching.now();
    assert_eq!((search.selected, search.accepted, search.void, search.in_flight()), (3, 2, 1, 0));
    searching.sound();
}

#[test]
fn an_outcome_is_counted_once() {
    let (searching, ticket) = Searching::begun(plain());
    let id = ticket.rollout.rollout_id;
    let first = searching.value(id, 0.25).expect("value");
    for _ in 0..3 {
        let again = searching.value(id, 0.25).expect("again");
        assert!(!again.fresh);
        assert_eq!((&again.rollout, &again.position), (&first.rollout, &first.position));
    }
    assert_eq!(code(&searching.value(id, 0.5).expect_err("another")), "rollout_ended");
    assert_eq!(searching.now().accepted, 2);
}
