//! Merge against what acceptance row M01 lists, against a naive merge of path maps, and against its
//! own promises: edits lead from *ours* to the result, and nothing is lost that no conflict names.

mod naive;
mod support;

use std::collections::BTreeMap;

use esf_core::manifest::{Attrs, EntryKind, MemoryObjects, hard_link_group};
use esf_core::merge::{Action, ConflictKind, From, Merge, merge3};
use proptest::prelude::*;
use support::*;

struct Outcome {
    merged: Tree,
    merge: Merge,
    conflicts: Vec<(String, ConflictKind)>,
}

fn merge(base: &Tree, ours: &Tree, theirs: &Tree) -> Outcome {
    merge_with(base, ours, theirs, &CONTENTS)
}

fn merge_with(base: &Tree, ours: &Tree, theirs: &Tree, contents: &[&[u8]]) -> Outcome {
    let mut objects = MemoryObjects::default();
    let [base, ours, theirs] = [base, ours, theirs].map(|tree| build(&mut objects, tree));
    let mut new = objects.clone();
    let merge = merge3(&objects, &mut new, &base, &ours, &theirs).unwrap();
    let path = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let conflicts = merge.conflicts.iter().map(|conflict| (path(&conflict.path), conflict.kind)).collect();
    Outcome { merged: read(&new, &merge.root, contents), merge, conflicts }
}

fn owned(uid: u32, contents: &str) -> Facts {
    Facts { attrs: Attrs { uid, ..Attrs::default() }, ..file(contents) }
}

