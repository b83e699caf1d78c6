//! What differs between two roots, path by path.
//! Invariant: subtrees whose ids are equal on both sides are never read, so the cost follows the
//! difference and not the size of the roots.

use std::cmp::Ordering;

use crate::manifest::{Attrs, DirectoryCursor, Entry, EntryKind, Error, Mode, Objects, RootPin, load_top};
use crate::{AttrsId, Name, TreeId};

/// How an entry differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Only the second root has it.
    Added,
    /// Both have it as the same kind of entry; mode, content or attributes differ.
    Modified,
    /// Only the first root has it.
    Deleted,
    /// Both have it as different kinds of entries.
    TypeChanged,
}

/// An entry on one side of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Permission bits.
    pub mode: Mode,
    /// What it is.
    pub kind: EntryKind,
    /// Its attributes.
    pub attrs: Attrs,
}

/// One path at which two roots differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Components joined by `/`; empty for the top directory.
    pub path: Vec<u8>,
    /// How it differs.
    pub kind: ChangeKind,
    /// The entry in the first root.
    pub before: Option<Side>,
    /// The entry in the second root.
    pub after: Option<Side>,
}

impl Change {
    /// Whether identity differs (kind, mode, contents or target), and not attributes alone. A
    /// directory's entries have changes of their own and do not count here.
    pub fn changes_identity(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => before.mode != after.mode || !same_kind(&before.kind, &after.kind),
            (None, _) | (_, None) => true,
        }
    }
}

/// Every path at which `b` differs from `a`, depth first by raw name. What was added or deleted is
/// told with everything beneath it.
///
/// # Errors
/// Objects that are missing, damaged, not canonical or at odds with each other.
pub fn diff(objects: &dyn Objects, a: &RootPin, b: &RootPin) -> Result<Vec<Change>, Error> {
    let mut walk = Differ { objects, path: Vec::new(), depth: 0, changes: Vec::new() };
    if a != b {
        walk.entry(Some(top(objects, a)?), Some(top(objects, b)?))?;
    }
    Ok(walk.changes)
}

pub(crate) fn top(objects: &dyn Objects, pin: &RootPin) -> Result<Side, Error> {
    let (root, attrs) = load_top(objects, pin)?;
    Ok(Side { mode: root.mode, kind: EntryKind::Directory { tree: root.tree }, attrs })
}

/// Equal but for what lies beneath a directory.
pub(crate) fn same_kind(a: &EntryKind, b: &EntryKind) -> bool {
    a.is_directory() && b.is_directory() || a == b
}

struct Differ<'a> {
    objects: &'a dyn Objects,
    path: Vec<u8>,
    depth: usize,
    changes: Vec<Change>,
}

impl Differ<'_> {
    fn entry(&mut self, before: Option<Side>, after: Option<Side>) -> Result<(), Error> {
        if before == after {
            return Ok(());
        }
        let below = (directory(before.as_ref()), directory(after.as_ref()));
        if let Some(kind) = change_kind(before.as_ref(), after.as_ref()) {
            self.changes.push(Change { path: self.path.clone(), kind, before, after });
        }
        if below.0 == below.1 {
            return Ok(());
        }
        self.depth += 1;
        self.directories(below.0, below.1)?;
        self.depth -= 1;
        Ok(())
    }

    fn directories(&mut self, before: Option<Below>, after: Option<Below>) -> Result<(), Error> {
        let mut before = Merging::open(self.objects, before)?;
        let mut after = Merging::open(self.objects, after)?;
        while let Some(name) = least(before.name(), after.name()) {
            let length = self.path.len();
            crate::manifest::join(&mut self.path, &name)?;
            crate::manifest::check_depth(self.depth, &self.path)?;
            let sides = (before.take(self.objects, &name)?, after.take(self.objects, &name)?);
            self.entry(sides.0, sides.1)?;
            self.path.truncate(length);
        }
        Ok(())
    }
}

fn change_kind(before: Option<&Side>, after: Option<&Side>) -> Option<ChangeKind> {
    match (before, after) {
        (None, None) => None,
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(before), Some(after)) => {
            let own = before.mode == after.mode && before.attrs.own() == after.attrs.own();
            match before.kind.word() == after.kind.word() {
                false => Some(ChangeKind::TypeChanged),
                true if own && same_kind(&before.kind, &after.kind) => None,
                true => Some(ChangeKind::Modified),
            }
        }
    }
}

/// What lies beneath a directory.
pub(crate) type Below = (TreeId, Option<AttrsId>);

pub(crate) fn directory(side: Option<&Side>) -> Option<Below> {
    match side?.kind {
        EntryKind::Directory { tree } => Some((tree, side?.attrs.children)),
        EntryKind::File { .. } | EntryKind::Symlink { .. } | EntryKind::Fifo => None,
    }
}

fn least<'a>(a: Option<&'a Name>, b: Option<&'a Name>) -> Option<Name> {
    match (a, b) {
        (Some(a), Some(b)) if a.cmp(b) == Ordering::Greater => Some(b.clone()),
        (Some(name), _) | (None, Some(name)) => Some(name.clone()),
        (None, None) => None,
    }
}

/// One directory's entries, read in step with another's.
pub(crate) struct Merging {
    cursor: Option<DirectoryCursor>,
    next: Option<(Entry, Attrs)>,
}

impl Merging {
    pub(crate) fn open(objects: &dyn Objects, below: Option<Below>) -> Result<Self, Error> {
        let cursor = below.map(|(tree, attrs)| DirectoryCursor::open(objects, tree, attrs)).transpose()?;
        let mut merging = Self { cursor, next: None };
        merging.advance(objects)?;
        Ok(merging)
    }

    fn advance(&mut self, objects: &dyn Objects) -> Result<(), Error> {
        self.next = match &mut self.cursor {
            Some(cursor) => cursor.next(objects)?,
            None => None,
        };
        Ok(())
    }

    pub(crate) fn name(&self) -> Option<&Name> {
        self.next.as_ref().map(|(entry, _)| &entry.name)
    }

    /// Takes the next entry if it is called `name`.
    pub(crate) fn take(&mut self, objects: &dyn Objects, name: &Name) -> Result<Option<Side>, Error> {
        let Some((entry, attrs)) = self.next.take_if(|(entry, _)| entry.name == *name) else {
            return Ok(None);
        };
        self.advance(objects)?;
        Ok(Some(Side { mode: entry.mode, kind: entry.kind, attrs }))
    }
}
