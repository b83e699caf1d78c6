//! What one directory of the union shows, in little memory: an arena of records and an index of
//! offsets, some 30 bytes for a name of 20. Invariant: a name has one record at most; a record whose
//! tag is `GONE` hides the name (a whiteout, or removed since) and is never shown.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::Kind;

/// The number of a layer: 0 is the upper, 1 the topmost lower.
pub(super) type Layer = u16;
/// The upper's number.
pub(super) const UPPER: Layer = 0;

const GONE: u8 = 0;
/// A lower shows the name as well: without the upper's entry it would come back.
const BELOW: u8 = 1;
/// No further layer adds to this name.
const CLOSED: u8 = 2;
/// `BELOW` of an upper's record is decided.
const DECIDED: u8 = 4;
/// Tag, flags, layer (two bytes), length of the name.
const HEADER: usize = 5;

/// One name of a directory of the union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    /// The topmost layer that has it.
    pub(super) layer: Layer,
    /// Whether a lower shows the name without the upper's entry; true of every entry of a lower.
    pub(super) below: bool,
    /// Of a directory: the further layers that may add to it, topmost first.
    pub(super) rest: Vec<Layer>,
}

impl Entry {
    /// An entry of the upper alone.
    pub(super) fn upper(kind: Kind, below: bool) -> Self {
        Self { kind, layer: UPPER, below, rest: Vec::new() }
    }
}

/// A snapshot of a directory: its names without `.` and `..`, in no particular order.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    records: Vec<u8>,
    /// Offsets of records, each plus one; zero is a free place. Its length is a power of two.
    index: Vec<u32>,
    /// Records, those that are gone included.
    filled: usize,
    shown: usize,
    /// Of directories in several layers: the layers after the first, by the record's offset.
    rest: HashMap<u32, Vec<Layer>>,
    hasher: RandomState,
}

impl Listing {
    /// How many names there are.
    pub fn len(&self) -> usize {
        self.shown
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.shown == 0
    }

    /// The name at a cursor, its kind, and the cursor of the next; 0 is the first. Nothing at the end.
    pub fn next(&self, cursor: usize) -> Option<(&[u8], Kind, usize)> {
        let mut at = cursor;
        while at < self.records.len() {
            let end = self.end(at);
            if let Some(kind) = Kind::of_tag(self.records[at]) {
                return Some((&self.records[at + HEADER..end], kind, end));
            }
            at = end;
        }
        None
    }

