//! Walking, looking up, dumping, comparing and marking roots, each against a plain map.

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use esf_core::diff::{Change as Difference, ChangeKind, diff};
use esf_core::manifest::{
    Attrs, Entry, EntryKind, Error, MAX_DEPTH, MemoryObjects, Mode, ObjectError, ObjectKind, Objects,
    Reached, Root, RootPin, WalkEntry, dump_line, lookup, reach, store_directory, store_top, walk,
};
use esf_core::merge::merge3;
use esf_core::time::FileTime;
use esf_core::{BlobId, Digest, Name};
use proptest::prelude::*;
use support::*;

fn related() -> impl Strategy<Value = [Tree; 2]> {
    let changes = proptest::collection::vec(change(), 0..5);
    let related = (random(), changes).prop_map(|(before, changes)| {
        let after = apply(&before, &changes);
        [before, after]
    });
    prop_oneof![3 => related, 1 => [random(), random()]]
}

/// The differences by comparing maps.
fn naive_diff(before: &Tree, after: &Tree) -> BTreeMap<Vec<u8>, ChangeKind> {
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let kind = |path: &Vec<u8>| match (before.get(path), after.get(path)) {
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) if std::mem::discriminant(&a.kind) == std::mem::discriminant(&b.kind) => {
            Some(ChangeKind::Modified)
        }
        (Some(_), Some(_)) => Some(ChangeKind::TypeChanged),
        (None, None) => None,
    };
    paths.into_iter().filter_map(|path| Some((path.clone(), kind(path)?))).collect()
}

/// Components, by which a walk is ordered.
fn components(path: &[u8]) -> Vec<&[u8]> {
    if path.is_empty() { vec![] } else { path.split(|byte| *byte == b'/').collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(800) })]

    #[test]
    fn a_walk_tells_every_entry_once_in_order(tree in random()) {
        let mut objects = MemoryObjects::default();
        let pin = build(&mut objects, &tree);
        prop_assert_eq!(read(&objects, &pin, &CONTENTS), tree);
        let entries: Vec<WalkEntry> = walk(&objects, &pin).map(Result::unwrap).collect();
        prop_assert!(entries.is_sorted_by(|a, b| components(&a.path) < components(&b.path)));
        for entry in &entries {
            let found = lookup(&objects, &pin, &entry.path).unwrap();
            prop_assert_eq!(found.as_ref(), Some(entry));
        }
        for absent in [&b"z"[..], b"a/z", b"/", b"a/", b"a//b", b"a/../a", b"."] {
            prop_assert_eq!(lookup(&objects, &pin, absent).unwrap(), None);
        }
    }

    #[test]
    fn skipping_leaves_out_what_lies_beneath(tree in random()) {
        let mut objects = MemoryObjects::default();
        let pin = build(&mut objects, &tree);
        let mut walk = walk(&objects, &pin);
        let mut seen = Vec::new();
        while let Some(entry) = walk.next() {
            let entry = entry.unwrap();
            if entry.path.ends_with(b"a") {
                walk.skip_children();
            }
            seen.push(entry.path);
        }
        let hidden = |path: &[u8]| {
            let components = components(path);
            components.split_last().is_some_and(|(_, above)| above.contains(&&b"a"[..]))
        };
        let mut expected: Vec<Vec<u8>> = tree.keys().filter(|path| !hidden(path)).cloned().collect();
        expected.sort_by(|a, b| components(a).cmp(&components(b)));
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn a_diff_is_what_comparing_maps_gives([before, after] in related()) {
        let mut objects = MemoryObjects::default();
        let (a, b) = (build(&mut objects, &before), build(&mut objects, &after));
        let changes = diff(&objects, &a, &b).unwrap();
        prop_assert!(changes.is_sorted_by(|a, b| components(&a.path) < components(&b.path)));
        let found: BTreeMap<_, _> = changes.iter().map(|change| (change.path.clone(), change.kind)).collect();
        prop_assert_eq!(found.len(), changes.len());
        prop_assert_eq!(found, naive_diff(&before, &after));
        for change in &changes {
            for (side, tree) in [(&change.before, &before), (&change.after, &after)] {
                let facts = tree.get(&change.path);
                let found = side.as_ref().map(|side| (side.mode.bits(), side.attrs.own()));
                prop_assert_eq!(found, facts.map(|facts| (facts.mode, facts.attrs.clone())));
            }
            let own = |tree: &Tree| tree.get(&change.path).map(|facts| (facts.mode, facts.kind.clone()));
            prop_assert_eq!(change.changes_identity(), own(&before) != own(&after));
        }
    }

    #[test]
    fn equal_dumps_are_equal_roots([before, after] in related()) {
        let mut objects = MemoryObjects::default();
        let pins = [build(&mut objects, &before), build(&mut objects, &after)];
        let dump = |pin| walk(&objects, pin).map(|entry| dump_line(&entry.unwrap()) + "\n").collect::<String>();
        prop_assert_eq!(dump(&pins[0]) == dump(&pins[1]), pins[0] == pins[1]);
    }

    #[test]
    fn a_line_tells_its_entry_exactly(path in bytes_without(b"\0"), target in bytes_without(b"\0"), value in bytes_without(b"")) {
        let attrs = Attrs { xattrs: vec![(b"user.x"[..].into(), value.clone().into())], ..Attrs::default() };
        let kind = EntryKind::Symlink { target: target.clone().into() };
        let line = dump_line(&WalkEntry { path: path.clone(), mode: Mode::SYMLINK, kind, attrs });
        let fields: Vec<&str> = line.split(' ').collect();
        prop_assert_eq!(fields.len(), 10);
        prop_assert_eq!(unescape(fields[0].strip_prefix('/').unwrap()), path);
        prop_assert_eq!(unescape(fields[6]), target);
        let (name, found) = fields[7].split_once('=').unwrap();
        prop_assert_eq!((name, unescape(found)), ("user.x", value));
    }

    #[test]
    fn marking_reaches_every_object_of_a_root_once([before, after] in related()) {
        let mut objects = MemoryObjects::default();
        let pins = [build(&mut objects, &before), build(&mut objects, &after)];
        let (mut seen, mut told, mut contents) = (HashSet::new(), Vec::new(), BTreeSet::new());
        for pin in &pins {
            reach(&objects, pin, &mut seen, &mut |reached| match reached {
                Reached::Object(kind, id) => told.push((id, kind)),
                Reached::Contents(blob, _) => drop(contents.insert(blob)),
            }).unwrap();
        }
        told.sort();
        let all: Vec<(Digest, ObjectKind)> = objects.iter().map(|(id, kind, _)| (*id, kind)).collect();
        prop_assert_eq!(told, all);
        let files = before.values().chain(after.values()).filter_map(|facts| match &facts.kind {
            Kind::File(bytes) => Some(BlobId::of(bytes)),
            Kind::Directory | Kind::Symlink(_) | Kind::Fifo => None,
        });
        prop_assert_eq!(contents, files.collect());
    }
}

