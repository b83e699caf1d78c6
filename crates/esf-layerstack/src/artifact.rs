//! Artifacts: plain bytes that a record names by their digest, such as logs, evidence and the modules of
//! an environment. Invariant: what is read back is what was stored; of a large one never more than a
//! piece is in memory; a collection keeps it while a record that is needed names it.

use std::fs::File;
use std::io::{self, Read, Write};

use esf_core::BlobId;
use esf_core::manifest::{MAX_OBJECT, ObjectError, ObjectKind, ObjectSink, Objects};

use crate::Error;
use crate::error::Context;
use crate::lock::StoreLock;
use crate::object_store::{ArtifactReader, StreamError};
use crate::stack::LayerStack;

/// Most bytes of an artifact.
pub const MAX_ARTIFACT: u64 = MAX_OBJECT;
/// More bytes than this get a pack of their own.
const LARGE: u64 = 4 << 20;

/// An artifact that is stored. Held until a record names it, it keeps collections out.
#[derive(Debug)]
pub struct StoredArtifact {
    blob: BlobId,
    bytes: u64,
    _held: StoreLock,
}

impl StoredArtifact {
    /// Its digest: plain BLAKE3 of its bytes.
    pub fn blob(&self) -> BlobId {
        self.blob
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn too_large(size: u64) -> Error {
    Error::limit("artifact_too_large", b"artifact", "size", size, MAX_ARTIFACT)
}

impl LayerStack {
    /// Stores an artifact from memory: plain bytes that a record will name. Kept by collections while it
    /// is among their live blobs.
    ///
    /// # Errors
    /// `Limit` above 256 MiB, `storage_full`.
    pub fn put_artifact(&self, mut bytes: &[u8]) -> Result<BlobId, Error> {
        if bytes.len() as u64 > LARGE {
            return self.store_artifact(&mut bytes).map(|stored| stored.blob);
        }
        let _held = self.lock_shared()?;
        let blob = BlobId::of(bytes);
        let mut writer = self.inner.objects.writer();
        writer.put(ObjectKind::Blob, blob.digest(), bytes)?;
        writer.finish()?;
        Ok(blob)
    }

    /// Stores what `input` gives until it ends, durably and piece by piece.
    ///
    /// # Errors
    /// `Limit` above 256 MiB, `Io` when reading fails, `storage_full`; nothing is stored then.
    pub fn store_artifact(&self, input: &mut dyn Read) -> Result<StoredArtifact, Error> {
        let held = self.lock_shared()?;
        match self.inner.objects.put_stream(input, MAX_ARTIFACT) {
            Ok((digest, bytes)) => Ok(StoredArtifact { blob: BlobId::new(digest), bytes, _held: held }),
            Err(StreamError::TooLarge) => Err(too_large(MAX_ARTIFACT + 1)),
            Err(StreamError::Input(error)) => Err(error).at("read", b"artifact"),
            Err(StreamError::Object(error)) => Err(error.into()),
        }
    }

    /// The bytes of an artifact, checked.
    ///
    /// # Errors
    /// `PathMissing` when it is not stored here, or damaged.
    pub fn get_artifact(&self, blob: BlobId) -> Result<Vec<u8>, Error> {
        self.inner.objects.get(ObjectKind::Blob, blob.digest()).map_err(|error| missing(blob, error))
    }

    /// Reads an artifact piece by piece. What is read counts only once the reader has ended without an
    /// error: at the end it checks the digest of all of it.
    ///
    /// # Errors
    /// `PathMissing` when it is not stored here.
    pub fn open_artifact(&self, blob: BlobId) -> Result<ArtifactReader, Error> {
        self.inner.objects.open_stream(blob.digest()).map_err(|error| missing(blob, error))
    }

    /// An artifact as a file without a name, at its beginning, checked whole; it goes when it is closed.
    ///
    /// # Errors
    /// `PathMissing` when it is not stored here, or damaged; `storage_full`.
    pub fn artifact_file(&self, blob: BlobId) -> Result<File, Error> {
        let mut reader = self.open_artifact(blob)?;
        let mut file = self.inner.objects.nameless_file()?;
        let copied = io::copy(&mut reader, &mut file).and_then(|_| file.flush());
        match copied {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Error::damaged(blob.to_string().as_bytes(), error.to_string()))
            }
            copied => copied.at("copy", b"artifact"),
        }?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).at("read", b"artifact")?;
        Ok(file)
    }
}

fn missing(blob: BlobId, error: ObjectError) -> Error {
    match error {
        ObjectError::Missing { .. } => Error::PathMissing { path: blob.to_string(), expected: "an artifact" },
        error => error.into(),
    }
}
