//! Writing packs: objects gather in memory, go to temporary files, and get their names only after
//! they were made durable. Invariant: a `.pack` name never stands for a half-written file, and an
//! abandoned writer leaves nothing behind but, after a crash, a temporary name.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use esf_core::Digest;
use esf_core::manifest::{MAX_OBJECT, ObjectError, ObjectKind, ObjectSink, Objects};

use super::pack::{self, Pack, PackId};
use super::{ObjectStore, io_error, pack_error};
use crate::disk::{self, Boundary};

/// A writer closes a pack when it holds this many bytes.
const FULL: usize = 32 << 20;
/// And when it holds this many objects.
const FULL_COUNT: usize = 1 << 19;

static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// Gathers new objects for packs; drops what the store has already. Reads back what it holds.
///
/// Who writes holds the store's lock shared from before the first object until something names what
/// was stored: what a pack is found to have is relied on, and collection, which needs the lock
/// exclusively, must not take it away in between.
#[must_use = "objects are stored by `finish` or by `stage` and `publish`"]
pub struct PackWriter {
    staged: StagedPacks,
    pending: BTreeMap<Digest, (ObjectKind, Vec<u8>)>,
    bytes: usize,
    /// Whether the packs were looked up since this began: another process may have collected what
    /// this one knew.
    looked: bool,
}

impl PackWriter {
    pub(super) fn new(store: &ObjectStore) -> Self {
        Self { staged: StagedPacks::new(store), pending: BTreeMap::new(), bytes: 0, looked: false }
    }

    /// Takes an object even if the store has it: for packs that replace others.
    pub(super) fn push(&mut self, kind: ObjectKind, id: Digest, bytes: Vec<u8>) -> Result<(), ObjectError> {
        if bytes.len() as u64 > MAX_OBJECT {
            let large = io::Error::from(io::ErrorKind::FileTooLarge);
            return Err(io_error(format!("store {kind} object {id}: expected at most 256 MiB"), large));
        }
        self.bytes += bytes.len();
        if let Some((_, twice)) = self.pending.insert(id, (kind, bytes)) {
            self.bytes -= twice.len();
        }
        if self.bytes >= FULL || self.pending.len() >= FULL_COUNT {
            self.spill()?;
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<(), ObjectError> {
        if !self.pending.is_empty() {
            let objects = self.pending.iter().map(|(id, (kind, bytes))| (id, *kind, bytes.as_slice()));
            self.staged.write(&pack::encode(objects))?;
            self.pending.clear();
            self.bytes = 0;
        }
        Ok(())
    }

    /// Stores every object durably and answers the packs made; none when nothing was new.
    ///
    /// # Errors
    /// `Io` when writing or syncing fails; nothing is stored then, or packs that nothing refers to.
    pub fn finish(self) -> Result<Vec<PackId>, ObjectError> {
        let staged = self.stage()?;
        staged.sync()?;
        staged.publish(true)
    }

    /// Writes what remains to temporary files without syncing: for a caller who makes more than
    /// packs durable with one `syncfs`, and publishes after it.
    ///
    /// # Errors
    /// `Io` when writing fails.
    pub fn stage(mut self) -> Result<StagedPacks, ObjectError> {
        self.spill()?;
        Ok(self.staged)
    }
}

impl ObjectSink for PackWriter {
    fn put(&mut self, kind: ObjectKind, id: &Digest, bytes: &[u8]) -> Result<(), ObjectError> {
        debug_assert_eq!(kind.id_of(bytes), *id, "an object under a foreign id");
        if self.pending.contains_key(id) || self.staged.contains(id)? {
            return Ok(());
        }
        if !self.looked {
            self.staged.store.refresh()?;
            self.looked = true;
        }
        if self.staged.store.contains_durably(id)? {
            self.staged.relied = true;
            return Ok(());
        }
        self.push(kind, *id, bytes.to_vec())
    }
}

impl Objects for PackWriter {
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        match self.pending.get(id) {
            Some((stored, bytes)) if *stored == kind => Ok(bytes.clone()),
            Some(_) => Err(ObjectError::Missing { kind, id: *id }),
            None => match self.staged.get(kind, id)? {
                Some(bytes) => Ok(bytes),
                None => self.staged.store.get(kind, id),
            },
        }
    }
}

/// Packs under temporary names. Dropping it takes them away again.
#[must_use = "packs exist only once they are published"]
pub struct StagedPacks {
    store: ObjectStore,
    packs: Vec<(PathBuf, File, Pack)>,
    /// Whether objects were left out because another pack has them, whose name may not yet be durable.
    relied: bool,
}

impl StagedPacks {
    pub(super) fn new(store: &ObjectStore) -> Self {
        Self { store: store.clone(), packs: Vec::new(), relied: false }
    }

