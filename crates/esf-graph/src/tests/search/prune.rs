//! Pruning: of a search, and of nodes that a search needs.

use esf_core::NodeId;
use esf_core::ops::prune::{Prune, Reason};
use esf_core::ops::search::{Complete, Keep, PruneSearch};
use esf_core::search::{EdgeStatus, StopReason, Ticket};

use super::{Searching, plain, valued};
use crate::tests::{code, meta};

/// A search with a node below the root for each of a, b, c, worth 0.9, 0.5, 0.1; each has two actions.
fn three() -> (Searching, Vec<NodeId>) {
    let (searching, first) = Searching::begun(plain());
    let mut tickets = vec![first];
    tickets.extend(searching.select(2).tickets);
    let nodes = tickets
        .iter()
        .zip([0.9, 0.5, 0.1])
        .map(|(ticket, value)| {
            let node = searching.fixture.sealed(searching.root, &format!("{value}")).node.node_id;
            let command = Complete {
                node: Some(node),
                candidates: Some(super::actions(&["x", "y"])),
                ..valued(ticket.rollout.rollout_id, value)
            };
            searching.graph().complete(&meta(), command).expect("a child");
            node
        })
        .collect();
    (searching, nodes)
}

fn prune(searching: &Searching, best: u32, frontier: bool, dry_run: bool) -> PruneSearch {
    PruneSearch { search: searching.id(), keep: Keep { best, frontier }, dry_run }
}

fn of_node(node: NodeId) -> Prune {
    Prune { node, discard: false, unsealed: Default::default() }
}

#[test]
fn losing_subtrees_go_and_their_statistics_stay() {
    let (searching, nodes) = three();
    let graph = searching.graph();
    let all = graph.prune_search(&meta(), prune(&searching, 1, true, false)).expect("prune");
    assert_eq!((all.edges, all.nodes.len()), (0, 0), "everything is frontier");
    let dry = graph.prune_search(&meta(), prune(&searching, 2, false, true)).expect("plan");
    assert_eq!((dry.edges, dry.positions, &dry.nodes), (1, 1, &vec![nodes[2]]));
    let error = graph.prune(&meta(), of_node(nodes[2])).expect_err("the search has it");
    assert_eq!(code(&error), "searched");
    let done = graph.prune_search(&meta(), prune(&searching, 2, false, false)).expect("prune");
    assert_eq!(done, dry);
    let again = graph.prune_search(&meta(), prune(&searching, 2, false, false)).expect("prune");
    assert_eq!((again.edges, again.positions, &again.nodes), (0, 0, &vec![nodes[2]]), "until it is gone");
    graph.prune(&meta(), of_node(nodes[2])).expect("it was given up");
    let again = graph.prune_search(&meta(), prune(&searching, 2, false, false)).expect("prune");
    assert!(again.nodes.is_empty());
    let root = graph.position(searching.search.root).expect("root");
    let edges = graph.edges_of(searching.search.root).expect("edges");
    assert_eq!(edges[2].stats.status, EdgeStatus::Pruned);
    assert_eq!((root.stats.visits, edges[2].stats.visits, &edges[2].stats.child_mean), (4, 1, &vec![0.1]));
    for ticket in searching.select(20).tickets {
        assert!(ticket.rollout.path.iter().all(|step| step.edge != edges[2].stats.number));
    }
    searching.sound();
}

#[test]
fn what_a_live_rollout_needs_is_kept_with_its_reason() {
    let (searching, nodes) = three();
    let graph = searching.graph();
    let held: Vec<Ticket> = searching.select(20).tickets;
    let leaves: Vec<_> = held.iter().filter_map(|ticket| ticket.leaf_node_id).collect();
    assert!(nodes.iter().all(|node| leaves.contains(node)));
    let plan = graph.prune_search(&meta(), prune(&searching, 0, false, true)).expect("plan");
    assert_eq!((plan.edges, plan.nodes.len()), (0, 0), "each is held");
    graph.stop_search(&meta(), searching.id()).expect("stop");
    let error = graph.prune(&meta(), of_node(nodes[1])).expect_err("held, although the search has stopped");
    assert_eq!(code(&error), "searched");
    assert!(error.problem().context["rollout_id"].is_string());
    for ticket in &held {
        searching.void(ticket.rollout.rollout_id, None);
    }
    graph.prune(&meta(), of_node(nodes[1])).expect("nobody needs it");
    searching.sound();
}

