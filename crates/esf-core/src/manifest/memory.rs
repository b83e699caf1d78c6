//! Objects held in memory: for tests, and for results that are not yet worth a place on disk.
//! Invariant: every object is under the id of its bytes.

use std::collections::BTreeMap;

use super::{ObjectError, ObjectKind, ObjectSink, Objects};
use crate::Digest;

/// A set of objects in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryObjects {
    objects: BTreeMap<Digest, (ObjectKind, Vec<u8>)>,
}

impl MemoryObjects {
    /// Every object, in ascending order of id.
    pub fn iter(&self) -> impl Iterator<Item = (&Digest, ObjectKind, &[u8])> {
        self.objects.iter().map(|(id, (kind, bytes))| (id, *kind, bytes.as_slice()))
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

impl Objects for MemoryObjects {
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        match self.objects.get(id) {
            Some((stored, bytes)) if *stored == kind => Ok(bytes.clone()),
            Some(_) | None => Err(ObjectError::Missing { kind, id: *id }),
        }
    }
}

impl ObjectSink for MemoryObjects {
    fn put(&mut self, kind: ObjectKind, id: &Digest, bytes: &[u8]) -> Result<(), ObjectError> {
        debug_assert_eq!(kind.id_of(bytes), *id, "an object under a foreign id");
        self.objects.entry(*id).or_insert_with(|| (kind, bytes.to_vec()));
        Ok(())
    }
}
