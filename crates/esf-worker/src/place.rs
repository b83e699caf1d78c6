//! Where a store's worker is found: its socket, its log, its files for output.
//! Invariant: the socket's path is short whatever the store's path is (a socket's may have 107
//! bytes), and its directory belongs to us alone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use esf_core::{AttemptId, Class, Digest, ExecId, Problem};

/// The absolute path of an existing store, links resolved: one store has one name.
///
/// # Errors
/// `store_not_found` when it is not there.
pub(crate) fn canonical(store: &Path) -> Result<PathBuf, Problem> {
    fs::canonicalize(store).map_err(|error| {
        Problem::new(Class::NotFound, "store_not_found", format!("no store at {}: {error}", store.display()))
            .remedy("name an existing store with --store, or make one with `esf group create`")
    })
}

/// The directory of sockets of this user: root's is `/run/esf`.
pub(crate) fn runtime_directory() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let own = PathBuf::from(format!("/run/user/{uid}"));
    match uid {
        0 => PathBuf::from("/run/esf"),
        _ if own.is_dir() => own.join("esf"),
        _ => PathBuf::from(format!("/tmp/esf-{uid}")),
    }
}

/// The socket of the worker of the store at the canonical path `store`.
pub(crate) fn socket(store: &Path) -> PathBuf {
    let digest = Digest::in_context("esf worker socket v1", store.as_os_str().as_bytes());
    let name: String = digest.as_bytes()[..10].iter().map(|byte| format!("{byte:02x}")).collect();
    runtime_directory().join(format!("{name}.sock"))
}

/// Makes `directory` with mode 0700, or checks that it is one of ours that nobody else can write to.
///
/// # Errors
/// `PermissionDenied` when it belongs to somebody else or is open to others.
pub(crate) fn private_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(directory)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    match found.permissions().mode() & 0o077 {
        0 if ours => return Ok(()),
        // Nobody else could have put anything into it.
        open if ours && open & 0o022 == 0 => {
            return fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        }
        _ => {}
    }
    let what = format!("{} must be a directory of our own with mode 0700", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// The directory of the output of an attempt's commands.
pub(crate) fn logs(store: &Path, attempt: AttemptId) -> PathBuf {
    store.join("logs").join(attempt.to_string())
}

/// The file of one stream of a command.
pub(crate) fn stream(store: &Path, attempt: AttemptId, exec: ExecId, stream: crate::logs::Stream) -> PathBuf {
    logs(store, attempt).join(format!("{exec}.{}", stream.extension()))
}

/// The note beside the streams, written when the command ended.
pub(crate) fn note(store: &Path, attempt: AttemptId, exec: ExecId) -> PathBuf {
    logs(store, attempt).join(format!("{exec}.json"))
}

/// The log of a worker that was started on demand.
pub(crate) fn worker_log(store: &Path) -> PathBuf {
    store.join("logs").join("worker.log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_fits_whatever_the_store_is_called() {
        let long = PathBuf::from("/").join("x".repeat(200)).join("y".repeat(200));
        assert!(socket(&long).as_os_str().len() < 100);
        assert_ne!(socket(&long), socket(Path::new("/var/lib/esf")));
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let top = tempfile::tempdir().expect("tempdir");
        let directory = top.path().join("run");
        private_directory(&directory).expect("makes");
        private_directory(&directory).expect("accepts its own");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("chmod");
        private_directory(&directory).expect("closes what only others could read");
        assert_eq!(fs::metadata(&directory).expect("there").mode() & 0o777, 0o700);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o770)).expect("chmod");
        assert!(private_directory(&directory).is_err());
        let link = top.path().join("link");
        std::os::unix::fs::symlink(top.path(), &link).expect("symlink");
        assert!(private_directory(&link).is_err(), "a link is not a directory");
    }
}
