//! An export's target: written under a temporary name beside it and renamed when complete.
//! Invariant: the target is never there half written and never replaces anything. A crash leaves
//! `.NAME.esf-partial` and perhaps the statement; the next export to the same target, which holds
//! the lock of the partial statement, removes and replaces both.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::Error;
use crate::boundary::{Boundary, reach};

/// A target being written; give it up by dropping it.
#[derive(Debug)]
#[must_use = "nothing is there until it is published"]
pub(crate) struct Target {
    path: PathBuf,
    partial: PathBuf,
    statement: PathBuf,
    partial_statement: PathBuf,
    /// Locked for as long as this lives; becomes the statement.
    file: File,
    published: bool,
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: path.to_owned(), source }
}

impl Target {
    /// Claims `path`, which must not exist or be an empty directory.
    pub(crate) fn claim(path: &Path) -> Result<Self, Error> {
        let path = std::path::absolute(path).map_err(io_error("resolve", path))?;
        let Some(name) = path.file_name() else { return Err(Error::TargetExists { path }) };
        if !is_free(&path)? {
            return Err(Error::TargetExists { path });
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs::metadata(parent).map_err(io_error("export into", parent))?;
        let statement = path.with_file_name(joined("", name, ".provenance.json"));
        let partial_statement = path.with_file_name(joined(".", name, ".provenance.json.esf-partial"));
        let file = lock_file(&path, &partial_statement)?;
        let partial = path.with_file_name(joined(".", name, ".esf-partial"));
        let target = Self { path, partial, statement, partial_statement, file, published: false };
        remove_any(&target.partial)?;
        Ok(target)
    }

    /// Where to write: nothing is there yet.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// The final place.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the statement will lie.
    pub(crate) fn statement(&self) -> &Path {
        &self.statement
    }

    /// Creates the file to write to.
    pub(crate) fn create_file(&self) -> Result<File, Error> {
        let mut options = File::options();
        options.write(true).read(true).create_new(true);
        options.open(&self.partial).map_err(io_error("create", &self.partial))
    }

    /// Makes everything durable and moves first the statement, then the target into place.
    pub(crate) fn publish(mut self, statement: &[u8]) -> Result<(), Error> {
        sync_all_of(&self.partial)?;
        self.file.set_len(0).map_err(io_error("write", &self.partial_statement))?;
        self.file.write_all(statement).map_err(io_error("write", &self.partial_statement))?;
        self.file.sync_all().map_err(io_error("sync", &self.partial_statement))?;
        if is_empty_directory(&self.path)? {
            fs::remove_dir(&self.path).map_err(io_error("replace", &self.path))?;
        }
        reach(Boundary::ExportStatement)?;
        // A statement without a target was left by a crash between these two renames.
        fs::rename(&self.partial_statement, &self.statement)
            .map_err(io_error("rename", &self.partial_statement))?;
        self.published = true;
        reach(Boundary::ExportRename)?;
        match renameat_with(CWD, &self.partial, CWD, &self.path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                remove_any(&self.statement)?;
                return Err(Error::TargetExists { path: self.path.clone() });
            }
            Err(error) => return Err(io_error("rename", &self.partial)(error.into())),
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        File::open(parent).and_then(|directory| directory.sync_all()).map_err(io_error("sync", parent))
    }
}

impl Drop for Target {
    /// A target that was given up leaves nothing; what cannot be removed goes with the next try.
    fn drop(&mut self) {
        if let Err(error) = remove_any(&self.partial) {
            tracing::warn!(%error, "an unfinished export stays behind");
        }
        if !self.published
            && let Err(error) = fs::remove_file(&self.partial_statement)
        {
            tracing::warn!(%error, "an unfinished statement stays behind");
        }
    }
}

/// Writes `text` to `path` whole and durable, unless something is there already.
pub(crate) fn write_new(path: &Path, text: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default();
    let partial = path.with_file_name(joined(".", name, ".esf-partial"));
    let file = lock_file(path, &partial)?;
    let written = file.set_len(0).and_then(|()| (&file).write_all(text)).and_then(|()| file.sync_all());
    written.map_err(io_error("write", &partial))?;
    match renameat_with(CWD, &partial, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => fs::remove_file(&partial).map_err(io_error("remove", &partial)),
        Err(error) => Err(io_error("rename", &partial)(error.into())),
    }
}

fn joined(before: &str, name: &OsStr, after: &str) -> OsString {
    let mut whole = OsString::from(before);
    whole.push(name);
    whole.push(after);
    whole
}

fn is_free(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => is_empty_directory(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(io_error("look at", path)(error)),
    }
}

fn is_empty_directory(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            let mut entries = fs::read_dir(path).map_err(io_error("list", path))?;
            Ok(entries.next().is_none())
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("look at", path)(error)),
    }
}

