//! Hard-link groups of a base that lost a path to an upper. A copy-up breaks a link; then the other
//! paths of its group, which the upper does not touch, may need another name or none. Invariant:
//! afterwards each of these groups has two paths or more and the name of its smallest.

use std::collections::{BTreeMap, BTreeSet};

use esf_core::manifest::{
    Attrs, AttrsEntry, EntryKind, ObjectSink, Objects, RootPin, hard_link_group, load_directory, load_top,
    store_attrs, store_attrs_root, walk,
};
use esf_core::{AttrsId, Digest, TreeId};

use crate::Error;
use crate::assemble::Links;

/// Names the groups `lost` of `pin` anew; those of `fresh` paths have their names already, which may
/// be the same. Reads every directory of the root: links that break are rare.
pub(crate) fn rename_groups<T: Objects + ObjectSink>(
    objects: &mut T,
    pin: &RootPin,
    lost: &BTreeSet<Digest>,
    fresh: &Links,
) -> Result<RootPin, Error> {
    let mut members: BTreeMap<Digest, Vec<Vec<u8>>> = BTreeMap::new();
    for entry in walk(objects, pin) {
        let entry = entry?;
        let group = entry.attrs.hard_link.filter(|group| lost.contains(group));
        if let Some(group) = group.filter(|_| !fresh.contains(&entry.path)) {
            members.entry(group).or_default().push(entry.path);
        }
    }
    let mut renamed: BTreeMap<Vec<u8>, Option<Digest>> = BTreeMap::new();
    for (group, paths) in members {
        let smallest = paths.iter().min().expect("a group was noted with a path");
        let name = (paths.len() > 1).then(|| hard_link_group(smallest));
        if name != Some(group) {
            renamed.extend(paths.into_iter().map(|path| (path, name)));
        }
    }
    if renamed.is_empty() {
        return Ok(*pin);
    }
    let (root, attrs) = load_top(objects, pin)?;
    let children = rewrite(objects, root.tree, attrs.children, b"", &renamed)?;
    Ok(RootPin { root: pin.root, attrs: store_attrs_root(objects, &Attrs { children, ..attrs })? })
}

/// Rewrites the attributes of a directory and of those beneath it that have renamed entries; as deep
/// as a root may be.
fn rewrite<T: Objects + ObjectSink>(
    objects: &mut T,
    tree: TreeId,
    attrs: Option<AttrsId>,
    prefix: &[u8],
    renamed: &BTreeMap<Vec<u8>, Option<Digest>>,
) -> Result<Option<AttrsId>, Error> {
    let mut entries = Vec::new();
    for (entry, mut attrs) in load_directory(objects, tree, attrs)? {
        let path = [prefix, entry.name.as_bytes()].concat();
        if let Some(name) = renamed.get(&path) {
            attrs.hard_link = *name;
        }
        if let EntryKind::Directory { tree } = entry.kind {
            let inside = [&path[..], b"/"].concat();
            let mut beneath = renamed.range(inside.clone()..);
            if beneath.next().is_some_and(|(path, _)| path.starts_with(&inside)) {
                attrs.children = rewrite(objects, tree, attrs.children, &inside, renamed)?;
            }
        }
        entries.push(AttrsEntry { name: entry.name, attrs });
    }
    Ok(store_attrs(objects, entries)?)
}
