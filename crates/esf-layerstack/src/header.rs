//! The store header `esf.store`: what says that a directory is a store, and of which version.
//! Invariant: it is written last and by rename, so a directory with a header is a whole store; its
//! 72 bytes keep their layout in every later version, so damage and newness are told apart.
//! `docs/on-disk-format.md`, section "Store header".

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use esf_core::StoreId;

use crate::Error;
use crate::disk::{self, Boundary};
use crate::error::Context;

/// The header's file name.
pub const NAME: &str = "esf.store";
const MAGIC: &[u8; 8] = b"ESFSTORE";
const CONTEXT: &str = "esf store header v1";
const LENGTH: usize = 72;
/// The newest format version that this build reads, and the one it writes.
pub const FORMAT_VERSION: u32 = 1;
/// The feature flags that this build understands.
pub(crate) const FEATURES: u64 = 0;

/// What a store header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) features: u64,
    pub(crate) store: StoreId,
}

impl Header {
    pub(crate) fn new(store: StoreId) -> Self {
        Self { version: FORMAT_VERSION, features: FEATURES, store }
    }

    pub(crate) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.features.to_le_bytes());
        bytes[24..40].copy_from_slice(self.store.as_bytes());
        let checksum = blake3::derive_key(CONTEXT, &bytes[..40]);
        bytes[40..].copy_from_slice(&checksum);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = |what: &str| Error::StoreDamaged { part: "header", what: what.to_owned() };
        let bytes: &[u8; LENGTH] = bytes.try_into().map_err(|_| damaged("expected 72 bytes"))?;
        if &bytes[..8] != MAGIC {
            return Err(damaged("it does not begin with ESFSTORE"));
        }
        if blake3::derive_key(CONTEXT, &bytes[..40]) != bytes[40..] {
            return Err(damaged("its checksum does not match"));
        }
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let header = Self {
            version: number(8),
            features: u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes")),
            store: StoreId::from_bytes(bytes[24..40].try_into().expect("sixteen bytes")),
        };
        header.check(number(12))
    }

    fn check(self, reserved: u32) -> Result<Self, Error> {
        if self.version > FORMAT_VERSION {
            let (found, supported) = (self.version.into(), FORMAT_VERSION.into());
            return Err(Error::StoreNewer { what: "format version", found, supported });
        }
        if self.features & !FEATURES != 0 {
            let (found, supported) = (self.features, FEATURES);
            return Err(Error::StoreNewer { what: "feature flags", found, supported });
        }
        if self.version == 0 || reserved != 0 {
            return Err(Error::StoreDamaged { part: "header", what: "no build writes these numbers".into() });
        }
        Ok(self)
    }

    /// Reads the header of the store at `dir`, or none when there is no header.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(NAME);
        let options = File::options().read(true).custom_flags(libc_nofollow()).to_owned();
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).on("open", &path),
        };
        let mut bytes = Vec::new();
        file.take(LENGTH as u64 + 1).read_to_end(&mut bytes).on("read", &path)?;
        Self::decode(&bytes).map(Some)
    }

    /// Writes the header of a new store durably; the last step of its creation.
    pub(crate) fn write(&self, top: &OwnedFd, dir: &Path) -> Result<(), Error> {
        let temporary = dir.join("esf.store.new");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .on("create", &temporary)?;
        file.write_all(&self.encode()).on("write", &temporary)?;
        disk::fsync(&file, Boundary::HeaderSync).on("sync", &temporary)?;
        disk::rename(top.as_fd(), "esf.store.new", top.as_fd(), NAME, Boundary::HeaderRename)
            .on("rename", &temporary)?;
        disk::fsync(top, Boundary::HeaderDirectorySync).on("sync", dir)
    }
}

fn libc_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_damage_and_newer_stores_are_refused_as_newer() {
        let header = Header::new(StoreId::from_bytes([7; 16]));
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes).expect("valid"), header);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Header::decode(&flipped), Err(Error::StoreDamaged { .. })), "bit {bit}");
        }
        assert!(matches!(Header::decode(&bytes[..71]), Err(Error::StoreDamaged { .. })));
        for newer in [Header { version: 2, ..header }, Header { features: 1 << 40, ..header }] {
            let problem = Header::decode(&newer.encode()).expect_err("newer").problem();
            assert_eq!(problem.code, "store_newer");
        }
    }
}
