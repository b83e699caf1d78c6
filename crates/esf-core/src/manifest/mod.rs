//! Manifests: `Tree` and `Attrs` objects, root headers, and walks over them (design section 2).
//! Invariant: one value has one encoding and one id, whatever history led to it; what is decoded
//! was canonical. `docs/on-disk-format.md` has every byte.

mod codec;
mod directory;
mod dump;
mod entry;
mod links;
mod memory;
mod reach;
mod root;
mod walk;
mod wire;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use codec::{Directory, MAX_INLINE, MAX_PAGE, MIN_PAGE, Object, PageRef, Root};
pub use directory::{
    DirectoryCursor, find, load_attrs, load_directory, load_tree, store_attrs, store_directory, store_tree,
};
pub use dump::{dump_line, escape};
pub use entry::{
    Attrs, AttrsEntry, Entry, EntryKind, MAX_TARGET, MAX_XATTRS, Mode, Xattrs, hard_link_group,
    is_portable_xattr, portable_capability,
};
pub use links::rename_groups;
pub(crate) use links::{apply_renames, wrong_names};
pub use memory::MemoryObjects;
pub use reach::{Reached, reach};
pub use root::{empty_root, load_attrs_root, load_root, load_top, store_attrs_root, store_root, store_top};
pub use walk::{Walk, WalkEntry, lookup, walk};
pub(crate) use walk::{check_depth, join};

use crate::{AttrsId, Class, Digest, Problem, RootId};

/// Most bytes of an object.
pub const MAX_OBJECT: u64 = 256 << 20;
/// Most components of a path within a root.
pub const MAX_DEPTH: usize = 256;
/// Most bytes of a path within a root.
pub const MAX_PATH: usize = 4096;

/// The kinds of objects; ids of different kinds never coincide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// The portable identity of one directory.
    Tree,
    /// A page of a large one.
    TreePage,
    /// The fidelity of one directory.
    Attrs,
    /// A page of a large one.
    AttrsPage,
    /// A root header.
    Root,
    /// The attributes of a top directory.
    AttrsRoot,
    /// Plain bytes: an artifact, a log, evidence.
    Blob,
}

impl ObjectKind {
    /// Every kind, in the order of their numbers on disk.
    pub const ALL: [Self; 7] =
        [Self::Tree, Self::TreePage, Self::Attrs, Self::AttrsPage, Self::Root, Self::AttrsRoot, Self::Blob];

    /// The kind as words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::TreePage => "tree page",
            Self::Attrs => "attrs",
            Self::AttrsPage => "attrs page",
            Self::Root => "root",
            Self::AttrsRoot => "attrs root",
            Self::Blob => "blob",
        }
    }

    /// The id of an object of this kind that has these bytes.
    pub fn id_of(self, bytes: &[u8]) -> Digest {
        let context = match self {
            Self::Tree => "esf tree v1",
            Self::TreePage => "esf tree page v1",
            Self::Attrs => "esf attrs v1",
            Self::AttrsPage => "esf attrs page v1",
            Self::Root => "esf root v1",
            Self::AttrsRoot => "esf attrs root v1",
            Self::Blob => return Digest::of(bytes),
        };
        Digest::in_context(context, bytes)
    }

    /// The letter in the object's header; a blob has no header and never asks.
    const fn letter(self) -> u8 {
        match self {
            Self::Tree => b'T',
            Self::TreePage => b't',
            Self::Attrs => b'A',
            Self::AttrsPage => b'a',
            Self::Root => b'R',
            Self::AttrsRoot => b'Q',
            Self::Blob => 0,
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a node pins of the file system: identity and fidelity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootPin {
    /// The portable identity: top directory's mode and `Tree`.
    #[serde(rename = "root_id")]
    pub root: RootId,
    /// The fidelity: the `AttrsRoot` object.
    #[serde(rename = "attrs_id")]
    pub attrs: AttrsId,
}

/// Where objects are read from.
pub trait Objects {
    /// The bytes of the object `id` of `kind`, verified against `id`.
    ///
    /// # Errors
    /// `Missing` when it is not there, `Damaged` when it does not verify, `Io` for the machine's own.
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError>;
}

/// Where objects are written to.
pub trait ObjectSink {
    /// Takes an object whose id is `id`; what is already there is not stored again.
    ///
    /// # Errors
    /// `Io` when it cannot be written.
    fn put(&mut self, kind: ObjectKind, id: &Digest, bytes: &[u8]) -> Result<(), ObjectError>;
}

/// An object that cannot be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It is in no place that was looked at.
    #[error("{kind} object {id} is missing")]
    Missing {
        /// What was asked for.
        kind: ObjectKind,
        /// Its id.
        id: Digest,
    },
    /// What is stored is not what its id says.
    #[error("{kind} object {id} is damaged: {detail}")]
    Damaged {
        /// What was asked for.
        kind: ObjectKind,
        /// Its id.
        id: Digest,
        /// Where it lay and what was wrong.
        detail: String,
    },
    /// The machine failed.
    #[error("{context}: {source}")]
    Io {
        /// What was being done, and to what.
        context: String,
        /// The machine's answer.
        source: std::io::Error,
    },
}

impl ObjectError {
    /// The problem as it is told to a user or a program.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Missing { .. } => Problem::new(Class::Damaged, "object_missing", self.to_string())
                .expected("every object that a root names")
                .remedy("run `esf fsck`; bring the root back from another store or an export"),
            Self::Damaged { .. } => Problem::new(Class::Damaged, "object_damaged", self.to_string())
                .expected("bytes that match their id")
                .remedy("run `esf fsck`; bring the root back from another store or an export"),
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Problem::new(Class::Failure, "storage_full", self.to_string())
                        .remedy("free space on the store's file system, then repeat the command")
                        .retryable()
                }
                _ => Problem::new(Class::Failure, "io", self.to_string()).retryable(),
            },
        }
    }
}

