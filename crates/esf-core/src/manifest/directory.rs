//! Directories as lists of entries: stored with paging hidden, read whole, by cursor or by name.
//! Invariant: what is loaded is exactly what storing the same entries would give; `Tree` and
//! `Attrs` of a directory agree. `docs/on-disk-format.md` section 2.3.

use std::collections::VecDeque;

use super::codec::{
    Directory, PageRef, decode_directory, decode_page, encode_directory, encode_page, is_boundary,
};
use super::codec::{MAX_INLINE, MAX_PAGE, MIN_PAGE};
use super::entry::{Attrs, AttrsEntry, Entry, Item};
use super::{Error, ObjectSink, Objects, escape, fetch, keep};
use crate::{AttrsId, Digest, Name, TreeId};

/// Stores a directory's entries, in any order, and answers its id.
///
/// # Errors
/// `Entry` for one that cannot be represented or a name given twice.
pub fn store_tree(sink: &mut dyn ObjectSink, entries: Vec<Entry>) -> Result<TreeId, Error> {
    store(sink, entries).map(TreeId::new)
}

/// Stores the attributes of a directory's entries, in any order, leaving out what is default;
/// none when all are.
///
/// # Errors
/// `Entry` for attributes that cannot be represented or a name given twice.
pub fn store_attrs(
    sink: &mut dyn ObjectSink,
    mut entries: Vec<AttrsEntry>,
) -> Result<Option<AttrsId>, Error> {
    entries.retain(|entry| !entry.attrs.is_default());
    if entries.is_empty() {
        return Ok(None);
    }
    store(sink, entries).map(|id| Some(AttrsId::new(id)))
}

/// Stores both objects of a directory.
///
/// # Errors
/// As `store_tree` and `store_attrs`.
pub fn store_directory(
    sink: &mut dyn ObjectSink,
    entries: Vec<(Entry, Attrs)>,
) -> Result<(TreeId, Option<AttrsId>), Error> {
    let (mut tree, mut attrs) = (Vec::with_capacity(entries.len()), Vec::new());
    for (entry, own) in entries {
        agree(&entry, &own)?;
        if !own.is_default() {
            attrs.push(AttrsEntry { name: entry.name.clone(), attrs: own });
        }
        tree.push(entry);
    }
    Ok((store_tree(sink, tree)?, store_attrs(sink, attrs)?))
}

/// Every entry of a directory, ascending by name.
///
/// # Errors
/// Objects that are missing, damaged or not canonical.
pub fn load_tree(objects: &dyn Objects, tree: TreeId) -> Result<Vec<Entry>, Error> {
    load(objects, Some(*tree.digest()))
}

/// Every entry with attributes, ascending by name; none for a directory without any.
///
/// # Errors
/// Objects that are missing, damaged or not canonical.
pub fn load_attrs(objects: &dyn Objects, attrs: Option<AttrsId>) -> Result<Vec<AttrsEntry>, Error> {
    load(objects, attrs.map(|id| *id.digest()))
}

/// Every entry of a directory with its attributes, ascending by name.
///
/// # Errors
/// Objects that are missing, damaged, not canonical or at odds with each other.
pub fn load_directory(
    objects: &dyn Objects,
    tree: TreeId,
    attrs: Option<AttrsId>,
) -> Result<Vec<(Entry, Attrs)>, Error> {
    let mut cursor = DirectoryCursor::open(objects, tree, attrs)?;
    let mut entries = Vec::new();
    while let Some(entry) = cursor.next(objects)? {
        entries.push(entry);
    }
    Ok(entries)
}

/// The entry called `name` with its attributes; reads one page of a large directory.
///
/// # Errors
/// Objects that are missing, damaged, not canonical or at odds with each other.
pub fn find(
    objects: &dyn Objects,
    tree: TreeId,
    attrs: Option<AttrsId>,
    name: &Name,
) -> Result<Option<(Entry, Attrs)>, Error> {
    let Some(entry) = find_item::<Entry>(objects, tree.digest(), name)? else { return Ok(None) };
    let own = match attrs {
        Some(attrs) => find_item::<AttrsEntry>(objects, attrs.digest(), name)?,
        None => None,
    };
    let own = own.map(|found| found.attrs).unwrap_or_default();
    agree(&entry, &own)?;
    Ok(Some((entry, own)))
}

/// Refuses attributes that an entry of this kind cannot have.
fn agree(entry: &Entry, attrs: &Attrs) -> Result<(), Error> {
    let expected = match entry.kind.is_directory() {
        true if attrs.hard_link.is_some() => "no hard link on a directory",
        false if attrs.children.is_some() => "a directory where attributes have children",
        true | false => return Ok(()),
    };
    Err(Error::Disagree { path: escape(entry.name.as_bytes()), expected })
}

fn store<T: Item>(sink: &mut dyn ObjectSink, mut items: Vec<T>) -> Result<Digest, Error> {
    items.sort_by(|a, b| a.name().cmp(b.name()));
    let refuse = |item: &T, expected| Error::Entry { name: item.name().to_string(), expected };
    for item in &items {
        item.check().map_err(|expected| refuse(item, expected))?;
    }
    if let Some(twice) = items.windows(2).find(|pair| pair[0].name() == pair[1].name()) {
        return Err(refuse(&twice[0], "each name once"));
    }
    if items.len() <= MAX_INLINE {
        return keep(sink, T::DIRECTORY, &encode_directory(&Directory::Inline(items)));
    }
    let mut pages = Vec::new();
    let mut rest = items.as_slice();
    while !rest.is_empty() {
        let (page, after) = rest.split_at(page_length(rest));
        pages.push(PageRef {
            count: page.len() as u64,
            last: page[page.len() - 1].name().clone(),
            page: keep(sink, T::PAGE, &encode_page(page))?,
        });
        rest = after;
    }
    keep(sink, T::DIRECTORY, &encode_directory::<T>(&Directory::Paged(pages)))
}

