//! The errors of the state plane, each with a class, a stable code and what to do (style rule 16).
//! Invariant: paths inside roots appear as escaped bytes, so no name can forge a message.

use std::io;
use std::path::{Path, PathBuf};

use esf_core::manifest::{self, ObjectError};
use esf_core::{AttemptId, Class, Problem};

/// Shows raw path bytes; the empty path is the top directory.
pub(crate) fn show(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { path.escape_ascii().to_string() }
}

/// What went wrong in the state plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the filesystem failed; a full disk has the code `storage_full`.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// On what, escaped.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The worker's own database failed.
    #[error("local.db: {0}")]
    Database(#[from] rusqlite::Error),
    /// An object is missing, damaged or cannot be kept.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A manifest cannot be read or written.
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    /// There is no store here.
    #[error("no store at {}", .0.display())]
    StoreMissing(PathBuf),
    /// A store is to be created where one or something else is.
    #[error("cannot create a store at {}: the directory is not empty", .0.display())]
    StoreExists(PathBuf),
    /// The store was written by a newer build.
    #[error("the store has {what} {found}, this build knows {supported}")]
    StoreNewer {
        /// `format version` or `feature flags`.
        what: &'static str,
        /// What the header says.
        found: u64,
        /// The newest that this build reads.
        supported: u64,
    },
    /// The store's header or database is not what was written.
    #[error("the store's {part} is damaged: {what}")]
    StoreDamaged {
        /// Which file.
        part: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The store's directory may be entered by others.
    #[error("the store's directory {} is not private: {found}", path.display())]
    StoreInsecure {
        /// The directory.
        path: PathBuf,
        /// Its owner and mode.
        found: String,
    },
    /// Another process holds the store's lock in a way that excludes this.
    #[error("the store is in use: {0}")]
    StoreBusy(&'static str),
    /// An import's source is not there or not a directory.
    #[error("cannot import {}: {what}", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// A socket, a device or a mount point where only representable things may be.
    #[error("{path} is a {kind}, which a root cannot hold")]
    SpecialFile {
        /// Where, escaped.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// A tree goes over a documented limit.
    #[error("{path}: {what} is over the limit: {found} > {limit}")]
    Limit {
        /// The stable code, such as `tree_too_deep`.
        code: &'static str,
        /// Where, escaped.
        path: String,
        /// What is limited.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much there may be.
        limit: u64,
    },
    /// Something that a root cannot hold, at a path.
    #[error("{path}: {what}")]
    Unrepresentable {
        /// Where, escaped.
        path: String,
        /// What it is.
        what: String,
    },
    /// A file carries an overlay mark that the kernel did not make in this sandbox.
    #[error("{path} carries the overlay mark {mark}, which no sandbox of ours can have made")]
    ForgedMark {
        /// Where, escaped.
        path: String,
        /// The extended attribute, escaped.
        mark: String,
    },
    /// A file changed while it was read.
    #[error("{path} changed while it was read")]
    Changed {
        /// Where, escaped.
        path: String,
    },
    /// A root has no carriers on this machine.
    #[error("no carriers hold the root {0}")]
    RootMissing(String),
    /// Carriers that root made hold marks which nobody else can read.
    #[error("its carriers are in native form, which only root can read in full")]
    NativeCarriers,
    /// A path does not exist in a root, or is not a file.
    #[error("{path} is not {expected} of this root")]
    PathMissing {
        /// Where, escaped.
        path: String,
        /// What was asked for.
        expected: &'static str,
    },
    /// Stored bytes are not what their digest says.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// Where, escaped.
        path: String,
        /// What differs.
        what: String,
    },
    /// The attempt has no workspace here.
    #[error("the attempt {0} has no workspace on this machine")]
    WorkspaceMissing(AttemptId),
    /// The attempt's workspace does not fit the request.
    #[error("the workspace of {attempt} does not fit: {what}")]
    WorkspaceMismatch {
        /// Whose workspace.
        attempt: AttemptId,
        /// What differs.
        what: String,
    },
    /// What the attempt wrote was lost by the machine: it restarted, or failed to write it to the disk.
    #[error(
        "what the attempt {0} wrote was never made durable, and the machine has restarted or failed since"
    )]
    WorkspaceLost(AttemptId),
    /// A seal of the same attempt is under way with another request.
    #[error("the attempt {attempt} is being sealed by another request")]
    SealConflict {
        /// The attempt.
        attempt: AttemptId,
    },
    /// An export's destination exists and is not an empty directory.
    #[error("cannot export to {}: it exists and is not an empty directory", .0.display())]
    DestinationExists(PathBuf),
    /// A merge's carrier does not have the merged root.
    #[error("the merged files give the root {found}, the merge said {expected}")]
    MergeMismatch {
        /// The merged root.
        expected: String,
        /// The root of what was built.
        found: String,
    },
}

impl Error {
    pub(crate) fn limit(code: &'static str, path: &[u8], what: &'static str, found: u64, limit: u64) -> Self {
        Self::Limit { code, path: show(path), what, found, limit }
    }

