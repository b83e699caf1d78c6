//! What is read is what was written, names are found again, and the log has no gap.

use esf_core::environment::{Base, Environment};
use esf_core::id::NodeId;
use esf_core::ops::commit_merge::{CommitMerge, MergeOutcome};
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::ops::promote::Promote;
use esf_core::record::{Changed, Evaluator, Evidence, Failure, Json, Purpose, Verdict};
use esf_core::{BlobId, FailureClass};
use serde_json::json;

use super::{Fixture, code, keyed, meta, root, work};
use crate::Ref;

fn merge(
    fixture: &Fixture,
    parents: &[NodeId],
    outcome: MergeOutcome,
) -> esf_core::ops::commit_merge::MergeReply {
    let command = CommitMerge {
        parents: parents.to_vec(),
        base: None,
        expect: 0,
        outcome,
        changed: Changed::default(),
        state: None,
        options: Json::Null,
        provenance: Json::Null,
    };
    fixture.graph.commit_merge_pin(&meta(), command, Some(root("merged"))).expect("merge")
}

#[test]
fn names_and_prefixes_resolve_or_say_why_not() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let (group, canonical) = (created.group.group_id, created.node.node_id);
    let graph = &fixture.graph;
    graph.tag(&meta(), canonical, "v1").expect("tag");
    let whole = canonical.to_string();
    for (text, expected) in [
        ("project", Ref::Group(group)),
        ("project:@", Ref::Node(canonical)),
        ("project:v1", Ref::Node(canonical)),
        (&group.to_string()[..14], Ref::Group(group)),
        (whole.as_str(), Ref::Node(canonical)),
        (&whole[..9], Ref::Node(canonical)),
        (&whole[4..20], Ref::Node(canonical)),
        (&format!("{group}:@"), Ref::Node(canonical)),
        (&root("base").root.to_string()[..12], Ref::Root(root("base").root)),
    ] {
        assert_eq!(graph.resolve(text).unwrap_or_else(|error| panic!("{text}: {error}")), expected, "{text}");
    }
    for text in ["", "nod_", "projec", "project:v2", "other:@", "nod_zz", "xyz_12", "@"] {
        assert_eq!(code(&graph.resolve(text).expect_err(text)), "not_found", "{text}");
    }
    let drafts = fixture.fork(canonical, 40);
    let first = drafts[0].node_id.to_string();
    let problem = graph.resolve(&first[..5]).expect_err("one digit of 41 nodes").problem();
    assert_eq!((problem.code.as_str(), problem.class), ("ambiguous", esf_core::Class::NotFound));
    let candidates = problem.context["candidates"].as_array().expect("candidates");
    assert!(candidates.contains(&json!(drafts[0].node_id)), "{candidates:?}");
    assert!(candidates.iter().all(|id| id.as_str().is_some_and(|id| id.starts_with(&first[..5]))));
    assert_eq!(code(&graph.resolve_attempt("project").expect_err("a group")), "not_found");
}

#[test]
fn the_log_is_dense_and_correlates() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    fixture.sealed(created.node.node_id, "same");
                    // A refused request leaves no gap.
                    fixture
                        .graph
                        .promote(&meta(), Promote { node: created.node.node_id, expect: 9, replace: false })
                        .expect_err("stale");
                }
            });
        }
    });
    let events = fixture.graph.events(1, u64::MAX).expect("events");
    let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!(fixture.graph.last_event().expect("last"), events.len() as u64);
    assert_eq!(fixture.graph.events(3, 2).expect("page"), events[2..4]);
    for event in events.iter().skip(1) {
        assert!(event.group_id.is_some() && event.node_id.is_some(), "{event:?}");
        assert_eq!((event.actor.as_str(), event.trace_id.as_str()), ("tester", "trace-1"));
    }
    let sealed = events.iter().filter(|event| event.kind.as_str() == "node_sealed");
    assert!(sealed.clone().all(|event| {
        event.attempt_id.is_some() && event.root_id == Some(root("same").root) && event.lease_id.is_some()
    }));
    assert_eq!(sealed.count(), 20);
}

#[test]
fn a_conflicted_merge_is_a_draft_that_can_be_worked_on_but_not_promoted() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let (ours, theirs) =
        (fixture.sealed(canonical, "ours").node.node_id, fixture.sealed(canonical, "theirs").node.node_id);
    let conflicts = vec![json!({"path": "a.txt", "kind": "content"})];
    let reply = merge(&fixture, &[ours, theirs], MergeOutcome::Conflicted { conflicts: conflicts.clone() });
    assert_eq!(reply.conflicts, conflicts);
    let node = fixture.graph.node(reply.node.node_id).expect("node");
    assert_eq!(node, reply.node);
    assert_eq!((node.root(), node.base_root()), (None, Some(root("merged"))));
    assert_eq!(node.parents, [ours, theirs]);
    let promote = Promote { node: node.node_id, expect: 0, replace: false };
    assert_eq!(code(&fixture.graph.promote(&meta(), promote).expect_err("a draft")), "not_sealed");
    let solved = fixture.sealed(node.node_id, "solved").node;
    assert_eq!(solved.node_id, node.node_id);
    fixture.graph.promote(&meta(), promote).expect("solved");
    let stale = CommitMerge {
        parents: vec![ours, theirs],
        base: None,
        expect: 0,
        outcome: MergeOutcome::Merged,
        changed: Changed::default(),
        state: None,
        options: Json::Null,
        provenance: Json::Null,
    };
    let problem = fixture.graph.commit_merge_pin(&meta(), stale, None).expect_err("stale").problem();
    assert_eq!((problem.code.as_str(), &problem.context["generation"]), ("stale_generation", &json!(1)));
}

