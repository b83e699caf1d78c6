//! What can go wrong in the graph, and how it is told (style rule 16).

use std::sync::Arc;

use esf_core::digest::RequestDigest;
use esf_core::ops::Reject;
use esf_core::{Class, Problem, StoreId};

/// A result of the graph.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the graph. Nothing was changed when one is returned.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The operation was refused.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// Something named is not in the graph.
    #[error("no such {kind}: {id}")]
    NotFound {
        /// `group`, `node`, ...
        kind: &'static str,
        /// What was looked for.
        id: String,
    },
    /// A text that may mean several things.
    #[error("{text:?} is ambiguous: {}", candidates.join(", "))]
    Ambiguous {
        /// The text.
        text: String,
        /// At most 20 of the ids it may mean.
        candidates: Vec<String>,
    },
    /// The key was used for another request.
    #[error("the idempotency key {key:?} was used for another {operation} request")]
    IdempotencyConflict {
        /// The operation.
        operation: String,
        /// The key.
        key: String,
        /// Digest of the request that used it first.
        expected: RequestDigest,
        /// Digest of this one.
        found: RequestDigest,
    },
    /// The file was written by a newer version.
    #[error("the graph has schema version {found}; this version knows {known}")]
    Newer {
        /// The version of the file.
        found: i64,
        /// The newest version known.
        known: i64,
    },
    /// The file belongs to another store.
    #[error("the graph belongs to {found}, not to {expected}")]
    OtherStore {
        /// The store that was expected.
        expected: StoreId,
        /// The store whose graph it is.
        found: StoreId,
    },
    /// The file is not a graph, or a record in it cannot be read.
    #[error("the graph is damaged: {what}")]
    Damaged {
        /// What cannot be read.
        what: String,
    },
    /// The disk is full; retry when there is room.
    #[error("no space left for the graph")]
    Full,
    /// Other processes held the graph for too long.
    #[error("the graph is busy")]
    Busy,
    /// The writer of this handle has ended after an internal error; nothing unacknowledged was kept.
    #[error("the writer of the graph has ended")]
    Closed,
    /// The machine gives no thread to write with.
    #[error("no thread for the graph: {0}")]
    NoThread(Arc<std::io::Error>),
    /// Any other failure of the database.
    #[error("the graph's database failed: {0}")]
    Database(Arc<rusqlite::Error>),
}

impl From<esf_core::ops::rollout::reject::Reject> for Error {
    fn from(reject: esf_core::ops::rollout::reject::Reject) -> Self {
        Self::Rejected(reject.into())
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase};
        match error.sqlite_error_code() {
            Some(DiskFull) => Self::Full,
            Some(DatabaseBusy | DatabaseLocked) => Self::Busy,
            Some(DatabaseCorrupt | NotADatabase) => Self::Damaged { what: error.to_string() },
            _ => Self::Database(Arc::new(error)),
        }
    }
}

impl Error {
    /// Something that is not in the graph.
    pub(crate) fn not_found(kind: &'static str, id: impl ToString) -> Self {
        Self::NotFound { kind, id: id.to_string() }
    }

    /// A record that cannot be read, or that contradicts another.
    pub fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    /// The error as it leaves the libraries.
    pub fn problem(&self) -> Problem {
        let problem = |class, code| Problem::new(class, code, self.to_string());
        match self {
            Self::Rejected(reject) => reject.problem(),
            Self::NotFound { kind, id } => problem(Class::NotFound, "not_found")
                .expected(format!("a {kind} of this store"))
                .found(id.clone())
                .remedy("esf ls and esf ps show what there is"),
            Self::Ambiguous { text, candidates } => problem(Class::NotFound, "ambiguous")
                .expected("a unique prefix")
                .found(text.clone())
                .remedy("type more of the id")
                .context(serde_json::json!({ "candidates": candidates })),
            Self::IdempotencyConflict { operation: _, key: _, expected, found } => {
                problem(Class::Conflict, "idempotency_conflict")
                    .expected(format!("the request {}", expected.digest()))
                    .found(found.digest().to_string())
                    .remedy("use another idempotency key for another request")
            }
            Self::Newer { found, known } => problem(Class::Damaged, "store_newer")
                .expected(format!("schema version {known} or older"))
                .found(found.to_string())
                .remedy("use the version of esf that wrote it, or a newer one"),
            Self::OtherStore { expected, found } => problem(Class::Damaged, "store_damaged")
                .expected(expected.to_string())
                .found(found.to_string())
                .remedy("put the graph back that belongs to this store"),
            Self::Damaged { what } => problem(Class::Damaged, "store_damaged")
                .expected("a readable graph")
                .found(what.clone())
                .remedy("restore it from a copy"),
            Self::Full => problem(Class::Failure, "storage_full")
                .expected("room on the disk of the store")
                .remedy("free some space and repeat the same command")
                .retryable(),
            Self::Busy => problem(Class::Failure, "store_busy")
                .expected("a turn to write")
                .remedy("repeat the same command")
                .retryable(),
            Self::Closed => {
                problem(Class::Failure, "graph_closed").remedy("open the store again").retryable()
            }
            Self::NoThread(_) => problem(Class::Failure, "graph_failed")
                .expected("two threads more")
                .remedy("raise the limit of processes and repeat the same command")
                .retryable(),
            Self::Database(_) => problem(Class::Failure, "graph_failed"),
        }
    }
}