    /// Takes over a pack that was written to a temporary file.
    pub(super) fn take(&mut self, path: PathBuf, file: File, pack: Pack) {
        self.packs.push((path, file, pack));
    }

    /// Gives up what is here for what other packs have.
    pub(super) fn rely(&mut self) {
        self.packs.drain(..).for_each(|(path, _, _)| remove_temporary(&path));
        self.relied = true;
    }

    /// Whether there is anything to publish.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ObjectError> {
        let (path, mut file) = self.create_temporary()?;
        let id = PackId { digest: Digest::of(bytes), durable: false };
        let written = file
            .write_all(bytes)
            .map_err(|error| io_error(format!("write pack {}", path.display()), error))
            .and_then(|()| Pack::open(id, &path).map_err(|error| pack_error(id, None, error)));
        match written {
            Ok(pack) => {
                self.packs.push((path, file, pack));
                Ok(())
            }
            Err(error) => {
                remove_temporary(&path);
                Err(error)
            }
        }
    }

    pub(super) fn create_temporary(&self) -> Result<(PathBuf, File), ObjectError> {
        loop {
            let nth = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
            let path = self.store.directory().join(format!("tmp-{}-{nth}", std::process::id()));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o400).open(&path) {
                Ok(file) => return Ok((path, file)),
                // Left by a dead process that had this number; it goes when the store is held exclusively.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(format!("create {}", path.display()), error)),
            }
        }
    }

    fn contains(&self, id: &Digest) -> Result<bool, ObjectError> {
        for (_, _, pack) in &self.packs {
            if pack.find(id).map_err(|error| pack_error(pack.id, None, error))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Option<Vec<u8>>, ObjectError> {
        for (_, _, pack) in &self.packs {
            let found = pack.find(id).and_then(|found| {
                found.filter(|record| record.kind == kind).map(|record| pack.read(&record)).transpose()
            });
            if let Some(bytes) = found.map_err(|error| pack_error(pack.id, Some((kind, *id)), error))? {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Makes the files durable, one fsync each; a `syncfs` by the caller does as well.
    ///
    /// # Errors
    /// `Io` from the first that failed, which is final: give the packs up.
    pub fn sync(&self) -> Result<(), ObjectError> {
        for (path, file, _) in &self.packs {
            disk::fsync(file, Boundary::PackSync)
                .map_err(|error| io_error(format!("sync {}", path.display()), error))?;
        }
        Ok(())
    }

    /// Gives the packs their names. With `durable` the files must have been made durable before, and
    /// the names are now; without, they are named as relaxed, and no durable pack will rely on them.
    ///
    /// # Errors
    /// `Io` when a rename or the sync fails; packs that got their names stay, unreferenced.
    pub fn publish(mut self, durable: bool) -> Result<Vec<PackId>, ObjectError> {
        if self.packs.is_empty() && !self.relied {
            return Ok(Vec::new());
        }
        let directory = self.store.open_directory()?;
        let mut published = Vec::new();
        while let Some((path, file, pack)) = self.packs.pop() {
            let id = PackId { durable, ..pack.id };
            let name = id.file_name();
            let old = path.file_name().expect("a temporary path ends in its name");
            if let Err(error) = disk::rename(&directory, old, &directory, &name, Boundary::PackRename) {
                let failed = io_error(format!("rename {} to {name}", path.display()), error);
                self.packs.push((path, file, pack));
                return Err(failed);
            }
            published.push(pack.renamed(id, self.store.directory().join(name)));
        }
        if durable {
            disk::fsync(&directory, Boundary::PackDirectorySync)
                .map_err(|error| io_error("sync the directory of packs".to_owned(), error))?;
        }
        let ids = published.iter().map(|pack| pack.id).collect();
        self.store.adopt(published);
        Ok(ids)
    }
}

impl Drop for StagedPacks {
    fn drop(&mut self) {
        self.packs.iter().for_each(|(path, _, _)| remove_temporary(path));
    }
}

/// Takes a temporary file away; one that cannot be removed only costs space until the next sweep.
pub(super) fn remove_temporary(path: &std::path::Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a temporary pack stays until the next sweep");
    }
}
