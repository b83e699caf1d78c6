//! Merges of lines, what a matrix predicts, and what a merge reports beside its conflicts (acceptance M03).

use esf_core::NodeId;
use esf_core::manifest::lookup;
use esf_core::ops::Meta;
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::ops::promote::Promote;
use esf_core::policy::PolicyDocument;
use esf_core::record::{Evaluator, Node, Verdict};
use esf_store::{CreateGroup, MatrixOutcome, Merge, MergeOutcome, TextMerge};
use serde_json::Value;

use crate::support::{Lab, meta, privileged, request, shell};
use crate::{BASE, conflicted, merge, merged};

const TEXT: &str = "printf 'a\\nb\\nc\\n' > t.py; printf 'a\\r\\nb\\r\\nc' > win.txt; printf '\\000a\\nb\\nc\\n' > b.py; \
                    printf 'a\\nb\\nc\\n' > t.txt";

fn with_text(globs: &[&str], nodes: &[&Node]) -> Merge {
    let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
    Merge { text: Some(TextMerge { globs }), ..merge(nodes, 0) }
}

fn first_line(path: &str, prefix: &str) -> String {
    format!("sed -i '1s/a/{prefix}/' {path}; ")
}

fn last_line(path: &str) -> String {
    format!("sed -i '3s/c/C/' {path}; ")
}

