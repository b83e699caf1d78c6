//! One pack: objects, a sorted index, a fan-out and a trailer in one immutable file.
//! Invariant: an object leaves a pack only after its bytes were checked against its id; a pack whose
//! trailer does not check is never used. `docs/on-disk-format.md` section 3.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use esf_core::Digest;
use esf_core::manifest::{MAX_OBJECT, ObjectKind};

use super::stream::ArtifactReader;

pub(super) const HEADER: &[u8; 8] = b"ESFPACK\x01";
const END: &[u8; 8] = b"ESFPEND\x01";
const RECORD: usize = 48;
const TRAILER: usize = 96;
/// Most objects of a pack.
const MAX_COUNT: usize = 1 << 20;
/// Most bytes of a pack.
const MAX_SIZE: u64 = 512 << 20;
/// Largest index that is kept in memory; a larger one is read bucket by bucket.
const RESIDENT_INDEX: usize = 64 << 10;
/// Mean number of records in a bucket of the fan-out.
const BUCKET: usize = 64;
/// Blobs of this many bytes are checked piece by piece.
const LARGE: u32 = 1 << 20;

/// Names a pack: BLAKE3 of the whole file, and whether it was made to survive a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId {
    pub(super) digest: Digest,
    pub(super) durable: bool,
}

impl PackId {
    const DURABLE: &str = ".pack";
    const RELAXED: &str = ".relaxed";

    pub(super) fn file_name(&self) -> String {
        let text = self.digest.to_string();
        let hex = text.strip_prefix("b3:").expect("a digest's text begins with b3:");
        format!("{hex}{}", if self.durable { Self::DURABLE } else { Self::RELAXED })
    }

    pub(super) fn parse(file_name: &str) -> Option<Self> {
        let durable = file_name.strip_suffix(Self::DURABLE).map(|hex| (hex, true));
        let (hex, durable) = durable.or_else(|| Some((file_name.strip_suffix(Self::RELAXED)?, false)))?;
        Some(Self { digest: format!("b3:{hex}").parse().ok()?, durable })
    }
}

impl std::fmt::Display for PackId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file_name())
    }
}

/// Where an object lies in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: Digest,
    pub(super) kind: ObjectKind,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// Why a pack or an object in it cannot be used.
#[derive(Debug)]
pub(super) enum PackError {
    /// The machine failed.
    Io(io::Error),
    /// The file is not what its format says.
    Damaged(&'static str),
}

impl From<io::Error> for PackError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged("it is shorter than its index says"),
            _ => Self::Io(error),
        }
    }
}

/// Encodes a pack of `objects`, which ascend strictly by id.
pub(super) fn encode<'a>(objects: impl Iterator<Item = (&'a Digest, ObjectKind, &'a [u8])>) -> Vec<u8> {
    let mut out = HEADER.to_vec();
    let mut records = Vec::new();
    for (id, kind, bytes) in objects {
        records.push(Record { id: *id, kind, offset: out.len() as u64, length: bytes.len() as u32 });
        out.extend_from_slice(bytes);
    }
    let end = encode_end(&records, out.len() as u64);
    out.extend_from_slice(&end);
    out
}

/// What follows the objects of a pack: index, fan-out and trailer. `index_at` is where that begins.
pub(super) fn encode_end(records: &[Record], index_at: u64) -> Vec<u8> {
    let mut index = Vec::new();
    for Record { id, kind, offset, length } in records {
        let number = ObjectKind::ALL.iter().position(|known| known == kind).expect("ALL has every kind");
        index.extend_from_slice(id.as_bytes());
        index.extend_from_slice(&offset.to_le_bytes());
        index.extend_from_slice(&length.to_le_bytes());
        index.extend_from_slice(&[number as u8, 0, 0, 0]);
    }
    let ids: Vec<Digest> = records.iter().map(|record| record.id).collect();
    let bits = bits_for(ids.len());
    let mut end = Vec::with_capacity((4 << bits) + TRAILER);
    let mut below = 0;
    for bucket in 0..1_usize << bits {
        below += ids[below..].iter().take_while(|id| bucket_of(id, bits) == bucket).count();
        end.extend_from_slice(&(below as u32).to_le_bytes());
    }
    end.extend_from_slice(&(ids.len() as u32).to_le_bytes());
    end.extend_from_slice(&bits.to_le_bytes());
    end.extend_from_slice(&index_at.to_le_bytes());
    end.extend_from_slice(blake3::hash(&index).as_bytes());
    let checksum = blake3::hash(&end);
    end.extend_from_slice(checksum.as_bytes());
    end.extend_from_slice(&[0; 8]);
    end.extend_from_slice(END);
    index.extend_from_slice(&end);
    index
}

