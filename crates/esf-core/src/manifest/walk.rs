//! Walks a root's entries, depth first by raw name, and looks one path up.
//! Invariant: memory is bounded by the depth times one page of a directory, and paths by
//! `MAX_DEPTH` and `MAX_PATH`.

use super::codec::Root;
use super::entry::{Attrs, EntryKind, Mode};
use super::{DirectoryCursor, Error, MAX_DEPTH, MAX_PATH, Objects, RootPin, escape, find, load_top};
use crate::Name;

/// One entry of a root with its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkEntry {
    /// Components joined by `/`, without a leading one; empty for the top directory.
    pub path: Vec<u8>,
    /// Permission bits.
    pub mode: Mode,
    /// What it is.
    pub kind: EntryKind,
    /// Its attributes.
    pub attrs: Attrs,
}

/// Iterates over a root; ends after the first error.
pub struct Walk<'a> {
    objects: &'a dyn Objects,
    pin: RootPin,
    started: bool,
    /// The open directories with the length of their paths.
    open: Vec<(DirectoryCursor, usize)>,
    path: Vec<u8>,
}

/// Every entry of a root beginning with its top directory; a directory comes before its entries.
pub fn walk<'a>(objects: &'a dyn Objects, pin: &RootPin) -> Walk<'a> {
    Walk { objects, pin: *pin, started: false, open: Vec::new(), path: Vec::new() }
}

impl Walk<'_> {
    /// Leaves out what lies beneath the entry that came last.
    pub fn skip_children(&mut self) {
        if self.open.last().is_some_and(|(_, length)| *length == self.path.len()) {
            self.open.pop();
        }
    }

    fn step(&mut self) -> Result<Option<WalkEntry>, Error> {
        if !self.started {
            self.started = true;
            let (root, attrs) = load_top(self.objects, &self.pin)?;
            return self.enter(top_entry(root, attrs)).map(Some);
        }
        while let Some((cursor, length)) = self.open.last_mut() {
            let length = *length;
            let found = cursor.next(self.objects).map_err(|error| within(&self.path[..length], error))?;
            self.path.truncate(length);
            let Some((entry, attrs)) = found else {
                self.open.pop();
                continue;
            };
            join(&mut self.path, &entry.name)?;
            check_depth(self.open.len(), &self.path)?;
            let (path, mode, kind) = (self.path.clone(), entry.mode, entry.kind);
            return self.enter(WalkEntry { path, mode, kind, attrs }).map(Some);
        }
        Ok(None)
    }

    fn enter(&mut self, entry: WalkEntry) -> Result<WalkEntry, Error> {
        if let EntryKind::Directory { tree } = entry.kind {
            let cursor = DirectoryCursor::open(self.objects, tree, entry.attrs.children)?;
            self.open.push((cursor, self.path.len()));
        }
        Ok(entry)
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<WalkEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.open.clear();
        }
        step.transpose()
    }
}

/// The entry at `path`, or none; empty names the top directory.
///
/// # Errors
/// Objects that are missing, damaged, not canonical or at odds with each other.
pub fn lookup(objects: &dyn Objects, pin: &RootPin, path: &[u8]) -> Result<Option<WalkEntry>, Error> {
    let (root, attrs) = load_top(objects, pin)?;
    let mut found = top_entry(root, attrs);
    if path.is_empty() {
        return Ok(Some(found));
    }
    for component in path.split(|byte| *byte == b'/') {
        let (Ok(name), EntryKind::Directory { tree }) = (Name::new(component), &found.kind) else {
            return Ok(None);
        };
        let Some((entry, attrs)) = find(objects, *tree, found.attrs.children, &name)? else {
            return Ok(None);
        };
        found = WalkEntry { path: Vec::new(), mode: entry.mode, kind: entry.kind, attrs };
    }
    found.path = path.to_vec();
    Ok(Some(found))
}

pub(crate) fn top_entry(root: Root, attrs: Attrs) -> WalkEntry {
    let kind = EntryKind::Directory { tree: root.tree };
    WalkEntry { path: Vec::new(), mode: root.mode, kind, attrs }
}

/// Appends a component to a path.
pub(crate) fn join(path: &mut Vec<u8>, name: &Name) -> Result<(), Error> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    if path.len() > MAX_PATH {
        return Err(Error::TooLong { path: escape(path), expected: "at most 4096 bytes" });
    }
    Ok(())
}

/// Refuses an entry whose path has more than `MAX_DEPTH` components.
pub(crate) fn check_depth(depth: usize, path: &[u8]) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooLong { path: escape(path), expected: "at most 256 components" });
    }
    Ok(())
}

/// Tells of a disagreement by path instead of by name.
fn within(directory: &[u8], error: Error) -> Error {
    match error {
        Error::Disagree { path, expected } if !directory.is_empty() => {
            Error::Disagree { path: format!("{}/{path}", escape(directory)), expected }
        }
        other => other,
    }
}
