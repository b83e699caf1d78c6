//! The oracle of the patch writer is `git apply` itself: patches between random trees are checked
//! and applied by git, and the resulting tree is compared entry by entry.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esf_core::manifest::{self, Attrs, EntryKind, MemoryObjects, Mode, Root, RootPin, store_top, store_tree};
use esf_core::{BlobId, Name, TreeId};
use esf_exchange::patch::{Source, Summary, TEXT_MAX, Version, Writer, between};
use esf_exchange::{Error, Files};
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File { executable: bool, bytes: Vec<u8> },
    Symlink(Vec<u8>),
}

/// A tree as git sees it: only files and symlinks, by path.
type Tree = BTreeMap<Vec<u8>, Entry>;

struct InMemory<'a>(&'a Tree);

impl Files for InMemory<'_> {
    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>, Error> {
        match &self.0[path] {
            Entry::File { bytes, .. } => Ok(Box::new(bytes.as_slice())),
            Entry::Symlink(_) => unreachable!("symlinks carry their target"),
        }
    }
}

/// The manifest of what `tree` holds below `prefix`, which is empty or ends in a slash.
fn manifest(objects: &mut MemoryObjects, tree: &Tree, prefix: &[u8]) -> TreeId {
    let mut entries: BTreeMap<&[u8], Option<&Entry>> = BTreeMap::new();
    for (path, entry) in tree.iter().filter(|(path, _)| path.starts_with(prefix)) {
        let rest = &path[prefix.len()..];
        match rest.iter().position(|&byte| byte == b'/') {
            Some(slash) => entries.insert(&rest[..slash], None),
            None => entries.insert(rest, Some(entry)),
        };
    }
    let mut listed = Vec::new();
    for (name, entry) in entries {
        let (mode, kind) = match entry {
            None => (
                0o755,
                EntryKind::Directory { tree: manifest(objects, tree, &[prefix, name, b"/"].concat()) },
            ),
            Some(Entry::File { executable, bytes }) => {
                let kind = EntryKind::File { size: bytes.len() as u64, blob: BlobId::of(bytes) };
                (if *executable { 0o755 } else { 0o644 }, kind)
            }
            Some(Entry::Symlink(target)) => (0o777, EntryKind::Symlink { target: target.as_slice().into() }),
        };
        listed.push(manifest::Entry { name: Name::new(name).unwrap(), mode: Mode::of_stat(mode), kind });
    }
    store_tree(objects, listed).unwrap()
}

fn pin(objects: &mut MemoryObjects, tree: &Tree) -> RootPin {
    let tree = manifest(objects, tree, b"");
    store_top(objects, Root { mode: Mode::of_stat(0o755), tree }, &Attrs::default()).unwrap()
}

fn patch(before: &Tree, after: &Tree) -> (Vec<u8>, Summary) {
    let mut objects = MemoryObjects::default();
    let (old, new) = (pin(&mut objects, before), pin(&mut objects, after));
    let before = Source { pin: &old, files: &InMemory(before) };
    let after = Source { pin: &new, files: &InMemory(after) };
    let mut out = Vec::new();
    let summary = between(&objects, before, after, &mut out).unwrap();
    (out, summary)
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CEILING_DIRECTORIES", "/")]);
    command.stdin(Stdio::null());
    command
}

fn have_git() -> bool {
    let found = git(Path::new("/")).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: git is not installed, and it is the oracle of this test");
    }
    found
}

fn path_of(dir: &Path, path: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(path))
}

fn write_tree(dir: &Path, tree: &Tree) {
    for (path, entry) in tree {
        let at = path_of(dir, path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        match entry {
            Entry::File { executable, bytes } => {
                fs::write(&at, bytes).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            }
            Entry::Symlink(target) => symlink(OsStr::from_bytes(target), &at).unwrap(),
        }
    }
}

fn read_tree(dir: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        for item in fs::read_dir(&next).unwrap() {
            let at = item.unwrap().path();
            let path = at.strip_prefix(dir).unwrap().as_os_str().as_bytes().to_vec();
            if path == b".git" {
                continue;
            }
            let meta = fs::symlink_metadata(&at).unwrap();
            if meta.is_dir() {
                pending.push(at);
            } else if meta.is_symlink() {
                tree.insert(
                    path,
                    Entry::Symlink(fs::read_link(&at).unwrap().into_os_string().as_bytes().to_vec()),
                );
            } else {
                let executable = meta.permissions().mode() & 0o100 != 0;
                tree.insert(path, Entry::File { executable, bytes: fs::read(&at).unwrap() });
            }
        }
    }
    tree
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

const NAMES: [&[u8]; 10] =
    [b"a", b"b", b"c d", b" e", b"f ", b"g\"h", b"i\tj\nk", b"l\\m", "caf\u{e9}".as_bytes(), b"\xff\xfe"];

fn paths() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..NAMES.len(), 1..4)
        .prop_map(|parts| parts.iter().map(|&part| NAMES[part]).collect::<Vec<_>>().join(&b'/'))
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "",
        "one",
        "two",
        "-- a",
        "+++ b",
        "\\ no",
        "@@ -1 +1 @@",
        "crlf\r",
        "\u{fc}",
    ]);
    (prop::collection::vec(line, 0..30), any::<bool>()).prop_map(|(lines, newline)| {
        let mut text = lines.join("\n");
        if newline && !text.is_empty() {
            text.push('\n');
        }
        text.into_bytes()
    })
}

// No link leads to one of the tree, itself or another: git looks through links of the old tree for what lies
// below their names in the new one, and then cannot replace such a link by a directory.
fn entries() -> impl Strategy<Value = Entry> {
    let binary = prop::collection::vec(any::<u8>(), 0..300);
    let bytes = prop_oneof![4 => text(), 1 => binary];
    prop_oneof![
        4 => (any::<bool>(), bytes).prop_map(|(executable, bytes)| Entry::File { executable, bytes }),
        1 => prop::sample::select(vec!["nowhere", "nowhere/else", "/nonexistent/esf", "x\ny"])
            .prop_map(|target| Entry::Symlink(target.as_bytes().to_vec())),
    ]
}

/// Keeps what a directory tree can hold: no path may lie below another that is no directory.
fn consistent(list: Vec<(Vec<u8>, Entry)>) -> Tree {
    let mut tree = Tree::new();
    for (path, entry) in list {
        let above =
            |upper: &[u8], lower: &[u8]| lower.starts_with(upper) && lower.get(upper.len()) == Some(&b'/');
        tree.retain(|other, _| !above(other, &path) && !above(&path, other));
        tree.insert(path, entry);
    }
    tree
}

fn trees() -> impl Strategy<Value = (Tree, Tree)> {
    let first = prop::collection::vec((paths(), entries()), 0..12);
    let edits = prop::collection::vec((paths(), entries()), 0..6);
    let drops = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    let flips = prop::collection::vec(any::<prop::sample::Index>(), 0..2);
    (first, edits, drops, flips).prop_map(|(first, edits, drops, flips)| {
        let before = consistent(first);
        let mut list: Vec<_> = before.clone().into_iter().collect();
        for flip in flips {
            if let Some(at) = (!list.is_empty()).then(|| flip.index(list.len()))
                && let Entry::File { executable, .. } = &mut list[at].1
            {
                *executable = !*executable;
            }
        }
        for drop in drops {
            if !list.is_empty() {
                list.remove(drop.index(list.len()));
            }
        }
        list.extend(edits);
        (before, consistent(list))
    })
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
