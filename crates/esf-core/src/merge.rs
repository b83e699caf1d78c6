//! Three-way merge of roots, path by path, as data (design section 4, acceptance M01).
//! Invariant: nothing that either side changed is lost without a conflict that names its path; at a
//! conflict *ours* stays. Pure: reads objects, writes objects, and answers the edits that turn *ours*
//! into the result.
//!
//! A path has two slots, one for a directory and one for anything else; each is merged by itself
//! and both taken is the conflict `directory_file`. So replacing a directory by a file is deleting
//! its entries and adding a file, as in git. Contents, mode, owner and each extended attribute merge
//! by themselves. A time of modification follows the contents; where both sides have the same
//! contents and both changed the time, it is *theirs*. It never makes a conflict.

mod leaf;
mod links;

use std::cell::RefCell;

use serde::Serialize;

use crate::diff::{Below, Merging, Side, directory, same_kind, top};
use crate::manifest::{
    Attrs, Entry, EntryKind, Error, MemoryObjects, Mode, ObjectError, ObjectKind, ObjectSink, Objects, Root,
    RootPin, check_depth, escape, join, store_directory, store_top,
};
use crate::{Digest, Name};

/// Why a path could not be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// Both changed the contents of a file.
    Content,
    /// Both added it, with different contents or targets.
    AddAdd,
    /// One changed it and the other deleted it.
    ModifyDelete,
    /// Both changed it, at least one of them to another kind of entry.
    Type,
    /// Both changed its mode.
    Mode,
    /// Both changed the target of a symlink.
    SymlinkTarget,
    /// One has a directory where the other has something else, and both have changed it.
    DirectoryFile,
    /// Both changed its owner or the same extended attribute.
    Attrs,
}

/// An entry as a conflict tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Term {
    /// `directory`, `file`, `symlink` or `fifo`.
    pub kind: &'static str,
    /// Permission bits.
    pub mode: Mode,
    /// Size of a file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Digest of the contents, target or tree; none for a fifo.
    pub digest: Option<Digest>,
}

/// One path that could not be merged; *ours* stays there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// Components joined by `/`; as JSON in the escaped form of a dump.
    #[serde(serialize_with = "serialize_path")]
    pub path: Vec<u8>,
    /// Why.
    pub kind: ConflictKind,
    /// The entry in the common base.
    pub base: Option<Term>,
    /// The entry in *ours*.
    pub ours: Option<Term>,
    /// The entry in *theirs*.
    pub theirs: Option<Term>,
}

fn serialize_path<S: serde::Serializer>(path: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&escape(path))
}

/// Which of the two merged roots something lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum From {
    /// In *ours*.
    Ours,
    /// In *theirs*.
    Theirs,
}

/// What is to be done at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Remove the entry with everything beneath it.
    Delete,
    /// Make the entry this. What is there is replaced, unless both are directories: then only mode
    /// and attributes change.
    Put {
        /// Permission bits.
        mode: Mode,
        /// What it is.
        kind: EntryKind,
        /// Its attributes, without `children`.
        attrs: Attrs,
        /// The root that has these contents at this path.
        from: From,
        /// Whether the entry there has the very same mode and attributes, so that its inode may be
        /// linked; the hard-link group does not count.
        as_is: bool,
    },
}

/// One step from *ours* to the merged root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Components joined by `/`; empty for the top directory.
    pub path: Vec<u8>,
    /// What is to be done there.
    pub action: Action,
}

/// The outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The merged root, with *ours* at the conflicts.
    pub root: RootPin,
    /// What turns *ours* into `root`, depth first by raw name, a directory before its entries. Every
    /// entry of an added directory has an edit of its own.
    pub edits: Vec<Edit>,
    /// What could not be merged, in the same order; empty means merged.
    pub conflicts: Vec<Conflict>,
}