fn bytes_without(excluded: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'-'), Just(b'\\'), Just(b' '), Just(b'x'), any::<u8>()];
    let byte = byte.prop_filter("excluded", |byte| !excluded.contains(byte));
    proptest::collection::vec(byte, 1..8)
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let length = if first == '\\' { 4 } else { 1 };
        let (one, after) = rest.split_at(length);
        bytes.push(match one.strip_prefix("\\x") {
            Some(hex) => u8::from_str_radix(hex, 16).unwrap(),
            None => one.as_bytes()[0],
        });
        rest = after;
    }
    bytes
}

#[test]
fn dump_lines_are_as_documented() {
    let time = FileTime { seconds: -2, nanos: 5_000_000 };
    let xattrs = vec![(b"user.a"[..].into(), b"1,2=\n"[..].into()), (b"user.b"[..].into(), b""[..].into())];
    let attrs = Attrs {
        mtime: Some(time),
        uid: 7,
        gid: 8,
        xattrs,
        hard_link: Some(Digest::of(b"")),
        ..Attrs::default()
    };
    let line = |path: &[u8], mode, kind, attrs| {
        dump_line(&WalkEntry { path: path.to_vec(), mode: Mode::of_stat(mode), kind, attrs })
    };
    let empty = "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
    let file = EntryKind::File { size: 0, blob: BlobId::of(b"") };
    let expected = format!(
        "/a\\x20b/\\xff file 4755 7 8 0 {empty} user.a=1\\x2c2\\x3d\\x0a,user.b= -2.005000000 {empty}"
    );
    assert_eq!(line(b"a b/\xff", 0o4755, file, attrs), expected);
    let tree = EntryKind::Directory { tree: esf_core::TreeId::new(Digest::of(b"")) };
    assert_eq!(line(b"", 0o755, tree, Attrs::default()), "/ directory 0755 0 0 - - - - -");
    assert_eq!(line(b"p", 0, EntryKind::Fifo, Attrs::default()), "/p fifo 0000 0 0 - - - - -");
    let dash = EntryKind::Symlink { target: b"-"[..].into() };
    assert_eq!(line(b"-", 0o777, dash, Attrs::default()), "/- symlink 0777 0 0 - \\x2d - - -");
}

/// A chain of directories, each in the one before, with a fifo at the end.
fn chain(objects: &mut MemoryObjects, name: &str, depth: usize) -> RootPin {
    chain_with(objects, name, depth, 0)
}

