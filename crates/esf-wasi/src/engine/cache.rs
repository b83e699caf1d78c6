//! Compiled artefacts on disk, kept by the worker in a directory that no guest and no other user can write.
//!
//! A file is named `<key>-<digest>`: the key says of which module, engine and processor it is the artefact,
//! the digest is that of its bytes and is held against them before a process first hands it out. So an
//! artefact that was damaged, cut short or made by another engine is never loaded: it is dropped and made
//! again. Files are written under a temporary name, synced, then renamed; the least recently used go when all
//! together are larger than the limit.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use super::compile::{Compiler, Error};
use super::config::artefact_identity;
use super::module::{self, ModuleError};

/// Compilers that run at once, each with its cap of memory.
const COMPILERS: usize = 2;

/// Beginning of a name under which an artefact is still being written.
const TEMPORARY: &str = "new-";

/// Digests of files that are remembered by what identifies them.
const REMEMBERED: usize = 1024;

/// A file that has just changed may change again within its clock's step, unseen: only a digest taken this
/// long after the file was first seen so is relied upon.
const SETTLED: Duration = Duration::from_secs(2);

/// A compiled module, ready to be handed to a process that runs it.
#[derive(Debug)]
pub(crate) struct Artefact {
    /// The artefact's bytes, read only, at offset 0.
    pub(crate) file: OwnedFd,
    /// Names the artefact: equal keys are equal modules for equal engines. Hex.
    pub(crate) key: String,
    /// BLAKE3 of the module's bytes.
    pub(crate) module: Hash,
}

/// The directory of artefacts. One for a store; shared by all threads of its worker.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    limit: u64,
    compiler: Compiler,
    identity: String,
    serial: AtomicU64,
    inner: Mutex<Inner>,
    /// A turn ended, or a compiler did.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// Artefacts whose bytes this process has verified: the file's name by key.
    verified: HashMap<String, String>,
    /// Keys that some thread looks up or compiles now.
    turns: Vec<String>,
    /// Compilers that run.
    compilers: usize,
    /// Files by what identifies them unchanged.
    seen: HashMap<FileIdentity, Seen>,
}

#[derive(Debug)]
enum Seen {
    /// First seen so at this time; it may still change unseen.
    Since(Instant),
    /// The digest, taken when no unseen change was possible any more.
    Digest(Hash),
}

/// Device, inode, size, and both times of a change in nanoseconds.
type FileIdentity = (u64, u64, u64, (i64, i64), (i64, i64));

