//! The oracle of the patch writer is `git apply` itself: patches between random trees are checked
//! and applied by git, and the resulting tree is compared entry by entry.

mod support;

use std::fs;
use std::path::Path;

use esf_core::manifest::{self, Attrs, EntryKind, MemoryObjects, Mode, Root, store_top, store_tree};
use esf_core::{BlobId, Name};
use esf_exchange::patch::{Source, Summary, TEXT_MAX, Version, Writer, between};

use proptest::prelude::*;
use support::{Entry, InMemory, Tree, git, have_git, pin, read_tree, trees, write_tree};

fn patch(before: &Tree, after: &Tree) -> (Vec<u8>, Summary) {
    let mut objects = MemoryObjects::default();
    let (old, new) = (pin(&mut objects, before), pin(&mut objects, after));
    let before = Source { pin: &old, files: &InMemory(before) };
    let after = Source { pin: &new, files: &InMemory(after) };
    let mut out = Vec::new();
    let summary = between(&objects, before, after, &mut out).unwrap();
    (out, summary)
}

/// Runs `git apply` with `extra` flags; returns what it complained about.
fn apply(dir: &Path, patch: &Path, extra: &[&str]) -> Result<(), String> {
    // An empty patch is an error for git unless it is allowed.
    let output = git(dir).args(["apply", "--allow-empty"]).args(extra).arg(patch).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn check_forward(before: &Tree, after: &Tree) -> Result<(), String> {
    check(before, after, false)
}

fn check_both_ways(before: &Tree, after: &Tree) -> Result<(), String> {
    check(before, after, true)
}

fn check(before: &Tree, after: &Tree, reverse: bool) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let (work, file) = (dir.path().join("work"), dir.path().join("patch"));
    fs::create_dir(&work).unwrap();
    assert!(git(&work).args(["init", "-q"]).status().unwrap().success());
    write_tree(&work, before);
    fs::write(&file, patch(before, after).0).unwrap();
    apply(&work, &file, &["--check"])?;
    apply(&work, &file, &[])?;
    if read_tree(&work) != *after {
        return Err(format!("applied: expected {after:?}, found {:?}", read_tree(&work)));
    }
    if !reverse {
        return Ok(());
    }
    apply(&work, &file, &["-R"])?;
    let reversed = read_tree(&work);
    if bytes_of(&reversed) != bytes_of(before) {
        return Err(format!("reversed: expected {before:?}, found {reversed:?}"));
    }
    Ok(())
}

