//! Large directories: pages depend on the set of names alone, and no other cut is taken.

use esf_core::manifest::{
    Attrs, Directory, Entry, EntryKind, Error, MAX_INLINE, MAX_PAGE, MIN_PAGE, MemoryObjects, Mode, Object,
    ObjectKind, ObjectSink, Objects, PageRef, find, load_attrs, load_directory, load_tree, store_directory,
    store_tree,
};
use esf_core::time::FileTime;
use esf_core::{Digest, Name, TreeId};

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

fn fifo(bytes: &[u8]) -> Entry {
    Entry { name: name(bytes), mode: Mode::of_stat(0o644), kind: EntryKind::Fifo }
}

fn numbered(numbers: impl IntoIterator<Item = u32>) -> Vec<Entry> {
    numbers.into_iter().map(|nth| fifo(format!("entry-{nth:06}").as_bytes())).collect()
}

fn pages(objects: &MemoryObjects, id: &Digest) -> Vec<PageRef> {
    match Object::decode(ObjectKind::Tree, &objects.get(ObjectKind::Tree, id).unwrap()).unwrap() {
        Object::Tree(Directory::Paged(pages)) => pages,
        other => panic!("expected pages, found {other:?}"),
    }
}

fn is_boundary(name: &[u8]) -> bool {
    let hash = Digest::of(name);
    hash.as_bytes()[0] == 0 && hash.as_bytes()[1] & 1 == 0
}

/// The rule of the document, written a second time.
fn expected_pages(names: &[Name]) -> Vec<u64> {
    let mut counts = vec![];
    let mut count = 0;
    for name in names {
        count += 1;
        let boundary = is_boundary(name.as_bytes());
        if count == MAX_PAGE as u64 || count >= MIN_PAGE as u64 && boundary {
            counts.push(std::mem::take(&mut count));
        }
    }
    if count > 0 {
        counts.push(count);
    }
    counts
}

#[test]
fn large_directories_are_paged_by_their_names_alone() {
    for count in [MAX_INLINE as u32 + 1, 3000, 20_000] {
        let mut objects = MemoryObjects::default();
        let entries = numbered(0..count);
        let id = store_tree(&mut objects, entries.clone()).unwrap();
        let names: Vec<Name> = entries.iter().map(|entry| entry.name.clone()).collect();
        let found: Vec<u64> = pages(&objects, id.digest()).iter().map(|page| page.count).collect();
        assert_eq!(found, expected_pages(&names));
        assert_eq!(load_tree(&objects, id).unwrap(), entries);
        for (_, kind, bytes) in objects.iter() {
            assert_eq!(Object::decode(kind, bytes).unwrap().encode(), bytes);
        }
    }
    // Names of which none is a boundary fill pages to the brim.
    let boundary = |entry: &Entry| Digest::of(entry.name.as_bytes()).as_bytes()[0] == 0;
    let mut plain = numbered(0..6000);
    plain.retain(|entry| !boundary(entry));
    plain.truncate(5000);
    let mut objects = MemoryObjects::default();
    let id = store_tree(&mut objects, plain.clone()).unwrap();
    let found: Vec<u64> = pages(&objects, id.digest()).iter().map(|page| page.count).collect();
    assert_eq!(found, [2048, 2048, 904]);
    assert_eq!(load_tree(&objects, id).unwrap(), plain);
}

#[test]
fn one_entry_more_or_less_touches_few_pages() {
    let mut objects = MemoryObjects::default();
    let before = store_tree(&mut objects, numbered(0..50_000)).unwrap();
    for change in [[0..25_000, 25_001..50_000], [0..50_000, 60_000..60_001]] {
        let stored = objects.len();
        let after = store_tree(&mut objects, numbered(change.into_iter().flatten())).unwrap();
        assert_ne!(before, after);
        assert!(objects.len() - stored <= 4, "{} new objects", objects.len() - stored);
    }
    let stored = objects.len();
    assert_eq!(store_tree(&mut objects, numbered((0..50_000).rev())).unwrap(), before);
    assert_eq!(objects.len(), stored);
}