#[test]
fn lines_merge_only_when_asked_for_and_only_where_named() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", TEXT).node;
    let all = ["t.py", "win.txt", "b.py", "t.txt"];
    let ours = all.iter().map(|path| first_line(path, "A")).collect::<String>() + "chmod 755 t.py";
    let (ours, theirs) =
        (lab.work(start.node_id, &ours), lab.work(start.node_id, &all.map(last_line).concat()));
    let (_, conflicts) = conflicted(lab.store.merge(&lab.meta(), &merge(&[&ours, &theirs], 0)).unwrap());
    assert_eq!(conflicts.len(), 4, "nothing is merged unasked");

    // By glob; binary contents never, and CRLF and the missing newline stay.
    let asked = with_text(&["*.py", "/win.*"], &[&ours, &theirs]);
    let dry = lab.store.merge(&lab.meta(), &Merge { dry_run: true, ..asked.clone() }).unwrap();
    let MergeOutcome::Conflicted { conflicts: told, steps: foretold, .. } = dry else { panic!("{dry:?}") };
    let outcome = lab.store.merge(&meta("text"), &asked).unwrap();
    assert_eq!(lab.store.merge(&meta("text"), &asked).unwrap(), outcome, "it is answered once");
    let MergeOutcome::Conflicted { node: Some(draft), conflicts, steps } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((&told, &foretold), (&conflicts, &steps));
    let paths: Vec<_> = conflicts.iter().map(|conflict| conflict["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["b.py", "t.txt"]);
    assert_eq!(steps[0].line_merged, ["t.py", "win.txt"]);
    let text = &draft.provenance["text"];
    assert_eq!((&text["version"], &text["globs"]), (&1.into(), &serde_json::json!(["*.py", "/win.*"])));
    assert!(text["algorithm"].is_string());
    assert_eq!(draft.provenance["steps"][0]["line_merged"], serde_json::json!(["t.py", "win.txt"]));
    let pin = draft.base_root().unwrap();
    let files = lab.files(&pin);
    assert_eq!((files["t.py"].as_str(), files["win.txt"].as_str()), ("A\nb\nC\n", "A\r\nb\r\nC"));
    assert_eq!(lookup(lab.store.stack().objects(), &pin, b"t.py").unwrap().unwrap().mode.bits(), 0o755);
    // The nodes that a conflict names have its terms.
    for conflict in &conflicts {
        for (side, node) in [("base", &start), ("ours", &ours), ("theirs", &theirs)] {
            assert_eq!(conflict[format!("{side}_node")], node.node_id.to_string());
        }
    }
    // Resolved, it still has lines that no evaluation has seen.
    let resolved = lab.work_on(&draft, "test \"$(stat -c %a t.py)\" = 755; printf 'A\\nb\\nC\\n' > t.txt");
    let promote = Promote { node: resolved.node_id, expect: 0, replace: false };
    let problem = lab.store.promote(&lab.meta(), promote).unwrap_err().problem();
    assert_eq!((problem.code.as_str(), problem.class), ("evaluation_wanted", esf_core::Class::Refused));

    let bad = with_text(&["a{"], &[&ours, &theirs]);
    assert_eq!(lab.store.merge(&lab.meta(), &bad).unwrap_err().problem().code, "bad_request");
}

/// Attached by hand, by an actor whom the group's policy trusts or by another.
fn evaluate(lab: &Lab, node: &Node, trusted: bool) {
    let evaluator = Evaluator { name: "tests".to_owned(), version: "1".to_owned(), digest: None };
    let command = NewEvaluation {
        node: node.node_id,
        evaluator,
        verdict: Verdict::pass(),
        reward: None,
        metrics: Value::Null,
        evidence: Vec::new(),
        attempt: None,
        run_attempt: None,
        epoch: None,
        failure: None,
    };
    let actor = if trusted { "ci" } else { "tester" }.to_owned();
    lab.store.graph().evaluate(&Meta { actor, ..lab.meta() }, command).unwrap();
}

#[test]
fn merged_lines_are_promoted_once_an_evaluation_has_seen_them() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let source = lab.path("source");
    std::fs::create_dir(&source).unwrap();
    shell(&source, TEXT);
    let policy = PolicyDocument::parse("trusted_actors = [\"ci\"]").unwrap();
    let made = CreateGroup { policy, ..request("g", &source) };
    let start = lab.store.create_group(&lab.meta(), made, &()).unwrap().node;
    let ours = lab.work(start.node_id, &first_line("t.py", "A"));
    let theirs = lab.work(start.node_id, &last_line("t.py"));
    let third = lab.work(start.node_id, "sed -i '2s/b/b1\\nb2\\nb3/' t.py; echo 3 > three");
    // A fold merges on top of lines that it has merged itself, dry as well as for good.
    let touching = with_text(&[], &[&ours, &theirs, &third]);
    for dry_run in [true, false] {
        let outcome = lab.store.merge(&lab.meta(), &Merge { dry_run, ..touching.clone() }).unwrap();
        let MergeOutcome::Conflicted { conflicts, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(
            (conflicts.len(), &conflicts[0]["ours_node"]),
            (1, &Value::Null),
            "nobody has these lines"
        );
    }
    let merge = merged(lab.store.merge(&lab.meta(), &with_text(&[], &[&ours, &theirs])).unwrap());
    let after = lab.work(merge.node_id, "echo more > more");
    let promote = |node: &Node, expect, replace| {
        lab.store.promote(&lab.meta(), Promote { node: node.node_id, expect, replace })
    };
    for (node, replace) in [(&merge, false), (&after, false), (&after, true)] {
        let problem = promote(node, 0, replace).unwrap_err().problem();
        assert_eq!(problem.code, "evaluation_wanted");
        assert_eq!(problem.context["merged_node_id"], merge.node_id.to_string());
    }
    assert_eq!(promote(&after, 7, false).unwrap_err().problem().code, "stale_generation");
    // One by hand of somebody whom no policy trusts does not count.
    evaluate(&lab, &merge, false);
    assert_eq!(promote(&after, 0, false).unwrap_err().problem().code, "evaluation_wanted");
    evaluate(&lab, &merge, true);
    promote(&after, 0, false).unwrap();
    // What is canonical is accepted, and no merge of whole files wants anything.
    let (x, y) = (lab.work(after.node_id, "echo x > x"), lab.work(after.node_id, "echo y > y"));
    let both =
        merged(lab.store.merge(&lab.meta(), &Merge { expect: 1, ..with_text(&[], &[&x, &y]) }).unwrap());
    promote(&both, 1, false).unwrap();
}

#[test]
fn a_matrix_predicts_what_each_merge_says() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", TEXT).node;
    let scripts =
        [first_line("t.py", "A"), last_line("t.py"), "rm t.py".to_owned(), "echo x > new".to_owned()];
    let nodes = scripts.map(|script| lab.work(start.node_id, &script));
    let ids: Vec<NodeId> = nodes.iter().map(|node| node.node_id).collect();
    assert_eq!(lab.store.frontier(start.group_id).unwrap(), ids);
    let before = lab.store.graph().last_event().unwrap();
    for text in [None, Some(TextMerge::default())] {
        let cells = lab.store.merge_matrix(&ids, None, text.as_ref()).unwrap();
        assert_eq!(cells.len(), 6);
        for cell in &cells {
            let nodes = vec![cell.ours, cell.theirs];
            let request = Merge { nodes, dry_run: true, text: text.clone(), ..Merge::default() };
            let (outcome, told) = match lab.store.merge(&lab.meta(), &request).unwrap() {
                MergeOutcome::Conflicted { conflicts, .. } => (MatrixOutcome::Conflicted, conflicts),
                _ => (MatrixOutcome::Merged, Vec::new()),
            };
            assert_eq!((cell.outcome, &cell.conflicts), (outcome, &told));
        }
        let collide = cells.iter().filter(|cell| cell.outcome == MatrixOutcome::Conflicted).count();
        assert_eq!(collide, if text.is_some() { 2 } else { 3 });
    }
    assert_eq!(lab.store.graph().last_event().unwrap(), before, "nothing is written");
    let code = |nodes: &[NodeId]| lab.store.merge_matrix(nodes, None, None).unwrap_err().problem().code;
    assert_eq!(code(&ids[..1]), "bad_request");
    assert_eq!(code(&vec![ids[0]; 65]), "bad_request");
    // A pair of several bases says so and leaves the others alone.
    let ab = merged(lab.store.merge(&lab.meta(), &merge(&[&nodes[0], &nodes[3]], 0)).unwrap());
    let ba = merged(lab.store.merge(&lab.meta(), &merge(&[&nodes[3], &nodes[0]], 0)).unwrap());
    let (x, y) = (lab.work(ab.node_id, "echo x > x"), lab.work(ba.node_id, "echo y > y"));
    let cells = lab.store.merge_matrix(&[x.node_id, y.node_id, ids[1]], None, None).unwrap();
    let outcomes: Vec<_> = cells.iter().map(|cell| cell.outcome).collect();
    assert_eq!(outcomes, [MatrixOutcome::Refused, MatrixOutcome::Conflicted, MatrixOutcome::Conflicted]);
    assert_eq!(cells[0].refusal.as_ref().unwrap().code, "ambiguous_base");
}

