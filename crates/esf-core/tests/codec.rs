//! The object encoding: every value has one, and everything else is refused.

use esf_core::manifest::{
    Attrs, AttrsEntry, DecodeError, Entry, EntryKind, Error, MemoryObjects, Mode, Object, ObjectKind, Root,
    load_tree, store_attrs, store_attrs_root, store_directory, store_root, store_tree, walk,
};
use esf_core::time::FileTime;
use esf_core::{AttrsId, BlobId, Digest, Name, TreeId};
use proptest::prelude::*;

const STRUCTURED: [ObjectKind; 6] = [
    ObjectKind::Tree,
    ObjectKind::TreePage,
    ObjectKind::Attrs,
    ObjectKind::AttrsPage,
    ObjectKind::Root,
    ObjectKind::AttrsRoot,
];

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

fn fifo(bytes: &[u8]) -> Entry {
    Entry { name: name(bytes), mode: Mode::of_stat(0o644), kind: EntryKind::Fifo }
}

fn timed(bytes: &[u8], seconds: i64) -> AttrsEntry {
    let attrs = Attrs { mtime: Some(FileTime { seconds, nanos: 0 }), ..Attrs::default() };
    AttrsEntry { name: name(bytes), attrs }
}

/// The promise of the decoder, for any input.
fn is_canonical_or_refused(kind: ObjectKind, bytes: &[u8]) {
    if let Ok(object) = Object::decode(kind, bytes) {
        assert_eq!(object.encode(), bytes, "{object:?}");
    }
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest::from_bytes)
}

fn any_name() -> impl Strategy<Value = Name> {
    proptest::collection::vec(any::<u8>(), 1..12).prop_filter_map("a name", |bytes| Name::new(&bytes).ok())
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let size = prop_oneof![1..300_u64, 1..i64::MAX as u64];
    let kind = prop_oneof![
        digest().prop_map(|id| EntryKind::Directory { tree: TreeId::new(id) }),
        (size, digest()).prop_map(|(size, id)| EntryKind::File { size, blob: BlobId::new(id) }),
        Just(EntryKind::File { size: 0, blob: BlobId::of(b"") }),
        proptest::collection::vec(1..=255_u8, 1..300)
            .prop_map(|bytes| EntryKind::Symlink { target: bytes.into() }),
        Just(EntryKind::Fifo),
    ];
    (any_name(), 0..=0o7777_u32, kind).prop_map(|(name, mode, kind)| {
        let mode = match kind {
            EntryKind::Symlink { .. } => Mode::SYMLINK,
            _ => Mode::of_stat(mode),
        };
        Entry { name, mode, kind }
    })
}

fn any_attrs() -> impl Strategy<Value = Attrs> {
    let time = (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| FileTime { seconds, nanos });
    let value = proptest::collection::vec(any::<u8>(), 0..200);
    let xattrs = proptest::collection::btree_map("user\\.[a-n]{1,8}|system\\.posix_acl_access", value, 0..4);
    let owner = prop_oneof![Just(0), 1..u32::MAX];
    let below = prop_oneof![
        2 => Just((None, None)),
        1 => digest().prop_map(|id| (Some(id), None)),
        1 => digest().prop_map(|id| (None, Some(AttrsId::new(id)))),
    ];
    (proptest::option::of(time), owner.clone(), owner, xattrs, below).prop_map(
        |(mtime, uid, gid, xattrs, below)| {
            let xattrs = xattrs.into_iter().map(|(name, value)| (name.into_bytes().into(), value.into()));
            Attrs { mtime, uid, gid, xattrs: xattrs.collect(), hard_link: below.0, children: below.1 }
        },
    )
}

fn any_objects() -> impl Strategy<Value = MemoryObjects> {
    let entries = proptest::collection::vec((any_entry(), any_attrs()), 0..12);
    (entries, any_attrs(), 0..=0o7777_u32).prop_map(|(entries, top, mode)| {
        let mut objects = MemoryObjects::default();
        let mut entries = entries;
        entries.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        entries.dedup_by(|a, b| a.0.name == b.0.name);
        let attrs = entries
            .iter()
            .map(|(entry, attrs)| AttrsEntry { name: entry.name.clone(), attrs: attrs.clone() });
        let attrs = store_attrs(&mut objects, attrs.collect()).unwrap();
        let trees = entries.iter().map(|(entry, _)| entry.clone()).collect();
        let tree = store_tree(&mut objects, trees).unwrap();
        store_root(&mut objects, Mode::of_stat(mode), tree).unwrap();
        let top = Attrs { hard_link: None, children: attrs, ..top };
        store_attrs_root(&mut objects, &top).unwrap();
        objects
    })
}