    /// The names and their kinds.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Kind)> {
        let mut cursor = 0;
        std::iter::from_fn(move || {
            let (name, kind, next) = self.next(cursor)?;
            cursor = next;
            Some((name, kind))
        })
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.records.capacity() + self.index.capacity() * 4 + self.rest.capacity() * 48
    }

    /// What is there of that name.
    pub(super) fn get(&self, name: &[u8]) -> Option<Entry> {
        let at = self.find(name)?;
        let kind = Kind::of_tag(self.records[at])?;
        let rest = self.rest.get(&(at as u32)).cloned().unwrap_or_default();
        Some(Entry { kind, layer: self.layer(at), below: self.records[at + 1] & BELOW != 0, rest })
    }

    /// Puts an entry in the place of what the name was.
    pub(super) fn put(&mut self, name: &[u8], entry: Entry) {
        let below = if entry.below { BELOW } else { 0 };
        let at = self.find(name).unwrap_or_else(|| self.push(name));
        if self.records[at] == GONE {
            self.shown += 1;
        }
        let [low, high] = entry.layer.to_le_bytes();
        self.records[at..at + 4].copy_from_slice(&[entry.kind.tag(), below | CLOSED | DECIDED, low, high]);
        if entry.rest.is_empty() {
            self.rest.remove(&(at as u32));
        } else {
            self.rest.insert(at as u32, entry.rest);
        }
    }

    /// Takes a name away.
    pub(super) fn remove(&mut self, name: &[u8]) {
        let Some(at) = self.find(name) else { return };
        if self.records[at] != GONE {
            self.records[at] = GONE;
            self.shown -= 1;
            self.rest.remove(&(at as u32));
        }
        if self.filled > 2 * self.shown + 64 {
            self.compact();
        }
    }

    /// Takes in a name of the next layer beneath those that were merged; `kind` is none of a whiteout.
    pub(super) fn merge(&mut self, layer: Layer, name: &[u8], kind: Option<Kind>) {
        let Some(at) = self.find(name) else {
            let at = self.push(name);
            let below = if layer != UPPER && kind.is_some() { BELOW } else { 0 };
            let closed = if kind == Some(Kind::Directory) { 0 } else { CLOSED };
            let [low, high] = layer.to_le_bytes();
            let tag = kind.map_or(GONE, Kind::tag);
            self.records[at..at + 4].copy_from_slice(&[tag, below | closed, low, high]);
            self.shown += usize::from(kind.is_some());
            return;
        };
        let flags = self.records[at + 1];
        let mut now = flags;
        if self.layer(at) == UPPER && flags & DECIDED == 0 {
            now |= DECIDED | if kind.is_some() { BELOW } else { 0 };
        }
        if flags & CLOSED == 0 {
            match kind {
                Some(Kind::Directory) => self.rest.entry(at as u32).or_default().push(layer),
                _ => now |= CLOSED,
            }
        }
        self.records[at + 1] = now;
    }

    fn layer(&self, at: usize) -> Layer {
        Layer::from_le_bytes([self.records[at + 2], self.records[at + 3]])
    }

    fn end(&self, at: usize) -> usize {
        at + HEADER + usize::from(self.records[at + HEADER - 1])
    }

    fn place(&self, name: &[u8]) -> usize {
        self.hasher.hash_one(name) as usize & (self.index.len() - 1)
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        if self.index.is_empty() {
            return None;
        }
        let mut place = self.place(name);
        loop {
            let at = (self.index[place] as usize).checked_sub(1)?;
            if self.records[at + HEADER..self.end(at)] == *name {
                return Some(at);
            }
            place = (place + 1) & (self.index.len() - 1);
        }
    }

    /// Adds a record that is gone; `name` has at most 255 bytes and no record yet.
    fn push(&mut self, name: &[u8]) -> usize {
        if (self.filled + 1) * 4 > self.index.len() * 3 {
            self.grow();
        }
        let at = self.records.len();
        self.records.extend_from_slice(&[GONE, 0, 0, 0, name.len() as u8]);
        self.records.extend_from_slice(name);
        self.filled += 1;
        self.enter(at);
        at
    }

    fn enter(&mut self, at: usize) {
        let mut place = self.place(&self.records[at + HEADER..self.end(at)]);
        while self.index[place] != 0 {
            place = (place + 1) & (self.index.len() - 1);
        }
        self.index[place] = at as u32 + 1;
    }

    fn grow(&mut self) {
        self.index = vec![0; (self.index.len() * 2).max(8)];
        let mut at = 0;
        while at < self.records.len() {
            self.enter(at);
            at = self.end(at);
        }
    }

    /// Drops the records that are gone. Hidden names of lowers are safe: a listing is whole, so a name
    /// without a record is not there.
    fn compact(&mut self) {
        let mut new = Self { hasher: self.hasher.clone(), ..Self::default() };
        let mut cursor = 0;
        while let Some((name, _, next)) = self.next(cursor) {
            let entry = self.get(name).expect("it is shown");
            new.put(name, entry);
            cursor = next;
        }
        *self = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(below: bool) -> Entry {
        Entry::upper(Kind::File, below)
    }

    #[test]
    fn layers_merge_as_overlays_do() {
        let mut listing = Listing::default();
        for (layer, name, kind) in [
            (0, "gone", None),
            (0, "d", Some(Kind::Directory)),
            (0, "f", Some(Kind::File)),
            (1, "gone", Some(Kind::File)),
            (1, "d", Some(Kind::Directory)),
            (1, "f", None),
            (1, "low", Some(Kind::Directory)),
            (2, "d", Some(Kind::File)),
            (2, "f", Some(Kind::File)),
            (2, "low", Some(Kind::Directory)),
            (3, "d", Some(Kind::Directory)),
            (3, "low", None),
            (4, "low", Some(Kind::Directory)),
        ] {
            listing.merge(layer, name.as_bytes(), kind);
        }
        assert_eq!(listing.get(b"gone"), None);
        let d = Entry { kind: Kind::Directory, layer: 0, below: true, rest: vec![1] };
        assert_eq!(listing.get(b"d"), Some(d));
        assert_eq!(listing.get(b"f"), Some(file(false)));
        let low = Entry { kind: Kind::Directory, layer: 1, below: true, rest: vec![2] };
        assert_eq!(listing.get(b"low"), Some(low));
        let mut names: Vec<_> = listing.iter().map(|(name, _)| name.to_vec()).collect();
        names.sort();
        assert_eq!(names, [b"d".to_vec(), b"f".to_vec(), b"low".to_vec()]);
    }

    proptest::proptest! {
        #[test]
        fn a_listing_is_a_map(ops in proptest::collection::vec((0..3u8, 0..300u16), 0..900)) {
            let (mut listing, mut map) = (Listing::default(), std::collections::BTreeMap::new());
            for (op, n) in ops {
                let name = format!("name-{n}").into_bytes();
                if op == 0 {
                    listing.remove(&name);
                    map.remove(&name);
                } else {
                    let entry = file(op == 1);
                    listing.put(&name, entry.clone());
                    map.insert(name, entry);
                }
                assert_eq!(listing.len(), map.len());
            }
            let seen: std::collections::BTreeMap<_, _> =
                listing.iter().map(|(name, _)| (name.to_vec(), listing.get(name).expect("shown"))).collect();
            assert_eq!(seen, map);
        }

        #[test]
        fn churn_of_names_stays_small(n in 1000..5000usize) {
            let mut listing = Listing::default();
            for n in 0..n {
                let name = format!("{n}").into_bytes();
                listing.put(&name, file(false));
                listing.remove(&name);
            }
            assert!(listing.memory() < 8192, "{}", listing.memory());
        }
    }
}
