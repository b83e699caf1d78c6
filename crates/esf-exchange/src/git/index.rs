//! The index of a fresh clone, written without looking at a file: times and sizes are those that the
//! import gave. Version 2, as `Documentation/gitformat-index` describes it.

use std::io::{self, Write};

use sha1::{Digest as _, Sha1};

use super::ObjectFormat;

/// One entry.
pub(super) struct Entry<'a> {
    pub(super) path: &'a [u8],
    pub(super) mode: u32,
    /// Hexadecimal.
    pub(super) id: &'a [u8],
    pub(super) size: u64,
    /// Seconds of its modification time.
    pub(super) seconds: u32,
}

/// Longest length of a path that the flags hold; longer ones end at their zero byte.
const NAME_MASK: usize = 0xfff;

/// Appends `entry` to the body of an index; entries come in ascending order of their paths.
pub(super) fn append(out: &mut dyn Write, entry: &Entry<'_>) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(80 + entry.path.len());
    let size = u32::try_from(entry.size & u64::from(u32::MAX)).expect("masked to 32 bits");
    // ctime, mtime, device, inode, mode, uid, gid, size; seconds and nanoseconds of each time.
    for field in [0, 0, entry.seconds, 0, 0, 0, entry.mode, 0, 0, size] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    bytes.extend(entry.id.chunks(2).map(|pair| hex_value(pair[0]) << 4 | hex_value(pair[1])));
    let flags = u16::try_from(entry.path.len().min(NAME_MASK)).expect("masked to 12 bits");
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(entry.path);
    // One to eight zero bytes, to a multiple of eight.
    bytes.resize(bytes.len() + 8 - bytes.len() % 8, 0);
    out.write_all(&bytes)
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// The header of an index with `count` entries.
pub(super) fn header(count: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(b"DIRC");
    bytes[4..8].copy_from_slice(&2_u32.to_be_bytes());
    bytes[8..].copy_from_slice(&count.to_be_bytes());
    bytes
}

/// What ends an index: its SHA-1, or zeros, which say that it was not computed.
pub(super) struct Trailer {
    format: ObjectFormat,
    hasher: Sha1,
}

impl Trailer {
    pub(super) fn new(format: ObjectFormat) -> Self {
        Self { format, hasher: Sha1::new() }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        match self.format {
            ObjectFormat::Sha1 => self.hasher.finalize().to_vec(),
            ObjectFormat::Sha256 => vec![0; 32],
        }
    }
}