/// A name; base, ours, theirs and what is expected; the expected conflicts.
type Case = (&'static str, [Vec<(&'static str, Facts)>; 4], Vec<(&'static str, ConflictKind)>);

/// Acceptance M01: base, ours, theirs; the merged tree, and the conflicts by path and kind.
#[test]
fn each_case_merges_exactly_or_names_its_conflict() {
    use ConflictKind::*;
    let f = file;
    let exec = |contents| Facts { mode: 0o755, ..file(contents) };
    let (seven, eight) = (|contents| owned(7, contents), |contents| owned(8, contents));
    let cases: Vec<Case> = vec![
        (
            "same edit",
            [vec![("a", f("one"))], vec![("a", f("two"))], vec![("a", f("two"))], vec![("a", f("two"))]],
            vec![],
        ),
        (
            "disjoint files",
            [
                vec![("a", f("one")), ("d/b", f("one")), ("d/c", f("one"))],
                vec![("a", f("one")), ("d/b", f("two")), ("d/c", f("one"))],
                vec![("a", f("three")), ("d/b", f("one")), ("d/c", exec("one"))],
                vec![("a", f("three")), ("d/b", f("two")), ("d/c", exec("one"))],
            ],
            vec![],
        ),
        (
            "same file",
            [
                vec![("d/a", f("one"))],
                vec![("d/a", f("two"))],
                vec![("d/a", f("three"))],
                vec![("d/a", f("two"))],
            ],
            vec![("d/a", Content)],
        ),
        (
            "ours deletes, theirs modifies",
            [
                vec![("a", f("one")), ("b", f(""))],
                vec![("b", f(""))],
                vec![("a", f("two")), ("b", f(""))],
                vec![("b", f(""))],
            ],
            vec![("a", ModifyDelete)],
        ),
        (
            "ours modifies, theirs deletes the directory",
            [
                vec![("d/a", f("one")), ("d/b", f("one"))],
                vec![("d/a", f("two")), ("d/b", f("one"))],
                vec![],
                vec![("d/a", f("two"))],
            ],
            vec![("d/a", ModifyDelete)],
        ),
        (
            "both delete",
            [
                vec![("d/a", f("one")), ("b", f(""))],
                vec![("b", f(""))],
                vec![("b", f(""))],
                vec![("b", f(""))],
            ],
            vec![],
        ),
        (
            "one deletes a directory",
            [vec![("d/a", f("one"))], vec![("d/a", f("one")), ("x", f(""))], vec![], vec![("x", f(""))]],
            vec![],
        ),
        (
            "ours renames, theirs modifies",
            [vec![("a", f("one"))], vec![("b", f("one"))], vec![("a", f("two"))], vec![("b", f("one"))]],
            vec![("a", ModifyDelete)],
        ),
        (
            "theirs adds to a directory that ours deleted",
            [
                vec![("d/a", f("one"))],
                vec![],
                vec![("d/a", f("one")), ("d/n", f("two"))],
                vec![("d/n", f("two"))],
            ],
            vec![],
        ),
        (
            "a file becomes a directory",
            [
                vec![("a", f("one"))],
                vec![("a", f("one")), ("b", f(""))],
                vec![("a/b", f("two"))],
                vec![("a/b", f("two")), ("b", f(""))],
            ],
            vec![],
        ),
        (
            "a directory becomes a file",
            [
                vec![("a/b", f("one"))],
                vec![("a/b", f("one")), ("c", f(""))],
                vec![("a", f("two"))],
                vec![("a", f("two")), ("c", f(""))],
            ],
            vec![],
        ),
        (
            "modified file against directory",
            [vec![("a", f("one"))], vec![("a", f("two"))], vec![("a/b", f("two"))], vec![("a", f("two"))]],
            vec![("a", DirectoryFile)],
        ),
        (
            "modified directory against file",
            [
                vec![("a/b", f("one")), ("a/c", f("one"))],
                vec![("a/b", f("two")), ("a/c", f("one"))],
                vec![("a", f("three"))],
                vec![("a/b", f("two")), ("a/c", f("one"))],
            ],
            vec![("a", DirectoryFile)],
        ),
        (
            "emptied directory against file",
            [
                vec![("a/b", f("one"))],
                vec![("a", directory())],
                vec![("a", f("three"))],
                vec![("a", f("three"))],
            ],
            vec![],
        ),
        (
            "mode against content",
            [
                vec![("a", f("one"))],
                vec![("a", exec("one"))],
                vec![("a", f("two"))],
                vec![("a", exec("two"))],
            ],
            vec![],
        ),
        (
            "content against mode",
            [
                vec![("a", f("one"))],
                vec![("a", f("two"))],
                vec![("a", exec("one"))],
                vec![("a", exec("two"))],
            ],
            vec![],
        ),
        (
            "mode against mode",
            [
                vec![("a", f("one"))],
                vec![("a", exec("one"))],
                vec![("a", Facts { mode: 0o600, ..f("one") })],
                vec![("a", exec("one"))],
            ],
            vec![("a", Mode)],
        ),
        (
            "mode of a directory",
            [
                vec![("d/a", f(""))],
                vec![("d", Facts { mode: 0o700, ..directory() }), ("d/a", f(""))],
                vec![("d/a", f("")), ("d/b", f(""))],
                vec![("d", Facts { mode: 0o700, ..directory() }), ("d/a", f("")), ("d/b", f(""))],
            ],
            vec![],
        ),
        (
            "changed mode against deleted directory",
            [
                vec![("d/a", f(""))],
                vec![("d", Facts { mode: 0o700, ..directory() }), ("d/a", f(""))],
                vec![],
                vec![("d", Facts { mode: 0o700, ..directory() })],
            ],
            vec![("d", ModifyDelete)],
        ),
        (
            "link retarget",
            [
                vec![("l", symlink("to"))],
                vec![("l", symlink("to")), ("x", f(""))],
                vec![("l", symlink("fro"))],
                vec![("l", symlink("fro")), ("x", f(""))],
            ],
            vec![],
        ),
        (
            "link retargeted by both",
            [
                vec![("l", symlink("to"))],
                vec![("l", symlink("fro"))],
                vec![("l", symlink("up"))],
                vec![("l", symlink("fro"))],
            ],
            vec![("l", SymlinkTarget)],
        ),
        (
            "modified file against link",
            [vec![("a", f("one"))], vec![("a", f("two"))], vec![("a", symlink("to"))], vec![("a", f("two"))]],
            vec![("a", Type)],
        ),
        (
            "changed mode against link",
            [
                vec![("a", f("one"))],
                vec![("a", exec("one"))],
                vec![("a", symlink("to"))],
                vec![("a", exec("one"))],
            ],
            vec![("a", Type)],
        ),
        (
            "equal adds",
            [vec![], vec![("d/a", exec("one"))], vec![("d/a", exec("one"))], vec![("d/a", exec("one"))]],
            vec![],
        ),
        (
            "disjoint adds in a new directory",
            [
                vec![],
                vec![("d/a", f("one"))],
                vec![("d/b", f("two"))],
                vec![("d/a", f("one")), ("d/b", f("two"))],
            ],
            vec![],
        ),
        (
            "different adds",
            [vec![], vec![("d/a", f("one"))], vec![("d/a", f("two"))], vec![("d/a", f("one"))]],
            vec![("d/a", AddAdd)],
        ),
        (
            "adds of different modes",
            [vec![], vec![("a", f("one"))], vec![("a", exec("one"))], vec![("a", f("one"))]],
            vec![("a", Mode)],
        ),
        (
            "adds of different kinds",
            [vec![], vec![("a", f("one"))], vec![("a", symlink("to"))], vec![("a", f("one"))]],
            vec![("a", Type)],
        ),
        (
            "add of file and directory",
            [vec![], vec![("a", f("one"))], vec![("a/b", f("two"))], vec![("a", f("one"))]],
            vec![("a", DirectoryFile)],
        ),
        (
            "owner against content",
            [
                vec![("a", f("one"))],
                vec![("a", seven("one"))],
                vec![("a", f("two"))],
                vec![("a", seven("two"))],
            ],
            vec![],
        ),
        (
            "owner against owner",
            [
                vec![("a", f("one"))],
                vec![("a", seven("one"))],
                vec![("a", eight("one"))],
                vec![("a", seven("one"))],
            ],
            vec![("a", Attrs)],
        ),
        (
            "owner against deletion",
            [vec![("a", f("one"))], vec![("a", seven("one"))], vec![], vec![("a", seven("one"))]],
            vec![("a", ModifyDelete)],
        ),
    ];
    for (name, [base, ours, theirs, expected], conflicts) in cases {
        let [base, ours, theirs, expected] = [base, ours, theirs, expected].map(|entries| {
            let mut tree = tree([]);
            entries.into_iter().for_each(|(path, facts)| put(&mut tree, path.as_bytes(), facts));
            tree
        });
        let found = merge(&base, &ours, &theirs);
        assert_eq!(found.merged, expected, "{name}");
        let conflicts: Vec<_> = conflicts.into_iter().map(|(path, kind)| (path.to_owned(), kind)).collect();
        assert_eq!(found.conflicts, conflicts, "{name}");
    }
}

#[test]
fn a_conflict_tells_the_three_digests() {
    let [base, ours, theirs] = ["one", "two", "three"].map(|contents| tree([("d/a b", file(contents))]));
    let found = merge(&base, &ours, &theirs);
    let digests =
        ["one", "two", "three"].map(|contents| esf_core::Digest::of(contents.as_bytes()).to_string());
    let json = serde_json::to_value(&found.merge.conflicts).unwrap();
    let term = |size: u32, nth: usize| serde_json::json!({"kind": "file", "mode": "0644", "size": size, "digest": digests[nth]});
    let expected = serde_json::json!([{"path": "d/a\\x20b", "kind": "content",
        "base": term(3, 0), "ours": term(3, 1), "theirs": term(5, 2)}]);
    assert_eq!(json, expected);
}

#[test]
fn times_follow_the_contents_and_then_theirs() {
    let at = |seconds, contents| {
        let mtime = Some(esf_core::time::FileTime { seconds, nanos: 0 });
        Facts { attrs: Attrs { mtime, ..Attrs::default() }, ..file(contents) }
    };
    let base = tree([("ours", at(1, "one")), ("theirs", at(1, "one")), ("same", at(1, "one"))]);
    let ours = tree([("ours", at(5, "two")), ("theirs", at(6, "one")), ("same", at(5, "two"))]);
    let theirs = tree([("ours", at(8, "one")), ("theirs", at(3, "two")), ("same", at(4, "two"))]);
    let found = merge(&base, &ours, &theirs);
    assert_eq!(found.conflicts, []);
    assert_eq!(
        found.merged,
        tree([("ours", at(5, "two")), ("theirs", at(3, "two")), ("same", at(4, "two"))])
    );
    let taken: Vec<_> = found.merge.edits.iter().map(|edit| (edit.path.as_slice(), &edit.action)).collect();
    let linked = |action: &&Action| matches!(action, Action::Put { from: From::Theirs, as_is: true, .. });
    assert!(
        matches!(&taken[..], [(b"same", one), (b"theirs", two)] if linked(one) && linked(two)),
        "{taken:?}"
    );
}

fn linked(facts: Facts, smallest: &str) -> Facts {
    let hard_link = Some(hard_link_group(smallest.as_bytes()));
    Facts { attrs: Attrs { hard_link, ..facts.attrs }, ..facts }
}

#[test]
fn hard_links_keep_true_names_and_break_where_contents_part() {
    let f = || file("one");
    let base = tree([("a", linked(f(), "a")), ("d/b", linked(f(), "a")), ("d/e/c", linked(f(), "a"))]);
    // Ours takes the smallest path away, so the group has another name; theirs changes one member.
    let ours = tree([("d/b", linked(f(), "d/b")), ("d/e/c", linked(f(), "d/b"))]);
    let mut theirs = base.clone();
    put(&mut theirs, b"x", file("two"));
    let found = merge(&base, &ours, &theirs);
    let mut expected = ours.clone();
    put(&mut expected, b"x", file("two"));
    assert_eq!((found.merged, found.conflicts), (expected, vec![]));

    let theirs = tree([("a", linked(f(), "a")), ("d/b", linked(f(), "a")), ("d/e/c", file("two"))]);
    let found = merge(&base, &ours, &theirs);
    let expected = tree([("d/b", f()), ("d/e/c", file("two"))]);
    assert_eq!((found.merged, found.conflicts), (expected, vec![]));

    // Theirs adds a member before all others while ours changes one.
    let ours = tree([("a", linked(f(), "a")), ("d/b", linked(f(), "a")), ("d/e/c", file("two"))]);
    let of = |path| (path, linked(f(), "0"));
    let theirs = tree([of("0"), of("a"), of("d/b"), of("d/e/c")]);
    let found = merge(&base, &ours, &theirs);
    let expected = tree([of("0"), of("a"), of("d/b"), ("d/e/c", file("two"))]);
    assert_eq!((found.merged, found.conflicts), (expected, vec![]));
    let paths: Vec<_> = found.merge.edits.iter().map(|edit| edit.path.as_slice()).collect();
    assert_eq!(paths, [b"0"], "the name of a group alone is no edit");
}

/// Follows the edits from *ours*; contents come from where the edits say they lie.
fn follow(edits: &[esf_core::merge::Edit], ours: &Tree, theirs: &Tree) -> Tree {
    let mut tree = ours.clone();
    for edit in edits {
        match &edit.action {
            Action::Delete => remove(&mut tree, &edit.path),
            Action::Put { mode, kind, attrs, from, as_is } => {
                let source = if *from == From::Ours { ours } else { theirs };
                let lying = &source[&edit.path];
                let (mode, attrs) = (mode.bits(), attrs.clone());
                let same = (lying.mode, &lying.attrs) == (mode, &attrs);
                assert!(kind.is_directory() || same == *as_is, "{edit:?}");
                assert_eq!(lying.kind == Kind::Directory, kind.is_directory());
                if let (Kind::File(contents), EntryKind::File { blob, .. }) = (&lying.kind, kind) {
                    assert_eq!(esf_core::BlobId::of(contents), *blob);
                }
                put(&mut tree, &edit.path, Facts { mode, kind: lying.kind.clone(), attrs });
            }
        }
    }
    tree
}

/// A file that `side` changed is as that side has it, or a conflict names it.
fn nothing_is_lost(base: &Tree, side: &Tree, found: &Outcome) {
    for (path, facts) in side {
        let Kind::File(contents) = &facts.kind else { continue };
        let changed = base.get(path).is_none_or(|base| base.kind != facts.kind);
        let merged = found.merged.get(path).is_some_and(|merged| merged.kind == Kind::File(contents.clone()));
        let named = |conflict: &[u8]| conflict == path.as_slice() || is_beneath(path, conflict);
        let told = found.merge.conflicts.iter().any(|conflict| named(&conflict.path));
        assert!(!changed || merged || told, "{:?} is lost", String::from_utf8_lossy(path));
    }
}

fn three() -> impl Strategy<Value = [Tree; 3]> {
    let changes = || proptest::collection::vec(change(), 0..5);
    let related = (random(), changes(), changes()).prop_map(|(base, ours, theirs)| {
        let (ours, theirs) = (apply(&base, &ours), apply(&base, &theirs));
        [base, ours, theirs]
    });
    prop_oneof![3 => related, 1 => [random(), random(), random()]]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn merges_as_the_naive_merge_does([base, ours, theirs] in three()) {
        let found = merge(&base, &ours, &theirs);
        let (merged, conflicts) = naive::merge(&base, &ours, &theirs);
        let named: BTreeMap<_, _> =
            found.merge.conflicts.iter().map(|conflict| (conflict.path.clone(), conflict.kind)).collect();
        prop_assert_eq!(&named, &conflicts);
        prop_assert_eq!(&found.merged, &merged);
        prop_assert_eq!(follow(&found.merge.edits, &ours, &theirs), merged);
        nothing_is_lost(&base, &ours, &found);
        nothing_is_lost(&base, &theirs, &found);

        let turned = merge(&base, &theirs, &ours);
        prop_assert_eq!(turned.conflicts.is_empty(), found.conflicts.is_empty());
        if found.conflicts.is_empty() {
            prop_assert_eq!(turned.merge.root.root, found.merge.root.root);
        }
    }

    #[test]
    fn one_sided_merges_take_that_side([base, other, _] in three()) {
        for (ours, theirs) in [(&base, &other), (&other, &base), (&other, &other)] {
            let found = merge(&base, ours, theirs);
            prop_assert_eq!(&found.merged, &other);
            prop_assert!(found.conflicts.is_empty());
            prop_assert_eq!(follow(&found.merge.edits, ours, theirs), other.clone());
        }
    }
}
