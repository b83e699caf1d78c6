//! The patch between two roots: what their manifests differ in, as far as git can hold it.

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
    let mut writer = Writer::new(out, before.files, after.files);
    let mut emptied: Option<Vec<u8>> = None;
    for change in diff(objects, before.pin, after.pin)? {
        writer.change(&change.path, version(change.before.as_ref()), version(change.after.as_ref()))?;
        name_what_git_lacks(&mut writer, &change);
        let parent = parent(&change.path);
        if change.kind == ChangeKind::Deleted && emptied.as_deref() != Some(parent) {
            emptied = Some(parent.to_vec());
            if !parent.is_empty() && is_empty_directory(objects, after.pin, parent)? {
                writer.leave_out(parent, "an empty directory");
            }
        }
    }
    writer.finish()
}

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
    let Some(after) = &change.after else { return };
    let appeared = matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged);
    match after.kind {
        EntryKind::Fifo if appeared => writer.leave_out(&change.path, "a fifo"),
        EntryKind::Directory { tree } if appeared && tree == empty_tree() => {
            writer.leave_out(&change.path, "an empty directory");
        }
        _ => {}
    }
    if !change.changes_identity() {
        writer.summary.attributes_only += 1;
        return;
    }
    let same_mode = change.before.as_ref().is_some_and(|before| !appeared && before.mode == after.mode);
    if !same_mode && !is_git_mode(after) {
        writer.leave_out(&change.path, "permission bits other than the owner's execute bit");
    }
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

fn empty_tree() -> TreeId {
    static EMPTY: LazyLock<TreeId> = LazyLock::new(|| {
        let bytes = Object::Tree(Directory::Inline(Vec::new())).encode();
        TreeId::new(ObjectKind::Tree.id_of(&bytes))
    });
    *EMPTY
}
