//! Many at once: promotions at one generation, attempts of one draft, starts under a quota.

use std::sync::Barrier;

use esf_core::ops::promote::Promote;
use esf_core::ops::start::Start;
use serde_json::json;

use super::{Fixture, WORKER, meta, work};
use crate::Graph;

#[test]
fn of_64_racing_promotions_exactly_one_wins() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let second = Graph::open(&fixture.path).expect("second handle");
    let nodes: Vec<_> =
        (0..64).map(|i| fixture.sealed(created.node.node_id, &format!("root {i}")).node.node_id).collect();
    let barrier = Barrier::new(64);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                let graph = if index % 2 == 0 { &fixture.graph } else { &second };
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    graph.promote(&meta(), Promote { node: *node, expect: 0, replace: false })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
    });
    let winners: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
    assert_eq!(winners.len(), 1);
    let winner = winners[0];
    assert_eq!(winner.generation, 1);
    assert_eq!(&fixture.graph.group(created.group.group_id).expect("group"), winner);
    for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        let problem = error.problem();
        assert_eq!((problem.code.as_str(), problem.class), ("stale_generation", esf_core::Class::Conflict));
        assert_eq!(problem.context["generation"], json!(1));
        assert_eq!(problem.context["canonical_node_id"], json!(winner.canonical_node_id));
    }
}

#[test]
fn a_sibling_is_not_promoted_over_the_winner_unless_told_to() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let one = fixture.sealed(created.node.node_id, "one").node.node_id;
    let two = fixture.sealed(created.node.node_id, "two").node.node_id;
    fixture.graph.promote(&meta(), Promote { node: one, expect: 0, replace: false }).expect("first");
    let over = Promote { node: two, expect: 1, replace: false };
    let problem = fixture.graph.promote(&meta(), over).expect_err("not a descendant").problem();
    assert_eq!(problem.code, "not_descendant");
    let group = fixture.graph.promote(&meta(), Promote { replace: true, ..over }).expect("replace");
    assert_eq!((group.generation, group.canonical_node_id), (2, two));
}

#[test]
fn of_many_attempts_at_one_draft_one_is_admitted() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let draft = fixture.fork(canonical, 1)[0].node_id;
    let admitted = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..16).map(|_| scope.spawn(|| fixture.graph.enqueue(&meta(), work(draft)).is_ok())).collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).filter(|won| *won).count()
    });
    assert_eq!(admitted, 1);
}

#[test]
fn a_quota_is_never_exceeded_by_racing_workers() {
    let fixture = Fixture::new();
    let canonical = fixture.group_with("project", "[quotas]\nmax_live_attempts = 5").node.node_id;
    let attempts: Vec<_> = (0..40).map(|_| fixture.enqueue(canonical).attempt_id).collect();
    let second = Graph::open(&fixture.path).expect("second handle");
    std::thread::scope(|scope| {
        for (graph, half) in [&fixture.graph, &second].into_iter().zip(attempts.chunks(20)) {
            scope.spawn(move || {
                for attempt in half {
                    let command = Start { attempt: *attempt, worker: WORKER, lease_ms: 1 };
                    if let Err(error) = graph.start(&meta(), command) {
                        assert_eq!(error.problem().code, "quota");
                        assert!(error.problem().retryable);
                    }
                }
            });
        }
    });
    assert_eq!(fixture.graph.live_count().expect("count"), 5);
    assert_eq!(fixture.graph.queued().expect("queue").len(), 35);
}