/// One way to damage bytes.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Truncate(usize),
    Swap(usize, usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || 0..4096_usize;
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        at().prop_map(Damage::Remove),
        at().prop_map(Damage::Truncate),
        (at(), at(), 1..40_usize).prop_map(|(one, two, length)| Damage::Swap(one, two, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    match *damage {
        Damage::Flip(at, bit) => bytes[at % length] ^= 1 << bit,
        Damage::Set(at, byte) => bytes[at % length] = byte,
        Damage::Insert(at, byte) => bytes.insert(at % (length + 1), byte),
        Damage::Remove(at) => drop(bytes.remove(at % length)),
        Damage::Truncate(at) => bytes.truncate(at % length),
        Damage::Swap(one, two, count) => {
            let (one, two) = (one % length, two % length);
            for nth in 0..count.min(length - one.max(two)) {
                bytes.swap(one + nth, two + nth);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn what_is_encoded_decodes_to_itself_and_to_no_other_kind(objects in any_objects()) {
        for (id, kind, bytes) in objects.iter() {
            prop_assert_eq!(&kind.id_of(bytes), id);
            prop_assert_eq!(&Object::decode(kind, bytes).unwrap().encode()[..], bytes);
            for other in STRUCTURED.into_iter().filter(|other| *other != kind) {
                prop_assert!(Object::decode(other, bytes).is_err());
                prop_assert_ne!(&other.id_of(bytes), id);
            }
        }
    }

    #[test]
    fn damaged_objects_are_refused_or_canonical(objects in any_objects(), damages in proptest::collection::vec(damage(), 1..4)) {
        for (_, kind, bytes) in objects.iter() {
            let mut bytes = bytes.to_vec();
            damages.iter().for_each(|damage| apply(&mut bytes, damage));
            is_canonical_or_refused(kind, &bytes);
        }
    }

    #[test]
    fn random_bytes_behind_a_good_header_are_refused_or_canonical(
        nth in 0..STRUCTURED.len(),
        body in proptest::collection::vec(prop_oneof![0..5_u8, any::<u8>()], 0..120),
    ) {
        let letter = b"TtAaRQ"[nth];
        let bytes = [b"ESF", &[letter, 1][..], &body].concat();
        is_canonical_or_refused(STRUCTURED[nth], &bytes);
    }

    #[test]
    fn order_of_arrival_does_not_matter(entries in proptest::collection::btree_map(any_name(), any_entry(), 0..40).prop_shuffle_entries()) {
        let (sorted, shuffled) = entries;
        let mut objects = MemoryObjects::default();
        let id = store_tree(&mut objects, sorted.clone()).unwrap();
        prop_assert_eq!(store_tree(&mut objects, shuffled).unwrap(), id);
        prop_assert_eq!(load_tree(&objects, id).unwrap(), sorted);
    }
}

/// Draws entries of distinct names, sorted and in another order.
trait ShuffleEntries: Strategy {
    fn prop_shuffle_entries(self) -> BoxedStrategy<(Vec<Entry>, Vec<Entry>)>;
}

impl<S: Strategy<Value = std::collections::BTreeMap<Name, Entry>> + 'static> ShuffleEntries for S {
    fn prop_shuffle_entries(self) -> BoxedStrategy<(Vec<Entry>, Vec<Entry>)> {
        let named = |(name, entry)| Entry { name, ..entry };
        self.prop_map(move |map| map.into_iter().map(named).collect::<Vec<_>>())
            .prop_flat_map(|sorted| (Just(sorted.clone()), Just(sorted).prop_shuffle()))
            .boxed()
    }
}

#[test]
fn every_byte_of_small_objects_is_accounted_for() {
    let mut objects = MemoryObjects::default();
    let mut entries = vec![
        (fifo(b"a"), timed(b"a", 1).attrs),
        (
            Entry { kind: EntryKind::File { size: 300, blob: BlobId::of(b"x") }, ..fifo(b"b") },
            Attrs { uid: 200, ..Attrs::default() },
        ),
    ];
    let xattrs = vec![(b"user.x"[..].into(), b"1"[..].into())];
    entries.push((fifo(b"c"), Attrs { xattrs, hard_link: Some(Digest::of(b"")), ..Attrs::default() }));
    store_directory(&mut objects, entries).unwrap();
    store_root(&mut objects, Mode::of_stat(0o1777), TreeId::new(Digest::of(b""))).unwrap();
    for (_, kind, bytes) in objects.iter() {
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut damaged = bytes.to_vec();
                damaged[at] = byte;
                is_canonical_or_refused(kind, &damaged);
            }
            let mut longer = bytes.to_vec();
            longer.insert(at, 0);
            is_canonical_or_refused(kind, &longer);
            assert!(Object::decode(kind, &bytes[..at]).is_err(), "{kind} cut at {at}");
        }
        assert!(Object::decode(kind, &[bytes, &[0]].concat()).is_err(), "{kind} with a trailing byte");
    }
}

/// Inputs that a careless decoder would take, each wrong in one way.
#[test]
fn what_no_encoder_writes_is_refused() {
    let tree = |body: &[u8]| Object::decode(ObjectKind::Tree, &[b"ESFT\x01", body].concat());
    let attrs = |body: &[u8]| Object::decode(ObjectKind::Attrs, &[b"ESFA\x01", body].concat());
    assert!(tree(b"\0\0").is_ok() && tree(b"\0\x01\x01p\x03\xa4\x03").is_ok());
    let trees: [(&str, &str, &[u8]); 17] = [
        ("form 2", "form 0 or 1", b"\x02\0"),
        ("long varint", "minimal varint", b"\0\x80\0"),
        ("varint of eleven bytes", "minimal varint", b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("varint beyond 64 bits", "minimal varint", b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
        ("count beyond the input", "a count that", b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("empty name", "a name", b"\0\x01\0\x03\0\0"),
        ("name with a slash", "a name", b"\0\x01\x01/\x03\0"),
        ("dot dot", "a name", b"\0\x01\x02..\x03\0"),
        ("unknown kind", "entry kind", b"\0\x01\x01p\x04\0"),
        ("mode of 17 bits", "permission bits", b"\0\x01\x01p\x03\x80\x80\x04"),
        ("mode beyond 07777", "permission bits", b"\0\x01\x01p\x03\x80\x20"),
        ("symlink mode", "mode 0777", b"\0\x01\x01l\x02\xed\x03\x01t"),
        ("symlink without target", "symlink target", b"\0\x01\x01l\x02\xff\x03\0"),
        ("symlink to NUL", "symlink target", b"\0\x01\x01l\x02\xff\x03\x01\0"),
        ("names not ascending", "ascending", b"\0\x02\x01q\x03\0\x01p\x03\0"),
        ("name twice", "ascending", b"\0\x02\x01p\x03\0\x01p\x03\0"),
        ("no pages", "more than 1024", b"\x01\0"),
    ];
    let refused = |found: Result<Object, DecodeError>, expected: &str, what: &str| match found {
        Err(error) => assert!(error.expected.contains(expected), "{what}: {error}"),
        Ok(object) => panic!("{what}: {object:?}"),
    };
    for (what, expected, body) in trees {
        refused(tree(body), expected, what);
    }
    assert!(attrs(b"\0\x01\x01p\x02\x01\0").is_ok());
    let all: [(&str, &str, &[u8]); 11] = [
        ("no entries", "none left out", b"\0\0"),
        ("entry without attributes", "not all default", b"\0\x01\x01p\0\0\0"),
        ("unknown flag", "flags", b"\0\x01\x01p\x20\x01\0"),
        ("default owner", "flags", b"\0\x01\x01p\x02\0\0"),
        ("owner beyond 32 bits", "below 2^32", b"\0\x01\x01p\x02\x80\x80\x80\x80\x10\0"),
        ("no owner", "an owner", b"\0\x01\x01p\x02\xff\xff\xff\xff\x0f\0"),
        ("a whole second of nanoseconds", "nanoseconds", b"\0\x01\x01p\x01\0\x80\x94\xeb\xdc\x03"),
        ("no xattrs", "flags", b"\0\x01\x01p\x04\0\0"),
        (
            "xattrs not ascending",
            "extended attributes strictly",
            b"\0\x01\x01p\x04\x02\x06user.b\0\x06user.a\0",
        ),
        (
            "overlay's own mark",
            "an extended attribute of",
            b"\0\x01\x01p\x04\x01\x16trusted.overlay.opaque\x01y",
        ),
        ("a guest's mark", "an extended attribute of", b"\0\x01\x01p\x04\x01\x13user.overlay.opaque\x01y"),
    ];
    for (what, expected, body) in all {
        refused(attrs(body), expected, what);
    }
    let linked_directory = [b"\0\x01\x01p\x18", &[1; 64][..]].concat();
    assert!(attrs(&linked_directory).is_err());
    assert!(Object::decode(ObjectKind::AttrsRoot, &[b"ESFQ\x01\x08", &[1; 32][..]].concat()).is_err());
    assert!(Object::decode(ObjectKind::AttrsRoot, b"ESFQ\x01\0").is_ok());
    assert!(Object::decode(ObjectKind::AttrsRoot, b"ESFQ\x02\0").is_err(), "a newer version");
    assert!(Object::decode(ObjectKind::Blob, b"").is_err());
}

#[test]
fn entries_that_cannot_be_kept_are_refused_by_name() {
    let store =
        |entry: Entry, attrs: Attrs| store_directory(&mut MemoryObjects::default(), vec![(entry, attrs)]);
    let kind = |kind| Entry { kind, ..fifo(b"here") };
    let blob = BlobId::of(b"x");
    let link = |length: usize| Entry {
        mode: Mode::SYMLINK,
        ..kind(EntryKind::Symlink { target: vec![b'x'; length].into() })
    };
    let xattrs = |name: &str, value: Vec<u8>| Attrs {
        xattrs: vec![(name.as_bytes().into(), value.into())],
        ..Attrs::default()
    };
    let capability = |revision: u8, length: usize| {
        let mut value = vec![0; length];
        value[3] = revision;
        xattrs("security.capability", value)
    };
    let none = Attrs::default;
    let good = [
        (link(4095), none()),
        (kind(EntryKind::File { size: i64::MAX as u64, blob }), none()),
        (fifo(b"here"), xattrs("user.x", vec![0; 65_535 - 6])),
        (fifo(b"here"), capability(2, 20)),
    ];
    for (entry, attrs) in good {
        assert!(store(entry.clone(), attrs).is_ok(), "{entry:?}");
    }
    let bad = [
        (link(4096), none()),
        (link(0), none()),
        (kind(EntryKind::File { size: 1 << 63, blob }), none()),
        (kind(EntryKind::File { size: 0, blob }), none()),
        (kind(EntryKind::File { size: 1, blob: BlobId::of(b"") }), none()),
        (fifo(b"here"), xattrs("user.x", vec![0; 65_536 - 6])),
        (fifo(b"here"), xattrs("user.", vec![])),
        (fifo(b"here"), xattrs("security.selinux", vec![])),
        (fifo(b"here"), xattrs(&format!("user.{}", "x".repeat(251)), vec![])),
        (fifo(b"here"), capability(3, 24)),
        (fifo(b"here"), capability(2, 24)),
    ];
    for (entry, attrs) in bad {
        match store(entry.clone(), attrs) {
            Err(Error::Entry { name, .. }) => assert_eq!(name, "here"),
            other => panic!("{entry:?}: {other:?}"),
        }
    }
    let children = Attrs { children: Some(AttrsId::new(Digest::of(b""))), ..none() };
    assert!(matches!(store(fifo(b"here"), children), Err(Error::Disagree { .. })));
    let twice = vec![fifo(b"a"), fifo(b"a")];
    assert!(matches!(store_tree(&mut MemoryObjects::default(), twice), Err(Error::Entry { .. })));
}

#[test]
fn tree_and_attrs_must_agree() {
    let mut objects = MemoryObjects::default();
    let top = store_tree(&mut objects, vec![fifo(b"b")]).unwrap();
    let mut pin = |attrs: Vec<AttrsEntry>| {
        let children = store_attrs(&mut objects, attrs).unwrap();
        let tree =
            store_tree(&mut objects, vec![Entry { kind: EntryKind::Directory { tree: top }, ..fifo(b"d") }])
                .unwrap();
        let below = AttrsEntry { name: name(b"d"), attrs: Attrs { children, ..Attrs::default() } };
        let children = store_attrs(&mut objects, vec![below]).unwrap();
        let attrs = Attrs { children, ..Attrs::default() };
        let root = Root { mode: Mode::of_stat(0o755), tree };
        (objects.clone(), esf_core::manifest::store_top(&mut objects, root, &attrs).unwrap(), objects.clone())
    };
    let (_, good, objects) = pin(vec![timed(b"b", 1)]);
    assert_eq!(walk(&objects, &good).map(Result::unwrap).count(), 3);
    let children = Some(AttrsId::new(Digest::of(b"")));
    let below_fifo = AttrsEntry { name: name(b"b"), attrs: Attrs { children, ..Attrs::default() } };
    // With how many entries are told before the contradiction is.
    let wrong = [
        (vec![timed(b"a", 1)], 2),
        (vec![timed(b"b", 1), timed(b"c", 1)], 3),
        (vec![timed(b"a", 1), timed(b"b", 1)], 2),
        (vec![below_fifo], 2),
    ];
    for (attrs, told) in wrong {
        let (_, bad, objects) = pin(attrs.clone());
        let mut found: Vec<_> = walk(&objects, &bad).collect();
        match found.pop() {
            Some(Err(Error::Disagree { path, .. })) => assert!(path.starts_with("d/"), "{path}"),
            other => panic!("{attrs:?}: {other:?}"),
        }
        assert_eq!(found.len(), told, "{attrs:?}");
    }
}
