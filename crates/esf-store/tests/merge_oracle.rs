//! `git merge-tree` is the oracle of the three-way merge (acceptance M02): on random trees both must find
//! the same paths in conflict, and the same merged tree when there are none. Contents have one line,
//! so that git's merge of lines has nothing to merge, and name their path, so that it sees no renames
//! (not every version lets them be turned off).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use esf_core::manifest::{
    Attrs, Entry, EntryKind, MemoryObjects, Mode, Root, RootPin, store_top, store_tree, walk,
};
use esf_core::merge::{ConflictKind, merge3};
use esf_core::{BlobId, Name, TreeId};
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Leaf {
    File { executable: bool, content: u8 },
    Symlink(u8),
}

type Tree = BTreeMap<Vec<u8>, Leaf>;

impl Leaf {
    fn bytes(&self, path: &[u8]) -> Vec<u8> {
        let path = String::from_utf8_lossy(path);
        match self {
            Self::File { content, .. } => format!("{path} {content}\n").into_bytes(),
            Self::Symlink(target) => format!("target-{target}-of-{path}").into_bytes(),
        }
    }

    fn git_mode(&self) -> &'static str {
        match self {
            Self::File { executable: false, .. } => "100644",
            Self::File { executable: true, .. } => "100755",
            Self::Symlink(_) => "120000",
        }
    }
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CEILING_DIRECTORIES", "/")]);
    command.stdin(Stdio::null());
    command
}

/// Gives git three commits: `base`, and `ours` and `theirs` on top of it.
fn import(dir: &Path, trees: [&Tree; 3]) {
    let mut stream = Vec::new();
    for (index, tree) in trees.into_iter().enumerate() {
        let name = ["base", "ours", "theirs"][index];
        stream.extend_from_slice(format!("commit refs/heads/{name}\nmark :{}\n", index + 1).as_bytes());
        stream.extend_from_slice(b"committer t <t@t> 0 +0000\ndata 0\n");
        if index > 0 {
            stream.extend_from_slice(b"from :1\n");
        }
        stream.extend_from_slice(b"deleteall\n");
        for (path, leaf) in tree {
            stream.extend_from_slice(format!("M {} inline ", leaf.git_mode()).as_bytes());
            stream.extend_from_slice(path);
            let bytes = leaf.bytes(path);
            stream.extend_from_slice(format!("\ndata {}\n", bytes.len()).as_bytes());
            stream.extend_from_slice(&bytes);
            stream.push(b'\n');
        }
    }
    let mut child =
        git(dir).args(["fast-import", "--quiet", "--force"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&stream).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The tree and the paths in conflict, as git has them.
fn git_merge(dir: &Path) -> (Vec<u8>, BTreeSet<Vec<u8>>) {
    let output = git(dir)
        .args([
            "merge-tree",
            "--write-tree",
            "-X",
            "no-renames",
            "--no-messages",
            "--name-only",
            "-z",
            "ours",
            "theirs",
        ])
        .output()
        .unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let mut parts = output.stdout.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    let tree = String::from_utf8(parts.next().unwrap().to_vec()).unwrap();
    let conflicts = parts.map(without_side).collect();
    let listing = git(dir).args(["ls-tree", "-r", "-z", &tree]).output().unwrap();
    assert!(listing.status.success());
    (listing.stdout, conflicts)
}

/// Git moves a file out of a directory's way by appending the side's name; the path is what conflicts.
fn without_side(path: &[u8]) -> Vec<u8> {
    for side in [b"~ours".as_slice(), b"~theirs"] {
        if let Some(at) = path.windows(side.len()).position(|window| window == side) {
            return path[..at].to_vec();
        }
    }
    path.to_vec()
}

fn manifest(objects: &mut MemoryObjects, tree: &Tree, prefix: &[u8]) -> TreeId {
    let mut below: BTreeMap<&[u8], Option<&Leaf>> = BTreeMap::new();
    for (path, leaf) in tree.iter().filter(|(path, _)| path.starts_with(prefix)) {
        let rest = &path[prefix.len()..];
        match rest.iter().position(|byte| *byte == b'/') {
            Some(slash) => below.insert(&rest[..slash], None),
            None => below.insert(rest, Some(leaf)),
        };
    }
    let mut entries = Vec::new();
    for (name, leaf) in below {
        let path = [prefix, name].concat();
        let (mode, kind) = match leaf {
            None => (
                0o755,
                EntryKind::Directory { tree: manifest(objects, tree, &[prefix, name, b"/"].concat()) },
            ),
            Some(leaf @ Leaf::File { executable, .. }) => {
                let bytes = leaf.bytes(&path);
                let kind = EntryKind::File { size: bytes.len() as u64, blob: BlobId::of(&bytes) };
                (if *executable { 0o755 } else { 0o644 }, kind)
            }
            Some(leaf) => (0o777, EntryKind::Symlink { target: leaf.bytes(&path).into() }),
        };
        entries.push(Entry { name: Name::new(name).unwrap(), mode: Mode::of_stat(mode), kind });
    }
    store_tree(objects, entries).unwrap()
}

fn root(objects: &mut MemoryObjects, tree: &Tree) -> RootPin {
    let tree = manifest(objects, tree, b"");
    store_top(objects, Root { mode: Mode::of_stat(0o755), tree }, &Attrs::default()).unwrap()
}

/// Every file and symlink of a root as `git ls-tree -r -z` would list it, its ids left to the bytes.
fn leaves(objects: &MemoryObjects, pin: &RootPin) -> BTreeMap<Vec<u8>, (String, Option<BlobId>)> {
    let mut leaves = BTreeMap::new();
    for entry in walk(objects, pin) {
        let entry = entry.unwrap();
        match entry.kind {
            EntryKind::File { blob, .. } => {
                let mode = if entry.mode.bits() & 0o100 == 0 { "100644" } else { "100755" };
                leaves.insert(entry.path, (mode.to_owned(), Some(blob)));
            }
            EntryKind::Symlink { target } => {
                leaves.insert(entry.path, ("120000".to_owned(), Some(BlobId::of(&target))));
            }
            EntryKind::Directory { .. } | EntryKind::Fifo => {}
        }
    }
    leaves
}

/// The same of git's listing: modes from it, contents by git's id of every content we ever use.
fn git_leaves(
    listing: &[u8],
    contents: &BTreeMap<String, BlobId>,
) -> BTreeMap<Vec<u8>, (String, Option<BlobId>)> {
    let mut leaves = BTreeMap::new();
    for line in listing.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
        let tab = line.iter().position(|byte| *byte == b'\t').unwrap();
        let head = String::from_utf8(line[..tab].to_vec()).unwrap();
        let mut words = head.split(' ');
        let mode = words.next().unwrap().to_owned();
        let id = words.nth(1).unwrap();
        leaves.insert(line[tab + 1..].to_vec(), (mode, contents.get(id).copied()));
    }
    leaves
}

/// Git's ids of the contents of these trees.
fn contents(dir: &Path, trees: [&Tree; 3]) -> BTreeMap<String, BlobId> {
    let mut ids = BTreeMap::new();
    let all: BTreeSet<Vec<u8>> =
        trees.iter().flat_map(|tree| tree.iter().map(|(path, leaf)| leaf.bytes(path))).collect();
    let names: Vec<String> = (0..all.len()).map(|index| format!("content-{index}")).collect();
    for (name, bytes) in names.iter().zip(&all) {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    let output = git(dir).args(["hash-object", "--no-filters"]).args(&names).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for (id, bytes) in text.lines().zip(&all) {
        ids.insert(id.to_owned(), BlobId::of(bytes));
    }
    ids
}

fn consistent(list: Vec<(Vec<u8>, Leaf)>) -> Tree {
    let mut tree = Tree::new();
    for (path, leaf) in list {
        let above =
            |upper: &[u8], lower: &[u8]| lower.starts_with(upper) && lower.get(upper.len()) == Some(&b'/');
        tree.retain(|other, _| !above(other, &path) && !above(&path, other));
        tree.insert(path, leaf);
    }
    tree
}

fn paths() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..3)
        .prop_map(|parts| parts.join("/").into_bytes())
}

