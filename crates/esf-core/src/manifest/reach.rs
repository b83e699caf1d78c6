//! Every object that roots need: the mark of garbage collection and the work list of fsck.
//! Invariant: each distinct object is visited once, however many roots and paths share it, so the
//! cost is that of what is stored, not of what it unfolds to.

use std::collections::HashSet;

use super::codec::{Directory, Object};
use super::entry::{AttrsEntry, Entry, EntryKind};
use super::{Error, ObjectKind, Objects, RootPin, fetch};
use crate::{BlobId, Digest};

/// Something that a root needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// A structured object, read and found canonical.
    Object(ObjectKind, Digest),
    /// The contents of a file and their size in bytes; told for each entry of a visited object.
    Contents(BlobId, u64),
}

/// Visits every object that `pin` needs and that is not in `seen`, and adds it there.
///
/// # Errors
/// Objects that are missing, damaged or not canonical; `seen` then holds what came before.
pub fn reach(
    objects: &dyn Objects,
    pin: &RootPin,
    seen: &mut HashSet<Digest>,
    visit: &mut dyn FnMut(Reached),
) -> Result<(), Error> {
    let mut open = vec![(ObjectKind::Root, *pin.root.digest()), (ObjectKind::AttrsRoot, *pin.attrs.digest())];
    while let Some((kind, id)) = open.pop() {
        if seen.contains(&id) {
            continue;
        }
        let object = fetch(objects, kind, &id, |bytes| Object::decode(kind, bytes))?;
        seen.insert(id);
        visit(Reached::Object(kind, id));
        match &object {
            Object::Root(root) => open.push((ObjectKind::Tree, *root.tree.digest())),
            Object::AttrsRoot(attrs) => push_children(&mut open, attrs.children),
            Object::Tree(Directory::Inline(entries)) | Object::TreePage(entries) => {
                entries.iter().for_each(|entry| push_entry(&mut open, visit, entry));
            }
            Object::Attrs(Directory::Inline(entries)) | Object::AttrsPage(entries) => {
                let children = |entry: &AttrsEntry| push_children(&mut open, entry.attrs.children);
                entries.iter().for_each(children);
            }
            Object::Tree(Directory::Paged(pages)) => {
                open.extend(pages.iter().map(|page| (ObjectKind::TreePage, page.page)));
            }
            Object::Attrs(Directory::Paged(pages)) => {
                open.extend(pages.iter().map(|page| (ObjectKind::AttrsPage, page.page)));
            }
        }
    }
    Ok(())
}

fn push_children(open: &mut Vec<(ObjectKind, Digest)>, children: Option<crate::AttrsId>) {
    open.extend(children.map(|id| (ObjectKind::Attrs, *id.digest())));
}

fn push_entry(open: &mut Vec<(ObjectKind, Digest)>, visit: &mut dyn FnMut(Reached), entry: &Entry) {
    match &entry.kind {
        EntryKind::Directory { tree } => open.push((ObjectKind::Tree, *tree.digest())),
        EntryKind::File { size, blob } => visit(Reached::Contents(*blob, *size)),
        EntryKind::Symlink { .. } | EntryKind::Fifo => {}
    }
}