/// Bytes that no encoder would write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a canonical {kind} object: expected {expected} before byte {offset}")]
pub struct DecodeError {
    /// What it was read as.
    pub kind: ObjectKind,
    /// Where reading stopped, in bytes.
    pub offset: usize,
    /// What would have been accepted.
    pub expected: &'static str,
}

/// A manifest that cannot be read, written or walked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object could not be had or kept.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object matches its id, and yet no encoder would write it.
    #[error("{kind} object {id} is not canonical: expected {expected}")]
    NotCanonical {
        /// The kind of object.
        kind: ObjectKind,
        /// Its id.
        id: Digest,
        /// What would have been accepted.
        expected: String,
    },
    /// An entry that no object may hold.
    #[error("entry {name:?} cannot be stored: expected {expected}")]
    Entry {
        /// The entry's name; empty for a top directory.
        name: String,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// `Tree` and `Attrs` of one directory contradict each other.
    #[error("tree and attrs disagree at {path:?}: expected {expected}")]
    Disagree {
        /// The path or name, escaped.
        path: String,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// A path that is too long or too deep.
    #[error("path is too long at {path:?}: expected {expected}")]
    TooLong {
        /// The path, escaped.
        path: String,
        /// What would have been accepted.
        expected: &'static str,
    },
}

impl Error {
    /// The problem as it is told to a user or a program.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Object(error) => error.problem(),
            Self::NotCanonical { expected, .. } => {
                Problem::new(Class::Damaged, "object_not_canonical", self.to_string())
                    .expected(expected)
                    .remedy("the root was made by another program or version; import its contents again")
            }
            Self::Disagree { expected, .. } => {
                Problem::new(Class::Damaged, "attrs_disagree", self.to_string())
                    .expected(*expected)
                    .remedy("the root was made by another program or version; import its contents again")
            }
            Self::Entry { expected, .. } => {
                Problem::new(Class::Refused, "entry_not_representable", self.to_string())
                    .expected(*expected)
                    .remedy("change or remove the named entry")
            }
            Self::TooLong { expected, .. } => Problem::new(Class::Refused, "path_too_long", self.to_string())
                .expected(*expected)
                .remedy("shorten or flatten the named path"),
        }
    }
}

/// Reads and decodes one object.
fn fetch<T>(
    objects: &dyn Objects,
    kind: ObjectKind,
    id: &Digest,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, Error> {
    let bytes = objects.get(kind, id)?;
    decode(&bytes).map_err(|error| Error::NotCanonical {
        kind,
        id: *id,
        expected: format!("{} before byte {}", error.expected, error.offset),
    })
}

/// Stores encoded bytes and answers their id.
fn keep(sink: &mut dyn ObjectSink, kind: ObjectKind, bytes: &[u8]) -> Result<Digest, Error> {
    let id = kind.id_of(bytes);
    sink.put(kind, &id, bytes)?;
    Ok(id)
}