fn leaf() -> impl Strategy<Value = Leaf> {
    prop_oneof![
        4 => (any::<bool>(), 0..3_u8).prop_map(|(executable, content)| Leaf::File { executable, content }),
        1 => (0..2_u8).prop_map(Leaf::Symlink),
    ]
}

fn edited(base: &Tree) -> impl Strategy<Value = Tree> + use<> {
    let base: Vec<_> = base.clone().into_iter().collect();
    let drops = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    let puts = prop::collection::vec((paths(), leaf()), 0..3);
    (drops, puts).prop_map(move |(drops, puts)| {
        let mut list = base.clone();
        for drop in drops {
            if !list.is_empty() {
                list.remove(drop.index(list.len()));
            }
        }
        list.extend(puts);
        consistent(list)
    })
}

fn three() -> impl Strategy<Value = (Tree, Tree, Tree)> {
    prop::collection::vec((paths(), leaf()), 1..7).prop_map(consistent).prop_flat_map(|base| {
        let (ours, theirs) = (edited(&base), edited(&base));
        (Just(base), ours, theirs)
    })
}

fn check(dir: &Path, base: &Tree, ours: &Tree, theirs: &Tree) -> Result<(), TestCaseError> {
    import(dir, [base, ours, theirs]);
    let (listing, their_conflicts) = git_merge(dir);
    let mut objects = MemoryObjects::default();
    let pins = [root(&mut objects, base), root(&mut objects, ours), root(&mut objects, theirs)];
    let mut made = objects.clone();
    let merge = merge3(&objects, &mut made, &pins[0], &pins[1], &pins[2]).unwrap();
    let conflicts: BTreeSet<Vec<u8>> = merge.conflicts.iter().map(|conflict| conflict.path.clone()).collect();
    // A directory in the way of a file is one conflict for us; git also tells of what lies beneath it.
    let swallowed = |path: &[u8]| {
        merge.conflicts.iter().any(|conflict| {
            conflict.kind == ConflictKind::DirectoryFile
                && path.strip_prefix(&conflict.path[..]).is_some_and(|rest| rest.starts_with(b"/"))
        })
    };
    let their_conflicts: BTreeSet<_> = their_conflicts.into_iter().filter(|path| !swallowed(path)).collect();
    prop_assert_eq!(&conflicts, &their_conflicts, "conflicts: {:?}", merge.conflicts);
    if conflicts.is_empty() {
        let expected = git_leaves(&listing, &contents(dir, [base, ours, theirs]));
        prop_assert_eq!(leaves(&made, &merge.root), expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merges_and_conflicts_are_those_of_git((base, ours, theirs) in three()) {
        thread_local! {
            static REPOSITORY: Option<tempfile::TempDir> = {
                let dir = tempfile::tempdir().unwrap();
                match git(dir.path()).args(["init", "-q", "--bare", "."]).status() {
                    Ok(status) if status.success() => Some(dir),
                    _ => {
                        eprintln!("skipped: git is not installed, and it is the oracle of this test");
                        None
                    }
                }
            };
        }
        REPOSITORY.with(|dir| match dir {
            Some(dir) => check(dir.path(), &base, &ours, &theirs),
            None => Ok(()),
        })?;
    }
}