#[test]
fn names_are_found_in_any_page_and_nowhere_else() {
    let mut objects = MemoryObjects::default();
    let entries: Vec<(Entry, Attrs)> = numbered((0..9000).step_by(2))
        .into_iter()
        .enumerate()
        .map(|(nth, entry)| {
            (entry, Attrs { mtime: Some(FileTime { seconds: nth as i64 % 3, nanos: 0 }), ..Attrs::default() })
        })
        .map(|(entry, attrs)| {
            (entry, if attrs.mtime.unwrap().seconds == 0 { Attrs::default() } else { attrs })
        })
        .collect();
    let (tree, attrs) = store_directory(&mut objects, entries.clone()).unwrap();
    assert_eq!(load_directory(&objects, tree, attrs).unwrap(), entries);
    assert_eq!(load_attrs(&objects, attrs).unwrap().len(), 3000);
    for entry in entries.iter().step_by(29) {
        assert_eq!(find(&objects, tree, attrs, &entry.0.name).unwrap().as_ref(), Some(entry));
    }
    for absent in [&b"a"[..], b"entry-000001", b"entry-008999", b"z"] {
        assert_eq!(find(&objects, tree, attrs, &name(absent)).unwrap(), None);
    }
}

/// Other ways to cut the same entries would be other ids of the same directory.
#[test]
fn pages_that_are_cut_elsewhere_are_refused() {
    let mut objects = MemoryObjects::default();
    let id = store_tree(&mut objects, numbered(0..5000)).unwrap();
    let good = pages(&objects, id.digest());
    assert!(good.len() > 3);
    let page = |nth: usize| objects.get(ObjectKind::TreePage, &good[nth].page).unwrap();
    let entries = |nth: usize| match Object::decode(ObjectKind::TreePage, &page(nth)).unwrap() {
        Object::TreePage(entries) => entries,
        other => panic!("{other:?}"),
    };
    let put = |objects: &mut MemoryObjects, object: &Object, kind: ObjectKind| {
        let bytes = object.encode();
        objects.put(kind, &kind.id_of(&bytes), &bytes).unwrap();
        kind.id_of(&bytes)
    };
    let both = Object::TreePage([entries(0), entries(1)].concat()).encode();
    assert!(Object::decode(ObjectKind::TreePage, &both).is_err(), "a page that runs over its boundary");

    let mut backwards = good.clone();
    backwards.swap(0, 1);
    let backwards = Object::Tree(Directory::Paged(backwards)).encode();
    assert!(Object::decode(ObjectKind::Tree, &backwards).is_err(), "pages out of order");

    let mut wrong: Vec<(&str, Vec<PageRef>)> = vec![];
    let mut split = good.clone();
    let (one, two) = (entries(0)[..130].to_vec(), entries(0)[130..].to_vec());
    let mut extra = objects.clone();
    for (nth, part) in [one, two].into_iter().enumerate() {
        let (count, last) = (part.len() as u64, part.last().unwrap().name.clone());
        let page = put(&mut extra, &Object::TreePage(part), ObjectKind::TreePage);
        split.insert(nth, PageRef { count, last, page });
    }
    split.remove(2);
    wrong.push(("a page cut in two", split));
    let mut swapped = good.clone();
    let (first, second) = (swapped[0].page, swapped[1].page);
    (swapped[0].page, swapped[1].page) = (second, first);
    wrong.push(("pages swapped beneath their names", swapped));
    let mut miscounted = good.clone();
    miscounted[1].count += 1;
    wrong.push(("a wrong count", miscounted));
    let mut repeated = good.clone();
    repeated[1].page = first;
    wrong.push(("a page twice", repeated));
    wrong.push(("too few for pages", good[..1].to_vec()));
    let mut overlapping = good.clone();
    overlapping[2] = PageRef { last: overlapping[2].last.clone(), ..overlapping[1].clone() };
    wrong.push(("a last name that is not the page's", overlapping));
    // A page that has the right count and order, but ends before the name the list tells.
    let after = (0..).map(|nth| format!("{}-{nth}", good[1].last)).find(|name| is_boundary(name.as_bytes()));
    let mut renamed = good.clone();
    renamed[1].last = name(after.expect("names are many").as_bytes());
    wrong.push(("a later last name", renamed));
    let longer = [&entries(0)[good[0].count as usize - 1..], &entries(1)].concat();
    let mut overlapping = good.clone();
    overlapping[1].count += 1;
    overlapping[1].page = put(&mut extra, &Object::TreePage(longer), ObjectKind::TreePage);
    wrong.push(("a page that begins before the one above it ends", overlapping));
    for (what, pages) in wrong {
        let id = put(&mut extra, &Object::Tree(Directory::Paged(pages)), ObjectKind::Tree);
        match load_tree(&extra, TreeId::new(id)) {
            Err(Error::NotCanonical { .. }) => {}
            other => panic!("{what}: {:?}", other.map(|entries| entries.len())),
        }
    }
}
