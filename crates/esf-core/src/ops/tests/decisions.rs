//! What each decision says to each state, and properties that hold whatever the snapshot.

use std::collections::HashSet;

use proptest::prelude::*;

use super::{attempt, group, meta, node, node_id, request, root};
use crate::failure::FailureClass;
use crate::ops::commit_seal::{CommitSeal, Outcome};
use crate::ops::fork::Fork;
use crate::ops::promote::Promote;
use crate::ops::release_attempt::ReleaseAttempt;
use crate::ops::{
    Change, Reject, begin_quiesce, commit_seal, fail_attempt, fork, lapse, promote, release_attempt, renew,
};
use crate::record::{Changed, Json, Lease, LeaseStatus, PrivateDelta};
use crate::state::{AttemptStatus, NodeStatus};
use crate::time::{BootMillis, Timestamp};

fn seal(epoch: u64) -> CommitSeal {
    CommitSeal {
        attempt: attempt(AttemptStatus::Quiescing).attempt_id,
        epoch,
        terminal: false,
        state: None,
        message: None,
        result: Json::Null,
        provenance: Json::Null,
        changed: Changed::default(),
        reason: None,
        statement_digest: None,
        keep: None,
    }
}

fn sealing(node_status: NodeStatus, attempt_status: AttemptStatus) -> commit_seal::Snapshot {
    commit_seal::Snapshot {
        attempt: attempt(attempt_status),
        node: node(1, node_status),
        lease: None,
        running: Vec::new(),
        salvaged: None,
    }
}

#[test]
fn the_first_seal_wins_and_a_second_ends_stale_with_its_delta_kept() {
    let meta = meta("k");
    for status in [NodeStatus::Sealed, NodeStatus::Terminal, NodeStatus::Pruned] {
        let decision = commit_seal::decide(
            &sealing(status, AttemptStatus::Quiescing),
            &seal(3),
            root(9),
            &request(&meta),
        )
        .expect("committed as stale");
        let Outcome::Stale { attempt, status: found } = decision.reply else {
            panic!("{:?}", decision.reply)
        };
        assert_eq!(found, status);
        assert_eq!((attempt.status, attempt.private_delta), (AttemptStatus::Failed, PrivateDelta::Kept));
        assert_eq!(attempt.failure.map(|failure| failure.class), Some(FailureClass::Stale));
        let touches_node = |change: &Change| matches!(change, Change::UpdateNode { node: _, was: _ });
        assert!(!decision.changes.iter().any(touches_node), "the sealed node is not touched");
    }
}

#[test]
fn an_evaluators_run_seals_nothing() {
    let meta = meta("k");
    let mut snapshot = sealing(NodeStatus::Sealed, AttemptStatus::Quiescing);
    snapshot.attempt.purpose = crate::record::Purpose::Evaluate;
    let refused = commit_seal::decide(&snapshot, &seal(3), root(9), &request(&meta));
    assert!(matches!(refused, Err(Reject::IllegalStep(_))), "{refused:?}");
}

#[test]
fn a_release_goes_by_way_of_quiescing_and_gives_the_delta_up() {
    let meta = meta("k");
    for status in AttemptStatus::ALL {
        let snapshot = fail_attempt::Snapshot { attempt: attempt(*status), lease: None, running: Vec::new() };
        let command = ReleaseAttempt {
            attempt: snapshot.attempt.attempt_id,
            epoch: Some(3),
            unsealed: 0,
            discard: false,
            reason: None,
        };
        let decision = release_attempt::decide(&snapshot, &command, &request(&meta)).expect("released");
        assert_eq!(decision.reply.status, AttemptStatus::Released);
        let kinds: Vec<_> = decision.transitions.iter().map(|t| t.kind.as_str()).collect();
        let expected: &[&str] = match status {
            AttemptStatus::Active => &["attempt_quiescing", "attempt_released"],
            AttemptStatus::Released => &[],
            AttemptStatus::Queued
            | AttemptStatus::Quiescing
            | AttemptStatus::Sealed
            | AttemptStatus::Failed => &["attempt_released"],
        };
        assert_eq!(kinds, expected);
    }
}

#[test]
fn a_renewal_never_revives_what_ended_or_is_of_another_boot() {
    let clock = meta("k").boot;
    let lease = Lease {
        lease_id: crate::LeaseId::from_bytes([1; 16]),
        attempt_id: attempt(AttemptStatus::Active).attempt_id,
        node_id: node_id(1),
        worker_id: crate::WorkerId::from_bytes([1; 16]),
        epoch: 1,
        status: LeaseStatus::Held,
        lease_ms: 5,
        expires_at: BootMillis(50),
        boot_id: "boot".to_owned(),
        granted_at: Timestamp(0),
        ended_at: None,
    };
    let renewed = renew::decide(&lease, &clock, 7).expect("ran out, but nobody took it");
    assert_eq!(renewed.expires_at, BootMillis(107));
    for status in [LeaseStatus::Released, LeaseStatus::Lapsed] {
        assert_eq!(renew::decide(&Lease { status, ..lease.clone() }, &clock, 7), None);
    }
    assert_eq!(renew::decide(&Lease { boot_id: "other".to_owned(), ..lease }, &clock, 7), None);
}

fn attempt_status() -> impl Strategy<Value = AttemptStatus> {
    prop::sample::select(AttemptStatus::ALL)
}

fn node_status() -> impl Strategy<Value = NodeStatus> {
    prop::sample::select(NodeStatus::ALL)
}