#[test]
fn a_subtree_with_searched_nodes_keeps_them() {
    let searching = Searching::new(plain());
    let top = searching.fixture.sealed(searching.root, "top").node.node_id;
    let below = searching.fixture.sealed(top, "below").node.node_id;
    let command = esf_core::ops::search::CreateSearch { root: below, config: plain() };
    let search = searching.graph().create_search(&meta(), command).expect("search");
    let kept = searching.graph().prune(&meta(), of_node(top)).expect("prune").kept;
    let reasons: Vec<_> = kept.iter().map(|kept| (kept.id, kept.reason)).collect();
    assert!(reasons.contains(&(below, Reason::Searched)) && reasons.contains(&(top, Reason::Ancestor)));
    let ask = esf_core::ops::search::Select { search: search.search_id, ..searching.ask(1) };
    searching.graph().select(&meta(), ask).expect("its root");
    let kept = searching.graph().prune(&meta(), of_node(top)).expect("prune").kept;
    assert!(kept.iter().any(|kept| (kept.id, kept.reason) == (below, Reason::Rollout)), "{kept:?}");
}

#[test]
fn a_pruned_node_in_the_frontier_is_noticed() {
    let (searching, nodes) = three();
    let graph = searching.graph();
    graph.stop_search(&meta(), searching.id()).expect("stop");
    graph.prune(&meta(), of_node(nodes[0])).expect("a stopped search needs nothing");
    let budget = esf_core::ops::search::BudgetSearch { search: searching.id(), budget: Default::default() };
    assert_eq!(graph.budget_search(&meta(), budget).expect("open").stopped, None);
    let tickets = searching.select(20).tickets;
    assert_eq!(tickets.len(), 4, "two actions of b, two of c");
    assert!(tickets.iter().all(|ticket| ticket.leaf_node_id != Some(nodes[0])));
    let edges = graph.edges_of(searching.search.root).expect("edges");
    assert_eq!(edges[0].stats.status, EdgeStatus::Pruned);
    assert_eq!(edges[0].closed_because.as_deref(), Some("its node was pruned"));
    searching.sound();
}

#[test]
fn a_pruned_root_is_said() {
    let searching = Searching::new(plain());
    let node = searching.fixture.sealed(searching.root, "other").node.node_id;
    let command = esf_core::ops::search::CreateSearch { root: node, config: plain() };
    let search = searching.graph().create_search(&meta(), command).expect("search").search_id;
    searching.graph().stop_search(&meta(), search).expect("stop");
    searching.graph().prune(&meta(), of_node(node)).expect("prune");
    let budget = esf_core::ops::search::BudgetSearch { search, budget: Default::default() };
    searching.graph().budget_search(&meta(), budget).expect("open");
    let ask = esf_core::ops::search::Select { search, ..searching.ask(1) };
    assert_eq!(code(&searching.graph().select(&meta(), ask).expect_err("gone")), "pruned");
}

#[test]
fn a_search_without_anything_left_stops() {
    let (searching, ticket) = Searching::begun(plain());
    let mut tickets = vec![ticket];
    tickets.extend(searching.select(2).tickets);
    for ticket in tickets {
        searching.void(ticket.rollout.rollout_id, Some(esf_core::FailureClass::UserExit));
    }
    assert_eq!(searching.select(1).stopped, Some(StopReason::Exhausted));
    searching.sound();
}

#[test]
fn what_others_made_of_a_node_keeps_it() {
    let (searching, nodes) = three();
    let theirs = searching.fixture.sealed(nodes[2], "somebody's work").node.node_id;
    let named = searching.graph().tag(&meta(), nodes[1], "keep-me").expect("tag");
    let plan = searching.graph().prune_search(&meta(), prune(&searching, 0, false, true)).expect("plan");
    assert!(plan.nodes.is_empty(), "{plan:?}");
    let reason = |node| plan.kept.iter().find(|kept| kept.node_id == node).map(|kept| kept.reason.clone());
    assert_eq!(reason(nodes[2]), Some(format!("{theirs} was made from it")));
    assert_eq!(reason(named.node_id), Some("it has a name".to_owned()));
}