/// The bytes of each path. A reversal is compared by these: git itself forgets the mode of a deleted
/// file or link when it applies one of its own patches in reverse.
fn bytes_of(tree: &Tree) -> Vec<(&[u8], &[u8])> {
    let bytes = tree.values().map(|entry| match entry {
        Entry::File { bytes, .. } | Entry::Symlink(bytes) => bytes.as_slice(),
    });
    tree.keys().map(Vec::as_slice).zip(bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn git_applies_patches_between_random_trees((before, after) in trees()) {
        if have_git() {
            let checked = check_forward(&before, &after);
            prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
        }
    }
}

fn file(bytes: &[u8]) -> Entry {
    Entry::File { executable: false, bytes: bytes.to_vec() }
}

#[test]
fn every_kind_of_change_applies() {
    if !have_git() {
        return;
    }
    let script = Entry::File { executable: true, bytes: b"#!/bin/sh\n".to_vec() };
    let link = Entry::Symlink(b"target".to_vec());
    let kinds = [
        None,
        Some(file(b"")),
        Some(file(b"text\n")),
        Some(file(b"no newline")),
        Some(file(b"bin\0ary")),
        Some(script),
        Some(link),
    ];
    for before in &kinds {
        for after in &kinds {
            let tree =
                |entry: &Option<Entry>| entry.iter().map(|e| (b"d/x".to_vec(), e.clone())).collect::<Tree>();
            check_both_ways(&tree(before), &tree(after))
                .unwrap_or_else(|why| panic!("{before:?} -> {after:?}: {why}"));
        }
    }
}

#[test]
fn directories_change_places_with_files_and_links() {
    if !have_git() {
        return;
    }
    let deep = Tree::from([(b"d/a".to_vec(), file(b"1\n")), (b"d/b/c".to_vec(), file(b"2\n"))]);
    for flat in [file(b"flat\n"), Entry::Symlink(b"elsewhere".to_vec())] {
        let flat = Tree::from([(b"d".to_vec(), flat)]);
        check_both_ways(&deep, &flat).unwrap();
        check_both_ways(&flat, &deep).unwrap();
    }
}

#[test]
fn a_large_text_is_streamed_as_binary() {
    if !have_git() {
        return;
    }
    let large: Vec<u8> = (0..TEXT_MAX / 8).flat_map(|n| format!("{n:08}\n").into_bytes()).collect();
    assert!(large.len() as u64 > TEXT_MAX);
    let mut changed = large.clone();
    changed[17] = b'x';
    let before = Tree::from([(b"large".to_vec(), file(&large))]);
    let after = Tree::from([(b"large".to_vec(), file(&changed))]);
    assert_eq!(patch(&before, &after).1.binary, 1);
    check_both_ways(&before, &after).unwrap();
}

#[test]
fn the_repository_is_left_out_and_named_once() {
    let after = Tree::from([
        (b"sub/.git/config".to_vec(), file(b"x")),
        (b"sub/.git/hooks/post-checkout".to_vec(), file(b"x")),
        (b"sub/kept".to_vec(), file(b"x")),
    ]);
    let (text, summary) = patch(&Tree::new(), &after);
    assert!(!String::from_utf8(text).unwrap().contains(".git/"));
    assert_eq!(summary.paths, 1);
    let names: Vec<_> = summary.left_out.iter().map(|item| item.path.as_str()).collect();
    assert_eq!(names, ["sub/.git"]);
}

#[test]
fn a_content_of_another_size_is_refused() {
    let tree = Tree::from([(b"f".to_vec(), file(b"1234"))]);
    let empty = Tree::new();
    let files = (InMemory(&empty), InMemory(&tree));
    for size in [3, 5, TEXT_MAX + 1] {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, &files.0, &files.1);
        let error = writer.change(b"f", None, Some(Version::File { executable: false, size })).unwrap_err();
        assert_eq!(error.problem().code, "damaged", "{size}");
    }
}

#[test]
fn what_git_cannot_hold_is_named() {
    let mut objects = MemoryObjects::default();
    let empty = store_tree(&mut objects, Vec::new()).unwrap();
    let entry = |name: &str, mode, kind| manifest::Entry {
        name: Name::new(name.as_bytes()).unwrap(),
        mode: Mode::of_stat(mode),
        kind,
    };
    let bytes = || EntryKind::File { size: 1, blob: BlobId::of(b"x") };
    let filled = store_tree(&mut objects, vec![entry("x", 0o644, bytes())]).unwrap();
    let mut root = |entries| {
        let tree = store_tree(&mut objects, entries).unwrap();
        store_top(&mut objects, Root { mode: Mode::of_stat(0o755), tree }, &Attrs::default()).unwrap()
    };
    let before = root(vec![
        entry("emptied", 0o755, EntryKind::Directory { tree: filled }),
        entry("kept", 0o644, bytes()),
    ]);
    let after = root(vec![
        entry("emptied", 0o755, EntryKind::Directory { tree: empty }),
        entry("fifo", 0o644, EntryKind::Fifo),
        entry("kept", 0o600, bytes()),
        entry("new", 0o755, EntryKind::Directory { tree: empty }),
    ]);
    let files = Tree::from([(b"emptied/x".to_vec(), file(b"x")), (b"kept".to_vec(), file(b"x"))]);
    let (before, after) =
        (Source { pin: &before, files: &InMemory(&files) }, Source { pin: &after, files: &InMemory(&files) });
    let summary = between(&objects, before, after, &mut Vec::new()).unwrap();
    let named: Vec<_> =
        summary.left_out.iter().map(|item| (item.path.as_str(), item.reason.as_str())).collect();
    assert_eq!(
        named,
        [
            ("emptied", "an empty directory"),
            ("fifo", "a fifo"),
            ("kept", "permission bits other than the owner's execute bit"),
            ("new", "an empty directory"),
        ]
    );
    assert_eq!(summary.paths, 1);
}
