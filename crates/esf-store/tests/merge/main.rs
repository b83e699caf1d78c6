//! Merges of real checkpoints (acceptance M01, P38): sides made by scripts in mounted overlays, merged
//! through the store, and read back through the carriers of the result.

#[path = "../support/mod.rs"]
mod support;
mod text;

use std::collections::BTreeMap;

use esf_core::NodeId;
use esf_core::manifest::lookup;
use esf_core::ops::promote::Promote;
use esf_core::record::{Group, Node};
use esf_core::state::NodeStatus;
use esf_store::{Merge, MergeOutcome};
use serde_json::Value;
use support::{Lab, meta, privileged};

const BASE: &str = "echo 1 > f; echo a > g; mkdir d; echo x > d/x; ln -s f l; printf 'a\\nb\\nc\\n' > t; printf '\\000\\001' > b";

fn merge(nodes: &[&Node], expect: u64) -> Merge {
    Merge { nodes: nodes.iter().map(|node| node.node_id).collect(), expect, ..Merge::default() }
}

fn merged(outcome: MergeOutcome) -> Node {
    match outcome {
        MergeOutcome::Merged { node: Some(node), .. } => node,
        other => panic!("expected a merged node, found {other:?}"),
    }
}

fn conflicted(outcome: MergeOutcome) -> (Node, Vec<Value>) {
    match outcome {
        MergeOutcome::Conflicted { node: Some(node), conflicts, .. } => (node, conflicts),
        other => panic!("expected conflicts, found {other:?}"),
    }
}

fn group_of(lab: &Lab, node: &Node) -> Group {
    lab.store.graph().group(node.group_id).unwrap()
}

/// A path with its contents or target; none when it is gone.
type Content = (&'static str, Option<&'static str>);
/// A path with the kind of its conflict.
type Conflict = (&'static str, &'static str);

/// One row of the table: what each side does, and either files that differ from the base's or conflicts.
struct Row {
    name: &'static str,
    ours: &'static str,
    theirs: &'static str,
    expected: Result<&'static [Content], &'static [Conflict]>,
}

const TABLE: &[Row] = &[
    Row { name: "same edit", ours: "echo 2 > f", theirs: "echo 2 > f", expected: Ok(&[("f", Some("2\n"))]) },
    Row {
        name: "disjoint files",
        ours: "echo 2 > f; echo n > new",
        theirs: "echo b > g; echo y > d/y",
        expected: Ok(&[("f", Some("2\n")), ("new", Some("n\n")), ("g", Some("b\n")), ("d/y", Some("y\n"))]),
    },
    Row { name: "same file", ours: "echo 2 > f", theirs: "echo 3 > f", expected: Err(&[("f", "content")]) },
    Row {
        name: "other lines of one file",
        ours: "printf 'A\\nb\\nc\\n' > t",
        theirs: "printf 'a\\nb\\nC\\n' > t",
        expected: Err(&[("t", "content")]),
    },
    Row {
        name: "delete against modify",
        ours: "rm f",
        theirs: "echo 2 > f",
        expected: Err(&[("f", "modify_delete")]),
    },
    Row {
        name: "modify against delete",
        ours: "echo 2 > f",
        theirs: "rm f",
        expected: Err(&[("f", "modify_delete")]),
    },
    Row {
        name: "both delete",
        ours: "rm f; rm -r d",
        theirs: "rm f; rm -r d",
        expected: Ok(&[("f", None), ("d/x", None)]),
    },
    Row {
        name: "rename against modify",
        ours: "mv f moved",
        theirs: "echo 2 > f",
        expected: Err(&[("f", "modify_delete")]),
    },
    Row {
        name: "file to directory against modify",
        ours: "rm f; mkdir f; echo n > f/n",
        theirs: "echo 2 > f",
        expected: Err(&[("f", "directory_file")]),
    },
    Row {
        name: "file to directory alone",
        ours: "echo b > g",
        theirs: "rm f; mkdir f; echo n > f/n",
        expected: Ok(&[("g", Some("b\n")), ("f", None), ("f/n", Some("n\n"))]),
    },
    Row {
        name: "directory to file alone",
        ours: "echo b > g",
        theirs: "rm -r d; echo flat > d",
        expected: Ok(&[("g", Some("b\n")), ("d/x", None), ("d", Some("flat\n"))]),
    },
    Row {
        name: "mode against content",
        ours: "chmod 755 f",
        theirs: "echo 2 > f",
        expected: Ok(&[("f", Some("2\n"))]),
    },
    Row { name: "modes", ours: "chmod 755 f", theirs: "chmod 600 f", expected: Err(&[("f", "mode")]) },
    Row {
        name: "link retargeted",
        ours: "echo 2 > g",
        theirs: "ln -sfn g l",
        expected: Ok(&[("g", Some("2\n")), ("l", Some("-> g"))]),
    },
    Row {
        name: "link retargeted twice",
        ours: "ln -sfn d l",
        theirs: "ln -sfn g l",
        expected: Err(&[("l", "symlink_target")]),
    },
    Row {
        name: "binary",
        ours: "printf '\\000\\002' > b",
        theirs: "printf '\\000\\003' > b",
        expected: Err(&[("b", "content")]),
    },
    Row {
        name: "added equal",
        ours: "echo n > new",
        theirs: "echo n > new",
        expected: Ok(&[("new", Some("n\n"))]),
    },
    Row {
        name: "added different",
        ours: "echo n > new",
        theirs: "echo m > new",
        expected: Err(&[("new", "add_add")]),
    },
    Row {
        name: "type against content",
        ours: "ln -sfn g f",
        theirs: "echo 2 > f",
        expected: Err(&[("f", "type")]),
    },
];

