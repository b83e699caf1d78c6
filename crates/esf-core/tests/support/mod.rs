//! A tree as a plain value, for tests: built into objects, read back by the walker, and drawn at
//! random from few names and values so that random trees meet each other.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this one")]

use std::collections::BTreeMap;

use esf_core::manifest::{
    Attrs, Entry, EntryKind, MemoryObjects, Mode, ObjectSink, Objects, Root, RootPin, store_directory,
    store_top, walk,
};
use esf_core::time::FileTime;
use esf_core::{BlobId, Name};
use proptest::prelude::*;

/// What an entry is, without what lies beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Fifo,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub mode: u32,
    pub kind: Kind,
    pub attrs: Attrs,
}

/// Every entry by its path; `b""` is the top directory.
pub type Tree = BTreeMap<Vec<u8>, Facts>;

pub fn directory() -> Facts {
    Facts { mode: 0o755, kind: Kind::Directory, attrs: Attrs::default() }
}

pub fn file(contents: &str) -> Facts {
    Facts { mode: 0o644, kind: Kind::File(contents.into()), attrs: Attrs::default() }
}

pub fn symlink(target: &str) -> Facts {
    Facts { mode: 0o777, kind: Kind::Symlink(target.into()), attrs: Attrs::default() }
}

/// A tree of these entries; directories on the way are made.
pub fn tree<const N: usize>(entries: [(&str, Facts); N]) -> Tree {
    let mut tree = Tree::from([(Vec::new(), directory())]);
    for (path, facts) in entries {
        put(&mut tree, path.as_bytes(), facts);
    }
    tree
}

pub fn parent(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    (!path.is_empty()).then(|| &path[..slash.unwrap_or(0)])
}

pub fn is_beneath(path: &[u8], directory: &[u8]) -> bool {
    match directory.is_empty() {
        true => !path.is_empty(),
        false => path.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/')),
    }
}

/// Puts an entry at a path; what was there or in the way goes.
pub fn put(tree: &mut Tree, path: &[u8], facts: Facts) {
    if let Some(above) = parent(path)
        && tree.get(above).is_none_or(|found| found.kind != Kind::Directory)
    {
        put(tree, above, directory());
    }
    let stays =
        facts.kind == Kind::Directory && tree.get(path).is_some_and(|found| found.kind == Kind::Directory);
    if !stays {
        remove(tree, path);
    }
    tree.insert(path.to_vec(), facts);
}

/// Removes an entry with everything beneath it.
pub fn remove(tree: &mut Tree, path: &[u8]) {
    tree.retain(|known, _| known != path && !is_beneath(known, path));
}

pub fn build(sink: &mut MemoryObjects, tree: &Tree) -> RootPin {
    let top = &tree[&b""[..]];
    let (id, children) = build_below(sink, tree, b"");
    let attrs = Attrs { children, ..top.attrs.clone() };
    store_top(sink, Root { mode: Mode::new(top.mode).unwrap(), tree: id }, &attrs).unwrap()
}

fn build_below(
    sink: &mut dyn ObjectSink,
    tree: &Tree,
    directory: &[u8],
) -> (esf_core::TreeId, Option<esf_core::AttrsId>) {
    let mut entries = Vec::new();
    for (path, facts) in tree.iter().filter(|(path, _)| parent(path) == Some(directory)) {
        let mut attrs = facts.attrs.clone();
        let kind = match &facts.kind {
            Kind::Directory => {
                let (tree, children) = build_below(sink, tree, path);
                attrs.children = children;
                EntryKind::Directory { tree }
            }
            Kind::File(contents) => {
                EntryKind::File { size: contents.len() as u64, blob: BlobId::of(contents) }
            }
            Kind::Symlink(target) => EntryKind::Symlink { target: target.as_slice().into() },
            Kind::Fifo => EntryKind::Fifo,
        };
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
        let (name, mode) = (Name::new(name).unwrap(), Mode::new(facts.mode).unwrap());
        entries.push((Entry { name, mode, kind }, attrs));
    }
    store_directory(sink, entries).unwrap()
}

