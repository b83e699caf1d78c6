//! One LayerStack opened: the store's directories, its objects and the worker's own database.
//! Invariant: everything durable lies on one filesystem beneath one private directory, and an open
//! stack has finished or undone what a dead process left, as far as no one else must be asked.

use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esf_core::StoreId;

use crate::error::Context;
use crate::form::Form;
use crate::handle;
use crate::header::{self, Header};
use crate::local::{self, CarrierId, Local, draw_bytes};
use crate::lock::StoreLock;
use crate::object_store::ObjectStore;
use crate::sync::Rounds;
use crate::trash::Trash;
use crate::upper::Unopened;
use crate::{Error, recover};

/// How long to wait for the store's lock.
const PATIENCE: Duration = Duration::from_secs(30);
/// Directories of a store.
const DIRECTORIES: [&str; 5] = ["carriers", "attempts", "staging", "trash", "packs"];
/// Files that an interrupted creation may have left.
const FILES: [&str; 6] =
    ["store.lock", "local.db", "local.db-wal", "local.db-shm", "local.db-journal", "esf.store.new"];

/// The state plane of one store; cheap to clone, shared by threads, usable by several processes.
#[derive(Clone)]
pub struct LayerStack {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) dir: PathBuf,
    pub(crate) store: StoreId,
    pub(crate) boot: String,
    /// The form of what this process makes.
    pub(crate) form: Form,
    pub(crate) carriers: OwnedFd,
    pub(crate) attempts: OwnedFd,
    pub(crate) staging: OwnedFd,
    pub(crate) trash: Trash,
    pub(crate) rounds: Rounds,
    pub(crate) local: Local,
    pub(crate) objects: ObjectStore,
}

impl fmt::Debug for LayerStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerStack").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

impl LayerStack {
    /// Creates a store at `dir`, which must be absent or empty, and opens it.
    ///
    /// # Errors
    /// `StoreExists` when something is there; what an interrupted creation left is taken over.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent).on("create", parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => prepare_existing(dir)?,
            Err(error) => return Err(error).on("create", dir),
        }
        check_private(dir)?;
        let _lock = StoreLock::exclusive(dir, PATIENCE)?;
        if Header::read(dir)?.is_some() {
            return Err(Error::StoreExists(dir.to_owned()));
        }
        for name in DIRECTORIES {
            let path = dir.join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).on("create", &path);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Local::open(&dir.join("local.db"))?;
        let top = handle::open_directory(dir).on("open", dir)?;
        Header::new(StoreId::from_bytes(draw_bytes())).write(&top, dir)?;
        Self::open(dir)
    }

    /// Opens the store at `dir`; finishes or undoes imports, squashes and merges of dead processes.
    ///
    /// # Errors
    /// `StoreMissing`, `StoreDamaged`, `StoreNewer`, or `StoreInsecure` when others may enter it.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let dir = match fs::canonicalize(dir) {
            Ok(dir) => dir,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::StoreMissing(dir.to_owned()));
            }
            Err(error) => return Err(error).on("open", dir),
        };
        let header = Header::read(&dir)?.ok_or_else(|| Error::StoreMissing(dir.clone()))?;
        check_private(&dir)?;
        let device = fs::metadata(&dir).on("inspect", &dir)?.dev();
        let open = |name: &str| open_part(&dir, name, device);
        let inner = Inner {
            store: header.store,
            boot: read_boot()?,
            form: Form::of_this_process(),
            carriers: open("carriers")?,
            attempts: open("attempts")?,
            staging: open("staging")?,
            trash: Trash::new(open("trash")?),
            rounds: Rounds::new(handle::open_directory(&dir).on("open", &dir)?),
            local: Local::open(&dir.join("local.db"))?,
            objects: ObjectStore::open(&dir.join("packs"))?,
            dir,
        };
        let stack = Self { inner: Arc::new(inner) };
        recover::transactions(&stack)?;
        Ok(stack)
    }

    /// Whether a store (of any version) is at `dir`.
    pub fn exists(dir: &Path) -> bool {
        dir.join(header::NAME).exists()
    }

    /// The store's id, drawn at its creation.
    pub fn store_id(&self) -> StoreId {
        self.inner.store
    }

    /// The store's directory.
    pub fn directory(&self) -> &Path {
        &self.inner.dir
    }

    /// The directory that holds every carrier; executors clone it once, id-mapped.
    pub fn carriers_directory(&self) -> PathBuf {
        self.inner.dir.join("carriers")
    }

    /// The directory that holds every attempt's upper and work.
    pub fn attempts_directory(&self) -> PathBuf {
        self.inner.dir.join("attempts")
    }

    /// The store's objects.
    pub fn objects(&self) -> &ObjectStore {
        &self.inner.objects
    }

    /// Takes the store's lock so that no collection runs; waits up to 30 seconds.
    ///
    /// # Errors
    /// `StoreBusy` when a collection does not end in time.
    pub fn lock_shared(&self) -> Result<StoreLock, Error> {
        StoreLock::shared(&self.inner.dir, PATIENCE)
    }

    /// Takes the store's lock alone, as a collection must; waits up to 30 seconds.
    ///
    /// # Errors
    /// `StoreBusy` when others, or values of this program such as `SealedRoot`, hold it.
    pub fn lock_exclusive(&self) -> Result<StoreLock, Error> {
        StoreLock::exclusive(&self.inner.dir, PATIENCE)
    }

    /// Removes what is in the trash now instead of in the background; how many entries resisted.
    pub fn empty_trash(&self) -> usize {
        self.inner.trash.empty_now()
    }

    /// Merges small packs when they are many. What fails here is only put off.
    pub(crate) fn consolidate(&self) {
        if let Err(error) = self.inner.objects.consolidate() {
            tracing::warn!(%error, "small packs stay unmerged for now");
        }
    }

    /// The forms of carriers, in their order.
    pub(crate) fn forms(&self, carriers: &[CarrierId]) -> Result<Vec<Form>, Error> {
        self.inner.local.read(|db| carriers.iter().map(|carrier| local::form(db, *carrier)).collect())
    }

    /// The records of the carriers' symlinks and fifos, in their order.
    pub(crate) fn unopened(&self, carriers: &[CarrierId], forms: &[Form]) -> Result<Vec<Unopened>, Error> {
        if !forms.contains(&Form::Portable) {
            return Ok(vec![Unopened::new(); carriers.len()]);
        }
        self.inner.local.read(|db| carriers.iter().map(|carrier| local::unopened(db, *carrier)).collect())
    }

    /// Refuses carriers whose marks this process cannot see: those of root's, for anybody else.
    pub(crate) fn require_readable(&self, forms: &[Form]) -> Result<(), Error> {
        match self.inner.form {
            Form::Portable if forms.contains(&Form::Native) => Err(Error::NativeCarriers),
            Form::Portable | Form::Native => Ok(()),
        }
    }

    pub(crate) fn carrier_path(&self, carrier: CarrierId) -> PathBuf {
        self.inner.dir.join("carriers").join(carrier.to_string())
    }

    pub(crate) fn open_carrier(&self, carrier: CarrierId) -> Result<OwnedFd, Error> {
        let name = carrier.to_string();
        handle::open_child(&self.inner.carriers, name.as_bytes()).on("open", &self.carrier_path(carrier))
    }
}

