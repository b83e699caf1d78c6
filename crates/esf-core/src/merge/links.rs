//! Hard-link groups after a merge. A group is named by its smallest path, which either side may have
//! taken away, and its members must still be the same in everything else. Invariant: in the result a
//! group has at least two members, all alike, and the name of its smallest path.

use std::collections::{BTreeMap, HashMap};

use super::{Action, Edit, Scratch};
use crate::diff::Below;
use crate::manifest::{
    Attrs, AttrsEntry, EntryKind, Error, Mode, RootPin, hard_link_group, join, load_directory, load_top,
    store_attrs, store_attrs_root, walk,
};
use crate::{AttrsId, Digest};

/// The paths whose group changes, and to what.
type Changes = BTreeMap<Vec<u8>, Option<Digest>>;

/// Gives every hard-link group of `root` its right name and drops those of one member; tells `edits`.
pub(super) fn rename_groups(
    scratch: &Scratch<'_>,
    root: RootPin,
    edits: &mut [Edit],
) -> Result<RootPin, Error> {
    let changes = wrong_names(scratch, &root)?;
    if changes.is_empty() {
        return Ok(root);
    }
    for edit in edits {
        if let (Action::Put { attrs, .. }, Some(group)) = (&mut edit.action, changes.get(&edit.path)) {
            attrs.hard_link = *group;
        }
    }
    let (top, attrs) = load_top(scratch, &root)?;
    let children = rename_below(scratch, (top.tree, attrs.children), &mut Vec::new(), &changes)?;
    let attrs = store_attrs_root(&mut *scratch.new.borrow_mut(), &Attrs { children, ..attrs })?;
    Ok(RootPin { attrs, ..root })
}

fn wrong_names(scratch: &Scratch<'_>, root: &RootPin) -> Result<Changes, Error> {
    // Members of one group that are no longer alike fall into groups of their own.
    let mut groups: HashMap<(Digest, Mode, EntryKind, Attrs), Vec<Vec<u8>>> = HashMap::new();
    for entry in walk(scratch, root) {
        let entry = entry?;
        if let Some(group) = entry.attrs.hard_link {
            groups.entry((group, entry.mode, entry.kind, entry.attrs)).or_default().push(entry.path);
        }
    }
    let mut changes = Changes::new();
    for ((group, ..), paths) in groups {
        let smallest = paths.iter().min().expect("a group was made for a path");
        let name = (paths.len() > 1).then(|| hard_link_group(smallest));
        if name != Some(group) {
            changes.extend(paths.into_iter().map(|path| (path, name)));
        }
    }
    Ok(changes)
}

/// Rewrites the attributes of one directory and of those beneath it that have changes.
fn rename_below(
    scratch: &Scratch<'_>,
    (tree, attrs): Below,
    path: &mut Vec<u8>,
    changes: &Changes,
) -> Result<Option<AttrsId>, Error> {
    let mut entries = Vec::new();
    for (entry, mut attrs) in load_directory(scratch, tree, attrs)? {
        let length = path.len();
        join(path, &entry.name)?;
        if let Some(group) = changes.get(path) {
            attrs.hard_link = *group;
        }
        if let EntryKind::Directory { tree } = entry.kind {
            path.push(b'/');
            let concerned =
                changes.range(path.clone()..).next().is_some_and(|(first, _)| first.starts_with(path));
            path.pop();
            if concerned {
                attrs.children = rename_below(scratch, (tree, attrs.children), path, changes)?;
            }
        }
        path.truncate(length);
        entries.push(AttrsEntry { name: entry.name, attrs });
    }
    store_attrs(&mut *scratch.new.borrow_mut(), entries)
}
