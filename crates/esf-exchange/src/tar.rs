//! A root as a tar archive: ustar headers with pax records, in the order of the walk.
//! Invariant: equal roots give equal bytes (nothing of this machine or moment goes in). Sub-second
//! times, long and raw names, extended attributes and hard links are kept; holes are written out.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use esf_core::Digest;
use esf_core::manifest::{EntryKind, Objects, RootPin, WalkEntry, walk};
use serde::{Deserialize, Serialize};
use tar::{EntryType, Header};

use crate::identity::unprivileged_mode;
use crate::{Error, Files, readable};

const BLOCK: u64 = 512;
/// Largest size and id that the header's octal fields hold.
const SIZE_MAX: u64 = 0o77_777_777_777;
const ID_MAX: u64 = 0o7_777_777;

/// How a root is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keeps setuid and setgid bits of files and file capabilities, which otherwise stay behind.
    pub preserve_privilege: bool,
}

/// What an archive holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Entries, the top directory included.
    pub entries: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// Files whose setuid or setgid bits or capabilities stayed behind.
    pub privilege_dropped: u64,
}

/// Writes the root `pin` with the contents of `files` to `out`.
///
/// # Errors
/// Objects or contents that cannot be read or are not what the manifest says, or an output that
/// cannot be written.
pub fn write(
    objects: &dyn Objects,
    pin: &RootPin,
    files: &dyn Files,
    options: Options,
    out: &mut dyn Write,
) -> Result<Summary, Error> {
    let mut archive = Archive { out, options, links: HashMap::new(), summary: Summary::default() };
    for entry in walk(objects, pin) {
        archive.entry(entry?, files)?;
    }
    archive.end().map_err(Error::io("the archive"))?;
    Ok(archive.summary)
}

struct Archive<'a> {
    out: &'a mut dyn Write,
    options: Options,
    /// The path under which each hard-link group was written first.
    links: HashMap<Digest, Vec<u8>>,
    summary: Summary,
}

impl Archive<'_> {
    fn entry(&mut self, mut entry: WalkEntry, files: &dyn Files) -> Result<(), Error> {
        self.summary.entries += 1;
        if !self.options.preserve_privilege && drop_privilege(&mut entry) {
            self.summary.privilege_dropped += 1;
        }
        let first = entry.attrs.hard_link.and_then(|group| match self.links.get(&group) {
            Some(first) => Some(first.clone()),
            None => {
                self.links.insert(group, entry.path.clone());
                None
            }
        });
        self.head(&entry, first.as_deref()).map_err(Error::io("the archive"))?;
        match entry.kind {
            EntryKind::File { size, .. } if first.is_none() => self.content(&entry.path, size, files),
            _ => Ok(()),
        }
    }

    fn head(&mut self, entry: &WalkEntry, link_to: Option<&[u8]>) -> io::Result<()> {
        let name = archive_name(entry);
        let (kind, target, size): (_, &[u8], _) = match (&entry.kind, link_to) {
            (_, Some(first)) => (EntryType::Link, first, 0),
            (EntryKind::Directory { .. }, None) => (EntryType::Directory, b"", 0),
            (EntryKind::File { size, .. }, None) => (EntryType::Regular, b"", *size),
            (EntryKind::Symlink { target }, None) => (EntryType::Symlink, target, 0),
            (EntryKind::Fifo, None) => (EntryType::Fifo, b"", 0),
        };
        let time = entry.attrs.mtime.unwrap_or(esf_core::time::FileTime { seconds: 0, nanos: 0 });
        let mut records = Records::default();
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(entry.mode.bits());
        header.set_size(size);
        records.number("size", size, SIZE_MAX);
        header.set_uid(records.number("uid", entry.attrs.uid.into(), ID_MAX));
        header.set_gid(records.number("gid", entry.attrs.gid.into(), ID_MAX));
        let whole =
            u64::try_from(time.seconds).ok().filter(|&seconds| seconds <= SIZE_MAX && time.nanos == 0);
        header.set_mtime(whole.unwrap_or_default());
        if whole.is_none() {
            records.add(b"mtime", decimal_time(time).as_bytes());
        }
        let fields = header.as_ustar_mut().expect("made as ustar");
        records.text("path", &name, &mut fields.name);
        records.text("linkpath", target, &mut fields.linkname);
        for (xattr, value) in &entry.attrs.xattrs {
            records.add(&xattr_keyword(xattr), value);
        }
        header.set_cksum();
        self.records(records)?;
        self.out.write_all(header.as_bytes())
    }

    fn records(&mut self, records: Records) -> io::Result<()> {
        if records.body.is_empty() {
            return Ok(());
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o644);
        header.set_size(records.body.len() as u64);
        header.as_ustar_mut().expect("made as ustar").name[..9].copy_from_slice(b"PaxHeader");
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(&records.body)?;
        self.pad(records.body.len() as u64)
    }

    fn content(&mut self, path: &[u8], size: u64, files: &dyn Files) -> Result<(), Error> {
        let mut content = files.open(path)?.take(size + 1);
        let found = copy(&mut content, self.out, size).map_err(Error::io(readable(path)))?;
        if found != size {
            return Err(Error::WrongSize { path: readable(path), expected: size, found });
        }
        self.summary.bytes += size;
        self.pad(size).map_err(Error::io("the archive"))
    }

    fn pad(&mut self, written: u64) -> io::Result<()> {
        let rest = written.next_multiple_of(BLOCK) - written;
        self.out.write_all(&[0; BLOCK as usize][..rest as usize])
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK as usize])?;
        self.out.flush()
    }
}

