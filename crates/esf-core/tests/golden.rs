//! Golden vectors: the encoding and the ids of `docs/on-disk-format.md` version 1, to the byte.
//! A change here is a new format version, never an update of the file.

use std::fmt::Write;

use esf_core::manifest::{
    Attrs, AttrsEntry, Directory, Entry, EntryKind, MemoryObjects, Mode, Object, ObjectKind, Objects, Root,
    hard_link_group, store_attrs, store_attrs_root, store_root, store_tree,
};
use esf_core::time::FileTime;
use esf_core::{BlobId, Digest, Name};

const GOLDEN: &str = include_str!("golden/objects.txt");

fn entry(name: &[u8], mode: u32, kind: EntryKind) -> Entry {
    Entry { name: Name::new(name).unwrap(), mode: Mode::new(mode).unwrap(), kind }
}

fn attrs(name: &[u8], attrs: Attrs) -> AttrsEntry {
    AttrsEntry { name: Name::new(name).unwrap(), attrs }
}

/// One line for each object: what it is, its kind, its id, its bytes.
struct Lines {
    objects: MemoryObjects,
    text: String,
}

impl Lines {
    fn add(&mut self, what: &str, kind: ObjectKind, id: &Digest) {
        let bytes = self.objects.get(kind, id).unwrap();
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        writeln!(self.text, "{what}: {kind} {id} {hex}").unwrap();
    }

    fn tree(&mut self, what: &str, entries: Vec<Entry>) -> esf_core::TreeId {
        let id = store_tree(&mut self.objects, entries).unwrap();
        self.add(what, ObjectKind::Tree, id.digest());
        id
    }

    fn attrs(&mut self, what: &str, entries: Vec<AttrsEntry>) -> esf_core::AttrsId {
        let id = store_attrs(&mut self.objects, entries).unwrap().unwrap();
        self.add(what, ObjectKind::Attrs, id.digest());
        id
    }
}

impl Lines {
    fn last_page(&mut self, what: &str, kind: ObjectKind, id: &Digest) {
        let list = self.objects.get(kind, id).unwrap();
        let (page, kind) = match Object::decode(kind, &list).unwrap() {
            Object::Tree(Directory::Paged(pages)) => (pages.last().unwrap().page, ObjectKind::TreePage),
            Object::Attrs(Directory::Paged(pages)) => (pages.last().unwrap().page, ObjectKind::AttrsPage),
            other => panic!("expected pages, found {other:?}"),
        };
        self.add(what, kind, &page);
    }
}

fn capability() -> Box<[u8]> {
    let mut value = vec![0; 20];
    (value[0], value[3], value[5]) = (1, 2, 4);
    value.into()
}