#[test]
fn the_table_of_merges() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    for row in TABLE {
        let (ours, theirs) = (lab.work(start.node_id, row.ours), lab.work(start.node_id, row.theirs));
        let outcome = lab.store.merge(&lab.meta(), &merge(&[&ours, &theirs], 0)).unwrap();
        match row.expected {
            Ok(changes) => check_merged(&lab, row, &start, changes, &merged(outcome)),
            Err(conflicts) => check_conflicted(&lab, row, &ours, conflicts, outcome),
        }
        let group = group_of(&lab, &start);
        assert_eq!((group.canonical_node_id, group.generation), (start.node_id, 0), "{}", row.name);
    }
}

fn check_merged(lab: &Lab, row: &Row, start: &Node, changes: &[(&str, Option<&str>)], node: &Node) {
    let mut expected = lab.files(&start.root().unwrap());
    for (path, content) in changes {
        match content {
            Some(content) => expected.insert((*path).to_owned(), (*content).to_owned()),
            None => expected.remove(*path),
        };
    }
    let pin = node.root().unwrap();
    assert_eq!(lab.files(&pin), expected, "{}", row.name);
    if row.name == "mode against content" {
        let entry = lookup(lab.store.stack().objects(), &pin, b"f").unwrap().unwrap();
        assert_eq!(entry.mode.bits(), 0o755, "the exec bit survives");
    }
    // The carriers show what the manifest says: work goes on from there.
    let script = expected
        .iter()
        .map(|(path, text)| match text.strip_prefix("-> ") {
            Some(target) => format!("test \"$(readlink '{path}')\" = '{target}'; "),
            None => format!("test -f '{path}'; "),
        })
        .collect::<String>();
    lab.work(node.node_id, &script);
}