/// Copies at most `size` bytes; answers how many there were, at most one more.
fn copy(content: &mut dyn Read, out: &mut dyn Write, size: u64) -> io::Result<u64> {
    let found = io::copy(&mut content.take(size), out)?;
    let mut more = [0];
    Ok(found + content.read(&mut more)? as u64)
}

fn drop_privilege(entry: &mut WalkEntry) -> bool {
    if entry.kind.is_directory() {
        return false;
    }
    let kept = unprivileged_mode(entry.mode, false);
    let capability = |name: &[u8]| name == b"security.capability";
    let privileged = kept != entry.mode || entry.attrs.xattrs.iter().any(|(name, _)| capability(name));
    entry.mode = kept;
    entry.attrs.xattrs.retain(|(name, _)| !capability(name));
    privileged
}

/// Directories end in a slash; the top directory is `./`.
fn archive_name(entry: &WalkEntry) -> Vec<u8> {
    match (entry.path.as_slice(), entry.kind.is_directory()) {
        (b"", _) => b"./".to_vec(),
        (path, true) => [path, b"/"].concat(),
        (path, false) => path.to_vec(),
    }
}

/// Seconds as a decimal; before 1970 the fraction counts backwards, as pax wants it.
fn decimal_time(time: esf_core::time::FileTime) -> String {
    match (time.seconds < 0, time.nanos) {
        (_, 0) => format!("{}", time.seconds),
        (false, nanos) => format!("{}.{nanos:09}", time.seconds),
        (true, nanos) => format!("-{}.{:09}", -(time.seconds + 1), 1_000_000_000 - nanos),
    }
}

/// The record's keyword as GNU tar and star know it; `=` and `%` are escaped.
fn xattr_keyword(name: &[u8]) -> Vec<u8> {
    let mut keyword = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'=' => keyword.extend_from_slice(b"%3D"),
            b'%' => keyword.extend_from_slice(b"%25"),
            byte => keyword.push(byte),
        }
    }
    keyword
}

/// Pax records that override a header's fields.
#[derive(Default)]
struct Records {
    body: Vec<u8>,
}

impl Records {
    /// Appends `LENGTH KEYWORD=VALUE\n`, where the length counts its own digits.
    fn add(&mut self, keyword: &[u8], value: &[u8]) {
        let rest = keyword.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        self.body.extend_from_slice(format!("{length} ").as_bytes());
        self.body.extend_from_slice(keyword);
        self.body.push(b'=');
        self.body.extend_from_slice(value);
        self.body.push(b'\n');
    }

    /// The number for the header's field; one that does not fit goes into a record.
    fn number(&mut self, keyword: &str, value: u64, most: u64) -> u64 {
        if value <= most {
            return value;
        }
        self.add(keyword.as_bytes(), value.to_string().as_bytes());
        0
    }

    /// Puts a name into the header's field; one that does not fit or is not ASCII into a record.
    fn text(&mut self, keyword: &str, value: &[u8], field: &mut [u8; 100]) {
        let fits = value.len().min(field.len());
        field[..fits].copy_from_slice(&value[..fits]);
        if value.len() > field.len() || !value.is_ascii() {
            self.add(keyword.as_bytes(), value);
        }
    }
}
