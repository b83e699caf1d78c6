//! Three-way merge of roots, path by path, as data (design section 4, acceptance M01).
//! Invariant: nothing that either side changed is lost without a conflict that names its path; at a
//! conflict *ours* stays. Pure: reads objects, writes objects, and answers the edits that turn *ours*
//! into the result.
//!
//! A path has two slots, one for a directory and one for anything else; each is merged by itself
//! and both taken is the conflict `directory_file`. So replacing a directory by a file is deleting
//! its entries and adding a file, as in git. Contents, mode, owner and each extended attribute merge
//! by themselves. A time of modification follows the contents; where both sides have the same
//! contents and both changed the time, it is *theirs*. It never makes a conflict. Contents that both changed are
//! a conflict unless the caller merges them (`merge3_with`); the lines of text are one way to (`lines`).
//!
//! The cost follows the changes and not the size of the roots, but for hard links: if a change has to do with
//! one, all of the merged root is read to name its group.

mod case;
mod leaf;
pub mod lines;

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::diff::{Directories, Side, diff, diff_at, directory, same_kind, top};
use crate::manifest::{
    Attrs, Entry, EntryKind, Error, MemoryObjects, Mode, ObjectError, ObjectKind, ObjectSink, Objects, Root,
    RootPin, apply_renames, check_depth, escape, join, store_directory, store_top, wrong_names,
};
use crate::{BlobId, Digest, Name};

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
    /// In neither: the caller merged the contents.
    Merged,
}

/// The contents of a file, by their digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contents {
    /// The bytes.
    pub blob: BlobId,
    /// How many.
    pub size: u64,
}

/// Merges what base, *ours* and *theirs* have as contents of the file at a path; none leaves a conflict.
pub type MergeContents<'a> = dyn FnMut(&[u8], [Contents; 3]) -> Option<Contents> + 'a;

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
    /// Paths that only one side had each, *ours* first, and that are one where case does not count.
    /// The merge keeps both; they are for report only.
    pub case_collisions: Vec<[Vec<u8>; 2]>,
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
    merge3_with(objects, sink, [base, ours, theirs], &mut |_, _| None)
}

/// The same for base, *ours* and *theirs*, with a way to merge the contents of a file that both changed.
///
/// # Errors
/// As `merge3`.
pub fn merge3_with(
    objects: &dyn Objects,
    sink: &mut dyn ObjectSink,
    [base, ours, theirs]: [&RootPin; 3],
    contents: &mut MergeContents<'_>,
) -> Result<Merge, Error> {
    let mut scratch = Scratch { stored: objects, new: RefCell::default() };
    let mut merger = Merger::new(&scratch, contents);
    let tops = [top(objects, base)?, top(objects, ours)?, top(objects, theirs)?];
    let root = match merger.run(tops)? {
        Side { mode, kind: EntryKind::Directory { tree }, attrs } => {
            store_top(&mut *scratch.new.borrow_mut(), Root { mode, tree }, &attrs)?
        }
        Side { .. } => unreachable!("tops are directories on all sides"),
    };
    let Merger { mut edits, conflicts, case_collisions, .. } = merger;
    let root = match root == *ours || root == *theirs {
        true => root,
        false if !touches_hard_links(&scratch, ours, &root)? => root,
        false => {
            let renames = wrong_names(&scratch, &root)?;
            rename_in(&mut edits, &renames);
            apply_renames(&mut scratch, &root, &renames)?
        }
    };
    for (id, kind, bytes) in scratch.new.into_inner().iter() {
        sink.put(kind, id, bytes)?;
    }
    Ok(Merge { root, edits, conflicts, case_collisions })
}

/// Whether a path at which the roots differ is or was a hard link. If none is, the groups of *ours*, which
/// have their right names, are those of the merged root.
fn touches_hard_links(objects: &dyn Objects, ours: &RootPin, merged: &RootPin) -> Result<bool, Error> {
    let linked = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.attrs.hard_link.is_some());
    Ok(diff(objects, ours, merged)?.iter().any(|change| linked(&change.before) || linked(&change.after)))
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

impl ObjectSink for Scratch<'_> {
    fn put(&mut self, kind: ObjectKind, id: &Digest, bytes: &[u8]) -> Result<(), ObjectError> {
        self.new.get_mut().put(kind, id, bytes)
    }
}

