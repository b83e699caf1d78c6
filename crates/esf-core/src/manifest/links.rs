//! Hard-link groups kept true. A group is named by its smallest path, which an edit may take away,
//! and its members must be alike in everything else. Invariant: afterwards a group has at least two
//! members, all alike, and the name of its smallest path; paths compare as whole byte strings.

use std::collections::{BTreeMap, HashMap};

use super::{
    Attrs, AttrsEntry, EntryKind, Error, Mode, ObjectSink, Objects, RootPin, hard_link_group, join,
    load_directory, load_top, store_attrs, store_attrs_root, walk,
};
use crate::{AttrsId, Digest, TreeId};

/// The paths whose group is not named as it should be, with the right name or none.
pub(crate) type Renames = BTreeMap<Vec<u8>, Option<Digest>>;

/// Gives every hard-link group of a root its right name and drops those of one member; members
/// that are no longer alike part into groups of their own. Reads all of the root.
///
/// # Errors
/// Objects that are missing, damaged, not canonical or at odds with each other; what the sink says.
pub fn rename_groups<T: Objects + ObjectSink>(objects: &mut T, pin: &RootPin) -> Result<RootPin, Error> {
    let renames = wrong_names(objects, pin)?;
    apply_renames(objects, pin, &renames)
}

pub(crate) fn wrong_names(objects: &dyn Objects, pin: &RootPin) -> Result<Renames, Error> {
    let mut groups: HashMap<(Digest, Mode, EntryKind, Attrs), Vec<Vec<u8>>> = HashMap::new();
    for entry in walk(objects, pin) {
        let entry = entry?;
        if let Some(group) = entry.attrs.hard_link {
            groups.entry((group, entry.mode, entry.kind, entry.attrs)).or_default().push(entry.path);
        }
    }
    let mut renames = Renames::new();
    for ((group, ..), paths) in groups {
        let smallest = paths.iter().min().expect("a group was made for a path");
        let name = (paths.len() > 1).then(|| hard_link_group(smallest));
        if name != Some(group) {
            renames.extend(paths.into_iter().map(|path| (path, name)));
        }
    }
    Ok(renames)
}

pub(crate) fn apply_renames<T: Objects + ObjectSink>(
    objects: &mut T,
    pin: &RootPin,
    renames: &Renames,
) -> Result<RootPin, Error> {
    if renames.is_empty() {
        return Ok(*pin);
    }
    let (top, attrs) = load_top(objects, pin)?;
    let children = rename_below(objects, top.tree, attrs.children, &mut Vec::new(), renames)?;
    let attrs = store_attrs_root(objects, &Attrs { children, ..attrs })?;
    Ok(RootPin { attrs, ..*pin })
}

/// Rewrites the attributes of one directory and of those beneath it that have renames.
fn rename_below<T: Objects + ObjectSink>(
    objects: &mut T,
    tree: TreeId,
    attrs: Option<AttrsId>,
    path: &mut Vec<u8>,
    renames: &Renames,
) -> Result<Option<AttrsId>, Error> {
    let mut entries = Vec::new();
    for (entry, mut attrs) in load_directory(objects, tree, attrs)? {
        let length = path.len();
        join(path, &entry.name)?;
        if let Some(group) = renames.get(path) {
            attrs.hard_link = *group;
        }
        if let EntryKind::Directory { tree } = entry.kind {
            path.push(b'/');
            let concerned =
                renames.range(path.clone()..).next().is_some_and(|(first, _)| first.starts_with(path));
            path.pop();
            if concerned {
                attrs.children = rename_below(objects, tree, attrs.children, path, renames)?;
            }
        }
        path.truncate(length);
        entries.push(AttrsEntry { name: entry.name, attrs });
    }
    store_attrs(objects, entries)
}