/// Merges what `ours` and `theirs` each changed since `base`. New objects go to `sink`.
///
/// # Errors
/// Objects that are missing, damaged, not canonical or at odds with each other; what the sink says.
pub fn merge3(
    objects: &dyn Objects,
    sink: &mut dyn ObjectSink,
    base: &RootPin,
    ours: &RootPin,
    theirs: &RootPin,
) -> Result<Merge, Error> {
    let scratch = Scratch { stored: objects, new: RefCell::default() };
    let mut merger =
        Merger { objects: &scratch, path: Vec::new(), depth: 0, edits: Vec::new(), conflicts: Vec::new() };
    let sides = [base, ours, theirs].map(|pin| top(objects, pin));
    let [base_top, ours_top, theirs_top] = sides;
    let merged = merger.entry(Some(base_top?), Some(ours_top?), Some(theirs_top?))?;
    let root = match merged.expect("a top directory that nobody deleted stays") {
        Side { mode, kind: EntryKind::Directory { tree }, attrs } => {
            store_top(&mut *scratch.new.borrow_mut(), Root { mode, tree }, &attrs)?
        }
        Side { .. } => unreachable!("tops are directories on all sides"),
    };
    let Merger { mut edits, conflicts, .. } = merger;
    let one_side = root == *ours || root == *theirs;
    let root = if one_side { root } else { links::rename_groups(&scratch, root, &mut edits)? };
    for (id, kind, bytes) in scratch.new.into_inner().iter() {
        sink.put(kind, id, bytes)?;
    }
    Ok(Merge { root, edits, conflicts })
}

/// The stored objects and the new ones above them.
struct Scratch<'a> {
    stored: &'a dyn Objects,
    new: RefCell<MemoryObjects>,
}

impl Objects for Scratch<'_> {
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        match self.new.borrow().get(kind, id) {
            Err(ObjectError::Missing { .. }) => self.stored.get(kind, id),
            other => other,
        }
    }
}

struct Merger<'a> {
    objects: &'a Scratch<'a>,
    path: Vec<u8>,
    depth: usize,
    edits: Vec<Edit>,
    conflicts: Vec<Conflict>,
}

/// How many edits and conflicts there were at some moment.
#[derive(Clone, Copy)]
struct Mark {
    edits: usize,
    conflicts: usize,
}