fn bits_for(count: usize) -> u32 {
    (0..).find(|bits| count >> bits <= BUCKET).expect("a count shifted often enough is small")
}

/// The first `bits` bits of an id.
fn bucket_of(id: &Digest, bits: u32) -> usize {
    let first = u32::from_be_bytes(id.as_bytes()[..4].try_into().expect("an id has 32 bytes"));
    (u64::from(first) >> (32 - bits)) as usize
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// An open pack.
pub(super) struct Pack {
    pub(super) id: PackId,
    path: PathBuf,
    /// Kept open when the index is not in memory.
    file: Option<File>,
    /// Size of the file in bytes.
    pub(super) size: u64,
    index_at: u64,
    index_digest: [u8; 32],
    pub(super) count: usize,
    bits: u32,
    fan_out: Vec<u32>,
    /// The index when it is small.
    index: Option<Vec<u8>>,
}

impl Pack {
    /// Opens a pack and checks its trailer, and its index if that is small.
    pub(super) fn open(id: PackId, path: &Path) -> Result<Self, PackError> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let trailer_at = size
            .checked_sub((HEADER.len() + TRAILER) as u64)
            .ok_or(PackError::Damaged("it is shorter than an empty pack"))?
            + HEADER.len() as u64;
        let mut trailer = [0; TRAILER];
        file.read_exact_at(&mut trailer, trailer_at)?;
        let mut header = [0; 8];
        file.read_exact_at(&mut header, 0)?;
        if header != *HEADER || trailer[80..] != [&[0; 8], &END[..]].concat() {
            return Err(PackError::Damaged("its magic or version is not that of a pack of version 1"));
        }
        let (count, bits, index_at) =
            (u32_at(&trailer, 0) as usize, u32_at(&trailer, 4), u64_at(&trailer, 8));
        let fits = size <= MAX_SIZE
            && count <= MAX_COUNT
            && bits == bits_for(count)
            && index_at >= HEADER.len() as u64
            && index_at.checked_add((count * RECORD + (4 << bits)) as u64) == Some(trailer_at);
        if !fits {
            return Err(PackError::Damaged("its trailer and its size disagree"));
        }
        let mut end = vec![0; 4 << bits];
        file.read_exact_at(&mut end, trailer_at - (4 << bits))?;
        let fan_out: Vec<u32> = (0..1 << bits).map(|bucket| u32_at(&end, bucket * 4)).collect();
        end.extend_from_slice(&trailer[..48]);
        if *blake3::hash(&end).as_bytes() != trailer[48..80] {
            return Err(PackError::Damaged("its trailer does not match its checksum"));
        }
        if !fan_out.is_sorted() || fan_out.last() != Some(&(count as u32)) {
            return Err(PackError::Damaged("its fan-out does not end at its count"));
        }
        let index_digest = trailer[16..48].try_into().expect("32 bytes");
        let path = path.to_owned();
        let mut pack =
            Self { id, path, file: None, size, index_at, index_digest, count, bits, fan_out, index: None };
        if count * RECORD <= RESIDENT_INDEX {
            pack.index = Some(pack.load_index(&file)?);
        } else {
            pack.file = Some(file);
        }
        Ok(pack)
    }

    /// The same pack under the name it has been given.
    pub(super) fn renamed(mut self, id: PackId, path: PathBuf) -> Self {
        (self.id, self.path) = (id, path);
        self
    }

    fn with_file<T>(&self, read: impl FnOnce(&File) -> Result<T, PackError>) -> Result<T, PackError> {
        match &self.file {
            Some(file) => read(file),
            None => read(&File::open(&self.path)?),
        }
    }

    fn load_index(&self, file: &File) -> Result<Vec<u8>, PackError> {
        let mut index = vec![0; self.count * RECORD];
        file.read_exact_at(&mut index, self.index_at)?;
        if *blake3::hash(&index).as_bytes() != self.index_digest {
            return Err(PackError::Damaged("its index does not match its checksum"));
        }
        Ok(index)
    }

    /// Where the object `id` lies, if it is here.
    pub(super) fn find(&self, id: &Digest) -> Result<Option<Record>, PackError> {
        let bucket = bucket_of(id, self.bits);
        let first = bucket.checked_sub(1).map_or(0, |before| self.fan_out[before]) as usize;
        let range = first * RECORD..self.fan_out[bucket] as usize * RECORD;
        match &self.index {
            Some(index) => self.search(&index[range], id),
            None => {
                let mut bytes = vec![0; range.len()];
                let at = self.index_at + range.start as u64;
                self.with_file(|file| Ok(file.read_exact_at(&mut bytes, at)?))?;
                self.search(&bytes, id)
            }
        }
    }

    fn search(&self, records: &[u8], id: &Digest) -> Result<Option<Record>, PackError> {
        let (records, _) = records.as_chunks::<RECORD>();
        let found = records.binary_search_by(|record| record[..32].cmp(id.as_bytes()));
        found.ok().map(|at| self.record(&records[at])).transpose()
    }

    fn record(&self, bytes: &[u8; RECORD]) -> Result<Record, PackError> {
        let id = Digest::from_bytes(bytes[..32].try_into().expect("32 bytes"));
        let (offset, length) = (u64_at(bytes, 32), u32_at(bytes, 40));
        let kind = ObjectKind::ALL.get(usize::from(bytes[44])).copied();
        let inside = offset >= HEADER.len() as u64
            && offset.checked_add(length.into()).is_some_and(|end| end <= self.index_at);
        match kind {
            Some(kind) if inside && bytes[45..] == [0; 3] && u64::from(length) <= MAX_OBJECT => {
                Ok(Record { id, kind, offset, length })
            }
            Some(_) | None => Err(PackError::Damaged("its index points outside of its objects")),
        }
    }

    /// The verified bytes of an object that `find` or `records` told of.
    pub(super) fn read(&self, record: &Record) -> Result<Vec<u8>, PackError> {
        let mut bytes = vec![0; record.length as usize];
        self.with_file(|file| Ok(file.read_exact_at(&mut bytes, record.offset)?))?;
        if record.kind.id_of(&bytes) != record.id {
            return Err(PackError::Damaged("an object does not match its id"));
        }
        Ok(bytes)
    }

    /// Checks an object against its id, a large one piece by piece.
    fn check(&self, record: &Record) -> Result<(), PackError> {
        if record.kind != ObjectKind::Blob || record.length < LARGE {
            return self.read(record).map(|_| ());
        }
        io::copy(&mut self.stream(record)?, &mut io::sink()).map(|_| ()).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => PackError::Damaged("an object does not match its id"),
            _ => error.into(),
        })
    }

    /// Reads a blob piece by piece.
    pub(super) fn stream(&self, record: &Record) -> Result<ArtifactReader, PackError> {
        let file = self.with_file(|file| Ok(file.try_clone()?))?;
        Ok(ArtifactReader::new(file, record))
    }

    /// Every object's place, ascending by id, from an index that was checked.
    pub(super) fn records(&self) -> Result<Vec<Record>, PackError> {
        let loaded;
        let index = match &self.index {
            Some(index) => index,
            None => {
                loaded = self.with_file(|file| self.load_index(file))?;
                &loaded
            }
        };
        index.as_chunks::<RECORD>().0.iter().map(|record| self.record(record)).collect()
    }

    /// Checks everything: the whole file against its name, the index, each object; answers what is
    /// wrong, with the object where there is one.
    pub(super) fn verify(&self) -> Result<Vec<(Option<Record>, &'static str)>, io::Error> {
        let mut wrong = Vec::new();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(&self.path)?)?;
        if *hasher.finalize().as_bytes() != *self.id.digest.as_bytes() {
            wrong.push((None, "its contents do not match its name"));
        }
        let records = match self.records() {
            Ok(records) => records,
            Err(PackError::Io(error)) => return Err(error),
            Err(PackError::Damaged(detail)) => {
                wrong.push((None, detail));
                return Ok(wrong);
            }
        };
        if !records.is_sorted_by(|a, b| a.id < b.id) {
            wrong.push((None, "its index is not in order"));
        }
        for record in records {
            match self.check(&record) {
                Ok(()) => {}
                Err(PackError::Io(error)) => return Err(error),
                Err(PackError::Damaged(detail)) => wrong.push((Some(record), detail)),
            }
        }
        Ok(wrong)
    }
}
