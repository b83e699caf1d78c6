//! Same key, same body: one effect and one reply, byte for byte; same key, other body: a conflict. For
//! every mutation, in parallel, through two handles, and again after a restart (acceptance P28).

use std::sync::{Arc, Barrier};

use esf_core::environment::Environment;
use esf_core::failure::FailureClass;
use esf_core::id::{AttemptId, NodeId};
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_merge::{CommitMerge, MergeOutcome};
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::ops::exec::{FinishExec, RecordExec};
use esf_core::ops::fail_attempt::FailAttempt;
use esf_core::ops::fork::Fork;
use esf_core::ops::lapse::Lapse;
use esf_core::ops::promote::Promote;
use esf_core::ops::prune::Prune;
use esf_core::ops::release_attempt::ReleaseAttempt;
use esf_core::ops::start::Start;
use esf_core::ops::tag::Untag;
use esf_core::policy::PolicyDocument;
use esf_core::record::{Changed, Evaluation, Evaluator, ExecOutcome, Json};
use serde::Serialize;
use serde_json::json;

use super::{Fixture, WORKER, code, keyed, meta, root, seal, work};
use crate::{Error, Graph, Meta};

/// A mutation under the key of `meta`; `other` changes its body.
type Mutation = Box<dyn Fn(&Graph, &Meta, bool) -> Result<String, Error> + Send + Sync>;

fn text<T: Serialize>(reply: T) -> String {
    serde_json::to_string(&reply).expect("json")
}

fn record(attempt: AttemptId) -> RecordExec {
    RecordExec {
        attempt,
        epoch: 1,
        argv: vec!["true".to_owned()],
        cwd: None,
        user: None,
        timeout_ms: None,
        fingerprint: None,
        outcome: None,
    }
}

fn evaluation(node: NodeId) -> NewEvaluation {
    NewEvaluation {
        node,
        evaluator: Evaluator { name: "tests".to_owned(), version: "1".to_owned(), digest: None },
        verdict: "pass".parse().expect("verdict"),
        reward: Some(0.1 + 0.2),
        metrics: json!({"passed": 9}),
        evidence: Vec::new(),
        attempt: None,
        run_attempt: None,
        epoch: None,
        failure: None,
    }
}

