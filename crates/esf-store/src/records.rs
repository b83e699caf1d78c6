//! An export of records, such as the rollouts of a run: a file or directory that somebody else fills, with its
//! statement beside it. Invariant, as of every export: it is there whole or not at all, and replaces nothing.

use std::fs::File;
use std::path::{Path, PathBuf};

use esf_exchange::identity;
use serde_json::Value;

use crate::Error;
use crate::statement::{self, Subject};
use crate::target::Target;

/// A target that is being filled; nothing is there until it is published.
#[derive(Debug)]
#[must_use = "nothing is there until it is published"]
pub struct RecordsTarget(Target);

/// What was published.
#[derive(Clone, Debug)]
pub struct RecordsExported {
    /// The file or directory.
    pub path: PathBuf,
    /// The statement beside it.
    pub provenance: PathBuf,
    /// The digest of its bytes, or the root id of a directory.
    pub digest: String,
}

impl RecordsTarget {
    /// Claims `path`, which must not exist or be an empty directory.
    ///
    /// # Errors
    /// `target_exists`, `target_busy`, and what the file system says.
    pub fn claim(path: &Path) -> Result<Self, Error> {
        Target::claim(path).map(Self)
    }

    /// Where to write: nothing is there yet.
    pub fn partial(&self) -> &Path {
        self.0.partial()
    }

    /// Creates the file to write to.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create_file(&self) -> Result<File, Error> {
        self.0.create_file()
    }

    /// Makes what was written durable and moves it into place, with a statement that has this predicate.
    ///
    /// # Errors
    /// `target_exists` when somebody was faster, and what the file system says; nothing is there then.
    pub fn publish(self, predicate: &Value) -> Result<RecordsExported, Error> {
        let Self(target) = self;
        let subject = if target.partial().is_dir() {
            Subject::Directory(identity::of_directory(target.partial())?)
        } else {
            Subject::File(identity::of_file(target.partial())?.1)
        };
        let name = target.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let exported = RecordsExported {
            path: target.path().to_owned(),
            provenance: target.statement().to_owned(),
            digest: subject.digest(),
        };
        target.publish(&statement::write_of(statement::RECORDS_TYPE, &name, &subject, predicate))?;
        Ok(exported)
    }
}