/// Tells edits the right names of hard-link groups.
fn rename_in(edits: &mut [Edit], renames: &BTreeMap<Vec<u8>, Option<Digest>>) {
    for edit in edits {
        if let (Action::Put { attrs, .. }, Some(group)) = (&mut edit.action, renames.get(&edit.path)) {
            attrs.hard_link = *group;
        }
    }
}

struct Merger<'a, 'c> {
    objects: &'a Scratch<'a>,
    contents: &'a mut MergeContents<'c>,
    path: Vec<u8>,
    open: Vec<Frame>,
    edits: Vec<Edit>,
    conflicts: Vec<Conflict>,
    case_collisions: Vec<[Vec<u8>; 2]>,
}

/// How many edits, conflicts and collisions there were at some moment.
#[derive(Clone, Copy)]
struct Mark {
    edits: usize,
    conflicts: usize,
    collisions: usize,
}

/// A path whose directory slot is being merged. Frames are on the heap, because paths may be deep
/// and stacks are not.
struct Frame {
    /// The last component; none for the top.
    name: Option<Name>,
    length: usize,
    sides: [Option<Side>; 3],
    mark: Mark,
    directories: Directories<3>,
    entries: Vec<(Entry, Attrs)>,
    names: case::Names,
}

/// What became of a path: merged, perhaps to nothing, or opened to look beneath it.
enum Begun {
    Merged(Option<Side>),
    Opened,
}

impl<'a, 'c> Merger<'a, 'c> {
    fn new(objects: &'a Scratch<'a>, contents: &'a mut MergeContents<'c>) -> Self {
        let (path, open, edits) = (Vec::new(), Vec::new(), Vec::new());
        Self { objects, contents, path, open, edits, conflicts: Vec::new(), case_collisions: Vec::new() }
    }

    fn run(&mut self, tops: [Side; 3]) -> Result<Side, Error> {
        let mut root = match self.begin(None, tops.map(Some))? {
            Begun::Merged(root) => root,
            Begun::Opened => None,
        };
        while let Some(frame) = self.open.last_mut() {
            self.path.truncate(frame.length);
            if let Some((name, sides)) = frame.directories.next(self.objects)? {
                frame.names.note(&name, sides[1].is_some(), sides[2].is_some());
                join(&mut self.path, &name)?;
                check_depth(self.open.len(), &self.path)?;
                if let Begun::Merged(merged) = self.begin(Some(name.clone()), sides)? {
                    self.give(name, merged);
                }
            } else if let Some(mut frame) = self.open.pop() {
                let name = frame.name.take();
                let merged = self.complete(frame)?;
                match name {
                    Some(name) => self.give(name, merged),
                    None => root = merged,
                }
            }
        }
        Ok(root.expect("a top directory that all sides have stays"))
    }

    /// Gives the directory above what became of one of its names.
    fn give(&mut self, name: Name, merged: Option<Side>) {
        let frame = self.open.last_mut().expect("a name is in an open directory");
        frame.entries.extend(merged.map(|Side { mode, kind, attrs }| (Entry { name, mode, kind }, attrs)));
    }

    fn begin(&mut self, name: Option<Name>, sides: [Option<Side>; 3]) -> Result<Begun, Error> {
        let [base, ours, theirs] = &sides;
        if ours == theirs || theirs == base {
            let [_, ours, _] = sides;
            return Ok(Begun::Merged(ours));
        }
        if ours == base {
            let [_, ours, theirs] = sides;
            self.adopt([ours, theirs.clone()])?;
            return Ok(Begun::Merged(theirs));
        }
        let (edits, conflicts) = (self.edits.len(), self.conflicts.len());
        let mark = Mark { edits, conflicts, collisions: self.case_collisions.len() };
        let below = [base, ours, theirs].map(|side| directory(side.as_ref()));
        if below[1].is_none() && below[2].is_none() {
            return Ok(Begun::Merged(self.combine(sides, mark, None)));
        }
        let directories = Directories::open(self.objects, below)?;
        let (length, entries, names) = (self.path.len(), Vec::new(), case::Names::default());
        self.open.push(Frame { name, length, sides, mark, directories, entries, names });
        Ok(Begun::Opened)
    }

    /// Records what turns *ours* into *theirs* at the present path and beneath it.
    fn adopt(&mut self, sides: [Option<Side>; 2]) -> Result<(), Error> {
        for change in diff_at(self.objects, &self.path, self.open.len(), sides)? {
            let (ours, theirs) = (change.before.as_ref(), change.after.as_ref());
            let action = match theirs {
                Some(merged) => put(merged, ours, theirs),
                None => Some(Action::Delete),
            };
            self.edits.extend(action.map(|action| Edit { path: change.path, action }));
        }
        Ok(())
    }