impl Cache {
    /// Opens or makes the directory; `limit` bytes is what all artefacts together may take, and what is missing is made
    /// by `compiler`.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made, or belongs to somebody else or lets others in.
    pub(crate) fn with_compiler(directory: &Path, limit: u64, compiler: Compiler) -> Result<Self, Error> {
        own_directory(directory).map_err(Error::io("open the directory of artefacts"))?;
        remove_temporary(directory).map_err(Error::io("clean the directory of artefacts"))?;
        let unusable = |error: wasmtime::Error| Error::Io {
            doing: "set up the WebAssembly engine",
            source: io::Error::other(format!("{error:#}")),
        };
        Ok(Self {
            directory: directory.to_owned(),
            limit,
            compiler,
            identity: artefact_identity().map_err(unusable)?,
            serial: AtomicU64::new(0),
            inner: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// The artefact of a module, compiled now if it is not there. `known` is the module's digest when the
    /// caller has it; without it the file is read and hashed, unless it is one that was and has not changed.
    ///
    /// # Errors
    ///
    /// [`Error::Module`] when the module cannot run here, [`Error::Io`] when the machine fails.
    pub(crate) fn artefact(&self, module: &File, known: Option<Hash>, fuel: bool) -> Result<Artefact, Error> {
        let length = module.metadata().map_err(Error::io("look at the module"))?.len();
        if length > module::LARGEST {
            return Err(ModuleError::TooLarge { limit: module::LARGEST, found: length }.into());
        }
        let digest = match known {
            Some(digest) => digest,
            None => self.digest(module)?,
        };
        let key = self.key(&digest, fuel);
        let file = match self.verified(&key) {
            Some(file) => file,
            None => {
                let _turn = self.turn(&key);
                match self.find(&key)? {
                    Some(file) => file,
                    None => self.compile(module, length, &digest, fuel, &key)?,
                }
            }
        };
        Ok(Artefact { file: file.into(), key, module: digest })
    }

    /// How many compilers this cache has started.
    #[cfg(test)]
    pub(super) fn compilations(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, module: &Hash, fuel: bool) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("ESF WASI artefact key");
        hasher.update(module.as_bytes()).update(&[u8::from(fuel)]).update(self.identity.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// The module's digest: remembered for a file that cannot have changed since, else read.
    fn digest(&self, module: &File) -> Result<Hash, Error> {
        let identity = file_identity(module).map_err(Error::io("look at the module"))?;
        let first = match self.inner().seen.get(&identity) {
            Some(Seen::Digest(digest)) => return Ok(*digest),
            Some(Seen::Since(first)) => Some(*first),
            None => None,
        };
        let now = Instant::now();
        let mut hasher = blake3::Hasher::new();
        hasher
            .update_reader(FromStart { file: module, at: 0 }.take(module::LARGEST))
            .map_err(Error::io("read the module"))?;
        let digest = hasher.finalize();
        let unchanged = file_identity(module).is_ok_and(|after| after == identity);
        let mut inner = self.inner();
        if inner.seen.len() >= REMEMBERED {
            inner.seen.clear();
        }
        match first {
            Some(first) if unchanged && now.duration_since(first) > SETTLED => {
                inner.seen.insert(identity, Seen::Digest(digest));
            }
            Some(_) => {}
            None => {
                inner.seen.insert(identity, Seen::Since(now));
            }
        }
        Ok(digest)
    }

    /// Waits until no other thread has this key in hand, and takes it.
    fn turn<'a>(&'a self, key: &'a str) -> Turn<'a> {
        let mut inner = self.inner();
        while inner.turns.iter().any(|other| other == key) {
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.turns.push(key.to_owned());
        Turn { cache: self, key }
    }

    /// Waits until one more compiler may run.
    fn compiler(&self) -> RunningCompiler<'_> {
        let mut inner = self.inner();
        while inner.compilers >= COMPILERS {
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.compilers += 1;
        RunningCompiler { cache: self }
    }

    /// An artefact that this process has verified, if it is still there.
    fn verified(&self, key: &str) -> Option<File> {
        let name = self.inner().verified.get(key).cloned()?;
        match File::open(self.directory.join(name)) {
            Ok(file) => {
                mark_used(&file);
                Some(file)
            }
            Err(_) => {
                // Evicted, or removed by hand: it is made again.
                self.inner().verified.remove(key);
                None
            }
        }
    }

    /// Finds an artefact on disk and holds its digest against its bytes; a damaged one is removed.
    fn find(&self, key: &str) -> Result<Option<File>, Error> {
        if let Some(file) = self.verified(key) {
            return Ok(Some(file));
        }
        let entries = entries(&self.directory).map_err(Error::io("list the artefacts"))?;
        for entry in entries.into_iter().filter(|entry| entry.name.starts_with(key)) {
            let path = self.directory.join(&entry.name);
            if let Some(file) = intact(&path, &entry.name) {
                mark_used(&file);
                self.inner().verified.insert(key.to_owned(), entry.name);
                return Ok(Some(file));
            }
            tracing::warn!(artefact = entry.name, "damaged artefact removed");
            remove(&path).map_err(Error::io("remove a damaged artefact"))?;
        }
        Ok(None)
    }

    /// Compiles the module and puts the artefact in its place.
    fn compile(
        &self,
        module: &File,
        length: u64,
        digest: &Hash,
        fuel: bool,
        key: &str,
    ) -> Result<File, Error> {
        let _one = self.compiler();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let temporary = Temporary(self.directory.join(format!("{TEMPORARY}{}-{serial}", std::process::id())));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&temporary.0);
        let mut written = Hashing {
            inner: file.map_err(Error::io("make an artefact's file"))?,
            hasher: blake3::Hasher::new(),
        };
        let mut sent = Hashing { inner: FromStart { file: module, at: 0 }, hasher: blake3::Hasher::new() };
        self.compiler.compile(&mut sent, length, fuel, &mut written)?;
        if sent.hasher.finalize() != *digest {
            return Err(ModuleError::broken("a file that changed while it was read").into());
        }
        written.inner.sync_all().map_err(Error::io("sync an artefact"))?;
        let name = format!("{key}-{}", written.hasher.finalize().to_hex());
        let path = self.directory.join(&name);
        fs::rename(&temporary.0, &path).map_err(Error::io("put an artefact in its place"))?;
        sync_directory(&self.directory).map_err(Error::io("sync the directory of artefacts"))?;
        let file = File::open(&path).map_err(Error::io("open the artefact"))?;
        self.inner().verified.insert(key.to_owned(), name.clone());
        self.evict(&name).map_err(Error::io("evict artefacts"))?;
        Ok(file)
    }

    /// Removes the least recently used until the rest is within the limit; never the one named, which was
    /// just made.
    fn evict(&self, keep: &str) -> io::Result<()> {
        let mut entries = entries(&self.directory)?;
        let mut size: u64 = entries.iter().map(|entry| entry.size).sum();
        entries.sort_by_key(|entry| entry.used);
        for entry in entries.iter().filter(|entry| entry.name != keep) {
            if size <= self.limit {
                break;
            }
            remove(&self.directory.join(&entry.name))?;
            size -= entry.size;
        }
        Ok(())
    }
}

/// A key in one thread's hand.
struct Turn<'a> {
    cache: &'a Cache,
    key: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.inner().turns.retain(|key| key != self.key);
        self.cache.changed.notify_all();
    }
}

/// One of the compilers that may run at once.
struct RunningCompiler<'a> {
    cache: &'a Cache,
}

impl Drop for RunningCompiler<'_> {
    fn drop(&mut self) {
        self.cache.inner().compilers -= 1;
        self.cache.changed.notify_all();
    }
}

