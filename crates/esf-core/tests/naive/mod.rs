//! The naive merge, the oracle of the real one: every path by itself, then directories from the
//! deepest up, on plain maps.

use std::collections::{BTreeMap, BTreeSet};

use esf_core::manifest::{Attrs, Xattrs};
use esf_core::merge::ConflictKind;

use crate::support::{Facts, Kind, Tree, is_beneath};

fn pick<T: PartialEq + Clone>(base: Option<&T>, ours: &T, theirs: &T) -> Option<T> {
    match (ours == theirs, base == Some(theirs), base == Some(ours)) {
        (true, _, _) | (_, true, _) => Some(ours.clone()),
        (_, _, true) => Some(theirs.clone()),
        _ => None,
    }
}

fn heavy(facts: &Facts) -> (u32, &Kind, u32, &Xattrs) {
    (facts.mode, &facts.kind, facts.attrs.uid, &facts.attrs.xattrs)
}

fn attrs(base: Option<&Facts>, ours: &Facts, theirs: &Facts) -> Result<Attrs, ConflictKind> {
    let owner = pick(base.map(|facts| &facts.attrs.uid), &ours.attrs.uid, &theirs.attrs.uid);
    // Random trees have one attribute at most, so whole lists merge like one.
    let xattrs = pick(base.map(|facts| &facts.attrs.xattrs), &ours.attrs.xattrs, &theirs.attrs.xattrs);
    let mtime = if ours.kind != theirs.kind {
        if base.is_some_and(|base| base.kind == ours.kind) { theirs.attrs.mtime } else { ours.attrs.mtime }
    } else {
        let both = pick(base.map(|facts| &facts.attrs.mtime), &ours.attrs.mtime, &theirs.attrs.mtime);
        both.unwrap_or(theirs.attrs.mtime)
    };
    match (owner, xattrs) {
        (Some(uid), Some(xattrs)) => Ok(Attrs { mtime, uid, xattrs, ..Attrs::default() }),
        _ => Err(ConflictKind::Attrs),
    }
}

fn discriminant(facts: &Facts) -> std::mem::Discriminant<Kind> {
    std::mem::discriminant(&facts.kind)
}

fn both(base: Option<&Facts>, ours: &Facts, theirs: &Facts) -> Result<Facts, ConflictKind> {
    if discriminant(ours) != discriminant(theirs) {
        return match base.map(heavy) {
            Some(base) if base == heavy(ours) => Ok(theirs.clone()),
            Some(base) if base == heavy(theirs) => Ok(ours.clone()),
            _ => Err(ConflictKind::Type),
        };
    }
    let kind = pick(base.map(|facts| &facts.kind), &ours.kind, &theirs.kind);
    let kind = kind.ok_or(match (base, &ours.kind) {
        (None, _) => ConflictKind::AddAdd,
        (_, Kind::Symlink(_)) => ConflictKind::SymlinkTarget,
        _ => ConflictKind::Content,
    })?;
    let base = base.filter(|base| discriminant(base) == discriminant(ours));
    let mode = pick(base.map(|facts| &facts.mode), &ours.mode, &theirs.mode).ok_or(ConflictKind::Mode)?;
    Ok(Facts { mode, kind, attrs: attrs(base, ours, theirs)? })
}

pub(super) fn merge(base: &Tree, ours: &Tree, theirs: &Tree) -> (Tree, BTreeMap<Vec<u8>, ConflictKind>) {
    let paths: BTreeSet<&Vec<u8>> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    let mut by_depth: Vec<&Vec<u8>> = paths.into_iter().collect();
    by_depth.sort_by_key(|path| std::cmp::Reverse((!path.is_empty(), path.split(|b| *b == b'/').count())));
    let (mut merged, mut conflicts) = (Tree::new(), BTreeMap::new());
    for path in by_depth {
        let slot = |tree: &Tree, directory: bool| {
            tree.get(path).filter(|facts| (facts.kind == Kind::Directory) == directory).cloned()
        };
        let leaves = [base, ours, theirs].map(|tree| slot(tree, false));
        let directories = [base, ours, theirs].map(|tree| slot(tree, true));
        let leaf =
            match [&leaves[0], &leaves[1], &leaves[2]] {
                [_, None, None] => Ok(None),
                [None, Some(one), None] | [None, None, Some(one)] => Ok(Some(one.clone())),
                [Some(base), Some(one), None] | [Some(base), None, Some(one)] => {
                    if heavy(base) == heavy(one) { Ok(None) } else { Err(ConflictKind::ModifyDelete) }
                }
                [base, Some(ours), Some(theirs)] => both(base.as_ref(), ours, theirs).map(Some),
            };
        let empty = !merged.keys().any(|known| is_beneath(known, path));
        let directory = match [&directories[0], &directories[1], &directories[2]] {
            [_, None, None] => Ok(None),
            [None, Some(one), None] | [None, None, Some(one)] => Ok(Some(one.clone())),
            [Some(base), Some(one), None] | [Some(base), None, Some(one)] => {
                match heavy(base) == heavy(one) {
                    _ if !empty => Ok(Some(one.clone())),
                    true => Ok(None),
                    false => Err(ConflictKind::ModifyDelete),
                }
            }
            [base, Some(ours), Some(theirs)] => both(base.as_ref(), ours, theirs).map(Some),
        };
        let inner = conflicts.keys().any(|known: &Vec<u8>| is_beneath(known, path));
        let leaf_taken = leaf != Ok(None);
        if leaf_taken && (directory != Ok(None) || inner) {
            conflicts.retain(|known, _| !is_beneath(known, path));
            conflicts.insert(path.clone(), ConflictKind::DirectoryFile);
            merged.retain(|known, _| !is_beneath(known, path));
            let kept = ours.iter().filter(|(known, _)| *known == path || is_beneath(known, path));
            merged.extend(kept.map(|(known, facts)| (known.clone(), facts.clone())));
            continue;
        }
        for slot in [leaf, directory] {
            match slot {
                Ok(found) => drop(found.map(|facts| merged.insert(path.clone(), facts))),
                Err(kind) => {
                    conflicts.insert(path.clone(), kind);
                    ours.get(path).map(|facts| merged.insert(path.clone(), facts.clone()));
                }
            }
        }
    }
    (merged, conflicts)
}