fn vectors() -> String {
    let mut lines = Lines { objects: MemoryObjects::default(), text: String::new() };
    let empty = lines.tree("empty directory", vec![]);
    let target: Box<[u8]> = b"../to"[..].into();
    let small = lines.tree(
        "one of each kind",
        vec![
            entry(b"sub", 0o1777, EntryKind::Directory { tree: empty }),
            entry(b"run", 0o4755, EntryKind::File { size: 6, blob: BlobId::of(b"hello\n") }),
            entry(b"empty", 0o644, EntryKind::File { size: 0, blob: BlobId::of(b"") }),
            entry(b"large", 0o600, EntryKind::File { size: 1 << 40, blob: BlobId::of(b"not really") }),
            entry(b"to", 0o777, EntryKind::Symlink { target }),
            entry(b"pipe", 0o600, EntryKind::Fifo),
            entry(b"\xff not utf-8", 0, EntryKind::Fifo),
        ],
    );
    let time = |seconds, nanos| Attrs { mtime: Some(FileTime { seconds, nanos }), ..Attrs::default() };
    let below = lines.attrs("one time", vec![attrs(b"x", time(1_700_000_000, 123_456_789))]);
    let all = lines.attrs(
        "one of each attribute",
        vec![
            attrs(b"sub", Attrs { children: Some(below), ..time(-1, 999_999_999) }),
            attrs(
                b"run",
                Attrs {
                    uid: 33,
                    gid: 1000,
                    xattrs: vec![(b"security.capability"[..].into(), capability())],
                    ..time(0, 0)
                },
            ),
            attrs(b"empty", Attrs { hard_link: Some(hard_link_group(b"a/b")), ..Attrs::default() }),
            attrs(b"to", Attrs { gid: u32::MAX - 1, ..time(i64::MIN, 0) }),
            attrs(b"pipe", time(i64::MAX, 1)),
        ],
    );
    let root = store_root(&mut lines.objects, Mode::new(0o755).unwrap(), small).unwrap();
    lines.add("root", ObjectKind::Root, root.digest());
    let xattrs = vec![(b"user.a"[..].into(), b"1"[..].into()), (b"user.b"[..].into(), b""[..].into())];
    let top = Attrs { children: Some(all), xattrs, ..Attrs::default() };
    for (what, top) in [("default attrs root", Attrs::default()), ("attrs root", top)] {
        let id = store_attrs_root(&mut lines.objects, &top).unwrap();
        lines.add(what, ObjectKind::AttrsRoot, id.digest());
    }
    let numbered = |nth: u32| format!("entry-{nth:05}").into_bytes();
    let tree =
        lines.tree("paged", (0..3000).map(|nth| entry(&numbered(nth), 0o644, EntryKind::Fifo)).collect());
    let attrs =
        lines.attrs("paged attrs", (0..2000).map(|nth| attrs(&numbered(nth), time(nth.into(), 0))).collect());
    lines.last_page("last page", ObjectKind::Tree, tree.digest());
    lines.last_page("last page of attrs", ObjectKind::Attrs, attrs.digest());
    lines.text
}

#[test]
fn objects_are_encoded_as_they_were_on_the_first_day() {
    let found = vectors();
    if let Some(path) = std::env::var_os("ESF_WRITE_NEW_GOLDEN") {
        std::fs::write(path, &found).unwrap();
    }
    for (expected, found) in GOLDEN.lines().zip(found.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), GOLDEN.lines().count());
}

#[test]
fn golden_bytes_decode_and_encode_to_themselves() {
    for line in GOLDEN.lines() {
        let (what, rest) = line.split_once(": ").unwrap();
        let (head, hex) = rest.rsplit_once(' ').unwrap();
        let (kind, id) = head.rsplit_once(' ').unwrap();
        let kind = ObjectKind::ALL.into_iter().find(|known| known.as_str() == kind).unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        assert_eq!(kind.id_of(&bytes).to_string(), id, "{what}");
        assert_eq!(Object::decode(kind, &bytes).unwrap().encode(), bytes, "{what}");
    }
}

/// Written by hand from the document.
#[test]
fn a_small_tree_is_what_the_document_says() {
    let mut objects = MemoryObjects::default();
    let target: Box<[u8]> = b"pipe"[..].into();
    let entries =
        vec![entry(b"pipe", 0o644, EntryKind::Fifo), entry(b"l", 0o777, EntryKind::Symlink { target })];
    let tree = store_tree(&mut objects, entries).unwrap();
    let expected = b"ESFT\x01\x00\x02\x01l\x02\xff\x03\x04pipe\x04pipe\x03\xa4\x03";
    assert_eq!(objects.get(ObjectKind::Tree, tree.digest()).unwrap(), expected);
    let derived = Digest::in_context("esf tree v1", expected);
    assert_eq!(*tree.digest(), derived);
    let root = Root { mode: Mode::new(0o755).unwrap(), tree };
    let id = store_root(&mut objects, root.mode, tree).unwrap();
    let expected = [b"ESFR\x01\xed\x03", &tree.as_bytes()[..]].concat();
    assert_eq!(objects.get(ObjectKind::Root, id.digest()).unwrap(), expected);
}