#[test]
fn names_that_differ_by_case_alone_are_reported_and_both_kept() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "mkdir d; echo 1 > d/keep; echo 1 > other; echo 1 > Other").node;
    let ours = lab.work(start.node_id, "echo o > d/README; echo o > own; echo o > OWN");
    let theirs = lab.work(start.node_id, "echo t > d/ReadMe; rm other");
    let outcome = lab.store.merge(&lab.meta(), &merge(&[&ours, &theirs], 0)).unwrap();
    let MergeOutcome::Merged { node: Some(node), steps } = outcome else { panic!("{outcome:?}") };
    assert_eq!(steps[0].case_collisions, [["d/README".to_owned(), "d/ReadMe".to_owned()]]);
    let files = lab.files(&node.root().unwrap());
    assert_eq!((files["d/README"].as_str(), files["d/ReadMe"].as_str()), ("o\n", "t\n"));
    // A rename by case alone against a change: the old name conflicts, the new one is there.
    let renamed = lab.work(start.node_id, "mv d/keep d/Keep");
    let changed = lab.work(start.node_id, "echo 2 > d/keep");
    let outcome = lab.store.merge(&lab.meta(), &merge(&[&changed, &renamed], 0)).unwrap();
    let MergeOutcome::Conflicted { node: Some(draft), conflicts, steps } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((&conflicts[0]["path"], &conflicts[0]["kind"]), (&"d/keep".into(), &"modify_delete".into()));
    assert_eq!(steps[0].case_collisions, [["d/keep".to_owned(), "d/Keep".to_owned()]]);
    let files = lab.files(&draft.base_root().unwrap());
    assert_eq!((files["d/keep"].as_str(), files["d/Keep"].as_str()), ("2\n", "1\n"));
}

#[test]
fn a_base_that_a_side_does_not_descend_from_is_refused() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let other = lab.group("h", BASE).node;
    let ours = lab.work(start.node_id, "echo 2 > f");
    let theirs = lab.work(start.node_id, "echo b > g");
    let below = lab.work(ours.node_id, "echo 3 > f");
    let code = |base: &Node| {
        let request = Merge { base: Some(base.node_id), ..merge(&[&below, &theirs], 0) };
        lab.store.merge(&lab.meta(), &request).unwrap_err().problem().code
    };
    assert_eq!(code(&ours), "not_ancestor");
    assert_eq!(code(&below), "not_ancestor");
    assert_eq!(code(&other), "other_group");
}
