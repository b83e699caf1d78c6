//! Exactly once: whatever is delivered how often, by whom, in which order, and whatever ends in between
//! (acceptance P31, FR-05; security row 80).

use esf_core::RolloutId;
use esf_core::ops::search::Complete;
use esf_core::search::{Config, Ticket};

use super::{Searching, actions, plain, valued};
use crate::Graph;
use crate::tests::{keyed, meta};

/// A search whose root has eight actions, each of them held.
fn eight() -> (Searching, Vec<Ticket>) {
    let searching = Searching::new(Config { virtual_loss: 0.0, ..plain() });
    let root = searching.one().rollout.rollout_id;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let command = Complete { candidates: Some(actions(&names)), ..valued(root, 0.0) };
    searching.graph().complete(&meta(), command).expect("root");
    let tickets = searching.select(8).tickets;
    assert_eq!(tickets.len(), 8);
    (searching, tickets)
}

fn value(index: usize) -> f64 {
    index as f64 / 8.0
}

fn counted(searching: &Searching, tickets: &[Ticket]) {
    let root = searching.graph().position(searching.search.root).expect("root");
    let mean = (0..tickets.len()).map(value).sum::<f64>() / (tickets.len() + 1) as f64;
    assert_eq!((root.stats.visits, &root.stats.mean), (tickets.len() as u64 + 1, &vec![mean]));
    let edges = searching.graph().edges_of(searching.search.root).expect("edges");
    for (index, edge) in edges.iter().enumerate() {
        assert_eq!((edge.stats.visits, edge.stats.in_flight), (1, 0));
        assert_eq!(edge.stats.child_mean, [value(index)]);
    }
    let search = searching.now();
    assert_eq!((search.accepted, search.in_flight()), (tickets.len() as u64 + 1, 0));
    searching.sound();
}

#[test]
fn fifty_deliveries_in_parallel_count_once() {
    let (searching, tickets) = eight();
    let second = Graph::open(&searching.fixture.path).expect("second handle");
    std::thread::scope(|scope| {
        for thread in 0..50 {
            let (graph, tickets) = (if thread % 2 == 0 { searching.graph() } else { &second }, &tickets);
            scope.spawn(move || {
                for at in 0..tickets.len() {
                    let index = (at * 3 + thread) % tickets.len();
                    let command = valued(tickets[index].rollout.rollout_id, value(index));
                    let meta = keyed(&format!("{thread}-{index}"));
                    let done = graph.complete(&meta, command).expect("the same outcome");
                    assert_eq!(done.rollout.value, [value(index)]);
                }
            });
        }
    });
    counted(&searching, &tickets);
    let events = searching.graph().events(1, u64::MAX).expect("events");
    let accepted = events.iter().filter(|event| event.kind.as_str() == "rollout_accepted").count();
    assert_eq!(accepted, tickets.len() + 1);
}

#[test]
fn ten_thousand_deliveries_reordered_with_reopening_between_count_once() {
    let (mut searching, tickets) = eight();
    for round in 0..10 {
        let commands: Vec<Complete> = (0..1_000)
            .map(|at| {
                let index = (at * 5 + round) % tickets.len();
                valued(tickets[index].rollout.rollout_id, value(index))
            })
            .collect();
        let answers = searching.graph().complete_all(&meta(), commands).expect("all");
        let fresh = answers.iter().filter(|answer| answer.as_ref().expect("accepted").fresh).count();
        assert_eq!(fresh, if round == 0 { 8 } else { 0 });
        searching.fixture.reopen();
    }
    counted(&searching, &tickets);
}

#[test]
fn of_two_outcomes_one_is_counted() {
    let (searching, tickets) = eight();
    let id: RolloutId = tickets[0].rollout.rollout_id;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|thread| {
                let graph = searching.graph();
                scope.spawn(move || graph.complete(&meta(), valued(id, f64::from(thread % 2))))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
    });
    let accepted = searching.graph().rollout(id).expect("rollout").value;
    let told = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(told, 8);
    assert!(answers.iter().flatten().all(|done| done.rollout.value == accepted));
    assert_eq!(searching.now().accepted, 2);
    searching.sound();
}

#[test]
fn a_repeated_selection_and_expansion_answer_the_same() {
    let searching = Searching::new(plain());
    let ask = searching.ask(3);
    let first = searching.graph().select(&keyed("s"), ask).expect("select");
    assert_eq!(searching.graph().select(&keyed("s"), ask).expect("again"), first);
    let root = first.tickets[0].rollout.rollout_id;
    searching.value(root, 0.0).expect("value");
    let asks = searching.one().rollout.rollout_id;
    let command =
        esf_core::ops::search::Expand { rollout: asks, candidates: actions(&["a", "b"]), to_move: None };
    let expanded = searching.graph().expand(&keyed("e"), command.clone()).expect("expand");
    let before = searching.graph().last_event().expect("last");
    let again = searching.graph().expand(&keyed("e"), command).expect("again");
    assert_eq!((&again.ticket, again.added, again.known), (&expanded.ticket, 2, 2));
    assert_eq!(searching.graph().last_event().expect("last"), before);
    assert_eq!(searching.now().selected, 2);
}