/// How many of the first items make a page.
fn page_length<T: Item>(items: &[T]) -> usize {
    let most = items.len().min(MAX_PAGE);
    (MIN_PAGE..most).find(|length| is_boundary(items[length - 1].name())).unwrap_or(most)
}

fn load<T: Item>(objects: &dyn Objects, id: Option<Digest>) -> Result<Vec<T>, Error> {
    let mut cursor = Cursor::open(objects, id)?;
    let mut items = Vec::new();
    while let Some(item) = cursor.next(objects)? {
        items.push(item);
    }
    Ok(items)
}

fn find_item<T: Item>(objects: &dyn Objects, id: &Digest, name: &Name) -> Result<Option<T>, Error> {
    let items = match fetch(objects, T::DIRECTORY, id, decode_directory::<T>)? {
        Directory::Inline(items) => items,
        Directory::Paged(pages) => {
            let nth = pages.partition_point(|page| page.last < *name);
            let Some(page) = pages.get(nth) else { return Ok(None) };
            let before = nth.checked_sub(1).map(|before| &pages[before].last);
            load_page(objects, page, before)?
        }
    };
    let found = items.binary_search_by(|item| item.name().cmp(name));
    Ok(found.ok().map(|at| items[at].clone()))
}

/// Reads a page and checks it against the list that names it.
fn load_page<T: Item>(objects: &dyn Objects, page: &PageRef, before: Option<&Name>) -> Result<Vec<T>, Error> {
    let items = fetch(objects, T::PAGE, &page.page, decode_page::<T>)?;
    let agrees = items.len() as u64 == page.count
        && items.last().is_some_and(|last| *last.name() == page.last)
        && items.first().is_some_and(|first| before.is_none_or(|before| before < first.name()));
    if agrees {
        return Ok(items);
    }
    let expected = "the entries that its list of pages tells of".to_owned();
    Err(Error::NotCanonical { kind: T::PAGE, id: page.page, expected })
}

/// Reads items in order with one page in memory.
struct Cursor<T> {
    pages: VecDeque<PageRef>,
    items: VecDeque<T>,
    before: Option<Name>,
}

impl<T: Item> Cursor<T> {
    fn open(objects: &dyn Objects, id: Option<Digest>) -> Result<Self, Error> {
        let directory = match id {
            Some(id) => fetch(objects, T::DIRECTORY, &id, decode_directory::<T>)?,
            None => Directory::Inline(Vec::new()),
        };
        let (pages, items) = match directory {
            Directory::Inline(items) => (VecDeque::new(), items.into()),
            Directory::Paged(pages) => (pages.into(), VecDeque::new()),
        };
        Ok(Self { pages, items, before: None })
    }

    /// Brings the next page in when the last is used up; answers the next item without taking it.
    fn peek(&mut self, objects: &dyn Objects) -> Result<Option<&T>, Error> {
        if self.items.is_empty()
            && let Some(page) = self.pages.pop_front()
        {
            self.items = load_page(objects, &page, self.before.as_ref())?.into();
            self.before = Some(page.last);
        }
        Ok(self.items.front())
    }

    fn next(&mut self, objects: &dyn Objects) -> Result<Option<T>, Error> {
        self.peek(objects)?;
        Ok(self.items.pop_front())
    }
}

/// Reads a directory's entries with their attributes, in order, with one page of each in memory.
pub struct DirectoryCursor {
    tree: Cursor<Entry>,
    attrs: Cursor<AttrsEntry>,
}

impl DirectoryCursor {
    /// Stands before the first entry.
    ///
    /// # Errors
    /// Objects that are missing, damaged or not canonical.
    pub fn open(objects: &dyn Objects, tree: TreeId, attrs: Option<AttrsId>) -> Result<Self, Error> {
        Ok(Self {
            tree: Cursor::open(objects, Some(*tree.digest()))?,
            attrs: Cursor::open(objects, attrs.map(|id| *id.digest()))?,
        })
    }

    /// The next entry, or none after the last.
    ///
    /// # Errors
    /// Objects that are missing, damaged, not canonical or at odds with each other.
    pub fn next(&mut self, objects: &dyn Objects) -> Result<Option<(Entry, Attrs)>, Error> {
        let entry = self.tree.next(objects)?;
        let Some(first) = self.attrs.peek(objects)? else {
            return Ok(entry.map(|entry| (entry, Attrs::default())));
        };
        let Some(entry) = entry.filter(|entry| entry.name <= first.name) else {
            let path = escape(first.name.as_bytes());
            return Err(Error::Disagree { path, expected: "attributes only of entries that exist" });
        };
        let own = match entry.name == first.name {
            true => self.attrs.next(objects)?.expect("was peeked").attrs,
            false => Attrs::default(),
        };
        agree(&entry, &own)?;
        Ok(Some((entry, own)))
    }
}
