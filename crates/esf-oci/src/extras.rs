//! An evaluator's additions, laid out beside the attempt's upper: a layer with its files, a layer with
//! whiteouts. Invariants: what is copied is regular files and directories only, with a bound on both, and
//! belongs to the root user inside; directories that the tree has too keep the tree's mode and owner,
//! since the topmost layer's are the ones that are seen.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use esf_worker::executor::{ExecutorError, Extra};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mknodat, openat2};

use crate::plan::{ExtraLayers, FilesLayer, MAX_FILES};

/// Most bytes of an evaluator's files together.
const MAX_BYTES: u64 = 1 << 30;

/// Lays out `extra` in `home/extra`, for a tree of `lowers` (top first).
///
/// # Errors
/// `Invalid` for what cannot be laid out, `Full`.
pub(crate) fn lay_out(extra: &Extra, home: &Path, lowers: &[PathBuf]) -> Result<ExtraLayers, ExecutorError> {
    let top = home.join("extra");
    let mut layers = ExtraLayers { channel: extra.result_channel, ..ExtraLayers::default() };
    if extra.files.is_none() && extra.hide.is_empty() {
        return Ok(layers);
    }
    make_directory(&top).map_err(|error| cannot("make", &top, &error))?;
    if let Some(source) = &extra.files {
        layers.files = Some(Copy::new(source, top.join("files"), lowers).run()?);
    }
    if !extra.hide.is_empty() {
        let layer = top.join("hide");
        hide(&extra.hide, &layer, lowers).map_err(|error| cannot("hide paths in", &layer, &error))?;
        layers.hide = Some(layer);
    }
    Ok(layers)
}

/// One copy of an evaluator's directory.
struct Copy<'a> {
    source: &'a Path,
    lowers: &'a [PathBuf],
    layer: FilesLayer,
    bytes: u64,
}

impl<'a> Copy<'a> {
    fn new(source: &'a Path, layer: PathBuf, lowers: &'a [PathBuf]) -> Self {
        let layer = FilesLayer { layer, directories: Vec::new(), files: Vec::new() };
        Self { source, lowers, layer, bytes: 0 }
    }

    fn run(mut self) -> Result<FilesLayer, ExecutorError> {
        let top = self.layer.layer.clone();
        make_directory(&top).map_err(|error| cannot("make", &top, &error))?;
        let mut pending = vec![PathBuf::new()];
        while let Some(directory) = pending.pop() {
            let from = self.source.join(&directory);
            let failed = |error: io::Error| cannot("read the evaluator's", &from, &error);
            let mut entries =
                fs::read_dir(&from).map_err(failed)?.collect::<io::Result<Vec<_>>>().map_err(failed)?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = directory.join(entry.file_name());
                if self.take(&path).map_err(|error| cannot("copy the evaluator's", &path, &error))? {
                    pending.push(path);
                }
                let count = self.layer.files.len() + self.layer.directories.len();
                if count > MAX_FILES || self.bytes > MAX_BYTES {
                    return Err(ExecutorError::Invalid {
                        what: format!("an evaluator with {count} files and {} bytes or more", self.bytes),
                        expected: format!("at most {MAX_FILES} files and {MAX_BYTES} bytes"),
                    });
                }
            }
        }
        // Parents first: a directory is pinned before what is in it.
        self.layer.directories.sort();
        let directories =
            std::iter::once(Path::new("")).chain(self.layer.directories.iter().map(PathBuf::as_path));
        for path in directories {
            take_attributes(&top.join(path), path, self.lowers)
                .map_err(|error| cannot("set the mode of", path, &error))?;
        }
        Ok(self.layer)
    }

    /// Copies one entry; true for a directory.
    fn take(&mut self, path: &Path) -> io::Result<bool> {
        let (from, to) = (self.source.join(path), self.layer.layer.join(path));
        // Never through a link, never waiting for a fifo.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let found = fs::symlink_metadata(&from)?;
        if found.is_dir() {
            make_directory(&to)?;
            self.layer.directories.push(path.to_owned());
            return Ok(true);
        }
        let mut file = fs::File::options().read(true).custom_flags(flags).open(&from)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a regular file nor a directory",
            ));
        }
        let mut copy = fs::File::options().write(true).create_new(true).mode(0o600).open(&to)?;
        self.bytes += io::copy(&mut file, &mut copy)?;
        copy.set_permissions(fs::Permissions::from_mode(found.mode() & 0o777))?;
        self.layer.files.push(path.to_owned());
        Ok(false)
    }
}

