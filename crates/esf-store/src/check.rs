//! `fsck`: both planes against themselves and each other. Invariant: nothing is changed; every damage
//! is named, and one damage does not hide another.

use std::collections::BTreeSet;

use esf_layerstack::Progress;
use serde::Serialize;

use crate::{Error, Store};

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// What is wrong, a sentence each; empty when all is as recorded.
    pub damage: Vec<String>,
    /// Roots that were checked.
    pub roots: u64,
    /// Objects that were checked.
    pub objects: u64,
    /// Bytes of contents and objects that were read.
    pub bytes: u64,
}

impl Store {
    /// Checks structure and digests of everything the store holds.
    ///
    /// # Errors
    /// Only what keeps it from looking; damage is in the report.
    pub fn fsck(&self, progress: &dyn Progress) -> Result<FsckReport, Error> {
        let _held = self.stack().lock_shared()?;
        let mut report = FsckReport { damage: self.graph().check()?, ..FsckReport::default() };
        let checked = self.stack().fsck(progress)?;
        report.damage.extend(checked.damage);
        report.objects = checked.objects;
        report.bytes = checked.bytes;
        let roots: BTreeSet<_> = self.graph().live_roots()?.into_iter().collect();
        for pin in roots {
            report.roots += 1;
            match self.stack().verify(&pin, progress) {
                Ok(verified) => {
                    report.bytes += verified.bytes;
                    let named = verified.damaged.into_iter().map(|what| format!("root {}: {what}", pin.root));
                    report.damage.extend(named);
                }
                Err(error) => report.damage.push(format!("root {}: {error}", pin.root)),
            }
        }
        Ok(report)
    }
}
