//! A tar archive into an empty directory: a parser of hostile input (security notes 2D).
//! Invariant: nothing outside the directory is read or changed, whatever the archive says: every
//! entry is made relative to an open parent that was reached without a symlink, nothing is ever
//! replaced, and headers, entries, bytes, depth and memory are bounded. What a root cannot hold is
//! refused by name.

mod header;
pub(crate) mod place;

use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use esf_core::manifest::{is_portable_xattr, portable_capability};
use esf_layerstack::{Form, Records};
use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType};

use crate::{Error, LeftOut, readable};
use header::{Head, Xattrs};
use place::Place;

/// Upper bounds of what an archive may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries, those for long names and attributes not counted.
    pub entries: u64,
    /// Bytes of contents in all.
    pub bytes: u64,
}

impl Default for Limits {
    /// Ten million entries, one terabyte.
    fn default() -> Self {
        Self { entries: 10_000_000, bytes: 1 << 40 }
    }
}

/// What was unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Entries of the archive.
    pub entries: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// Extended attributes that no root holds, and special files if they may be skipped.
    pub left_out: Vec<LeftOut>,
}

/// An archive that was unpacked.
#[derive(Debug, Default)]
pub struct Unpacked {
    /// What was unpacked.
    pub summary: Summary,
    /// What symlinks and fifos could not carry in portable form; nothing in native form.
    pub records: Records,
}

/// Unpacks `input` into the empty directory `top`, in `form`: native is what the archive says, as far
/// as this process may set it; portable is all of it, for an import to read back. With `skip_special`, devices are left out by name
/// instead of refused. On an error what was unpacked so far stays: the caller discards it.
///
/// # Errors
/// `Archive` with the entry and what is wrong with it; `Io` for this machine's own failures.
pub fn unpack(
    input: &mut dyn Read,
    top: &OwnedFd,
    form: Form,
    limits: Limits,
    skip_special: bool,
) -> Result<Unpacked, Error> {
    let mut archive = Archive::new(input);
    let mut unpacking = Unpacking {
        place: Place::new(top, form),
        limits,
        skip_special,
        files: HashSet::new(),
        summary: Summary::default(),
    };
    let mut pending = Head::default();
    let entries = archive.entries().map_err(broken)?;
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(broken)?;
        match entry.header().entry_type() {
            EntryType::XHeader => pending.read_pax(&mut entry)?,
            EntryType::GNULongName => pending.read_long_name(&mut entry)?,
            EntryType::GNULongLink => pending.read_long_link(&mut entry)?,
            EntryType::XGlobalHeader => header::skip_global(&mut entry)?,
            _ => {
                let head = std::mem::take(&mut pending).complete(entry.header())?;
                unpacking.entry(&head, &mut entry)?;
            }
        }
    }
    let records = unpacking.place.finish()?;
    Ok(Unpacked { summary: unpacking.summary, records })
}

fn broken(error: io::Error) -> Error {
    Error::Archive { entry: String::new(), what: format!("it cannot be read: {error}") }
}

pub(crate) fn refused(path: &[u8], what: impl Into<String>) -> Error {
    Error::Archive { entry: readable(path), what: what.into() }
}

struct Unpacking<'a> {
    place: Place<'a>,
    limits: Limits,
    skip_special: bool,
    /// The regular files so far: what a hard link may name.
    files: HashSet<Vec<u8>>,
    summary: Summary,
}

impl Unpacking<'_> {
    fn entry(&mut self, head: &header::Complete, data: &mut dyn Read) -> Result<(), Error> {
        self.summary.entries += 1;
        if self.summary.entries > self.limits.entries {
            return Err(refused(&head.path, format!("entry number {} is too many", self.summary.entries)));
        }
        let path = place::clean(&head.path)?;
        let attrs = place::Attrs {
            mode: head.mode,
            uid: head.uid,
            gid: head.gid,
            mtime: head.mtime,
            xattrs: self.xattrs(head, &path)?,
        };
        match head.kind {
            EntryType::Directory => self.place.directory(&path, attrs),
            // An old archive marks a directory by a slash alone.
            EntryType::Regular if head.path.ends_with(b"/") && head.size == 0 => {
                self.place.directory(&path, attrs)
            }
            EntryType::Regular if head.path.ends_with(b"/") => {
                Err(refused(&path, "a directory with contents"))
            }
            EntryType::Regular | EntryType::Continuous => {
                self.summary.bytes = self.summary.bytes.saturating_add(head.size);
                if self.summary.bytes > self.limits.bytes {
                    return Err(refused(&path, format!("more than {} bytes in all", self.limits.bytes)));
                }
                self.place.file(&path, attrs, head.size, data)?;
                self.files.insert(path);
                Ok(())
            }
            EntryType::Link => {
                let target = place::clean(&head.link)?;
                if !self.files.contains(&target) {
                    return Err(refused(
                        &path,
                        format!("a hard link to {:?}, which is no earlier file", readable(&target)),
                    ));
                }
                self.place.link(&path, &target)?;
                self.files.insert(path);
                Ok(())
            }
            EntryType::Symlink => self.place.symlink(&path, attrs, &head.link),
            EntryType::Fifo => self.place.fifo(&path, attrs),
            EntryType::Char | EntryType::Block if self.skip_special => {
                self.summary.left_out.push(LeftOut::new(&path, "a device"));
                Ok(())
            }
            EntryType::Char | EntryType::Block => Err(refused(&path, "a device, which no root holds")),
            other => Err(refused(
                &path,
                format!("an entry of type {:?}, which this build does not read", other.as_byte() as char),
            )),
        }
    }

    /// The attributes that a root holds; overlay's own are an attack, others are left out by name.
    fn xattrs(&mut self, head: &header::Complete, path: &[u8]) -> Result<Xattrs, Error> {
        let mut kept = Vec::new();
        for (name, value) in &head.xattrs {
            let marks: [&[u8]; 3] = [b"trusted.overlay.", b"user.overlay.", b"user.esf."];
            if marks.iter().any(|mark| name.starts_with(mark)) {
                return Err(refused(path, format!("the attribute {} of an overlay", readable(name))));
            }
            let value = match name.as_slice() {
                b"security.capability" => portable_capability(value).map(|value| value.to_vec()),
                name if is_portable_xattr(name) => Some(value.clone()),
                _ => None,
            };
            match value {
                Some(value) => kept.push((name.clone(), value)),
                None => self
                    .summary
                    .left_out
                    .push(LeftOut::new(path, &format!("the attribute {}", readable(name)))),
            }
        }
        Ok(kept)
    }
}
