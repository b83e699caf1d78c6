//! Blobs in and out piece by piece: of a large one never more than a piece is in memory.
//! Invariant: a stored stream is a pack of its own, made durable before it has its name; a reader that
//! ends without an error gave the bytes that its id names.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use esf_core::Digest;
use esf_core::manifest::{ObjectError, ObjectKind};

use super::pack::{self, HEADER, Pack, PackId, Record};
use super::writer::{StagedPacks, remove_temporary};
use super::{ObjectStore, PackError, io_error, pack_error};

/// How much is read at a time.
const PIECE: usize = 1 << 18;

/// Why a stream could not be stored.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// It goes over the limit.
    TooLarge,
    /// It could not be read.
    Input(io::Error),
    /// It could not be written.
    Object(ObjectError),
}

impl From<ObjectError> for StreamError {
    fn from(error: ObjectError) -> Self {
        Self::Object(error)
    }
}

/// Reads one blob of a pack from its beginning; at its end says whether it was whole.
#[derive(Debug)]
pub struct ArtifactReader {
    file: File,
    id: Digest,
    at: u64,
    left: u64,
    size: u64,
    hasher: blake3::Hasher,
}

impl ArtifactReader {
    pub(super) fn new(file: File, record: &Record) -> Self {
        let size = record.length.into();
        Self { file, id: record.id, at: record.offset, left: size, size, hasher: blake3::Hasher::new() }
    }

    /// How many bytes there are in all.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Read for ArtifactReader {
    /// # Errors
    /// `InvalidData` at the end of bytes that are not those that were stored.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            let whole = self.left > 0 || *self.hasher.finalize().as_bytes() == *self.id.as_bytes();
            let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its bytes do not match its digest");
            return if whole { Ok(0) } else { Err(damaged()) };
        }
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its pack is shorter than its index says",
            ));
        }
        self.hasher.update(&buffer[..read]);
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

impl ObjectStore {
    /// Stores a blob durably; its id and size. Of at most `limit` bytes.
    pub(crate) fn put_stream(&self, input: &mut dyn Read, limit: u64) -> Result<(Digest, u64), StreamError> {
        let mut staged = StagedPacks::new(self);
        let (path, file) = staged.create_temporary()?;
        let written =
            write_pack(input, limit, &file, &|error| io_error(format!("write {}", path.display()), error))
                .and_then(|(pack, blob, size)| {
                    let id = PackId { digest: pack, durable: false };
                    let pack = Pack::open(id, &path).map_err(|error| pack_error(id, None, error))?;
                    Ok((pack, blob, size))
                });
        let (pack, blob, size) = match written {
            Ok(written) => written,
            Err(error) => {
                remove_temporary(&path);
                return Err(error);
            }
        };
        staged.take(path, file, pack);
        self.refresh()?;
        if self.contains_durably(&blob)? {
            // Its name may not be durable yet: publishing nothing makes it so.
            staged.rely();
        } else {
            staged.sync()?;
        }
        staged.publish(true)?;
        Ok((blob, size))
    }

    /// Reads a blob piece by piece.
    pub(crate) fn open_stream(&self, id: &Digest) -> Result<ArtifactReader, ObjectError> {
        let kind = ObjectKind::Blob;
        for known in [self.listed()?, self.list()?] {
            for pack in known.packs.values() {
                let found = pack.find(id).and_then(|found| {
                    found.filter(|record| record.kind == kind).map(|record| pack.stream(&record)).transpose()
                });
                match found {
                    Ok(Some(reader)) => return Ok(reader),
                    // Merged away meanwhile, or damaged: another may have it.
                    Ok(None) | Err(PackError::Damaged(_)) => {}
                    Err(PackError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(pack_error(pack.id, Some((kind, *id)), error)),
                }
            }
        }
        Err(ObjectError::Missing { kind, id: *id })
    }

    /// An empty file on the store's filesystem that has no name.
    pub(crate) fn nameless_file(&self) -> Result<File, ObjectError> {
        let (path, file) = StagedPacks::new(self).create_temporary()?;
        remove_temporary(&path);
        Ok(file)
    }
}

/// Writes a pack of one blob; the pack's digest, the blob's, and its size.
fn write_pack(
    input: &mut dyn Read,
    limit: u64,
    mut file: &File,
    failed: &dyn Fn(io::Error) -> ObjectError,
) -> Result<(Digest, Digest, u64), StreamError> {
    let (mut whole, mut blob) = (blake3::Hasher::new(), blake3::Hasher::new());
    let mut write = |bytes: &[u8]| {
        whole.update(bytes);
        file.write_all(bytes).map_err(failed)
    };
    write(HEADER)?;
    let mut size = 0;
    let mut buffer = vec![0; PIECE];
    loop {
        let read = match input.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(StreamError::Input)?,
        };
        size += read as u64;
        if size > limit {
            return Err(StreamError::TooLarge);
        }
        blob.update(&buffer[..read]);
        write(&buffer[..read])?;
    }
    let id = Digest::from_bytes(*blob.finalize().as_bytes());
    let offset = HEADER.len() as u64;
    let length = u32::try_from(size).map_err(|_| StreamError::TooLarge)?;
    write(&pack::encode_end(&[Record { id, kind: ObjectKind::Blob, offset, length }], offset + size))?;
    Ok((Digest::from_bytes(*whole.finalize().as_bytes()), id, size))
}
