//! Whole objects to bytes and back: directories, pages and root headers.
//! Invariant: `decode(kind, bytes)` succeeds exactly when some object encodes to `bytes`, and then
//! `encode` gives those bytes again. `docs/on-disk-format.md` section 2.

use super::entry::{Attrs, AttrsEntry, Entry, Item, Mode, read_mode};
use super::wire::{Reader, begin, put_bytes, put_digest, put_varint};
use super::{DecodeError, ObjectKind};
use crate::{Digest, Name, TreeId};

/// Most entries of a directory that is one object.
pub const MAX_INLINE: usize = 1024;
/// Fewest entries of a page that is not the last.
pub const MIN_PAGE: usize = 128;
/// Most entries of a page.
pub const MAX_PAGE: usize = 2048;

/// One page in a large directory's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// How many entries it has.
    pub count: u64,
    /// The name of its last entry.
    pub last: Name,
    /// The page object.
    pub page: Digest,
}

/// A directory object: its entries, or the list of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directory<T> {
    /// At most `MAX_INLINE` entries.
    Inline(Vec<T>),
    /// The pages of more.
    Paged(Vec<PageRef>),
}

/// The header of a root: the top directory's own mode, and its `Tree`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The top directory's permission bits.
    pub mode: Mode,
    /// The top directory's entries.
    pub tree: TreeId,
}

/// Any structured object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A directory's identity.
    Tree(Directory<Entry>),
    /// A page of one.
    TreePage(Vec<Entry>),
    /// A directory's fidelity.
    Attrs(Directory<AttrsEntry>),
    /// A page of one.
    AttrsPage(Vec<AttrsEntry>),
    /// A root header.
    Root(Root),
    /// The attributes of a top directory.
    AttrsRoot(Attrs),
}

impl Object {
    /// Decodes the one canonical encoding of an object of `kind`.
    ///
    /// # Errors
    /// `DecodeError` for every input that `encode` would not write, and for blobs, which have no form.
    pub fn decode(kind: ObjectKind, bytes: &[u8]) -> Result<Self, DecodeError> {
        match kind {
            ObjectKind::Tree => decode_directory(bytes).map(Self::Tree),
            ObjectKind::TreePage => decode_page(bytes).map(Self::TreePage),
            ObjectKind::Attrs => decode_directory(bytes).map(Self::Attrs),
            ObjectKind::AttrsPage => decode_page(bytes).map(Self::AttrsPage),
            ObjectKind::Root => decode_root(bytes).map(Self::Root),
            ObjectKind::AttrsRoot => decode_attrs_root(bytes).map(Self::AttrsRoot),
            ObjectKind::Blob => Err(DecodeError { kind, offset: 0, expected: "a structured object" }),
        }
    }

    /// The canonical bytes of an object that was decoded.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Tree(directory) => encode_directory(directory),
            Self::TreePage(entries) => encode_page(entries),
            Self::Attrs(directory) => encode_directory(directory),
            Self::AttrsPage(entries) => encode_page(entries),
            Self::Root(root) => encode_root(root),
            Self::AttrsRoot(attrs) => encode_attrs_root(attrs),
        }
    }
}

/// Whether a page may end after an entry of this name.
pub(super) fn is_boundary(name: &Name) -> bool {
    let hash = blake3::hash(name.as_bytes());
    u16::from_le_bytes([hash.as_bytes()[0], hash.as_bytes()[1]]) & 0x1ff == 0
}

pub(super) fn encode_directory<T: Item>(directory: &Directory<T>) -> Vec<u8> {
    let mut out = begin(T::DIRECTORY);
    match directory {
        Directory::Inline(items) => {
            out.push(0);
            write_items(&mut out, items);
        }
        Directory::Paged(pages) => {
            out.push(1);
            put_varint(&mut out, pages.len() as u64);
            for page in pages {
                put_varint(&mut out, page.count);
                put_bytes(&mut out, page.last.as_bytes());
                put_digest(&mut out, &page.page);
            }
        }
    }
    out
}

pub(super) fn encode_page<T: Item>(items: &[T]) -> Vec<u8> {
    let mut out = begin(T::PAGE);
    write_items(&mut out, items);
    out
}

