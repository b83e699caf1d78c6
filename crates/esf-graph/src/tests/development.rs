//! Tasks and the queue: what is refused, what is answered twice, what races, what prune keeps.

use std::collections::BTreeMap;

use esf_core::development::{Binding, EntryStatus, Outcome, QueueEntry, Refusal, Task, TaskStatus};
use esf_core::id::{EvaluationId, NodeId};
use esf_core::ops::commit_merge::{CommitMerge, MergeOutcome};
use esf_core::ops::development::{CloseTask, CreateTask, Integrate, Refuse, Submit};
use esf_core::ops::promote::Promote;
use esf_core::ops::prune::{Prune, Reason};
use esf_core::record::{Changed, Group, Json, Verdict};
use esf_core::{Digest, RootId};
use serde_json::json;

use super::{Fixture, code, keyed, meta, root};
use crate::Graph;

fn create(fixture: &Fixture, group: &Group, name: &str) -> Task {
    let command =
        CreateTask { group: group.group_id, name: name.to_owned(), goal: "do it".to_owned(), from: None };
    fixture.graph.create_task(&meta(), command).expect("task")
}

/// A task with one sealed node of the tree `name`, in the queue.
fn submitted(fixture: &Fixture, group: &Group, name: &str) -> (Task, QueueEntry) {
    let task = create(fixture, group, name);
    let node = fixture.sealed(task.first_node_id, name).node.node_id;
    let settled = fixture.graph.submit_task(&meta(), submit(&task, node)).expect("submit");
    (settled.task, settled.entry)
}

fn submit(task: &Task, node: NodeId) -> Submit {
    Submit { task: task.task_id, node, priority: 0 }
}

fn merged(fixture: &Fixture, nodes: [NodeId; 2], expect: u64, tree: &str) -> NodeId {
    let command = CommitMerge {
        parents: nodes.to_vec(),
        base: None,
        expect,
        outcome: MergeOutcome::Merged,
        changed: Changed::default(),
        state: None,
        options: Json::Null,
        provenance: Json::Null,
    };
    fixture.graph.commit_merge_pin(&meta(), command, Some(root(tree))).expect("merge").node.node_id
}

fn integrate(entry: &QueueEntry, result: NodeId, expect: u64) -> Integrate {
    Integrate { entry: entry.entry_id, result, expect, evidence: Vec::new() }
}

fn evidence(of: RootId, base: NodeId) -> Binding {
    Binding {
        evaluation_id: EvaluationId::from_bytes([1; 16]),
        root_id: of,
        base_node_id: base,
        evaluator: "tests".to_owned(),
        evaluator_version: "1".to_owned(),
        evaluator_digest: Some(Digest::of(b"tests")),
        verdict: Verdict::pass(),
        reused: false,
    }
}

fn group(graph: &Graph, group: &Group) -> Group {
    graph.group(group.group_id).expect("group")
}

fn refused(entry: &QueueEntry, expect: u64, draft: NodeId) -> Refuse {
    Refuse {
        entry: entry.entry_id,
        why: Refusal::Conflicts { draft_node_id: draft, conflicts: vec![json!({ "path": "f" })] },
        expect,
        evidence: Vec::new(),
        remedy: "resolve it".to_owned(),
    }
}

#[test]
fn a_task_goes_from_its_draft_to_the_canonical_node() {
    let fixture = Fixture::new();
    let made = fixture.group("project");
    let (task, entry) = submitted(&fixture, &made.group, "fix");
    assert_eq!((task.status, entry.status), (TaskStatus::Submitted, EntryStatus::Queued));
    assert_eq!(task.base_node_id, made.node.node_id);
    assert_eq!(fixture.graph.waiting(made.group.group_id).expect("queue"), std::slice::from_ref(&entry));
    let line = fixture.graph.line(task.task_id).expect("line");
    assert_eq!(line.iter().map(|node| node.node_id).collect::<Vec<_>>(), [task.first_node_id]);

    let command = integrate(&entry, entry.node_id, 0);
    let settled = fixture.graph.integrate(&keyed("once"), command.clone()).expect("integrate");
    assert_eq!(settled.task.integrated_as, Some(entry.node_id));
    assert!(matches!(settled.entry.outcome, Some(Outcome::Integrated { generation: 1, .. })));
    let now = group(&fixture.graph, &made.group);
    assert_eq!((now.canonical_node_id, now.generation), (entry.node_id, 1));
    // The same again is answered as before; another request finds that it has ended.
    assert_eq!(fixture.graph.integrate(&keyed("once"), command.clone()).expect("again"), settled);
    assert_eq!(code(&fixture.graph.integrate(&meta(), command).expect_err("ended")), "entry_over");
    let more = fixture.graph.submit_task(&meta(), submit(&task, entry.node_id));
    assert_eq!(code(&more.expect_err("integrated")), "task_over");
    assert_eq!(fixture.graph.integrated_as(entry.node_id).expect("tasks"), [settled.task]);
    // What others do on the canonical node is not of this task's line.
    let next = create(&fixture, &made.group, "next");
    fixture.sealed(next.first_node_id, "next");
    assert_eq!(fixture.graph.line(task.task_id).expect("line").len(), 1);
    assert_eq!(fixture.graph.check().expect("check"), [""; 0]);
}

