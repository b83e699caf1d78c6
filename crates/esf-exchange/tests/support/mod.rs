//! Random trees as git sees them, in memory, as manifests and on disk; what the tests of patches and of
//! commits share.
#![allow(dead_code, reason = "each test binary uses its own part")]

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
use esf_exchange::{Error, Files};
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    File { executable: bool, bytes: Vec<u8> },
    Symlink(Vec<u8>),
}

/// A tree as git sees it: only files and symlinks, by path.
pub(crate) type Tree = BTreeMap<Vec<u8>, Entry>;

pub(crate) struct InMemory<'a>(pub(crate) &'a Tree);

impl Files for InMemory<'_> {
    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>, Error> {
        match &self.0[path] {
            Entry::File { bytes, .. } => Ok(Box::new(bytes.as_slice())),
            Entry::Symlink(_) => unreachable!("symlinks carry their target"),
        }
    }
}

/// The manifest of what `tree` holds below `prefix`, which is empty or ends in a slash.
pub(crate) fn manifest(objects: &mut MemoryObjects, tree: &Tree, prefix: &[u8]) -> TreeId {
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

pub(crate) fn pin(objects: &mut MemoryObjects, tree: &Tree) -> RootPin {
    let tree = manifest(objects, tree, b"");
    store_top(objects, Root { mode: Mode::of_stat(0o755), tree }, &Attrs::default()).unwrap()
}

pub(crate) fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CEILING_DIRECTORIES", "/")]);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn have_git() -> bool {
    let found = git(Path::new("/")).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: git is not installed, and it is the oracle of this test");
    }
    found
}

pub(crate) fn path_of(dir: &Path, path: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(path))
}

pub(crate) fn write_tree(dir: &Path, tree: &Tree) {
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

pub(crate) fn read_tree(dir: &Path) -> Tree {
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

pub(crate) const NAMES: [&[u8]; 10] =
    [b"a", b"b", b"c d", b" e", b"f ", b"g\"h", b"i\tj\nk", b"l\\m", "caf\u{e9}".as_bytes(), b"\xff\xfe"];

pub(crate) fn paths() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..NAMES.len(), 1..4)
        .prop_map(|parts| parts.iter().map(|&part| NAMES[part]).collect::<Vec<_>>().join(&b'/'))
}

pub(crate) fn text() -> impl Strategy<Value = Vec<u8>> {
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
pub(crate) fn entries() -> impl Strategy<Value = Entry> {
    let binary = prop::collection::vec(any::<u8>(), 0..300);
    let bytes = prop_oneof![4 => text(), 1 => binary];
    prop_oneof![
        4 => (any::<bool>(), bytes).prop_map(|(executable, bytes)| Entry::File { executable, bytes }),
        1 => prop::sample::select(vec!["nowhere", "nowhere/else", "/nonexistent/esf", "x\ny"])
            .prop_map(|target| Entry::Symlink(target.as_bytes().to_vec())),
    ]
}

/// Keeps what a directory tree can hold: no path may lie below another that is no directory.
pub(crate) fn consistent(list: Vec<(Vec<u8>, Entry)>) -> Tree {
    let mut tree = Tree::new();
    for (path, entry) in list {
        let above =
            |upper: &[u8], lower: &[u8]| lower.starts_with(upper) && lower.get(upper.len()) == Some(&b'/');
        tree.retain(|other, _| !above(other, &path) && !above(&path, other));
        tree.insert(path, entry);
    }
    tree
}

pub(crate) fn trees() -> impl Strategy<Value = (Tree, Tree)> {
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