/// Opens and locks the partial statement; makes sure that the locked file is the one of that name.
fn lock_file(target: &Path, path: &Path) -> Result<File, Error> {
    loop {
        let mut options = File::options();
        options.write(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(path).map_err(io_error("create", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::TargetBusy { path: target.to_owned() }),
            Err(error) => return Err(io_error("lock", path)(error.into())),
        }
        let ours = file.metadata().map_err(io_error("look at", path))?;
        match fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            _ => continue,
        }
    }
}

fn remove_any(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(esf_layerstack::remove_tree(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("look at", path)(error)),
    }
}

/// Makes a file, or a directory with all that lies on its filesystem, durable.
fn sync_all_of(path: &Path) -> Result<(), Error> {
    let directory = fs::symlink_metadata(path).map_err(io_error("look at", path))?.is_dir();
    // Its own mode may forbid its user to open what was exported.
    let opened = if directory { path.parent().unwrap_or(Path::new("/")) } else { path };
    let file = File::open(opened).map_err(io_error("open", opened))?;
    let synced = if directory { rustix::fs::syncfs(&file).map_err(io::Error::from) } else { file.sync_all() };
    synced.map_err(io_error("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_target_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let target = Target::claim(&path).unwrap();
        target.create_file().unwrap().write_all(b"half").unwrap();
        assert_eq!(Target::claim(&path).unwrap_err().problem().code, "target_busy");
        drop(target);
        assert!(names(dir.path()).is_empty());

        let target = Target::claim(&path).unwrap();
        target.create_file().unwrap().write_all(b"whole").unwrap();
        target.publish(b"{}").unwrap();
        assert_eq!(names(dir.path()), ["out", "out.provenance.json"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(Target::claim(&path).unwrap_err().problem().code, "target_exists");
    }

    #[test]
    fn what_a_crash_left_goes_with_the_next_try() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::create_dir_all(dir.path().join(".out.esf-partial/deep")).unwrap();
        fs::write(dir.path().join(".out.provenance.json.esf-partial"), b"{").unwrap();
        fs::write(dir.path().join("out.provenance.json"), b"of the crash").unwrap();
        fs::create_dir(&path).unwrap();
        let target = Target::claim(&path).unwrap();
        fs::create_dir(target.partial()).unwrap();
        fs::write(target.partial().join("file"), b"x").unwrap();
        target.publish(b"new").unwrap();
        assert_eq!(names(dir.path()), ["out", "out.provenance.json"]);
        assert_eq!(names(&path), ["file"]);
        assert_eq!(fs::read(dir.path().join("out.provenance.json")).unwrap(), b"new");
    }

    #[test]
    fn nothing_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let target = Target::claim(&path).unwrap();
        target.create_file().unwrap();
        fs::write(&path, b"somebody was faster").unwrap();
        assert_eq!(target.publish(b"{}").unwrap_err().problem().code, "target_exists");
        assert_eq!(fs::read(&path).unwrap(), b"somebody was faster");
        assert_eq!(names(dir.path()), ["out"]);
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(Target::claim(&dir.path().join("link")).is_err());
    }
}