#[test]
fn what_may_not_be_submitted_is_refused_by_name() {
    let fixture = Fixture::new();
    let made = fixture.group("project");
    let task = create(&fixture, &made.group, "fix");
    let refuse = |node| code(&fixture.graph.submit_task(&meta(), submit(&task, node)).expect_err("refused"));
    assert_eq!(refuse(task.first_node_id), "not_sealed");
    assert_eq!(refuse(made.node.node_id), "not_of_task");
    let foreign = fixture.group("other").node.node_id;
    assert_eq!(refuse(foreign), "not_of_task");
    let node = fixture.sealed(task.first_node_id, "fix").node.node_id;
    fixture.graph.submit_task(&meta(), submit(&task, node)).expect("submit");
    assert_eq!(refuse(node), "already_queued");
    let twice = CreateTask {
        group: made.group.group_id,
        name: "fix".to_owned(),
        goal: "again".to_owned(),
        from: None,
    };
    assert_eq!(code(&fixture.graph.create_task(&meta(), twice.clone()).expect_err("taken")), "name_taken");
    for (name, goal) in [("a b", "x"), ("y", "")] {
        let bad = CreateTask { name: name.to_owned(), goal: goal.to_owned(), ..twice.clone() };
        let nodes = fixture.graph.nodes(made.group.group_id).expect("nodes").len();
        fixture.graph.create_task(&meta(), bad).expect_err("refused");
        assert_eq!(
            fixture.graph.nodes(made.group.group_id).expect("nodes").len(),
            nodes,
            "nothing half done"
        );
    }
}

#[test]
fn a_refused_entry_opens_its_task_and_the_line_goes_on_at_the_draft() {
    let fixture = Fixture::new();
    let made = fixture.group("project");
    let (task, entry) = submitted(&fixture, &made.group, "fix");
    let draft = fixture.fork(made.node.node_id, 1)[0].node_id;
    let stale = fixture.graph.refuse(&meta(), refused(&entry, 7, draft)).expect_err("stale");
    assert_eq!(code(&stale), "stale_generation");
    let settled = fixture.graph.refuse(&meta(), refused(&entry, 0, draft)).expect("refuse");
    assert_eq!((settled.task.status, settled.entry.status), (TaskStatus::Open, EntryStatus::Refused));
    let line = fixture.graph.line(task.task_id).expect("line");
    assert_eq!(line.iter().map(|node| node.node_id).collect::<Vec<_>>(), [task.first_node_id, draft]);
    // Another submission is another entry; giving up takes it back.
    let again = fixture.graph.submit_task(&meta(), submit(&task, entry.node_id)).expect("again").entry;
    assert_ne!(again.entry_id, entry.entry_id);
    let close = CloseTask { task: task.task_id, reason: "not wanted".to_owned() };
    let closed = fixture.graph.close_task(&meta(), close.clone()).expect("close");
    assert_eq!(closed.status, TaskStatus::Closed);
    assert_eq!(fixture.graph.close_task(&meta(), close).expect("again"), closed);
    let entries = fixture.graph.entries_of_task(task.task_id).expect("entries");
    let statuses: Vec<EntryStatus> = entries.iter().map(|entry| entry.status).collect();
    assert_eq!(statuses, [EntryStatus::Refused, EntryStatus::Withdrawn]);
    assert_eq!(fixture.graph.check().expect("check"), [""; 0]);
}

