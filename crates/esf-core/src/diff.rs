//! What differs between two roots, path by path.
//! Invariant: subtrees whose ids are equal on both sides are never read, so the cost follows the
//! difference and not the size of the roots.

use crate::manifest::{
    Attrs, DirectoryCursor, Entry, EntryKind, Error, Mode, Objects, RootPin, check_depth, join, load_top,
};
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
    if a == b {
        return Ok(Vec::new());
    }
    let tops = [Some(top(objects, a)?), Some(top(objects, b)?)];
    Differ { objects, path: Vec::new(), above: 0, open: Vec::new(), descend: true, changes: Vec::new() }
        .run(tops)
}

/// The same for two entries at `path`, of which `depth` directories are above; what is deleted, or
/// replaced by something that is no directory, is told without what lay beneath it.
pub(crate) fn diff_at(
    objects: &dyn Objects,
    path: &[u8],
    depth: usize,
    sides: [Option<Side>; 2],
) -> Result<Vec<Change>, Error> {
    let (path, open, changes) = (path.to_vec(), Vec::new(), Vec::new());
    Differ { objects, path, above: depth, open, descend: false, changes }.run(sides)
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
    /// How many directories are above those in `open`.
    above: usize,
    /// The directories that are being compared, with the lengths of their paths.
    open: Vec<(Directories<2>, usize)>,
    /// Whether to go into directories that only the first side has.
    descend: bool,
    changes: Vec<Change>,
}

impl Differ<'_> {
    fn run(mut self, sides: [Option<Side>; 2]) -> Result<Vec<Change>, Error> {
        self.entry(sides)?;
        while let Some((directories, length)) = self.open.last_mut() {
            self.path.truncate(*length);
            match directories.next(self.objects)? {
                Some((name, sides)) => {
                    join(&mut self.path, &name)?;
                    check_depth(self.above + self.open.len(), &self.path)?;
                    self.entry(sides)?;
                }
                None => drop(self.open.pop()),
            }
        }
        Ok(self.changes)
    }

    /// Compares what is at the present path, and opens what lies beneath it if that differs.
    fn entry(&mut self, [before, after]: [Option<Side>; 2]) -> Result<(), Error> {
        if before == after {
            return Ok(());
        }
        let below = [directory(before.as_ref()), directory(after.as_ref())];
        if let Some(kind) = change_kind(before.as_ref(), after.as_ref()) {
            self.changes.push(Change { path: self.path.clone(), kind, before, after });
        }
        if below[0] != below[1] && (self.descend || below[1].is_some()) {
            self.open.push((Directories::open(self.objects, below)?, self.path.len()));
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

/// A name with its entry in each of several directories.
type Step<const N: usize> = (Name, [Option<Side>; N]);

/// Several directories read in step, name by name.
pub(crate) struct Directories<const N: usize>(Vec<Reader>);

impl<const N: usize> Directories<N> {
    pub(crate) fn open(objects: &dyn Objects, below: [Option<Below>; N]) -> Result<Self, Error> {
        below.into_iter().map(|below| Reader::open(objects, below)).collect::<Result<_, _>>().map(Self)
    }

    /// The next name, with the entry of this name in each directory that has one.
    pub(crate) fn next(&mut self, objects: &dyn Objects) -> Result<Option<Step<N>>, Error> {
        let names = self.0.iter().filter_map(|reader| reader.next.as_ref().map(|(entry, _)| &entry.name));
        let Some(name) = names.min().cloned() else { return Ok(None) };
        let mut sides = [const { None }; N];
        for (side, reader) in sides.iter_mut().zip(&mut self.0) {
            *side = reader.take(objects, &name)?;
        }
        Ok(Some((name, sides)))
    }
}

/// One directory's entries with the next one in hand.
struct Reader {
    cursor: Option<DirectoryCursor>,
    next: Option<(Entry, Attrs)>,
}

impl Reader {
    fn open(objects: &dyn Objects, below: Option<Below>) -> Result<Self, Error> {
        let cursor = below.map(|(tree, attrs)| DirectoryCursor::open(objects, tree, attrs)).transpose()?;
        let mut reader = Self { cursor, next: None };
        reader.advance(objects)?;
        Ok(reader)
    }

    fn advance(&mut self, objects: &dyn Objects) -> Result<(), Error> {
        self.next = match &mut self.cursor {
            Some(cursor) => cursor.next(objects)?,
            None => None,
        };
        Ok(())
    }

    /// Takes the next entry if it is called `name`.
    fn take(&mut self, objects: &dyn Objects, name: &Name) -> Result<Option<Side>, Error> {
        let Some((entry, attrs)) = self.next.take_if(|(entry, _)| entry.name == *name) else {
            return Ok(None);
        };
        self.advance(objects)?;
        Ok(Some(Side { mode: entry.mode, kind: entry.kind, attrs }))
    }
}
