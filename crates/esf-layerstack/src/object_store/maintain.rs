//! Keeping packs few, whole and needed: merging small ones, checking all, dropping what nothing
//! needs. Invariant: an object that is needed is in a durable pack at every moment, so a crash
//! leaves duplicates or temporary files at worst.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use esf_core::Digest;
use esf_core::manifest::{ObjectError, ObjectKind};

use super::pack::{Pack, PackError, PackId, Record};
use super::{Known, ObjectStore, io_error, pack_error};
use crate::disk::{self, Boundary};

/// Packs below each of these sizes, and not below the one before, are merged when they are many.
const CLASSES: [u64; 3] = [64 << 10, 1 << 20, 16 << 20];
/// How many packs of one class are not yet many.
const FEW: usize = 64;

/// Something wrong with a stored pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The pack.
    pub pack: PackId,
    /// The object, where it is one.
    pub object: Option<(ObjectKind, Digest)>,
    /// What is wrong.
    pub detail: &'static str,
}

/// What dropping unneeded objects frees or would free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Packs removed or rewritten.
    pub packs: u64,
    /// Objects dropped.
    pub objects: u64,
    /// Bytes of objects dropped.
    pub bytes: u64,
}

impl ObjectStore {
    /// Merges small packs where more than 64 of one size class have gathered; answers how many packs
    /// went. Cheap when there is nothing to do. One process does it at a time; others skip it.
    ///
    /// # Errors
    /// `Io` when reading or writing fails; all objects stay readable.
    pub fn consolidate(&self) -> Result<usize, ObjectError> {
        if classes(&self.known()).all(|packs| packs.len() <= FEW) {
            return Ok(0);
        }
        let directory = self.open_directory()?;
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        match rustix::fs::flock(&directory, lock) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(0),
            Err(error) => return Err(io_error("lock the directory of packs".to_owned(), error.into())),
        }
        let known = self.list()?;
        let mut gone = 0;
        for packs in classes(&known).filter(|packs| packs.len() > FEW) {
            gone += self.replace(&packs, &|_| true)?;
        }
        Ok(gone)
    }

    /// Writes what `live` needs of `packs` into new packs, then removes the old ones. A pack that
    /// cannot be read whole stays as it is.
    fn replace(&self, packs: &[Arc<Pack>], live: &dyn Fn(&Digest) -> bool) -> Result<usize, ObjectError> {
        let mut replaced = Vec::new();
        let mut places: BTreeMap<Digest, (Arc<Pack>, Record)> = BTreeMap::new();
        for pack in packs {
            let Some(records) = whole(pack)? else { continue };
            replaced.push(pack.id);
            let needed = records.into_iter().filter(|record| live(&record.id));
            places.extend(needed.map(|record| (record.id, (Arc::clone(pack), record))));
        }
        let mut writer = self.writer();
        for (id, (pack, record)) in places {
            let bytes =
                pack.read(&record).map_err(|error| pack_error(pack.id, Some((record.kind, id)), error))?;
            writer.push(record.kind, id, bytes)?;
        }
        let made = writer.finish()?;
        replaced.retain(|id| !made.contains(id));
        self.remove(&replaced)?;
        Ok(replaced.len())
    }

    fn remove(&self, packs: &[PackId]) -> Result<(), ObjectError> {
        let directory = self.open_directory()?;
        for id in packs {
            match disk::unlink(&directory, id.file_name(), Boundary::PackUnlink) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error(format!("remove pack {id}"), error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.refresh()
    }

    /// Drops objects that `live` does not need: packs without any are removed, packs of which more
    /// than a quarter is dead are rewritten. Takes away left-over temporary files as well. The caller
    /// holds the store exclusively.
    ///
    /// # Errors
    /// `Io` when reading, writing or removing fails; needed objects stay readable.
    pub fn retain(&self, live: &dyn Fn(&Digest) -> bool) -> Result<Retained, ObjectError> {
        self.sweep_temporaries()?;
        let (retained, packs) = self.unneeded(live)?;
        if !packs.is_empty() {
            self.replace(&packs, live)?;
        }
        Ok(retained)
    }

    /// What `retain` would drop.
    ///
    /// # Errors
    /// `Io` when packs cannot be read.
    pub fn plan_retain(&self, live: &dyn Fn(&Digest) -> bool) -> Result<Retained, ObjectError> {
        Ok(self.unneeded(live)?.0)
    }

    fn unneeded(&self, live: &dyn Fn(&Digest) -> bool) -> Result<(Retained, Vec<Arc<Pack>>), ObjectError> {
        let (mut retained, mut packs) = (Retained::default(), Vec::new());
        for pack in self.list()?.packs.values() {
            let records = match pack.records() {
                Ok(records) => records,
                Err(PackError::Damaged(_)) => continue,
                Err(error) => return Err(pack_error(pack.id, None, error)),
            };
            let all: u64 = records.iter().map(|record| u64::from(record.length)).sum();
            let dead: Vec<&Record> = records.iter().filter(|record| !live(&record.id)).collect();
            let bytes: u64 = dead.iter().map(|record| u64::from(record.length)).sum();
            if dead.len() == records.len() || bytes * 4 > all {
                retained.packs += 1;
                retained.objects += dead.len() as u64;
                retained.bytes += bytes;
                packs.push(Arc::clone(pack));
            }
        }
        Ok((retained, packs))
    }

    /// Removes temporary files of writers that died. The caller holds the store exclusively.
    ///
    /// # Errors
    /// `Io` when the directory cannot be read or a file not be removed.
    pub fn sweep_temporaries(&self) -> Result<(), ObjectError> {
        let directory = self.open_directory()?;
        for name in self.file_names()?.iter().filter(|name| name.starts_with("tmp-")) {
            disk::unlink(&directory, name, Boundary::PackUnlink)
                .map_err(|error| io_error(format!("remove {name}"), error))?;
        }
        Ok(())
    }

    /// Checks every byte of every pack; `advance` is told the size of each pack when it is done.
    ///
    /// # Errors
    /// `Io` when a pack cannot be read at all.
    pub fn verify_all(&self, advance: &mut dyn FnMut(u64)) -> Result<Vec<Damage>, ObjectError> {
        let known = self.list()?;
        let damaged = known.damaged.iter().map(|(pack, detail)| Damage { pack: *pack, object: None, detail });
        let mut found: Vec<Damage> = damaged.collect();
        for pack in known.packs.values() {
            let wrong = pack.verify().map_err(|error| pack_error(pack.id, None, PackError::Io(error)))?;
            found.extend(wrong.into_iter().map(|(record, detail)| Damage {
                pack: pack.id,
                object: record.map(|record| (record.kind, record.id)),
                detail,
            }));
            advance(pack.size);
        }
        Ok(found)
    }

    /// Allocated bytes of all files of the object store; its directory itself is not counted.
    ///
    /// # Errors
    /// `Io` when the directory cannot be read.
    pub fn disk_usage(&self) -> Result<u64, ObjectError> {
        let mut total = 0;
        for name in self.file_names()? {
            match std::fs::symlink_metadata(self.directory().join(&name)) {
                Ok(metadata) => total += metadata.blocks() * 512,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error(format!("look at {name}"), error)),
            }
        }
        Ok(total)
    }
}

/// The packs of each size class.
fn classes(known: &Known) -> impl Iterator<Item = Vec<Arc<Pack>>> {
    let mut floor = 0;
    CLASSES.into_iter().map(move |bound| {
        let range = std::mem::replace(&mut floor, bound)..bound;
        known.packs.values().filter(|pack| range.contains(&pack.size)).cloned().collect()
    })
}

/// A pack's records if all of it can be read; a damaged one is left for fsck to tell of.
fn whole(pack: &Pack) -> Result<Option<Vec<Record>>, ObjectError> {
    match pack.verify() {
        Ok(wrong) if wrong.is_empty() => {
            pack.records().map(Some).map_err(|error| pack_error(pack.id, None, error))
        }
        Ok(_) => Ok(None),
        // Another process merged it away.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(pack_error(pack.id, None, PackError::Io(error))),
    }
}