impl Merger<'_> {
    fn mark(&self) -> Mark {
        Mark { edits: self.edits.len(), conflicts: self.conflicts.len() }
    }

    fn forget_since(&mut self, mark: Mark) {
        self.edits.truncate(mark.edits);
        self.conflicts.truncate(mark.conflicts);
    }

    /// Records an edit of the present path before those beneath it.
    fn edit(&mut self, mark: Mark, action: Action) {
        self.edits.insert(mark.edits, Edit { path: self.path.clone(), action });
    }

    fn conflict(&mut self, mark: Mark, kind: ConflictKind, sides: [Option<&Side>; 3]) {
        let [base, ours, theirs] = sides.map(|side| side.map(Term::of));
        let conflict = Conflict { path: self.path.clone(), kind, base, ours, theirs };
        self.conflicts.insert(mark.conflicts, conflict);
    }

    /// Merges what is at the present path; answers what is there in the result.
    fn entry(
        &mut self,
        base: Option<Side>,
        ours: Option<Side>,
        theirs: Option<Side>,
    ) -> Result<Option<Side>, Error> {
        if ours == theirs || theirs == base {
            return Ok(ours);
        }
        if ours == base {
            self.adopt(ours.as_ref(), theirs.as_ref())?;
            return Ok(theirs);
        }
        let sides = [base.as_ref(), ours.as_ref(), theirs.as_ref()];
        let mark = self.mark();
        let below = self.directory(sides.map(|side| side.filter(|side| side.kind.is_directory())))?;
        let leaf = leaf::merge(sides.map(|side| side.filter(|side| !side.kind.is_directory())));
        let beneath = below.is_some() || self.conflicts.len() > mark.conflicts;
        match leaf {
            Ok(None) if below.is_none() && ours.is_some() => {
                self.edits.truncate(mark.edits);
                self.edit(mark, Action::Delete);
                Ok(None)
            }
            Ok(None) => Ok(below),
            Ok(Some(_)) | Err(_) if beneath => {
                self.forget_since(mark);
                self.conflict(mark, ConflictKind::DirectoryFile, sides);
                Ok(ours)
            }
            Ok(Some(merged)) => {
                self.edits.truncate(mark.edits);
                self.put(mark, &merged, ours.as_ref(), theirs.as_ref());
                Ok(Some(merged))
            }
            Err(kind) => {
                self.edits.truncate(mark.edits);
                self.conflict(mark, kind, sides);
                Ok(ours)
            }
        }
    }

    /// Records that the present path becomes `merged`, unless it is that in *ours*.
    fn put(&mut self, mark: Mark, merged: &Side, ours: Option<&Side>, theirs: Option<&Side>) {
        let has_kind = |side: Option<&Side>| side.is_some_and(|side| same_kind(&side.kind, &merged.kind));
        let as_is = |side: Option<&Side>| {
            has_kind(side) && side.is_some_and(|side| side.mode == merged.mode && same_attrs(side, merged))
        };
        if as_is(ours) {
            return;
        }
        let from = if as_is(theirs) || !has_kind(ours) { From::Theirs } else { From::Ours };
        let Side { mode, kind, attrs } = merged.clone();
        let attrs = Attrs { children: None, ..attrs };
        self.edit(mark, Action::Put { mode, kind, attrs, from, as_is: as_is(theirs) });
    }

    /// Records what turns *ours* into *theirs* at the present path and beneath it.
    fn adopt(&mut self, ours: Option<&Side>, theirs: Option<&Side>) -> Result<(), Error> {
        if ours == theirs {
            return Ok(());
        }
        let mark = self.mark();
        match theirs {
            None => self.edit(mark, Action::Delete),
            Some(side) => self.put(mark, side, ours, theirs),
        }
        let (before, after) = (directory(ours), directory(theirs));
        if after.is_none() || before == after {
            return Ok(());
        }
        self.each_name([before, after], |merger, [ours, theirs]| merger.adopt(ours.as_ref(), theirs.as_ref()))
    }

    /// Merges the directory slot of the present path.
    fn directory(&mut self, sides: [Option<&Side>; 3]) -> Result<Option<Side>, Error> {
        let [_, ours, theirs] = sides;
        if ours.is_none() && theirs.is_none() {
            return Ok(None);
        }
        let mark = self.mark();
        let mut entries = Vec::new();
        self.each_name(sides.map(directory), |merger, [base, ours, theirs]| {
            let merged = merger.entry(base, ours, theirs)?;
            let name = merger.path.rsplit(|byte| *byte == b'/').next().expect("a path has a last component");
            let name = Name::new(name).expect("the path was joined from names");
            entries.extend(merged.map(|side| (Entry { name, mode: side.mode, kind: side.kind }, side.attrs)));
            Ok(())
        })?;
        let own = match leaf::merge_directory(sides, entries.is_empty()) {
            Ok(None) => return Ok(None),
            Ok(Some(own)) => own,
            Err(kind) => {
                self.conflict(mark, kind, sides);
                let Some(ours) = ours else { return Ok(None) };
                ours.clone()
            }
        };
        let (tree, children) = store_directory(&mut *self.objects.new.borrow_mut(), entries)?;
        let kind = EntryKind::Directory { tree };
        let merged = Side { kind, attrs: Attrs { children, ..own.attrs }, mode: own.mode };
        self.put(mark, &merged, ours, theirs);
        Ok(Some(merged))
    }

    /// Goes through the names of several directories in order, with the path set to each.
    fn each_name<const N: usize>(
        &mut self,
        directories: [Option<Below>; N],
        mut visit: impl FnMut(&mut Self, [Option<Side>; N]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut readers = Vec::with_capacity(N);
        for directory in directories {
            readers.push(Merging::open(self.objects, directory)?);
        }
        self.depth += 1;
        while let Some(name) = readers.iter().filter_map(Merging::name).min().cloned() {
            let length = self.path.len();
            join(&mut self.path, &name)?;
            check_depth(self.depth, &self.path)?;
            let mut sides = [const { None }; N];
            for (side, reader) in sides.iter_mut().zip(&mut readers) {
                *side = reader.take(self.objects, &name)?;
            }
            visit(self, sides)?;
            self.path.truncate(length);
        }
        self.depth -= 1;
        Ok(())
    }
}

/// Equal but for what lies beneath and for the name of the hard-link group.
fn same_attrs(a: &Side, b: &Side) -> bool {
    let own = |side: &Side| Attrs { hard_link: None, ..side.attrs.own() };
    own(a) == own(b)
}

impl Term {
    fn of(side: &Side) -> Self {
        let size = match side.kind {
            EntryKind::File { size, .. } => Some(size),
            EntryKind::Directory { .. } | EntryKind::Symlink { .. } | EntryKind::Fifo => None,
        };
        Self { kind: side.kind.word(), mode: side.mode, size, digest: side.kind.digest() }
    }
}