/// Every mutation, each on records of its own.
fn mutations(fixture: &Fixture) -> Vec<(&'static str, Mutation)> {
    let created = fixture.group("all");
    let (group, canonical) = (created.group.group_id, created.node.node_id);
    let draft = || fixture.fork(canonical, 1)[0].node_id;
    let sealed = |name| fixture.sealed(canonical, name).node.node_id;
    let mut all: Vec<(&'static str, Mutation)> = Vec::new();
    let mut add = |name, mutation: Mutation| all.push((name, mutation));

    add(
        "register_root",
        Box::new(|graph, meta, other| {
            graph.register_pin(meta, root(if other { "two" } else { "one" })).map(text)
        }),
    );
    add(
        "create_group",
        Box::new(|graph, meta, other| {
            let command = CreateGroup {
                name: if other { "another" } else { "fresh" }.to_owned(),
                root: root("base"),
                policy: PolicyDocument::default(),
                source: String::new(),
                default_environment: Environment::default(),
                provenance: Json::Null,
            };
            graph.create_group_pin(meta, command, None).map(text)
        }),
    );
    add(
        "fork",
        Box::new(move |graph, meta, other| {
            graph.fork(meta, Fork { parent: canonical, count: if other { 3 } else { 2 } }).map(text)
        }),
    );
    let node = draft();
    add(
        "enqueue",
        Box::new(move |graph, meta, other| {
            let command = esf_core::ops::enqueue::Enqueue { priority: i32::from(other), ..work(node) };
            graph.enqueue(meta, command).map(text)
        }),
    );
    let queued = fixture.enqueue(canonical).attempt_id;
    add(
        "start",
        Box::new(move |graph, meta, other| {
            graph
                .start(meta, Start { attempt: queued, worker: WORKER, lease_ms: if other { 2 } else { 1 } })
                .map(text)
        }),
    );
    let active = fixture.active(canonical).attempt.attempt_id;
    add(
        "begin_quiesce",
        Box::new(move |graph, meta, other| {
            graph
                .begin_quiesce(meta, BeginQuiesce { attempt: active, epoch: if other { 2 } else { 1 } })
                .map(text)
        }),
    );
    let quiescing = fixture.quiescing(canonical);
    add(
        "commit_seal",
        Box::new(move |graph, meta, other| {
            let command = esf_core::ops::commit_seal::CommitSeal { terminal: other, ..seal(&quiescing) };
            graph.commit_seal_pin(meta, command, root("sealed")).map(text)
        }),
    );
    let failing = fixture.active(canonical).attempt.attempt_id;
    add(
        "fail_attempt",
        Box::new(move |graph, meta, other| {
            let command = FailAttempt {
                attempt: failing,
                epoch: Some(1),
                class: FailureClass::Cancelled,
                stage: "exec".to_owned(),
                detail: String::new(),
                delta_kept: other,
            };
            graph.fail_attempt(meta, command).map(text)
        }),
    );
    let released = fixture.active(canonical).attempt.attempt_id;
    add(
        "release_attempt",
        Box::new(move |graph, meta, other| {
            let command = ReleaseAttempt {
                attempt: released,
                epoch: Some(1),
                unsealed: 0,
                discard: other,
                reason: None,
            };
            graph.release_attempt(meta, command).map(text)
        }),
    );
    let failed = [fixture.active(canonical).attempt.attempt_id, fixture.active(canonical).attempt.attempt_id];
    for attempt in failed {
        let lapse = Lapse { attempt, reason: "gone".to_owned() };
        fixture.graph.lapse(&meta(), lapse).expect("lapse");
    }
    add("retry", Box::new(move |graph, meta, other| graph.retry(meta, failed[usize::from(other)]).map(text)));
    let lapsing = fixture.active(canonical).attempt.attempt_id;
    add(
        "lapse",
        Box::new(move |graph, meta, other| {
            let reason = if other { "silent" } else { "dead" }.to_owned();
            graph.lapse(meta, Lapse { attempt: lapsing, reason }).map(text)
        }),
    );
    let executing = fixture.active(canonical).attempt.attempt_id;
    add(
        "record_exec",
        Box::new(move |graph, meta, other| {
            let mut command = record(executing);
            command.argv.extend(other.then(|| "x".to_owned()));
            graph.record_exec(meta, command).map(|recorded| text(recorded.exec))
        }),
    );
    let exec = fixture.graph.record_exec(&meta(), record(executing)).expect("exec").exec.exec_id;
    add(
        "finish_exec",
        Box::new(move |graph, meta, other| {
            let outcome = ExecOutcome { exit_code: Some(i32::from(other)), ..ExecOutcome::default() };
            graph.finish_exec(meta, FinishExec { exec, epoch: 1, outcome }).map(text)
        }),
    );
    let node = sealed("evaluated");
    add(
        "evaluate",
        Box::new(move |graph, meta, other| {
            let reward = if other { None } else { evaluation(node).reward };
            graph.evaluate(meta, NewEvaluation { reward, ..evaluation(node) }).map(text)
        }),
    );
    let parents = vec![sealed("ours"), sealed("theirs")];
    add(
        "commit_merge",
        Box::new(move |graph, meta, other| {
            let command = CommitMerge {
                parents: parents.clone(),
                base: Some(canonical),
                expect: 0,
                outcome: if other {
                    MergeOutcome::Merged
                } else {
                    MergeOutcome::Conflicted { conflicts: vec![json!(1)] }
                },
                changed: Changed::default(),
                state: None,
                options: Json::Null,
                provenance: Json::Null,
            };
            graph.commit_merge_pin(meta, command, Some(root("merged"))).map(text)
        }),
    );
    let node = sealed("named");
    add(
        "tag",
        Box::new(move |graph, meta, other| {
            graph.tag(meta, node, if other { "later" } else { "first" }).map(text)
        }),
    );
    fixture.graph.tag(&meta(), node, "old").expect("tag");
    add(
        "untag",
        Box::new(move |graph, meta, other| {
            graph.untag(meta, Untag { group, name: if other { "none" } else { "old" }.to_owned() }).map(text)
        }),
    );
    let node = sealed("pruned");
    add(
        "prune",
        Box::new(move |graph, meta, other| {
            graph.prune(meta, Prune { node, discard: other, unsealed: Default::default() }).map(text)
        }),
    );
    // Last: it moves the generation that others expect.
    let node = sealed("best");
    add(
        "promote",
        Box::new(move |graph, meta, other| {
            graph.promote(meta, Promote { node, expect: 0, replace: other }).map(text)
        }),
    );
    all
}

#[test]
fn every_mutation_has_one_effect_for_one_key() {
    let mut fixture = Fixture::new();
    let mutations = mutations(&fixture);
    let second = Graph::open(&fixture.path).expect("second handle");
    for (name, mutation) in &mutations {
        let before = fixture.graph.last_event().expect("events");
        let request = keyed(&format!("the key of {name}"));
        let barrier = Barrier::new(6);
        let replies: Vec<String> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..6)
                .map(|index| {
                    let graph = if index % 2 == 0 { &fixture.graph } else { &second };
                    let (barrier, request) = (&barrier, &request);
                    scope.spawn(move || {
                        barrier.wait();
                        mutation(graph, request, false).unwrap_or_else(|error| panic!("{name}: {error}"))
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().expect("thread")).collect()
        });
        assert!(replies.iter().all(|reply| *reply == replies[0]), "{name}: {replies:#?}");
        let after = fixture.graph.last_event().expect("events");
        fixture.reopen();
        assert_eq!(
            mutation(&fixture.graph, &request, false).expect(name),
            replies[0],
            "{name} after a restart"
        );
        let conflict = mutation(&fixture.graph, &request, true).expect_err(name).problem();
        assert_eq!(conflict.code, "idempotency_conflict", "{name}");
        assert_eq!(conflict.class, esf_core::Class::Conflict);
        assert!(
            conflict.expected.is_some() && conflict.found.is_some() && conflict.expected != conflict.found
        );
        assert_eq!(fixture.graph.last_event().expect("events"), after, "{name} left a trace");
        assert!(after > before, "{name} left no event");
    }
    assert_eq!(fixture.graph.check().expect("check"), Vec::<String>::new());
}

#[test]
fn keys_are_the_principals_own_and_bad_ones_are_refused() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let mine = keyed("k");
    let theirs = Meta { actor: "other".to_owned(), ..mine.clone() };
    let fork = Fork { parent: canonical, count: 1 };
    let one = fixture.graph.fork(&mine, fork).expect("mine");
    let two = fixture.graph.fork(&theirs, fork).expect("theirs");
    assert_ne!(one[0].node_id, two[0].node_id);
    for key in ["", &"k".repeat(256)] {
        assert_eq!(code(&fixture.graph.fork(&keyed(key), fork).expect_err("bad key")), "bad_request");
    }
}

