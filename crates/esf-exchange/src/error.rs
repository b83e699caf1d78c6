//! What can go wrong while a root is written out or read in.

use esf_core::{Class, Problem};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading a content or writing the output failed.
    #[error("i/o failed on {subject}: {source}")]
    Io {
        /// The path or the thing that was read or written.
        subject: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A content is not what its manifest says.
    #[error("content of {path} is damaged: expected {expected} bytes, found {found}")]
    WrongSize {
        /// The path inside the root.
        path: String,
        /// Bytes the manifest promises.
        expected: u64,
        /// Bytes that were read (at most one more than expected).
        found: u64,
    },
    /// An archive that is broken, hostile or too large.
    #[error("archive refused: {}{what}", if entry.is_empty() { String::new() } else { format!("{entry:?} is ") })]
    Archive {
        /// The entry's path, or empty.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// Something that no root and no export holds.
    #[error("{path} is {what}")]
    Unusual {
        /// The path.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// Git refused or failed.
    #[error(transparent)]
    Git(#[from] crate::git::Error),
    /// A root's contents cannot be read.
    #[error(transparent)]
    LayerStack(#[from] esf_layerstack::Error),
    /// A manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] esf_core::manifest::Error),
}

impl Error {
    pub(crate) fn io(subject: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let subject = subject.into();
        move |source| Self::Io { subject, source }
    }

    /// The problem as told to users and programs.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                Problem::new(Class::Failure, "storage_full", self.to_string())
                    .remedy("free some space and repeat the command")
                    .retryable()
            }
            Self::Archive { .. } => Problem::new(Class::Refused, "archive_refused", self.to_string())
                .expected("relative paths, each named once, that lead through directories alone")
                .remedy("look at the named entry with `tar -tvf`; nothing of the archive was kept"),
            Self::Unusual { .. } => Problem::new(Class::Refused, "not_representable", self.to_string())
                .expected("directories, regular files, symlinks and fifos")
                .remedy("remove what is named"),
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Problem::new(Class::NotFound, "not_found", self.to_string())
            }
            Self::Git(error) => error.problem(),
            Self::LayerStack(error) => error.problem(),
            Self::Manifest(error) => error.problem(),
            Self::Io { .. } => Problem::new(Class::Failure, "io", self.to_string()),
            Self::WrongSize { expected, found, .. } => {
                Problem::new(Class::Damaged, "damaged", self.to_string())
                    .expected(format!("{expected} bytes"))
                    .found(format!("{found} bytes"))
                    .remedy("run `esf fsck` to see what is damaged")
            }
        }
    }
}