fn write_items<T: Item>(out: &mut Vec<u8>, items: &[T]) {
    put_varint(out, items.len() as u64);
    items.iter().for_each(|item| item.write(out));
}

pub(super) fn decode_directory<T: Item>(bytes: &[u8]) -> Result<Directory<T>, DecodeError> {
    let mut reader = Reader::open(T::DIRECTORY, bytes)?;
    let directory = match reader.byte()? {
        0 => {
            let items = read_items(&mut reader)?;
            if !(T::FEWEST..=MAX_INLINE).contains(&items.len()) {
                return Err(reader.refuse("at most 1024 entries in one object, and none left out"));
            }
            Directory::Inline(items)
        }
        1 => Directory::Paged(read_pages(&mut reader)?),
        _ => return Err(reader.refuse("form 0 or 1")),
    };
    reader.finish()?;
    Ok(directory)
}

pub(super) fn decode_page<T: Item>(bytes: &[u8]) -> Result<Vec<T>, DecodeError> {
    let mut reader = Reader::open(T::PAGE, bytes)?;
    let items: Vec<T> = read_items(&mut reader)?;
    if !(1..=MAX_PAGE).contains(&items.len()) {
        return Err(reader.refuse("1 to 2048 entries in a page"));
    }
    let inner = items.get(MIN_PAGE - 1..items.len() - 1).unwrap_or_default();
    if inner.iter().any(|item| is_boundary(item.name())) {
        return Err(reader.refuse("a page that ends at its boundary"));
    }
    reader.finish()?;
    Ok(items)
}

fn read_items<T: Item>(reader: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
    let count = reader.count(T::LEAST)?;
    // A larger count is refused anyway; do not reserve memory for it first.
    let mut items: Vec<T> = Vec::with_capacity(count.min(MAX_PAGE));
    for _ in 0..count {
        let item = T::read(reader)?;
        if items.last().is_some_and(|last| last.name() >= item.name()) {
            return Err(reader.refuse("names strictly ascending"));
        }
        items.push(item);
    }
    Ok(items)
}

fn read_pages(reader: &mut Reader<'_>) -> Result<Vec<PageRef>, DecodeError> {
    let count = reader.count(1 + 2 + 32)?;
    let mut pages: Vec<PageRef> = Vec::with_capacity(count);
    let mut total = 0;
    for nth in 1..=count {
        let page = PageRef { count: reader.varint()?, last: reader.name()?, page: reader.digest()? };
        if !(1..=MAX_PAGE as u64).contains(&page.count) {
            return Err(reader.refuse("1 to 2048 entries in a page"));
        }
        let full = page.count == MAX_PAGE as u64;
        let ends = full || page.count >= MIN_PAGE as u64 && is_boundary(&page.last);
        if nth < count && !ends {
            return Err(reader.refuse("a page that ends at a boundary"));
        }
        if pages.last().is_some_and(|before| before.last >= page.last) {
            return Err(reader.refuse("names strictly ascending"));
        }
        total += page.count;
        pages.push(page);
    }
    if total <= MAX_INLINE as u64 {
        return Err(reader.refuse("more than 1024 entries in pages"));
    }
    Ok(pages)
}

pub(super) fn encode_root(root: &Root) -> Vec<u8> {
    let mut out = begin(ObjectKind::Root);
    put_varint(&mut out, root.mode.bits().into());
    put_digest(&mut out, root.tree.digest());
    out
}

pub(super) fn decode_root(bytes: &[u8]) -> Result<Root, DecodeError> {
    let mut reader = Reader::open(ObjectKind::Root, bytes)?;
    let root = Root { mode: read_mode(&mut reader)?, tree: TreeId::new(reader.digest()?) };
    reader.finish()?;
    Ok(root)
}

pub(super) fn encode_attrs_root(attrs: &Attrs) -> Vec<u8> {
    let mut out = begin(ObjectKind::AttrsRoot);
    attrs.write(&mut out);
    out
}

pub(super) fn decode_attrs_root(bytes: &[u8]) -> Result<Attrs, DecodeError> {
    let mut reader = Reader::open(ObjectKind::AttrsRoot, bytes)?;
    let attrs = Attrs::read(&mut reader)?;
    if attrs.hard_link.is_some() {
        return Err(reader.refuse("no hard link on the top directory"));
    }
    reader.finish()?;
    Ok(attrs)
}