#[test]
fn evidence_of_another_root_or_base_lets_nothing_through() {
    let fixture = Fixture::new();
    let made = fixture.group("project");
    let (_, first) = submitted(&fixture, &made.group, "first");
    let (_, second) = submitted(&fixture, &made.group, "second");
    let base = made.node.node_id;
    let own = |tree: &str, base| vec![evidence(root(tree).root, base)];
    let with = |entry: &QueueEntry, result, expect, evidence| {
        fixture.graph.integrate(&meta(), Integrate { evidence, ..integrate(entry, result, expect) })
    };
    let other_root = with(&first, first.node_id, 0, own("second", base)).expect_err("another root");
    assert_eq!(code(&other_root), "stale_evidence");
    with(&first, first.node_id, 0, own("first", base)).expect("its own");
    // The second was evaluated on what was canonical before.
    let late = with(&second, second.node_id, 1, own("second", base)).expect_err("another base");
    assert_eq!(code(&late), "stale_evidence");
    let bare = with(&second, second.node_id, 1, Vec::new()).expect_err("not rebased");
    assert_eq!(code(&bare), "not_descendant");
    let result = merged(&fixture, [first.node_id, second.node_id], 1, "both");
    let old = with(&second, result, 1, own("both", base)).expect_err("evidence on the old base");
    assert_eq!(code(&old), "stale_evidence");
    // A node that has not the submitted work does not end its entry.
    assert_eq!(code(&with(&second, first.node_id, 1, Vec::new()).expect_err("not its work")), "not_of_task");
    let settled = with(&second, result, 1, own("both", first.node_id)).expect("rebased and evaluated anew");
    assert_eq!(settled.task.integrated_as, Some(result));
    assert_eq!(fixture.graph.check().expect("check"), [""; 0]);
}

#[test]
fn of_racing_integrations_one_wins_and_the_others_wait_on() {
    let fixture = Fixture::new();
    let made = fixture.group("project");
    let entries: Vec<QueueEntry> =
        (0..8).map(|n| submitted(&fixture, &made.group, &format!("task-{n}")).1).collect();
    let won: Vec<bool> = std::thread::scope(|scope| {
        let race = |entry: &QueueEntry| {
            let (graph, command) = (&fixture.graph, integrate(entry, entry.node_id, 0));
            scope.spawn(move || match graph.integrate(&meta(), command) {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(code(&error), "stale_generation");
                    false
                }
            })
        };
        let threads: Vec<_> = entries.iter().map(race).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
    assert_eq!(group(&fixture.graph, &made.group).generation, 1);
    assert_eq!(fixture.graph.waiting(made.group.group_id).expect("queue").len(), 7);
    // A promotion by hand and the queue cannot both have one generation either.
    let loser = entries.iter().zip(&won).find(|(_, won)| !**won).expect("a loser").0;
    let promote = Promote { node: loser.node_id, expect: 0, replace: true };
    assert_eq!(code(&fixture.graph.promote(&meta(), promote).expect_err("stale")), "stale_generation");
    assert_eq!(fixture.graph.check().expect("check"), [""; 0]);
}

#[test]
fn what_waits_is_kept_by_prune_until_it_is_withdrawn() {
    let fixture = Fixture::new();
    let made = fixture.group("project");
    let (task, entry) = submitted(&fixture, &made.group, "fix");
    let below = fixture.sealed(entry.node_id, "below").node.node_id;
    let prune = |node| Prune { node, discard: false, unsealed: BTreeMap::new() };
    let refused = fixture.graph.prune(&meta(), prune(entry.node_id)).expect_err("queued");
    assert_eq!(code(&refused), "queued");
    let other = fixture.sealed(made.node.node_id, "other").node.node_id;
    assert_eq!(fixture.graph.prune(&meta(), prune(other)).expect("prune").pruned, [other]);
    let deep = fixture.sealed(below, "deep").node.node_id;
    let settled = fixture.graph.withdraw_task(&meta(), task.task_id).expect("withdraw");
    assert_eq!((settled.task.status, settled.entry.status), (TaskStatus::Open, EntryStatus::Withdrawn));
    let none = fixture.graph.withdraw_task(&meta(), task.task_id).expect_err("nothing waits");
    assert_eq!(code(&none), "nothing_queued");
    fixture.graph.submit_task(&meta(), submit(&task, deep)).expect("submit the last");
    let kept = fixture.graph.prune(&meta(), prune(entry.node_id)).expect("prune").kept;
    let reasons: Vec<(NodeId, Reason)> = kept.iter().map(|kept| (kept.id, kept.reason)).collect();
    for expected in [(entry.node_id, Reason::Ancestor), (below, Reason::Ancestor), (deep, Reason::Queued)] {
        assert!(reasons.contains(&expected), "{reasons:?}");
    }
}