fn check_conflicted(lab: &Lab, row: &Row, ours: &Node, expected: &[(&str, &str)], outcome: MergeOutcome) {
    let (node, conflicts) = conflicted(outcome);
    let found: Vec<(&str, &str)> = conflicts
        .iter()
        .map(|conflict| (conflict["path"].as_str().unwrap(), conflict["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(found, expected, "{}", row.name);
    assert_eq!(node.status, NodeStatus::Draft, "{}", row.name);
    assert_eq!(node.merge.as_ref().unwrap().conflicts, conflicts);
    for conflict in &conflicts {
        let has = |side: &str| !conflict[side].is_null();
        assert_eq!(has("base"), conflict["kind"] != "add_add", "{}: {conflict}", row.name);
        assert!(has("ours") || has("theirs"), "{}: {conflict}", row.name);
        for side in ["base", "ours", "theirs"] {
            assert!(conflict[side].is_null() || conflict[side]["digest"].is_string(), "{conflict}");
        }
    }
    // Ours stays at each conflict.
    let (base, side) = (lab.files(&node.base_root().unwrap()), lab.files(&ours.root().unwrap()));
    for (path, _) in expected {
        assert_eq!(base.get(*path), side.get(*path), "{}", row.name);
    }
    let promote = Promote { node: node.node_id, expect: 0, replace: true };
    assert_eq!(lab.store.promote(&lab.meta(), promote).unwrap_err().problem().code, "not_sealed");
}

#[test]
fn a_conflict_is_resolved_by_working_on_its_draft() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let (ours, theirs) =
        (lab.work(start.node_id, "echo 2 > f"), lab.work(start.node_id, "echo 3 > f; echo y > d/y"));
    let (draft, _) = conflicted(lab.store.merge(&lab.meta(), &merge(&[&ours, &theirs], 0)).unwrap());
    let resolved = lab.work_on(&draft, "test \"$(cat f)\" = 2; test -f d/y; echo 2 and 3 > f");
    assert_eq!(resolved.parents, [ours.node_id, theirs.node_id]);
    assert_eq!(lab.files(&resolved.root().unwrap())["f"], "2 and 3\n");
    let promote = Promote { node: resolved.node_id, expect: 0, replace: false };
    assert_eq!(lab.store.promote(&lab.meta(), promote).unwrap().generation, 1);
}

#[test]
fn a_merge_is_answered_once_and_told_when_it_is_late() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let (ours, theirs) = (lab.work(start.node_id, "echo 2 > f"), lab.work(start.node_id, "echo b > g"));
    let dry = Merge { dry_run: true, ..merge(&[&ours, &theirs], 0) };
    let nodes = lab.store.graph().nodes(start.group_id).unwrap().len();
    assert!(matches!(lab.store.merge(&meta("dry"), &dry).unwrap(), MergeOutcome::Merged { node: None, .. }));
    assert_eq!(lab.store.graph().nodes(start.group_id).unwrap().len(), nodes);
    let first = merged(lab.store.merge(&meta("k"), &merge(&[&ours, &theirs], 0)).unwrap());
    lab.store.promote(&lab.meta(), Promote { node: first.node_id, expect: 0, replace: false }).unwrap();
    // The same request is answered as before although the group moved on; a new one is stale.
    assert_eq!(merged(lab.store.merge(&meta("k"), &merge(&[&ours, &theirs], 0)).unwrap()), first);
    // One path each, and not the directory around them: as a seal counts.
    let changed = first.changed.unwrap();
    assert_eq!((changed.added, changed.modified, changed.deleted), (0, 1, 0));
    let other_base = Merge { base: Some(start.node_id), ..merge(&[&ours, &theirs], 0) };
    for other in [merge(&[&theirs, &ours], 0), merge(&[&ours, &theirs], 1), other_base] {
        let error = lab.store.merge(&meta("k"), &other).unwrap_err();
        assert_eq!(error.problem().code, "idempotency_conflict");
    }
    let late = lab.store.merge(&lab.meta(), &merge(&[&ours, &theirs], 0)).unwrap();
    assert_eq!(late, MergeOutcome::Stale { generation: 1, canonical_node_id: first.node_id });
}

#[test]
fn whoever_promotes_too_late_is_told_whether_a_clean_merge_exists() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let [won, clean, clash] =
        ["echo 2 > f", "echo b > g", "echo 3 > f"].map(|script| lab.work(start.node_id, script));
    let promote = |node: &Node, expect| {
        lab.store.promote(&lab.meta(), Promote { node: node.node_id, expect, replace: false })
    };
    promote(&won, 0).unwrap();
    for (node, expect, code, exists) in [
        (&clean, 0, "stale_generation", true),
        (&clash, 0, "stale_generation", false),
        (&clean, 1, "not_descendant", true),
        (&clash, 1, "not_descendant", false),
    ] {
        let problem = promote(node, expect).unwrap_err().problem();
        assert_eq!(problem.code, code);
        assert_eq!(problem.context["clean_merge"], exists, "{problem:?}");
        assert_eq!(problem.context["generation"], 1);
        assert_eq!(problem.context["canonical_node_id"], won.node_id.to_string());
    }
}

