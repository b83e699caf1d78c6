//! The patch between two roots: what their manifests differ in, as far as git can hold it.

use std::collections::HashSet;
use std::io::Write;
use std::sync::LazyLock;

use esf_core::TreeId;
use esf_core::diff::{Change, ChangeKind, Side, diff};
use esf_core::manifest::{Directory, EntryKind, Object, ObjectKind, Objects, RootPin, lookup};

use super::{Summary, Version, Writer};
use crate::{Error, Files};

/// One side of a patch: a root and where the bytes of its files come from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The root.
    pub pin: &'a RootPin,
    /// Its files.
    pub files: &'a dyn Files,
}

/// Writes the patch that leads from `before` to `after`.
///
/// # Errors
/// Objects or contents that cannot be read, or an output that cannot be written.
pub fn between(
    objects: &dyn Objects,
    before: Source<'_>,
    after: Source<'_>,
    out: &mut dyn Write,
) -> Result<Summary, Error> {
    let all = diff(objects, before.pin, after.pin)?;
    changes(objects, &all, &HashSet::new(), after.pin, Writer::new(out, before.files, after.files))
}

/// Writes `all` changes that led to `after`, but for those at `ignored` paths, with `writer`.
///
/// # Errors
/// As `between`.
pub fn changes(
    objects: &dyn Objects,
    all: &[Change],
    ignored: &HashSet<Vec<u8>>,
    after: &RootPin,
    mut writer: Writer<'_>,
) -> Result<Summary, Error> {
    let mut emptied: Option<&[u8]> = None;
    for change in all.iter().filter(|change| !ignored.contains(&change.path)) {
        writer.change(&change.path, version(change.before.as_ref()), version(change.after.as_ref()))?;
        name_what_git_lacks(&mut writer, change);
        let parent = parent(&change.path);
        if change.kind == ChangeKind::Deleted && emptied != Some(parent) {
            emptied = Some(parent);
            if !parent.is_empty() && is_empty_directory(objects, after, parent)? {
                writer.leave_out(parent, EMPTY);
            }
        }
    }
    writer.finish()
}

const EMPTY: &str = "an empty directory";

fn version(side: Option<&Side>) -> Option<Version<'_>> {
    let side = side?;
    match &side.kind {
        EntryKind::File { size, .. } => {
            Some(Version::File { executable: side.mode.bits() & 0o100 != 0, size: *size })
        }
        EntryKind::Symlink { target } => Some(Version::Symlink { target }),
        EntryKind::Directory { .. } | EntryKind::Fifo => None,
    }
}

fn name_what_git_lacks(writer: &mut Writer<'_>, change: &Change) {
    if change.after.is_some() && !change.changes_identity() {
        writer.summary.attributes_only += 1;
    } else if let Some(reason) = lacks(change) {
        writer.leave_out(&change.path, reason);
    }
}

/// What git cannot hold of what a change brings; nothing for a change of attributes alone.
pub(crate) fn lacks(change: &Change) -> Option<&'static str> {
    let after = change.after.as_ref().filter(|_| change.changes_identity())?;
    let before = change.before.as_ref().filter(|_| change.kind == ChangeKind::Modified);
    let reason = lacks_entry(after)?;
    // What was there already did not come with the change.
    let brought = before.is_none_or(|before| match reason {
        ATTRIBUTES => before.attrs.xattrs != after.attrs.xattrs || owner(before) != owner(after),
        _ => before.mode != after.mode,
    });
    brought.then_some(reason)
}

const ATTRIBUTES: &str = "an owner or extended attributes";

/// What git cannot hold of an entry.
pub(crate) fn lacks_entry(side: &Side) -> Option<&'static str> {
    match side.kind {
        EntryKind::Fifo => Some("a fifo"),
        EntryKind::Directory { tree } if tree == empty_tree() => Some(EMPTY),
        _ if !is_git_mode(side) => Some("permission bits other than the owner's execute bit"),
        _ if owner(side) != (0, 0) || !side.attrs.xattrs.is_empty() => Some(ATTRIBUTES),
        _ => None,
    }
}

fn owner(side: &Side) -> (u32, u32) {
    (side.attrs.uid, side.attrs.gid)
}

/// Whether git would give the entry this mode, up to a umask that lets others write.
fn is_git_mode(side: &Side) -> bool {
    let expected = match side.kind {
        EntryKind::File { .. } if side.mode.bits() & 0o100 == 0 => 0o644,
        EntryKind::File { .. } | EntryKind::Directory { .. } => 0o755,
        EntryKind::Symlink { .. } | EntryKind::Fifo => return true,
    };
    side.mode.bits() & !0o022 == expected & !0o022
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&byte| byte == b'/').map_or(b"", |slash| &path[..slash])
}

fn is_empty_directory(objects: &dyn Objects, pin: &RootPin, path: &[u8]) -> Result<bool, Error> {
    let found = lookup(objects, pin, path)?;
    Ok(found.is_some_and(|entry| entry.kind == EntryKind::Directory { tree: empty_tree() }))
}

/// The tree without entries.
pub(crate) fn empty_tree() -> TreeId {
    static EMPTY: LazyLock<TreeId> = LazyLock::new(|| {
        let bytes = Object::Tree(Directory::Inline(Vec::new())).encode();
        TreeId::new(ObjectKind::Tree.id_of(&bytes))
    });
    *EMPTY
}