#[test]
fn a_refusal_is_not_remembered() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let attempt = fixture.active(canonical).attempt;
    let request = keyed("k");
    let error =
        fixture.graph.commit_seal_pin(&request, seal(&attempt), root("x")).expect_err("not quiescing");
    assert_eq!(code(&error), "illegal_step");
    let quiesce = BeginQuiesce { attempt: attempt.attempt_id, epoch: 1 };
    fixture.graph.begin_quiesce(&meta(), quiesce).expect("quiesce");
    fixture
        .graph
        .commit_seal_pin(&request, seal(&attempt), root("x"))
        .expect("the same request, now in order");
}

#[test]
fn a_thousand_deliveries_of_one_evaluation_count_once() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let graph = Arc::new(fixture.graph.clone());
    let deliver = || text(graph.evaluate(&keyed("one"), evaluation(canonical)).expect("evaluate"));
    let deliver_many = || (0..125).map(|_| deliver()).collect::<Vec<_>>();
    let replies: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(deliver_many)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("thread")).collect()
    });
    assert_eq!(replies.len(), 1_000);
    assert!(replies.iter().all(|reply| *reply == replies[0]));
    assert_eq!(graph.evaluations(canonical).expect("evaluations").len(), 1);
    assert_eq!(
        graph.recorded::<Evaluation>(&keyed("one"), "evaluate").expect("recorded").map(text),
        Some(replies[0].clone())
    );
}
