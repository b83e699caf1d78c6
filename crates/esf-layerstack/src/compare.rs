//! How a walked upper differs from its base, in numbers; and the hard-link groups of the root that it
//! makes. Invariant: what `changed` tells of an upper is what its seal will tell.

use std::collections::BTreeSet;

use esf_core::Digest;
use esf_core::diff::{Change, Side, diff};
use esf_core::manifest::{EntryKind, RootPin};

use crate::Error;
use crate::links::rename_groups;
use crate::object_store::PackWriter;
use crate::sealed::Changes;
use crate::upper::Walked;

/// What a walk over `base` came to: the root with its hard-link groups rightly named, and how it
/// differs from the base.
pub(crate) fn compare(
    writer: &mut PackWriter,
    base: &RootPin,
    walked: &Walked,
) -> Result<(RootPin, Changes), Error> {
    let mut pin = walked.pin;
    let mut differences = diff(writer, base, &pin)?;
    let group = |side: &Option<Side>| side.as_ref().and_then(|side| side.attrs.hard_link);
    let broken = differences.iter().filter(|change| group(&change.before) != group(&change.after));
    let mut lost: BTreeSet<Digest> = broken.filter_map(|change| group(&change.before)).collect();
    lost.extend(&walked.lost);
    if !lost.is_empty() {
        pin = rename_groups(writer, &pin, &lost, &walked.links)?;
        differences = diff(writer, base, &pin)?;
    }
    Ok((pin, count(&differences)))
}

fn count(differences: &[Change]) -> Changes {
    let mut changes = Changes::default();
    for change in differences.iter().filter(|change| is_told(change)) {
        match (&change.before, &change.after) {
            (Some(_), None) => changes.deleted += 1,
            (Some(_), Some(_)) => changes.modified += 1,
            (None, _) => changes.added += 1,
        }
        if let Some(EntryKind::File { size, .. }) = change.after.as_ref().map(|side| &side.kind) {
            changes.bytes += size;
        }
    }
    changes
}

/// Whether a difference is one that people want to hear of: not the mere time of a directory, and not
/// the mere link count of a file.
pub fn is_told(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    let directories = before.kind.is_directory() && after.kind.is_directory();
    let bare = |side: &Side| {
        let mut attrs = side.attrs.own();
        attrs.hard_link = None;
        if directories {
            attrs.mtime = None;
        }
        (side.mode, attrs, (!directories).then(|| side.kind.clone()))
    };
    bare(before) != bare(after)
}
