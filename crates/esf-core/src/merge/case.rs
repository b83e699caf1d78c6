//! Names of one directory that a filesystem which ignores case would take for one, where a merge is what
//! brings them together. Invariant: told is a name that only *ours* has beside one that only *theirs* has, both
//! kept; what a side had by itself is its own affair.

use std::collections::BTreeMap;

use crate::Name;

/// The names of a directory that only one side has, by what is left of them without case.
#[derive(Default)]
pub(super) struct Names(BTreeMap<Vec<u8>, [Vec<Name>; 2]>);

impl Names {
    /// Notes a name with the sides that have it.
    pub(super) fn note(&mut self, name: &Name, ours: bool, theirs: bool) {
        if ours != theirs {
            self.0.entry(folded(name.as_bytes())).or_default()[usize::from(theirs)].push(name.clone());
        }
    }

    /// Each name of *ours* with each of *theirs* that it collides with, of those that are kept.
    pub(super) fn collisions(self, kept: impl Fn(&Name) -> bool) -> Vec<[Name; 2]> {
        let mut collisions = Vec::new();
        for [ours, theirs] in self.0.into_values() {
            for one in &ours {
                let met = theirs.iter().filter(|other| kept(one) && kept(other));
                collisions.extend(met.map(|other| [one.clone(), other.clone()]));
            }
        }
        collisions
    }
}

/// Lower case of the whole of Unicode for text, of ASCII for other bytes.
fn folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}