#[test]
fn several_bases_are_refused_unless_one_is_named() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let (a, b) = (lab.work(start.node_id, "echo 2 > f"), lab.work(start.node_id, "echo b > g"));
    let ab = merged(lab.store.merge(&lab.meta(), &merge(&[&a, &b], 0)).unwrap());
    let ba = merged(lab.store.merge(&lab.meta(), &merge(&[&b, &a], 0)).unwrap());
    assert_eq!(ab.root_id, ba.root_id);
    let (x, y) = (lab.work(ab.node_id, "echo x > x"), lab.work(ba.node_id, "echo y > y"));
    let problem = lab.store.merge(&lab.meta(), &merge(&[&x, &y], 0)).unwrap_err().problem();
    assert_eq!(problem.code, "ambiguous_base");
    assert_eq!(problem.context["candidates"].as_array().unwrap().len(), 2);
    let named = Merge { base: Some(start.node_id), ..merge(&[&x, &y], 0) };
    let node = merged(lab.store.merge(&lab.meta(), &named).unwrap());
    let files = lab.files(&node.root().unwrap());
    assert_eq!(["f", "g", "x", "y"].map(|path| files[path].trim()), ["2", "b", "x", "y"]);
    assert_eq!(node.merge.unwrap().base, Some(start.node_id));
}

#[test]
fn many_are_folded_in_the_order_they_are_named() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let [a, b, c, d] = ["echo a > a", "echo 2 > f", "rm -r d", "echo 3 > f; echo d > new"]
        .map(|script| lab.work(start.node_id, script));
    let node = merged(lab.store.merge(&lab.meta(), &merge(&[&a, &b, &c], 0)).unwrap());
    let files: BTreeMap<String, String> = lab.files(&node.root().unwrap());
    assert_eq!((files["a"].as_str(), files["f"].as_str(), files.contains_key("d/x")), ("a\n", "2\n", false));
    assert_eq!(node.parents, [a.node_id, b.node_id, c.node_id]);
    let (draft, conflicts) = conflicted(lab.store.merge(&lab.meta(), &merge(&[&a, &b, &c, &d], 0)).unwrap());
    assert_eq!(conflicts.len(), 1);
    assert_eq!(
        (&conflicts[0]["path"], &conflicts[0]["theirs_node"]),
        (&"f".into(), &d.node_id.to_string().into())
    );
    let files = lab.files(&draft.base_root().unwrap());
    assert_eq!((files["f"].as_str(), files["new"].as_str()), ("2\n", "d\n"));
    let same = Merge { dry_run: true, ..merge(&[&a, &b, &c, &d], 0) };
    let MergeOutcome::Conflicted { node: None, conflicts: told, .. } =
        lab.store.merge(&lab.meta(), &same).unwrap()
    else {
        panic!("a dry run finds the same")
    };
    assert_eq!(told, conflicts);
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let other = lab.group("h", BASE).node;
    let node = lab.work(start.node_id, "echo 2 > f");
    let draft = lab.start(start.node_id).attempt.node_id;
    let code = |nodes: &[NodeId]| {
        let request = Merge { nodes: nodes.to_vec(), expect: 0, ..Merge::default() };
        lab.store.merge(&lab.meta(), &request).unwrap_err().problem().code
    };
    assert_eq!(code(&[node.node_id]), "bad_request");
    assert_eq!(code(&[node.node_id, node.node_id]), "bad_request");
    assert_eq!(code(&[node.node_id, other.node_id]), "other_group");
    assert_eq!(code(&[node.node_id, draft]), "not_sealed");
    assert_eq!(code(&[node.node_id, NodeId::from_bytes([9; 16])]), "not_found");
    // An ancestor and its descendant merge into the descendant's tree.
    let forward = merged(lab.store.merge(&lab.meta(), &merge(&[&start, &node], 0)).unwrap());
    assert_eq!(forward.root(), node.root());
    let backward = merged(lab.store.merge(&lab.meta(), &merge(&[&node, &start], 0)).unwrap());
    assert_eq!(backward.root(), node.root());
}
