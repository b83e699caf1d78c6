//! Root headers: what makes a directory a root that a node can pin.
//! Invariant: a root id depends on the top directory's mode and `Tree` alone; its attributes are
//! under an id of their own. `docs/on-disk-format.md` section 2.

use super::codec::{Root, decode_attrs_root, decode_root, encode_attrs_root, encode_root};
use super::entry::{Attrs, Mode};
use super::{Error, ObjectKind, ObjectSink, Objects, RootPin, fetch, keep, store_tree};
use crate::{AttrsId, RootId, TreeId};

/// Stores a root header.
///
/// # Errors
/// What the sink says.
pub fn store_root(sink: &mut dyn ObjectSink, mode: Mode, tree: TreeId) -> Result<RootId, Error> {
    keep(sink, ObjectKind::Root, &encode_root(&Root { mode, tree })).map(RootId::new)
}

/// Reads a root header.
///
/// # Errors
/// Objects that are missing, damaged or not canonical.
pub fn load_root(objects: &dyn Objects, root: RootId) -> Result<Root, Error> {
    fetch(objects, ObjectKind::Root, root.digest(), decode_root)
}

/// Stores the attributes of a top directory; `children` in them are those of its entries.
///
/// # Errors
/// `Entry` for attributes that cannot be represented.
pub fn store_attrs_root(sink: &mut dyn ObjectSink, attrs: &Attrs) -> Result<AttrsId, Error> {
    let linked = attrs.hard_link.map_or(Ok(()), |_| Err("no hard link on the top directory"));
    linked.and_then(|()| attrs.check()).map_err(|expected| Error::Entry { name: String::new(), expected })?;
    keep(sink, ObjectKind::AttrsRoot, &encode_attrs_root(attrs)).map(AttrsId::new)
}

/// Reads the attributes of a top directory.
///
/// # Errors
/// Objects that are missing, damaged or not canonical.
pub fn load_attrs_root(objects: &dyn Objects, attrs: AttrsId) -> Result<Attrs, Error> {
    fetch(objects, ObjectKind::AttrsRoot, attrs.digest(), decode_attrs_root)
}

/// Stores both headers of a root.
///
/// # Errors
/// As `store_root` and `store_attrs_root`.
pub fn store_top(sink: &mut dyn ObjectSink, root: Root, attrs: &Attrs) -> Result<RootPin, Error> {
    Ok(RootPin { root: store_root(sink, root.mode, root.tree)?, attrs: store_attrs_root(sink, attrs)? })
}

/// Reads both headers of a root.
///
/// # Errors
/// Objects that are missing, damaged or not canonical.
pub fn load_top(objects: &dyn Objects, pin: &RootPin) -> Result<(Root, Attrs), Error> {
    Ok((load_root(objects, pin.root)?, load_attrs_root(objects, pin.attrs)?))
}

/// Stores the root of an empty directory of mode 0755 with default attributes.
///
/// # Errors
/// What the sink says.
pub fn empty_root(sink: &mut dyn ObjectSink) -> Result<RootPin, Error> {
    let tree = store_tree(sink, Vec::new())?;
    store_top(sink, Root { mode: Mode::of_stat(0o755), tree }, &Attrs::default())
}
