//! The object store: packs of small objects, found through their own sorted indexes. There are no
//! loose objects. Invariant: what is answered was verified against its id; what has a pack's name is
//! whole; several processes may read and write at once, and only `retain` needs the store held
//! exclusively. `docs/on-disk-format.md` section 3.

mod maintain;
mod pack;
mod stream;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use esf_core::Digest;
use esf_core::manifest::{ObjectError, ObjectKind, Objects};

pub use maintain::{Damage, Retained};
pub use pack::PackId;
use pack::{Pack, PackError};
pub use stream::ArtifactReader;
pub(crate) use stream::StreamError;
pub use writer::{PackWriter, StagedPacks};

/// The objects of one store. Cheap to clone; clones share what they know.
#[derive(Clone)]
pub struct ObjectStore {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    known: RwLock<Arc<Known>>,
}

/// The packs that were found when the directory was last read.
#[derive(Default)]
struct Known {
    listed: bool,
    packs: BTreeMap<PackId, Arc<Pack>>,
    damaged: BTreeMap<PackId, &'static str>,
}

fn io_error(context: String, source: io::Error) -> ObjectError {
    ObjectError::Io { context, source }
}

/// Tells of a pack that failed while `object` was looked for in it.
fn pack_error(pack: PackId, object: Option<(ObjectKind, Digest)>, error: PackError) -> ObjectError {
    match error {
        PackError::Io(source) => io_error(format!("read pack {pack}"), source),
        PackError::Damaged(detail) => {
            let (kind, id) = object.unwrap_or((ObjectKind::Blob, pack.digest));
            ObjectError::Damaged { kind, id, detail: format!("in pack {pack}: {detail}") }
        }
    }
}

impl ObjectStore {
    /// Opens the store of packs in `directory`, which exists. Packs are looked for at first use.
    ///
    /// # Errors
    /// `Io` when there is no such directory.
    pub fn open(directory: &Path) -> Result<Self, ObjectError> {
        let store =
            Self { shared: Arc::new(Shared { directory: directory.to_owned(), known: RwLock::default() }) };
        store.open_directory()?;
        Ok(store)
    }

    /// A writer for new objects.
    pub fn writer(&self) -> PackWriter {
        PackWriter::new(self)
    }

    /// Whether an object is stored. One that another process has stored since the directory was last
    /// read may be told as absent.
    ///
    /// # Errors
    /// `Io` when packs cannot be read.
    pub fn contains(&self, id: &Digest) -> Result<bool, ObjectError> {
        self.contains_in(id, |_| true)
    }

    /// Whether an object is in a pack that survives a loss of power, or will once the directory of
    /// packs is synced.
    fn contains_durably(&self, id: &Digest) -> Result<bool, ObjectError> {
        self.contains_in(id, |pack| pack.id.durable)
    }

    fn contains_in(&self, id: &Digest, counts: impl Fn(&Pack) -> bool) -> Result<bool, ObjectError> {
        let known = self.listed()?;
        for pack in known.packs.values().filter(|pack| counts(pack)) {
            match pack.find(id) {
                Ok(found) if found.is_some() => return Ok(true),
                // Merged away meanwhile, or damaged: absent as far as a writer is concerned.
                Ok(_) | Err(PackError::Damaged(_)) => {}
                Err(PackError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(pack_error(pack.id, None, error)),
            }
        }
        Ok(false)
    }

    /// Reads the directory again: finds packs that other processes made, forgets those that are gone.
    ///
    /// # Errors
    /// `Io` when the directory or a pack cannot be read.
    pub fn refresh(&self) -> Result<(), ObjectError> {
        self.list().map(|_| ())
    }

    fn directory(&self) -> &Path {
        &self.shared.directory
    }

    fn open_directory(&self) -> Result<File, ObjectError> {
        let directory = self.directory();
        File::open(directory)
            .map_err(|error| io_error(format!("open packs in {}", directory.display()), error))
    }

    fn known(&self) -> Arc<Known> {
        // The value is replaced whole, so a panic elsewhere cannot have left it half changed.
        self.shared.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn listed(&self) -> Result<Arc<Known>, ObjectError> {
        let known = self.known();
        if known.listed { Ok(known) } else { self.list() }
    }

    /// Every file name in the directory.
    fn file_names(&self) -> Result<Vec<String>, ObjectError> {
        let failed = |error| io_error(format!("list packs in {}", self.directory().display()), error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.directory()).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        Ok(names)
    }

    fn list(&self) -> Result<Arc<Known>, ObjectError> {
        let before = self.known();
        let mut now = Known { listed: true, ..Known::default() };
        for id in self.file_names()?.iter().filter_map(|name| PackId::parse(name)) {
            if let Some(pack) = before.packs.get(&id) {
                now.packs.insert(id, Arc::clone(pack));
                continue;
            }
            match Pack::open(id, &self.directory().join(id.file_name())) {
                Ok(pack) => drop(now.packs.insert(id, Arc::new(pack))),
                Err(PackError::Damaged(detail)) => drop(now.damaged.insert(id, detail)),
                // Merged into another since the directory was read; that one is found next time.
                Err(PackError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(pack_error(id, None, error)),
            }
        }
        let now = Arc::new(now);
        *self.shared.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&now);
        Ok(now)
    }

    /// Takes packs in that this process has just published.
    fn adopt(&self, packs: Vec<Pack>) {
        let mut known = self.shared.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut next =
            Known { listed: known.listed, packs: known.packs.clone(), damaged: known.damaged.clone() };
        for pack in packs {
            next.damaged.remove(&pack.id);
            next.packs.insert(pack.id, Arc::new(pack));
        }
        *known = Arc::new(next);
    }

    fn get_from(&self, known: &Known, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        let mut damage = None;
        for pack in known.packs.values() {
            let found = pack.find(id).and_then(|found| {
                found.filter(|record| record.kind == kind).map(|record| pack.read(&record)).transpose()
            });
            match found {
                Ok(Some(bytes)) => return Ok(bytes),
                Ok(None) => {}
                Err(PackError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(PackError::Io(error)) => return Err(pack_error(pack.id, None, PackError::Io(error))),
                // Another pack may hold the object whole.
                Err(error) => damage = Some(pack_error(pack.id, Some((kind, *id)), error)),
            }
        }
        Err(damage.unwrap_or_else(|| match known.damaged.first_key_value() {
            Some((pack, detail)) => pack_error(*pack, Some((kind, *id)), PackError::Damaged(detail)),
            None => ObjectError::Missing { kind, id: *id },
        }))
    }
}

impl Objects for ObjectStore {
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        let mut known = self.listed()?;
        loop {
            match self.get_from(&known, kind, id) {
                // Perhaps another process has stored it, or merged its pack away, meanwhile.
                Err(error @ (ObjectError::Missing { .. } | ObjectError::Damaged { .. })) => {
                    let now = self.list()?;
                    if now.packs.keys().eq(known.packs.keys()) {
                        return Err(error);
                    }
                    known = now;
                }
                other => return other,
            }
        }
    }
}