/// Makes a layer whose whiteouts hide `paths`.
fn hide(paths: &[Vec<u8>], layer: &Path, lowers: &[PathBuf]) -> io::Result<()> {
    make_directory(layer)?;
    take_attributes(layer, Path::new(""), lowers)?;
    for path in paths {
        let path = Path::new(OsStr::from_bytes(path));
        let Some(parent) = path.parent() else { continue };
        let mut made = PathBuf::new();
        let mut covered = false;
        for part in parent {
            made.push(part);
            let target = layer.join(&made);
            match fs::symlink_metadata(&target) {
                Ok(found) if found.is_dir() => {}
                // A parent is hidden, and this with it.
                Ok(_) => covered = true,
                Err(_) => {
                    make_directory(&target)?;
                    take_attributes(&target, &made, lowers)?;
                }
            }
            if covered {
                break;
            }
        }
        if !covered {
            let target = layer.join(path);
            if fs::symlink_metadata(&target).is_ok_and(|found| found.is_dir()) {
                fs::remove_dir_all(&target)?;
            }
            match mknodat(CWD, &target, FileType::CharacterDevice, Mode::empty(), 0) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Gives `target` the mode and owner that the directory `path` of the tree has, if it has one.
fn take_attributes(target: &Path, path: &Path, lowers: &[PathBuf]) -> io::Result<()> {
    let mode = match lowers.iter().find_map(|lower| open_in(lower, path)) {
        Some(directory) => {
            let found = fstat(&directory)?;
            std::os::unix::fs::chown(target, Some(found.st_uid), Some(found.st_gid))?;
            found.st_mode & 0o7777
        }
        None => 0o755,
    };
    fs::set_permissions(target, fs::Permissions::from_mode(mode))
}

/// The directory `path` of one layer, reached without any link: a tree may hold links to anywhere.
fn open_in(lower: &Path, path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(lower, flags, Mode::empty()).ok()?;
    if path.as_os_str().is_empty() {
        return Some(top);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(&top, path, flags, Mode::empty(), resolve).ok()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> ExecutorError {
    let what = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ExecutorError::Full { what },
        _ => ExecutorError::Invalid {
            what,
            expected: "a directory of regular files and directories".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_copied_and_links_and_fifos_refused() {
        let home = tempfile::tempdir().expect("tempdir");
        let source = tempfile::tempdir().expect("tempdir");
        let tree = tempfile::tempdir().expect("tempdir");
        fs::create_dir_all(source.path().join("tests/sub")).expect("mkdir");
        fs::write(source.path().join("tests/sub/a.sh"), "echo a").expect("write");
        fs::write(source.path().join("run.sh"), "x").expect("write");
        fs::create_dir(tree.path().join("tests")).expect("mkdir");
        fs::set_permissions(tree.path().join("tests"), fs::Permissions::from_mode(0o2711)).expect("chmod");
        let extra = Extra { files: Some(source.path().to_owned()), ..Extra::default() };
        let lowers = [tree.path().to_owned()];
        let layers = lay_out(&extra, home.path(), &lowers).expect("lays out").files.expect("files");
        assert_eq!(layers.directories, [PathBuf::from("tests"), "tests/sub".into()]);
        assert_eq!(layers.files, [PathBuf::from("run.sh"), "tests/sub/a.sh".into()]);
        let mode = |path: &str| fs::metadata(layers.layer.join(path)).expect("there").mode() & 0o7777;
        assert_eq!((mode("tests"), mode("tests/sub")), (0o2711, 0o755), "the tree's mode is kept");

        std::os::unix::fs::symlink("/etc/passwd", source.path().join("link")).expect("symlink");
        let other = tempfile::tempdir().expect("tempdir");
        assert!(lay_out(&extra, other.path(), &lowers).is_err(), "a link is refused");
    }

    #[test]
    fn hidden_paths_become_whiteouts() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: whiteouts need root");
            return;
        }
        let home = tempfile::tempdir().expect("tempdir");
        let hide = ["a/b/c", "a/b", "x", "a/b/d"].map(|path| path.as_bytes().to_vec()).to_vec();
        let layers = lay_out(&Extra { hide, ..Extra::default() }, home.path(), &[]).expect("lays out");
        let layer = layers.hide.expect("a layer");
        let device = |path: &str| fs::symlink_metadata(layer.join(path)).expect("there").rdev();
        assert_eq!((device("a/b"), device("x")), (0, 0));
        assert!(
            fs::symlink_metadata(layer.join("a/b")).expect("there").file_type()
                != fs::metadata(&layer).expect("dir").file_type()
        );
    }
}