/// Accepts an existing directory that is empty or holds only what a creation makes first.
fn prepare_existing(dir: &Path) -> Result<(), Error> {
    if LayerStack::exists(dir) {
        return Err(Error::StoreExists(dir.to_owned()));
    }
    let mut empty = true;
    for entry in fs::read_dir(dir).on("list", dir)? {
        let name = entry.on("list", dir)?.file_name();
        empty = false;
        if !DIRECTORIES.iter().chain(&FILES).any(|known| name == *known) {
            return Err(Error::StoreExists(dir.to_owned()));
        }
    }
    if empty {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).on("make private", dir)?;
    }
    Ok(())
}

/// Refuses a store that others may enter: ids and setuid bits in carriers are the image's own.
fn check_private(dir: &Path) -> Result<(), Error> {
    let found = fs::symlink_metadata(dir).on("inspect", dir)?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let found = format!("mode {:04o}, owner {} (this is user {user})", found.mode() & 0o7777, found.uid());
    Err(Error::StoreInsecure { path: dir.to_owned(), found })
}

fn open_part(dir: &Path, name: &str, device: u64) -> Result<OwnedFd, Error> {
    let path = dir.join(name);
    let part = handle::open_directory(&path)
        .map_err(|error| Error::StoreDamaged { part: "directory", what: format!("{name}: {error}") })?;
    if rustix::fs::fstat(&part).on("inspect", &path)?.st_dev != device {
        let what = format!("{name} is on another filesystem, which a rename cannot reach");
        return Err(Error::StoreDamaged { part: "directory", what });
    }
    Ok(part)
}

/// This boot's id: uppers of an earlier one were never made durable.
fn read_boot() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(fs::read_to_string(path).on("read", path)?.trim().to_owned())
}