fn chain_with(objects: &mut MemoryObjects, name: &str, depth: usize, seconds: i64) -> RootPin {
    let attrs = Attrs { mtime: Some(FileTime { seconds, nanos: 0 }), ..Attrs::default() };
    let mode = Mode::of_stat(0o755);
    let entry = |name: &str, kind| Entry { name: Name::new(name.as_bytes()).unwrap(), mode, kind };
    // A hard-link group of one member, which a merge takes away at any depth.
    let hard_link = (seconds != 0).then(|| Digest::of(b""));
    let end = (entry("end", EntryKind::Fifo), Attrs { hard_link, ..attrs.clone() });
    let (mut tree, mut children) = store_directory(objects, vec![end]).unwrap();
    for _ in 1..depth {
        let directory = entry(name, EntryKind::Directory { tree });
        let attrs = Attrs { children, ..attrs.clone() };
        (tree, children) = store_directory(objects, vec![(directory, attrs)]).unwrap();
    }
    store_top(objects, Root { mode, tree }, &Attrs { children, ..attrs }).unwrap()
}

#[test]
fn depth_and_length_of_paths_are_bounded() {
    let mut objects = MemoryObjects::default();
    let empty = chain(&mut objects, "d", 1);
    for (name, depth, fits) in [("d", MAX_DEPTH, true), ("d", MAX_DEPTH + 1, false), ("d", 5000, false)] {
        let pin = chain(&mut objects, name, depth);
        let walked = walk(&objects, &pin).last().unwrap();
        let compared = diff(&objects, &empty, &pin);
        // Both sides add it, with other attributes: the deepest way through a merge.
        let other = chain_with(&mut objects, name, depth, 1);
        let merged = merge3(&objects, &mut MemoryObjects::default(), &empty, &pin, &other);
        let added = merge3(&objects, &mut MemoryObjects::default(), &empty, &empty, &other);
        assert_eq!((merged.is_ok(), added.is_ok()), (fits, fits));
        match fits {
            true => assert!(walked.is_ok() && compared.is_ok()),
            false => assert!(matches!(
                (walked, compared),
                (Err(Error::TooLong { .. }), Err(Error::TooLong { .. }))
            )),
        }
    }
    let long = "n".repeat(255);
    let fits = chain(&mut objects, &long, 16);
    assert_eq!(walk(&objects, &fits).last().unwrap().unwrap().path.len(), 15 * 256 + 3);
    let too_long = chain(&mut objects, &long, 18);
    assert!(matches!(walk(&objects, &too_long).last(), Some(Err(Error::TooLong { .. }))));
    // Marking has no path and reaches all of it.
    let mut seen = HashSet::new();
    let deep = chain(&mut objects, "d", 5000);
    reach(&objects, &deep, &mut seen, &mut |_| {}).unwrap();
    assert_eq!(seen.len(), 2 * 5001);
}

/// Tells which objects were read.
struct Watched<'a> {
    objects: &'a MemoryObjects,
    read: RefCell<Vec<Digest>>,
}

impl Objects for Watched<'_> {
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        self.read.borrow_mut().push(*id);
        self.objects.get(kind, id)
    }
}

#[test]
fn comparing_reads_only_what_differs() {
    let mut before = tree([("same/a", file("one")), ("same/b/c", file("two")), ("d/e/f", file("one"))]);
    let mut objects = MemoryObjects::default();
    let a = build(&mut objects, &before);
    put(&mut before, b"d/e/f", file("two"));
    let b = build(&mut objects, &before);
    let watched = Watched { objects: &objects, read: RefCell::default() };
    let changes: Vec<Difference> = diff(&watched, &a, &b).unwrap();
    assert_eq!(changes.len(), 1);
    // Both roots, and on each side the trees of the top, `d` and `d/e`.
    assert_eq!(watched.read.take().len(), 4 + 6);
    assert_eq!(diff(&watched, &a, &a).unwrap(), []);
    assert_eq!(watched.read.take(), []);
}

#[test]
fn a_missing_object_is_named_and_ends_the_walk() {
    let mut objects = MemoryObjects::default();
    let mode = Mode::of_stat(0o755);
    let kind = EntryKind::Directory { tree: esf_core::TreeId::new(Digest::of(b"nowhere")) };
    let entry = Entry { name: Name::new(b"d").unwrap(), mode, kind };
    let (tree, _) = store_directory(&mut objects, vec![(entry, Attrs::default())]).unwrap();
    let pin = store_top(&mut objects, Root { mode, tree }, &Attrs::default()).unwrap();
    let found: Vec<_> = walk(&objects, &pin).collect();
    assert_eq!(found.len(), 2);
    let problem = found[1].as_ref().unwrap_err().problem();
    assert_eq!(problem.code, "object_missing");
    assert!(problem.message.contains(&Digest::of(b"nowhere").to_string()), "{problem}");
    let mut seen = HashSet::new();
    assert!(reach(&objects, &pin, &mut seen, &mut |_| {}).is_err());
    assert!(!seen.contains(&Digest::of(b"nowhere")));
}
