//! One store opened: the layer stack (bytes) and the graph (facts) together, and the operations that
//! need both: create_group from a source, merge, prune, export, collection, recovery, checks.
//! Invariant: bytes come before facts. A root is whole and durable before the graph names it, and it is
//! collected only after the graph has stopped naming it; so a crash between two steps leaves bytes
//! that nobody names, never a name without bytes. Each file says what its crashes leave behind.
//! `ARCHITECTURE.md` has the picture.

mod bases;
pub mod boundary;
mod check;
mod collect;
mod create;
mod error;
mod export;
mod export_git;
mod files;
mod git;
mod merge;
mod open;
mod prune;
mod records;
mod recover;
mod source;
mod statement;
mod target;
mod why;
mod worker_lock;

pub use check::FsckReport;
pub use collect::GcReport;
pub use create::{CreateGroup, Created, ImportedRoot};
pub use error::Error;
pub use esf_layerstack::{ImportOptions, Progress};
pub use export::{Export, Exported, Format};
pub use files::RootFiles;
pub use merge::{
    MATRIX_NODES, MatrixCell, MatrixOutcome, Merge, MergeOutcome, MergeStep, TextMerge, conflict_json,
};
pub use open::Store;
pub use records::{RecordsExported, RecordsTarget};
pub use recover::RecoverReport;
pub use source::{Source, parse_source};
pub use statement::{
    PREDICATE_TYPE, RECORDS_TYPE, STATEMENT_TYPE, Subject, VerifiedExport, beside as statement_beside,
    verify_export,
};
pub use worker_lock::WorkerLock;
