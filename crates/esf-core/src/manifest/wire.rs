//! Canonical primitives of the object encoding: minimal varints, lengths, digests.
//! Invariant: every value has one encoding, and a reader refuses all others; no read allocates
//! more than the input could hold. `docs/on-disk-format.md` section 1.

use super::{DecodeError, ObjectKind};
use crate::{Digest, Name};

/// Version of every object encoding.
const VERSION: u8 = 1;

/// Begins an object of `kind`: magic, letter, version.
pub(super) fn begin(kind: ObjectKind) -> Vec<u8> {
    vec![b'E', b'S', b'F', kind.letter(), VERSION]
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_digest(out: &mut Vec<u8>, digest: &Digest) {
    out.extend_from_slice(digest.as_bytes());
}

/// Reads one object's bytes front to back.
pub(super) struct Reader<'a> {
    kind: ObjectKind,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Checks the header of an object of `kind` and stands behind it.
    pub(super) fn open(kind: ObjectKind, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Self { kind, bytes, at: 0 };
        if bytes.len() as u64 > super::MAX_OBJECT {
            return Err(reader.refuse("at most 256 MiB"));
        }
        if reader.take(4)? != [b'E', b'S', b'F', kind.letter()] {
            return Err(reader.refuse("the magic of its kind"));
        }
        if reader.byte()? != VERSION {
            return Err(reader.refuse("version 1"));
        }
        Ok(reader)
    }

    /// The refusal of what was just read.
    pub(super) fn refuse(&self, expected: &'static str) -> DecodeError {
        DecodeError { kind: self.kind, offset: self.at, expected }
    }

    /// Refuses with what a check expected.
    pub(super) fn require(&self, check: Result<(), &'static str>) -> Result<(), DecodeError> {
        check.map_err(|expected| self.refuse(expected))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or_else(|| self.refuse("more bytes"))?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.byte()?;
            // The tenth byte holds the last bit of 64; a last byte of zero could have been left out.
            if shift == 63 && byte > 1 || shift > 0 && byte == 0 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.refuse("a minimal varint of at most 64 bits"))
    }

    pub(super) fn zigzag(&mut self) -> Result<i64, DecodeError> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// Reads a varint that fits 32 bits.
    pub(super) fn varint32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| self.refuse("a number below 2^32"))
    }

    /// Reads a count of things of at least `least` bytes each, bounded by the bytes that remain.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        let room = (self.bytes.len() - self.at) / least;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= room)
            .ok_or_else(|| self.refuse("a count that the remaining bytes can hold"))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.count(1)?;
        self.take(length)
    }

    pub(super) fn digest(&mut self) -> Result<Digest, DecodeError> {
        let bytes: [u8; 32] = self.take(32)?.try_into().expect("took 32 bytes");
        Ok(Digest::from_bytes(bytes))
    }

    pub(super) fn name(&mut self) -> Result<Name, DecodeError> {
        Name::new(self.bytes()?).map_err(|_| self.refuse("a name of a directory entry"))
    }

    /// Ends the object: nothing may follow.
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.refuse("the end of the object")) }
    }
}