    pub(crate) fn damaged(path: &[u8], what: impl Into<String>) -> Self {
        Self::Damaged { path: show(path), what: what.into() }
    }

    /// Whether the disk or a quota is full.
    pub fn is_storage_full(&self) -> bool {
        match self {
            Self::Io { source, .. }
            | Self::Object(ObjectError::Io { source, .. })
            | Self::Manifest(manifest::Error::Object(ObjectError::Io { source, .. })) => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Database(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            _ => false,
        }
    }

    /// The error as it is told to users and programs.
    pub fn problem(&self) -> Problem {
        if self.is_storage_full() {
            return Problem::new(Class::Failure, "storage_full", self.to_string())
                .remedy("free space (esf gc, esf prune) and repeat the same command")
                .retryable();
        }
        match self {
            Self::Object(error) => return error.problem(),
            Self::Manifest(error) => return error.problem(),
            _ => {}
        }
        let (class, code, remedy) = self.advice();
        let mut problem = Problem::new(class, code, self.to_string());
        problem.retryable = matches!(self, Self::StoreBusy(_) | Self::Changed { .. });
        if let Some(remedy) = remedy {
            problem = problem.remedy(remedy);
        }
        match self {
            Self::StoreNewer { found, supported, what } => {
                problem.expected(format!("{what} up to {supported}")).found(found.to_string())
            }
            Self::Limit { limit, found, .. } => {
                problem.expected(format!("at most {limit}")).found(found.to_string())
            }
            Self::StoreInsecure { found, .. } => {
                problem.expected("mode 0700, owned by the worker's user").found(found.clone())
            }
            Self::MergeMismatch { expected, found } => problem.expected(expected).found(found),
            _ => problem,
        }
    }

    fn advice(&self) -> (Class, &'static str, Option<&'static str>) {
        use Class::{Conflict, Damaged, Failure, NotFound, Refused, Usage};
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                (Failure, "permission_denied", Some("run as the user who owns the files, or as root"))
            }
            Self::Io { .. } => (Failure, "io_error", None),
            Self::Database(_) => (Failure, "database_error", Some("run esf fsck")),
            Self::Object(_) | Self::Manifest(_) | Self::Damaged { .. } => {
                (Damaged, "damaged", Some("run esf fsck; other roots are not affected"))
            }
            Self::StoreMissing(_) => {
                (NotFound, "store_not_found", Some("create one: esf group create NAME --from DIR"))
            }
            Self::StoreExists(_) => (Usage, "store_exists", Some("choose an empty or absent directory")),
            Self::StoreNewer { .. } => (Damaged, "store_newer", Some("use a newer build of esf")),
            Self::StoreDamaged { .. } => (Damaged, "store_damaged", Some("restore the store from a copy")),
            Self::StoreInsecure { .. } => {
                (Refused, "store_insecure", Some("chown it to the worker's user and chmod it 0700"))
            }
            Self::StoreBusy(_) => (Failure, "store_busy", Some("wait for the other command and repeat")),
            Self::Source { .. } => (NotFound, "source_not_found", Some("name a directory that can be read")),
            Self::SpecialFile { .. } => {
                (Refused, "special_file", Some("remove it, or leave such files out with --skip-special"))
            }
            Self::Limit { code, .. } => (Refused, *code, Some("make it smaller or remove it")),
            Self::Unrepresentable { .. } => (Refused, "unrepresentable", Some("remove it")),
            Self::ForgedMark { .. } => (Refused, "forged_mark", Some("remove the file or the attribute")),
            Self::Changed { .. } => {
                (Failure, "changed_while_reading", Some("stop what writes there and repeat"))
            }
            Self::RootMissing(_) => (NotFound, "root_not_found", None),
            Self::NativeCarriers => (
                Refused,
                "native_carriers",
                Some("run as root, or export the root and import it as this user"),
            ),
            Self::PathMissing { .. } => (NotFound, "path_not_found", None),
            Self::WorkspaceMissing(_) => (NotFound, "workspace_not_found", None),
            Self::WorkspaceMismatch { .. } => (Conflict, "workspace_mismatch", None),
            Self::WorkspaceLost(_) => {
                (Failure, "workspace_lost", Some("retry the attempt; what it wrote cannot be trusted"))
            }
            Self::SealConflict { .. } => {
                (Conflict, "seal_conflict", Some("repeat with the first request's key and body"))
            }
            Self::DestinationExists(_) => {
                (Conflict, "destination_exists", Some("choose an absent or empty directory"))
            }
            Self::MergeMismatch { .. } => (Failure, "merge_mismatch", Some("report this as a defect")),
        }
    }
}

/// Names what was tried when a system call fails.
pub(crate) trait Context<T> {
    /// For a path inside a tree, as raw bytes.
    fn at(self, action: &'static str, path: &[u8]) -> Result<T, Error>;
    /// For a path of this machine.
    fn on(self, action: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn at(self, action: &'static str, path: &[u8]) -> Result<T, Error> {
        self.map_err(|source| Error::Io { action, path: show(path), source: source.into() })
    }

    fn on(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { action, path: path.display().to_string(), source: source.into() })
    }
}
