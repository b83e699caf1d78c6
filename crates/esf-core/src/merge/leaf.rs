//! Merging one entry's own facts: contents, mode, owner, extended attributes, time.
//! Invariant: a fact that only one side changed is taken; one that both changed differently is a
//! conflict, but for times and hard-link groups, which follow a rule.

use std::collections::BTreeSet;

use super::{ConflictKind, Contents};
use crate::diff::Side;
use crate::manifest::{Attrs, EntryKind, Xattrs};

/// The three-way rule: the value both agree on, or the one that was changed; none when both were.
fn three_way<T: PartialEq>(base: Option<T>, ours: T, theirs: T) -> Option<T> {
    if ours == theirs || base.as_ref() == Some(&theirs) {
        Some(ours)
    } else if base.as_ref() == Some(&ours) {
        Some(theirs)
    } else {
        None
    }
}

/// Merges the contents that base, *ours* and *theirs* have; none when they conflict.
type Merger<'a> = dyn FnMut([Contents; 3]) -> Option<Contents> + 'a;

/// Merges what is not a directory at a path: the entry, nothing, or the kind of conflict.
pub(super) fn merge(
    sides: [Option<&Side>; 3],
    contents: &mut Merger<'_>,
) -> Result<Option<Side>, ConflictKind> {
    match sides {
        [_, None, None] => Ok(None),
        [base, Some(kept), None] | [base, None, Some(kept)] => match base {
            Some(base) if significant(base) == significant(kept) => Ok(None),
            Some(_) => Err(ConflictKind::ModifyDelete),
            None => Ok(Some(kept.clone())),
        },
        [base, Some(ours), Some(theirs)] => both(base, ours, theirs, contents).map(Some),
    }
}

/// Merges a directory's own mode and attributes. `empty` says that nothing is left in it; then one
/// that a side has deleted goes, unless the other side has changed it.
pub(super) fn merge_directory(sides: [Option<&Side>; 3], empty: bool) -> Result<Option<Side>, ConflictKind> {
    match sides {
        [_, None, None] => Ok(None),
        [base, Some(kept), None] | [base, None, Some(kept)] => match base {
            Some(base) if empty && own_facts(base) == own_facts(kept) => Ok(None),
            Some(_) if empty => Err(ConflictKind::ModifyDelete),
            Some(_) | None => Ok(Some(kept.clone())),
        },
        [base, Some(ours), Some(theirs)] => {
            let mode = three_way(base.map(|base| base.mode), ours.mode, theirs.mode);
            let mode = mode.ok_or(ConflictKind::Mode)?;
            let attrs = attributes(base.map(|base| &base.attrs), &ours.attrs, &theirs.attrs, None)?;
            Ok(Some(Side { mode, kind: ours.kind.clone(), attrs }))
        }
    }
}

/// What counts as a change where the other side has deleted the entry: not its times and links.
fn significant(side: &Side) -> impl PartialEq + '_ {
    (own_facts(side), &side.kind)
}

fn own_facts(side: &Side) -> impl PartialEq + '_ {
    (side.mode, side.attrs.uid, side.attrs.gid, &side.attrs.xattrs)
}

fn both(
    base: Option<&Side>,
    ours: &Side,
    theirs: &Side,
    contents: &mut Merger<'_>,
) -> Result<Side, ConflictKind> {
    let kind = three_way(base.map(|base| &base.kind), &ours.kind, &theirs.kind).cloned();
    if ours.kind.word() != theirs.kind.word() {
        // Another kind of entry takes everything with it, so the other side must not have changed any.
        let unchanged = |side: &Side| base.is_some_and(|base| significant(base) == significant(side));
        return match (unchanged(ours), unchanged(theirs)) {
            (true, _) => Ok(theirs.clone()),
            (_, true) => Ok(ours.clone()),
            (false, false) => Err(ConflictKind::Type),
        };
    }
    let kind = kind.or_else(|| merge_contents([base, Some(ours), Some(theirs)], contents));
    let kind = kind.ok_or(match (base, &ours.kind) {
        (None, _) => ConflictKind::AddAdd,
        (Some(_), EntryKind::Symlink { .. }) => ConflictKind::SymlinkTarget,
        (Some(_), EntryKind::File { .. } | EntryKind::Fifo | EntryKind::Directory { .. }) => {
            ConflictKind::Content
        }
    })?;
    // The base tells what changed only if it is the same kind of entry.
    let base = base.filter(|base| base.kind.word() == ours.kind.word());
    let mode = three_way(base.map(|base| base.mode), ours.mode, theirs.mode).ok_or(ConflictKind::Mode)?;
    let taken = [ours, theirs].map(|side| side.kind == kind);
    let follow = match taken {
        [true, true] => None,
        [true, false] => Some(ours),
        [false, true] => Some(theirs),
        // Merged contents are as new as the newer side's.
        [false, false] => [ours, theirs].into_iter().max_by_key(|side| side.attrs.mtime),
    };
    let base = base.map(|base| &base.attrs);
    let attrs = attributes(base, &ours.attrs, &theirs.attrs, follow.map(|side| &side.attrs))?;
    Ok(Side { mode, kind, attrs })
}

fn merge_contents(sides: [Option<&Side>; 3], merge: &mut Merger<'_>) -> Option<EntryKind> {
    let contents = |side: Option<&Side>| match side?.kind {
        EntryKind::File { size, blob } => Some(Contents { blob, size }),
        EntryKind::Directory { .. } | EntryKind::Symlink { .. } | EntryKind::Fifo => None,
    };
    let [base, ours, theirs] = sides.map(contents);
    let Contents { blob, size } = merge([base?, ours?, theirs?])?;
    Some(EntryKind::File { size, blob })
}

/// Merges attributes; the time is that of `follow`, the side whose contents were taken, if only one
/// side's were.
fn attributes(
    base: Option<&Attrs>,
    ours: &Attrs,
    theirs: &Attrs,
    follow: Option<&Attrs>,
) -> Result<Attrs, ConflictKind> {
    let owner = |attrs: &Attrs| (attrs.uid, attrs.gid);
    let (uid, gid) = three_way(base.map(owner), owner(ours), owner(theirs)).ok_or(ConflictKind::Attrs)?;
    let mtime = match follow {
        Some(side) => side.mtime,
        None => three_way(base.map(|base| base.mtime), ours.mtime, theirs.mtime).unwrap_or(theirs.mtime),
    };
    let hard_link = three_way(base.map(|base| base.hard_link), ours.hard_link, theirs.hard_link);
    let hard_link = hard_link.unwrap_or(theirs.hard_link.or(ours.hard_link));
    let xattrs = xattrs(base, ours, theirs).ok_or(ConflictKind::Attrs)?;
    Ok(Attrs { mtime, uid, gid, xattrs, hard_link, children: None })
}

fn xattrs(base: Option<&Attrs>, ours: &Attrs, theirs: &Attrs) -> Option<Xattrs> {
    let all = [ours, theirs];
    let names: BTreeSet<&[u8]> =
        all.iter().flat_map(|side| side.xattrs.iter().map(|(name, _)| &**name)).collect();
    let mut merged = Xattrs::new();
    for name in names {
        let value = |attrs: &Attrs| {
            attrs.xattrs.iter().find(|(known, _)| **known == *name).map(|(_, value)| value.clone())
        };
        let value = three_way(base.map(value), value(ours), value(theirs))?;
        merged.extend(value.map(|value| (name.into(), value)));
    }
    Some(merged)
}