#[test]
fn merge_bases_are_the_nearest_common_ancestors() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let seal = |parent, name: &str| fixture.sealed(parent, name).node.node_id;
    let bases = |a, b| fixture.graph.merge_bases(a, b).expect("bases");
    let (a, b) = (seal(canonical, "a"), seal(canonical, "b"));
    let deep = seal(seal(a, "a1"), "a2");
    assert_eq!(bases(a, b), [canonical]);
    assert_eq!(bases(deep, b), [canonical]);
    assert_eq!(bases(deep, a), [a]);
    assert_eq!(bases(a, a), [a]);
    let merged = merge(&fixture, &[a, b], MergeOutcome::Merged).node.node_id;
    assert_eq!(bases(merged, b), [b]);
    assert_eq!(bases(merged, deep), [a]);
    // A criss-cross has two bases, and neither is guessed.
    let crossed = merge(&fixture, &[b, a], MergeOutcome::Merged).node.node_id;
    let mut both = vec![a, b];
    both.sort();
    assert_eq!(bases(merged, crossed), both);
    assert!(fixture.graph.descends(merged, b).expect("descends"));
    assert!(!fixture.graph.descends(deep, b).expect("descends"));
}

fn evaluation(node: NodeId) -> NewEvaluation {
    NewEvaluation {
        node,
        evaluator: Evaluator { name: "tests".to_owned(), version: "1".to_owned(), digest: None },
        verdict: Verdict::pass(),
        reward: Some(0.5),
        metrics: Json::Null,
        evidence: vec![Evidence { name: "log".to_owned(), blob: BlobId::of(b"log"), bytes: 3 }],
        attempt: None,
        run_attempt: None,
        epoch: None,
        failure: None,
    }
}

#[test]
fn evaluations_count_only_when_they_should() {
    let fixture = Fixture::new();
    let canonical = fixture.group_with("project", "trusted_actors = ['judge']").node.node_id;
    let attached = fixture.graph.evaluate(&meta(), evaluation(canonical)).expect("attached");
    assert_eq!((attached.class.as_str(), attached.counts), ("attached", false));
    let mut judge = meta();
    judge.actor = "judge".to_owned();
    assert!(fixture.graph.evaluate(&judge, evaluation(canonical)).expect("trusted").counts);

    let enqueue = Enqueue { purpose: Purpose::Evaluate, ..work(canonical) };
    let run = fixture.graph.enqueue(&meta(), enqueue).expect("run");
    fixture.start(run.attempt_id);
    let of_run = NewEvaluation { run_attempt: Some(run.attempt_id), epoch: Some(1), ..evaluation(canonical) };
    let counted = fixture.graph.evaluate(&meta(), of_run.clone()).expect("run");
    assert_eq!((counted.class.as_str(), counted.counts), ("run", true));
    assert_eq!(fixture.graph.evaluation(counted.evaluation_id).expect("read"), counted);
    let late = NewEvaluation { epoch: Some(7), ..of_run };
    assert_eq!(code(&fixture.graph.evaluate(&meta(), late).expect_err("late")), "lease_fenced");
    assert_eq!(fixture.graph.live_blobs().expect("blobs"), [BlobId::of(b"log")]);
    assert_eq!(fixture.graph.evaluations(canonical).expect("evaluations").len(), 3);
}

#[test]
fn a_broken_evaluator_never_scores() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let failure = Some(Failure::new(FailureClass::EvaluatorError, "score", "no result"));
    let good = NewEvaluation { verdict: Verdict::error(), reward: None, failure, ..evaluation(canonical) };
    for bad in [
        NewEvaluation { reward: Some(f64::NAN), ..evaluation(canonical) },
        NewEvaluation { reward: Some(f64::INFINITY), ..evaluation(canonical) },
        NewEvaluation { reward: Some(0.0), ..good.clone() },
        NewEvaluation { failure: None, ..good.clone() },
        NewEvaluation { verdict: Verdict::fail(), reward: Some(0.0), ..good.clone() },
    ] {
        assert_eq!(code(&fixture.graph.evaluate(&meta(), bad).expect_err("refused")), "bad_argument");
    }
    fixture.graph.evaluate(&meta(), good).expect("an error without a reward");
}

#[test]
fn images_and_unused_imports_are_live_roots() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    fixture.graph.register_pin(&meta(), root("unused")).expect("root");
    let environment = Environment { base: Base::Image(root("image")), ..Environment::default() };
    fixture.graph.enqueue(&meta(), Enqueue { environment, ..work(canonical) }).expect("enqueue");
    let mut expected = [root("base"), root("unused"), root("image")];
    expected.sort();
    assert_eq!(fixture.graph.live_roots().expect("roots"), expected);
    assert_eq!(fixture.graph.root_pins(root("unused").root).expect("pins"), [root("unused")]);
    assert_eq!(fixture.graph.roots().expect("roots").len(), 2);
}

#[test]
fn a_name_is_not_moved_in_silence() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let other = fixture.sealed(created.node.node_id, "other").node.node_id;
    fixture.graph.tag(&meta(), other, "best").expect("tag");
    assert_eq!(fixture.graph.tag(&meta(), other, "best").expect("again").tags, ["best"]);
    let error = fixture.graph.tag(&meta(), created.node.node_id, "best").expect_err("taken");
    assert_eq!(code(&error), "name_taken");
    assert_eq!(fixture.graph.node(other).expect("node").tags, ["best"]);
    assert_eq!(code(&fixture.graph.tag(&keyed("t"), other, "nod_x").expect_err("bad")), "bad_name");
    let untag = esf_core::ops::tag::Untag { group: created.group.group_id, name: "best".to_owned() };
    assert_eq!(fixture.graph.untag(&meta(), untag).expect("untag").node_id, Some(other));
    assert!(fixture.graph.node(other).expect("node").tags.is_empty());
}
