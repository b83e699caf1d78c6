//! Proof that a root is whole and durable on this machine: the only thing the graph accepts.
//! Invariant: no public constructor and no serde, so a coordinator cannot forge one; while one lives
//! it holds the store's lock shared, so no collection takes its root away before the graph has it.

use std::sync::Arc;

use esf_core::manifest::RootPin;
use serde::{Deserialize, Serialize};

use crate::local::TxnId;
use crate::lock::StoreLock;

/// A root that is durable here, with everything it names.
#[derive(Clone, Debug)]
pub struct SealedRoot {
    pub(crate) pin: RootPin,
    pub(crate) bytes: u64,
    pub(crate) txn: Option<TxnId>,
    pub(crate) _held: Arc<StoreLock>,
}

impl SealedRoot {
    /// The root and its attributes.
    pub fn pin(&self) -> &RootPin {
        &self.pin
    }

    /// Logical bytes of the files that were taken in to make it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The seal that made it and is to be settled; none for imports and merges.
    pub fn txn(&self) -> Option<TxnId> {
        self.txn
    }
}

/// What is left out of a root, and why: a path within it and a reason.
pub type Skipped = Vec<(Vec<u8>, String)>;

/// How a sealed root differs from its base. A directory counts as modified when its mode, owner or
/// extended attributes changed, not when only its time did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Paths that the base does not have.
    pub added: u64,
    /// Paths that differ from the base.
    pub modified: u64,
    /// Paths that only the base has.
    pub deleted: u64,
    /// Logical bytes of added and modified files.
    pub bytes: u64,
    /// What a root cannot hold and was left out, by name.
    pub skipped: Skipped,
}

impl Changes {
    /// How many paths differ.
    pub fn count(&self) -> u64 {
        self.added + self.modified + self.deleted
    }
}

/// Hears how far long work has come.
pub trait Progress: Sync {
    /// There are about this many entries and bytes to do.
    fn total(&self, entries: u64, bytes: u64);
    /// This many more are done.
    fn advance(&self, entries: u64, bytes: u64);
}

impl Progress for () {
    fn total(&self, _entries: u64, _bytes: u64) {}
    fn advance(&self, _entries: u64, _bytes: u64) {}
}