/// Reads a root back; contents of files are found among those that `tree` or `random` could have.
pub fn read(objects: &dyn Objects, pin: &RootPin, contents: &[&[u8]]) -> Tree {
    let one = |entry: esf_core::manifest::WalkEntry| {
        let kind = match entry.kind {
            EntryKind::Directory { .. } => Kind::Directory,
            EntryKind::File { blob, .. } => {
                let known = contents.iter().find(|bytes| BlobId::of(bytes) == blob);
                Kind::File(known.expect("contents are known").to_vec())
            }
            EntryKind::Symlink { target } => Kind::Symlink(target.into()),
            EntryKind::Fifo => Kind::Fifo,
        };
        (entry.path, Facts { mode: entry.mode.bits(), kind, attrs: entry.attrs.own() })
    };
    walk(objects, pin).map(|entry| one(entry.unwrap())).collect()
}

/// The contents that random files have.
pub const CONTENTS: [&[u8]; 4] = [b"", b"one", b"two", b"three"];

fn attrs() -> impl Strategy<Value = Attrs> {
    let time = prop_oneof![Just(None), (0..3_i64).prop_map(|seconds| Some(FileTime { seconds, nanos: 5 }))];
    let xattr = prop_oneof![3 => Just(None), 1 => (0..2_u8).prop_map(Some)];
    (time, prop_oneof![4 => Just(0), 1 => Just(7_u32)], xattr).prop_map(|(mtime, uid, xattr)| Attrs {
        mtime,
        uid,
        xattrs: xattr.map(|value| (b"user.x"[..].into(), [value].into())).into_iter().collect(),
        ..Attrs::default()
    })
}

pub fn facts() -> impl Strategy<Value = Facts> {
    let kind = prop_oneof![
        3 => Just(Kind::Directory),
        5 => (0..CONTENTS.len()).prop_map(|nth| Kind::File(CONTENTS[nth].to_vec())),
        1 => prop_oneof![Just("to"), Just("fro")].prop_map(|target| Kind::Symlink(target.into())),
        1 => Just(Kind::Fifo),
    ];
    (kind, prop_oneof![4 => Just(0o644_u32), 1 => Just(0o755)], attrs()).prop_map(|(kind, mode, attrs)| {
        Facts { mode: if matches!(kind, Kind::Symlink(_)) { 0o777 } else { mode }, kind, attrs }
    })
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("a"), Just("b"), Just("a-b"), Just("c")];
    proptest::collection::vec(name, 1..4).prop_map(|names| names.join("/").into_bytes())
}

/// Something done to a tree.
#[derive(Clone, Debug)]
pub enum Change {
    Put(Vec<u8>, Facts),
    Remove(Vec<u8>),
    SetMode(Vec<u8>, u32),
    SetAttrs(Vec<u8>, Attrs),
}

pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (path(), facts()).prop_map(|(path, facts)| Change::Put(path, facts)),
        2 => path().prop_map(Change::Remove),
        1 => (path(), prop_oneof![Just(0o600_u32), Just(0o755)]).prop_map(|(path, mode)| Change::SetMode(path, mode)),
        1 => (path(), attrs()).prop_map(|(path, attrs)| Change::SetAttrs(path, attrs)),
    ]
}

pub fn apply(tree: &Tree, changes: &[Change]) -> Tree {
    let mut tree = tree.clone();
    for change in changes {
        match change {
            Change::Put(path, facts) => put(&mut tree, path, facts.clone()),
            Change::Remove(path) => remove(&mut tree, path),
            Change::SetMode(path, mode) => {
                let found = tree.get_mut(path).filter(|found| !matches!(found.kind, Kind::Symlink(_)));
                found.into_iter().for_each(|found| found.mode = *mode);
            }
            Change::SetAttrs(path, attrs) => {
                tree.get_mut(path).into_iter().for_each(|found| found.attrs = attrs.clone());
            }
        }
    }
    tree
}

pub fn random() -> impl Strategy<Value = Tree> {
    proptest::collection::vec((path(), facts()), 0..12).prop_map(|entries| {
        let mut tree = tree([]);
        entries.into_iter().for_each(|(path, facts)| put(&mut tree, &path, facts));
        tree
    })
}