/// A file that goes away unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Absent when it was renamed; whatever else stays is removed when the cache is next opened.
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads a file from its beginning without moving the offset that others share.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Digests what passes through.
struct Hashing<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.hasher.update(&into[..read]);
        Ok(read)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(from)?;
        self.hasher.update(&from[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A file of the directory that bears an artefact's name.
struct Entry {
    name: String,
    size: u64,
    used: (i64, i64),
}

fn entries(directory: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(TEMPORARY) {
            continue;
        }
        match entry.metadata() {
            Ok(found) => {
                entries.push(Entry { name, size: found.len(), used: (found.mtime(), found.mtime_nsec()) })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(entries)
}

/// The file, if its bytes are those that its name says.
fn intact(path: &Path, name: &str) -> Option<File> {
    let digest = Hash::from_hex(name.split_once('-')?.1).ok()?;
    let file = File::open(path).ok()?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(FromStart { file: &file, at: 0 }).ok()?;
    (hasher.finalize() == digest).then_some(file)
}

/// Its modification time says when an artefact was last used. A failure makes it look older than it is.
fn mark_used(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = futimens(file, &Timestamps { last_access: now, last_modification: now });
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn file_identity(file: &File) -> io::Result<FileIdentity> {
    let found = file.metadata()?;
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    Ok((found.dev(), found.ino(), found.size(), modified, changed))
}

/// Makes the directory, or holds an existing one against what it must be: ours, and nobody else's to enter.
fn own_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let (us, mode) = (rustix::process::geteuid().as_raw(), found.mode() & 0o777);
    if !found.is_dir() || found.uid() != us || mode != 0o700 {
        let found = format!("directory {}, owner {}, mode {mode:o}", found.is_dir(), found.uid());
        let what = format!("expected a directory of user {us} with mode 700, found {found}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

/// What a process that died left half written. Another that lives writes under its own number.
fn remove_temporary(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY)) else { continue };
        let writer = rest.split('-').next().and_then(|pid| pid.parse::<i32>().ok());
        let writer = writer.and_then(rustix::process::Pid::from_raw);
        let lives = writer.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
        if !lives {
            remove(&entry.path())?;
        }
    }
    Ok(())
}