proptest! {
    #[test]
    fn no_write_passes_without_the_epoch_of_a_live_lease(status in attempt_status(), epoch in 0_u64..6) {
        let meta = meta("k");
        let request = request(&meta);
        let current = attempt(status);
        let good = status.is_live() && epoch == current.lease_epoch;
        let fenced = |reject: Option<Reject>| {
            matches!(reject, Some(Reject::LeaseFenced { attempt: _, epoch: _, current: _, status: _ }))
        };
        prop_assert_eq!(begin_quiesce::fence(&current, Some(epoch)).is_ok(), good);
        prop_assert!(begin_quiesce::fence(&current, None).is_err());
        let sealed = commit_seal::decide(&sealing(NodeStatus::Draft, status), &seal(epoch), root(9), &request);
        prop_assert_eq!(fenced(sealed.err()), !good);
        let ending = fail_attempt::Snapshot { attempt: current, lease: None, running: Vec::new() };
        let lapsed = lapse::decide(&ending, &lapse::Lapse { attempt: ending.attempt.attempt_id, reason: String::new() }, &request)
            .expect("a lapse is never refused")
            .reply;
        // After a lapse there is no epoch under which anything passes.
        prop_assert!(begin_quiesce::fence(&lapsed, Some(epoch)).is_err());
        if status.is_live() {
            prop_assert_eq!(lapsed.lease_epoch, 4);
        }
    }

    #[test]
    fn a_promotion_needs_the_generation_a_sealed_node_and_descent(
        status in node_status(),
        generation in 0_u64..4,
        expect in 0_u64..4,
        descends: bool,
        replace: bool,
    ) {
        let meta = meta("k");
        let snapshot = promote::Snapshot {
            node: node(1, status),
            last_sealed: Some(node_id(0)),
            group: group(generation, node_id(0)),
            descends,
        };
        let command = Promote { node: node_id(1), expect, replace };
        let decided = promote::decide(&snapshot, &command, &request(&meta));
        let allowed = status == NodeStatus::Sealed && generation == expect && (descends || replace);
        prop_assert_eq!(decided.is_ok(), allowed);
        match decided {
            Ok(decision) => {
                prop_assert_eq!(decision.reply.generation, generation + 1);
                prop_assert_eq!(decision.reply.canonical_node_id, node_id(1));
                let moved = Change::MoveCanonical {
                    group_id: snapshot.group.group_id,
                    node_id: node_id(1),
                    was: generation,
                    generation: generation + 1,
                };
                prop_assert_eq!(decision.changes, vec![moved]);
            }
            Err(reject) if status == NodeStatus::Sealed && generation != expect => {
                prop_assert_eq!(reject, Reject::StaleGeneration { expected: expect, generation, canonical: node_id(0) });
            }
            Err(_) => {}
        }
    }

    #[test]
    fn children_are_as_many_as_asked_all_different_and_follow_from_the_reply(count in 1_u32..200, key in "[a-z]{1,8}") {
        let meta = meta(&key);
        let snapshot = fork::Snapshot { parent: node(1, NodeStatus::Sealed), last_sealed: None };
        let decision = fork::decide(&snapshot, &Fork { parent: node_id(1), count }, &request(&meta)).expect("sealed");
        let made: Vec<_> = decision
            .changes
            .iter()
            .map(|change| match change {
                Change::InsertNode(node) => (**node).clone(),
                other => panic!("a fork makes nodes and nothing else: {other:?}"),
            })
            .collect();
        prop_assert_eq!(made.len(), count as usize);
        prop_assert_eq!(made.iter().map(|node| node.node_id).collect::<HashSet<_>>().len(), made.len());
        let stored = serde_json::to_string(&decision.reply).expect("json");
        prop_assert!(stored.len() < 400, "the stored reply is O(1): {} bytes", stored.len());
        // Long after, when the parent was pruned, the reply is still what it was.
        let mut later = node(1, NodeStatus::Sealed);
        later.take(crate::state::NodeStep::Prune, Timestamp(99)).expect("prune");
        let again = serde_json::from_str(&stored).expect("json");
        prop_assert_eq!(fork::children(&later, &again, super::STORE), made);
    }

    #[test]
    fn only_sealed_nodes_are_forked(status in node_status()) {
        let meta = meta("k");
        let snapshot = fork::Snapshot { parent: node(1, status), last_sealed: Some(node_id(0)) };
        let decided = fork::decide(&snapshot, &Fork { parent: node_id(1), count: 1 }, &request(&meta));
        match (status, decided) {
            (NodeStatus::Sealed, Ok(_)) => {}
            (NodeStatus::Draft, Err(Reject::NotSealed { node: _, last_sealed })) => {
                prop_assert_eq!(last_sealed, Some(node_id(0)));
            }
            (NodeStatus::Terminal, Err(Reject::Terminal { node: _ })) => {}
            (NodeStatus::Pruned, Err(Reject::Pruned { node: _ })) => {}
            (status, decided) => prop_assert!(false, "{status:?}: {decided:?}"),
        }
    }

    #[test]
    fn unsealed_changes_are_never_lost_unless_told_to(status in attempt_status(), unsealed in 0_u64..3, discard: bool) {
        let meta = meta("k");
        let snapshot = fail_attempt::Snapshot { attempt: attempt(status), lease: None, running: Vec::new() };
        let command = ReleaseAttempt {
            attempt: snapshot.attempt.attempt_id,
            epoch: Some(3),
            unsealed,
            discard,
            reason: None,
        };
        let decided = release_attempt::decide(&snapshot, &command, &request(&meta));
        let lost = unsealed > 0 && !discard && status != AttemptStatus::Released;
        prop_assert_eq!(decided.is_err(), lost);
    }
}