    /// Merges the directory slot of a path whose entries are merged, and then the whole path.
    fn complete(&mut self, frame: Frame) -> Result<Option<Side>, Error> {
        let Frame { sides, mark, entries, names, .. } = frame;
        for collision in names.collisions(|name| entries.iter().any(|(entry, _)| entry.name == *name)) {
            let mut paths = [self.path.clone(), self.path.clone()];
            for (path, name) in paths.iter_mut().zip(collision) {
                join(path, &name)?;
            }
            self.case_collisions.push(paths);
        }
        let slots = sides.each_ref().map(|side| side.as_ref().filter(|side| side.kind.is_directory()));
        let own = leaf::merge_directory(slots, entries.is_empty()).unwrap_or_else(|kind| {
            self.conflict(mark, kind, slots);
            slots[1].cloned()
        });
        let mut below = None;
        if let Some(Side { mode, attrs, .. }) = own {
            let (tree, children) = store_directory(&mut *self.objects.new.borrow_mut(), entries)?;
            let merged =
                Side { mode, kind: EntryKind::Directory { tree }, attrs: Attrs { children, ..attrs } };
            self.edit(mark, put(&merged, slots[1], slots[2]));
            below = Some(merged);
        }
        Ok(self.combine(sides, mark, below))
    }

    /// Merges what is no directory at the present path, and brings it together with `below`.
    fn combine(&mut self, sides: [Option<Side>; 3], mark: Mark, below: Option<Side>) -> Option<Side> {
        let all = sides.each_ref().map(Option::as_ref);
        let leaves = all.map(|side| side.filter(|side| !side.kind.is_directory()));
        let leaf = leaf::merge(leaves, &mut |three| (self.contents)(&self.path, three));
        let beneath = below.is_some() || self.conflicts.len() > mark.conflicts;
        let kind = match leaf {
            Ok(None) => {
                if below.is_none() && all[1].is_some() {
                    self.edits.truncate(mark.edits);
                    self.edit(mark, Some(Action::Delete));
                }
                return below;
            }
            Ok(Some(merged)) if !beneath => {
                self.edits.truncate(mark.edits);
                self.edit(mark, put(&merged, all[1], all[2]));
                return Some(merged);
            }
            Ok(Some(_)) | Err(_) if beneath => ConflictKind::DirectoryFile,
            Ok(Some(_)) => unreachable!("what merged with nothing beneath it is done"),
            Err(kind) => kind,
        };
        self.edits.truncate(mark.edits);
        self.conflicts.truncate(mark.conflicts);
        self.case_collisions.truncate(mark.collisions);
        self.conflict(mark, kind, all);
        let [_, ours, _] = sides;
        ours
    }

    /// Records an edit of the present path before those beneath it.
    fn edit(&mut self, mark: Mark, action: Option<Action>) {
        if let Some(action) = action {
            self.edits.insert(mark.edits, Edit { path: self.path.clone(), action });
        }
    }

    fn conflict(&mut self, mark: Mark, kind: ConflictKind, sides: [Option<&Side>; 3]) {
        let [base, ours, theirs] = sides.map(|side| side.map(Term::of));
        let conflict = Conflict { path: self.path.clone(), kind, base, ours, theirs };
        self.conflicts.insert(mark.conflicts, conflict);
    }
}

/// What makes an entry `merged`, unless it is that in *ours*.
fn put(merged: &Side, ours: Option<&Side>, theirs: Option<&Side>) -> Option<Action> {
    let has_kind = |side: Option<&Side>| side.is_some_and(|side| same_kind(&side.kind, &merged.kind));
    let is_as = |side: &Side| side.mode == merged.mode && same_attrs(side, merged);
    let as_is = |side: Option<&Side>| has_kind(side) && side.is_some_and(is_as);
    if as_is(ours) {
        return None;
    }
    let from = match (has_kind(ours), has_kind(theirs)) {
        (true, _) if !as_is(theirs) => From::Ours,
        (_, true) => From::Theirs,
        (_, false) => From::Merged,
    };
    let Side { mode, kind, attrs } = merged.clone();
    Some(Action::Put { mode, kind, attrs: attrs.own(), from, as_is: as_is(theirs) })
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
