//! Where the output of commands goes: one bounded file for each stream (design section 5).
//! Invariants: the total is exact; memory is flat; a full disk or quota never stops the writer.
//! The file holds the first `head` bytes, and behind them a ring of the last `tail` bytes; so as
//! long as no more than the quota was written it is simply the output.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// How much of a stream is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes kept from the beginning.
    pub head: u64,
    /// Bytes kept from the end, once more than the quota was written.
    pub tail: u64,
}

impl Quota {
    /// The default: 1 GiB a stream, its last 64 MiB a ring.
    pub const DEFAULT: Self = Self { head: 960 << 20, tail: 64 << 20 };

    /// Bytes kept at most.
    pub const fn bytes(self) -> u64 {
        self.head + self.tail
    }

    fn place(self, offset: u64) -> u64 {
        if offset < self.head { offset } else { self.head + (offset - self.head) % self.tail }
    }

    /// How many bytes from `offset` on lie together in the file.
    fn run(self, offset: u64) -> u64 {
        if offset < self.head { self.head - offset } else { self.bytes() - self.place(offset) }
    }
}

/// What is known of a stream: how much was written, and how much of it can be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Exact number of bytes written.
    pub total: u64,
    /// Where storing stopped because the disk was full; null when it never did.
    pub stopped: Option<u64>,
    /// The quota in force.
    pub quota: Quota,
}

impl Extent {
    /// The next range of stored bytes at or after `offset`: `(start, end)`, or nothing.
    pub fn next(&self, offset: u64) -> Option<(u64, u64)> {
        let end = self.stopped.unwrap_or(self.total).min(self.total);
        if end <= self.quota.bytes() {
            return (offset < end).then_some((offset, end));
        }
        if offset < self.quota.head {
            return Some((offset, self.quota.head));
        }
        let start = offset.max(end - self.quota.tail);
        (start < end).then_some((start, end))
    }
}

/// The writing end of a stream's file.
#[derive(Debug)]
pub struct Spool {
    file: File,
    extent: Extent,
}

impl Spool {
    /// Makes the file, which must not exist.
    ///
    /// # Errors
    /// The file system's own.
    pub fn create(path: &Path, quota: Quota) -> io::Result<Self> {
        assert!(quota.tail > 0, "a ring has at least one byte");
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self { file, extent: Extent { total: 0, stopped: None, quota } })
    }

    /// Takes `bytes`; when they cannot be stored they are counted.
    pub fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Extent { total, stopped, quota } = self.extent;
            let run = usize::try_from(quota.run(total)).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(run);
            if stopped.is_none() && self.file.write_all_at(now, quota.place(total)).is_err() {
                self.extent.stopped = Some(total);
            }
            self.extent.total += now.len() as u64;
            bytes = later;
        }
    }

    /// What was written so far.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Makes what is stored durable.
    ///
    /// # Errors
    /// The file system's own.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The reading end.
#[derive(Debug)]
pub struct SpoolReader {
    file: File,
}

impl SpoolReader {
    /// Opens a stream's file.
    ///
    /// # Errors
    /// The file system's own.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)? })
    }

    /// The extent of a stream whose writer left no note of it: the file itself tells as long as the
    /// ring was not reached; beyond that only the head is certain.
    ///
    /// # Errors
    /// The file system's own.
    pub fn observed(&self, quota: Quota) -> io::Result<Extent> {
        let length = self.file.metadata()?.len();
        let total = if length < quota.bytes() { length } else { quota.head };
        Ok(Extent { total, stopped: None, quota })
    }

    /// Reads stored bytes at `offset` into `buffer`; 0 when none are stored there.
    ///
    /// # Errors
    /// The file system's own.
    pub fn read(&self, extent: &Extent, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some((start, end)) = extent.next(offset) else { return Ok(0) };
        if start > offset {
            return Ok(0);
        }
        let length = (end - offset).min(extent.quota.run(offset)).min(buffer.len() as u64);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.file.read_at(&mut buffer[..length], extent.quota.place(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Quota = Quota { head: 10, tail: 4 };

    /// Everything that can be read again, as (offset, bytes).
    fn stored(path: &Path, extent: Extent, step: usize) -> Vec<(u64, Vec<u8>)> {
        let reader = SpoolReader::open(path).expect("opens");
        let (mut pieces, mut at) = (Vec::<(u64, Vec<u8>)>::new(), 0);
        while let Some((start, _)) = extent.next(at) {
            let mut buffer = vec![0; step];
            let read = reader.read(&extent, start, &mut buffer).expect("reads");
            assert!(read > 0, "a stored range can be read");
            buffer.truncate(read);
            match pieces.last_mut() {
                Some((offset, bytes)) if *offset + bytes.len() as u64 == start => bytes.extend(buffer),
                _ => pieces.push((start, buffer)),
            }
            at = start + read as u64;
        }
        pieces
    }

    #[test]
    fn head_and_tail_are_kept_and_the_total_is_exact() {
        let directory = tempfile::tempdir().expect("tempdir");
        for total in 0..40_usize {
            for chunk in [1, 3, 7, 64] {
                let path = directory.path().join(format!("{total}-{chunk}"));
                let all: Vec<u8> = (0..total).map(|n| n as u8).collect();
                let mut spool = Spool::create(&path, SMALL).expect("creates");
                all.chunks(chunk).for_each(|piece| spool.append(piece));
                assert_eq!(spool.extent().total, total as u64);
                let expected = match total {
                    0 => vec![],
                    1..=14 => vec![(0, all.clone())],
                    _ => vec![(0, all[..10].to_vec()), (total as u64 - 4, all[total - 4..].to_vec())],
                };
                assert_eq!(stored(&path, spool.extent(), 3), expected, "{total} by {chunk}");
                assert!(path.metadata().expect("exists").len() <= SMALL.bytes());
            }
        }
    }

    #[test]
    fn a_stream_without_a_note_shows_its_certain_part() {
        let directory = tempfile::tempdir().expect("tempdir");
        for (total, seen) in [(5, 5), (13, 13), (14, 10), (30, 10)] {
            let path = directory.path().join(total.to_string());
            Spool::create(&path, SMALL).expect("creates").append(&vec![7; total]);
            let reader = SpoolReader::open(&path).expect("opens");
            assert_eq!(reader.observed(SMALL).expect("stat").total, seen);
        }
    }

    #[test]
    fn a_full_disk_is_counted_and_never_stops_the_writer() {
        let Ok(file) = File::options().write(true).open("/dev/full") else { return };
        let extent = Extent { total: 0, stopped: None, quota: SMALL };
        let mut spool = Spool { file, extent };
        spool.append(&[1; 100]);
        assert_eq!(spool.extent().total, 100);
        assert_eq!(spool.extent().stopped, Some(0));
        assert_eq!(spool.extent().next(0), None);
    }
}
