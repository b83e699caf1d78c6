//! Entries of `Tree` and `Attrs` objects as values, with the rules that make them canonical.
//! Invariant: `check` accepts exactly what the encoding may hold; encoder and decoder both ask it.
//! `docs/on-disk-format.md` sections 2.1 and 2.2.

use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::wire::{Reader, put_bytes, put_digest, put_varint, put_zigzag};
use super::{DecodeError, ObjectKind};
use crate::time::FileTime;
use crate::{AttrsId, BlobId, Digest, Name, TreeId};

/// Longest symlink target in bytes.
pub const MAX_TARGET: usize = 4095;
/// Most bytes that the names and values of one entry's extended attributes have together.
pub const MAX_XATTRS: usize = 65_535;

static EMPTY_BLOB: LazyLock<BlobId> = LazyLock::new(|| BlobId::of(b""));

/// Permission bits, setuid, setgid and sticky: at most `07777`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mode(u16);

impl Mode {
    /// The mode that every symlink has.
    pub const SYMLINK: Self = Self(0o777);

    /// Wraps `bits`, or answers none when there are others than `07777`.
    pub const fn new(bits: u32) -> Option<Self> {
        if bits > 0o7777 { None } else { Some(Self(bits as u16)) }
    }

    /// The permission bits of a `st_mode`, without its file type.
    pub const fn of_stat(st_mode: u32) -> Self {
        Self((st_mode & 0o7777) as u16)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Mode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let bits = u32::from_str_radix(&text, 8).ok().and_then(Self::new);
        bits.ok_or_else(|| serde::de::Error::custom("expected octal permission bits, at most 07777"))
    }
}

/// What an entry is, with what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A directory and its `Tree`.
    Directory {
        /// The directory's entries.
        tree: TreeId,
    },
    /// A regular file.
    File {
        /// Logical size in bytes; holes count.
        size: u64,
        /// Its bytes.
        blob: BlobId,
    },
    /// A symbolic link.
    Symlink {
        /// The target's bytes, verbatim, never followed.
        target: Box<[u8]>,
    },
    /// A named pipe.
    Fifo,
}

impl EntryKind {
    /// The kind as one word: `directory`, `file`, `symlink` or `fifo`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Directory { .. } => "directory",
            Self::File { .. } => "file",
            Self::Symlink { .. } => "symlink",
            Self::Fifo => "fifo",
        }
    }

    /// Whether this is a directory.
    pub const fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    /// The digest of what the entry holds: of its tree, its bytes or its target; none for a fifo.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Directory { tree } => Some(*tree.digest()),
            Self::File { blob, .. } => Some(*blob.digest()),
            Self::Symlink { target } => Some(Digest::of(target)),
            Self::Fifo => None,
        }
    }
}

/// One entry of a `Tree`: the portable identity of what has this name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its name in the directory.
    pub name: Name,
    /// Its permission bits.
    pub mode: Mode,
    /// What it is.
    pub kind: EntryKind,
}

/// Extended attributes: name and value.
pub type Xattrs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// The fidelity of one entry beyond its identity; all default means nothing is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attrs {
    /// Time of last modification; none when unknown.
    pub mtime: Option<FileTime>,
    /// Owner, as the image numbers users.
    pub uid: u32,
    /// Group, as the image numbers groups.
    pub gid: u32,
    /// Extended attributes (name, value), strictly ascending by name.
    pub xattrs: Xattrs,
    /// The hard-link group: `hard_link_group` of its smallest path; never on a directory.
    pub hard_link: Option<Digest>,
    /// The `Attrs` of this directory's entries; none when they are all default.
    pub children: Option<AttrsId>,
}

/// One entry of an `Attrs` object: the attributes of what has this name in the `Tree` beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttrsEntry {
    /// Its name in the directory.
    pub name: Name,
    /// Its attributes, not all default.
    pub attrs: Attrs,
}

/// The name of the hard-link group whose smallest path within the root is `path`.
pub fn hard_link_group(path: &[u8]) -> Digest {
    Digest::in_context("esf hard link v1", path)
}

/// Whether a root may hold an extended attribute of this name: `user.*` without the marks of overlays
/// and of portable carriers (`user.overlay.*`, `user.esf.*`), file capabilities and POSIX ACLs.
pub fn is_portable_xattr(name: &[u8]) -> bool {
    const EXACT: [&[u8]; 3] =
        [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];
    let user = name.strip_prefix(b"user.").is_some_and(|rest| !rest.is_empty());
    let mark = name.starts_with(b"user.overlay.") || name.starts_with(b"user.esf.");
    let named = user && !mark || EXACT.contains(&name);
    named && name.len() <= 255 && !name.contains(&0)
}

/// Brings a `security.capability` value to revision 2, the only form a root holds; none when it is
/// no capability value of revision 2 or 3. The namespace owner of revision 3 is dropped.
pub fn portable_capability(value: &[u8]) -> Option<[u8; 20]> {
    let revision = value.get(3)?;
    if !matches!((revision, value.len()), (2, 20) | (3, 24)) {
        return None;
    }
    let mut portable: [u8; 20] = value[..20].try_into().expect("length was checked");
    portable[3] = 2;
    Some(portable)
}

/// What a directory object lists: `Entry` or `AttrsEntry`.
pub(super) trait Item: Sized + Clone + PartialEq {
    const DIRECTORY: ObjectKind;
    const PAGE: ObjectKind;
    /// Fewest bytes of an encoded item.
    const LEAST: usize;
    /// Fewest items of a directory object.
    const FEWEST: usize;
    fn name(&self) -> &Name;
    /// Says what a canonical item would have had instead.
    fn check(&self) -> Result<(), &'static str>;
    fn write(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl Item for Entry {
    const DIRECTORY: ObjectKind = ObjectKind::Tree;
    const PAGE: ObjectKind = ObjectKind::TreePage;
    const LEAST: usize = 4;
    const FEWEST: usize = 0;

    fn name(&self) -> &Name {
        &self.name
    }

    fn check(&self) -> Result<(), &'static str> {
        match &self.kind {
            EntryKind::File { size, .. } if i64::try_from(*size).is_err() => Err("a size below 2^63"),
            EntryKind::File { size, blob } if (*size == 0) != (*blob == *EMPTY_BLOB) => {
                Err("size 0 exactly with the digest of no bytes")
            }
            EntryKind::Symlink { .. } if self.mode != Mode::SYMLINK => Err("mode 0777 for a symlink"),
            EntryKind::Symlink { target }
                if !(1..=MAX_TARGET).contains(&target.len()) || target.contains(&0) =>
            {
                Err("a symlink target of 1 to 4095 bytes without NUL")
            }
            EntryKind::Directory { .. }
            | EntryKind::File { .. }
            | EntryKind::Symlink { .. }
            | EntryKind::Fifo => Ok(()),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        out.push(match self.kind {
            EntryKind::Directory { .. } => 0,
            EntryKind::File { .. } => 1,
            EntryKind::Symlink { .. } => 2,
            EntryKind::Fifo => 3,
        });
        put_varint(out, self.mode.bits().into());
        match &self.kind {
            EntryKind::Directory { tree } => put_digest(out, tree.digest()),
            EntryKind::File { size, blob } => {
                put_varint(out, *size);
                put_digest(out, blob.digest());
            }
            EntryKind::Symlink { target } => put_bytes(out, target),
            EntryKind::Fifo => {}
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = reader.name()?;
        let kind = reader.byte()?;
        let mode = read_mode(reader)?;
        let kind = match kind {
            0 => EntryKind::Directory { tree: TreeId::new(reader.digest()?) },
            1 => EntryKind::File { size: reader.varint()?, blob: BlobId::new(reader.digest()?) },
            2 => EntryKind::Symlink { target: reader.bytes()?.into() },
            3 => EntryKind::Fifo,
            _ => return Err(reader.refuse("an entry kind from 0 to 3")),
        };
        let entry = Self { name, mode, kind };
        reader.require(entry.check())?;
        Ok(entry)
    }
}

pub(super) fn read_mode(reader: &mut Reader<'_>) -> Result<Mode, DecodeError> {
    let bits = reader.varint32()?;
    Mode::new(bits).ok_or_else(|| reader.refuse("permission bits, at most 07777"))
}

const MTIME: u8 = 1;
const OWNER: u8 = 2;
const XATTRS: u8 = 4;
const HARD_LINK: u8 = 8;
const CHILDREN: u8 = 16;
const FLAGS: u8 = 31;

impl Attrs {
    /// Whether nothing need be stored.
    pub fn is_default(&self) -> bool {
        self.flags() == 0
    }

    /// The same without what is not the entry's own: the attributes of its children.
    pub fn own(&self) -> Self {
        Self { children: None, ..self.clone() }
    }

    fn flags(&self) -> u8 {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        flag(self.mtime.is_some(), MTIME)
            | flag((self.uid, self.gid) != (0, 0), OWNER)
            | flag(!self.xattrs.is_empty(), XATTRS)
            | flag(self.hard_link.is_some(), HARD_LINK)
            | flag(self.children.is_some(), CHILDREN)
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.mtime.is_some_and(|time| time.nanos >= 1_000_000_000) {
            return Err("nanoseconds below 10^9");
        }
        if self.uid == u32::MAX || self.gid == u32::MAX {
            return Err("an owner below 2^32 - 1");
        }
        if !self.xattrs.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("extended attributes strictly ascending by name");
        }
        for (name, value) in &self.xattrs {
            if !is_portable_xattr(name) {
                return Err("an extended attribute of user.*, security.capability or system.posix_acl_*");
            }
            let capability = **name == *b"security.capability";
            if capability && portable_capability(value).is_none_or(|portable| portable != **value) {
                return Err("file capabilities of revision 2");
            }
        }
        if self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_XATTRS {
            return Err("at most 65535 bytes of extended attributes");
        }
        if self.hard_link.is_some() && self.children.is_some() {
            return Err("a hard link or children, not both");
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.flags());
        if let Some(time) = self.mtime {
            put_zigzag(out, time.seconds);
            put_varint(out, time.nanos.into());
        }
        if (self.uid, self.gid) != (0, 0) {
            put_varint(out, self.uid.into());
            put_varint(out, self.gid.into());
        }
        if !self.xattrs.is_empty() {
            put_varint(out, self.xattrs.len() as u64);
        }
        for (name, value) in &self.xattrs {
            put_bytes(out, name);
            put_bytes(out, value);
        }
        if let Some(group) = &self.hard_link {
            put_digest(out, group);
        }
        if let Some(children) = &self.children {
            put_digest(out, children.digest());
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = reader.byte()?;
        let mut attrs = Self::default();
        if flags & MTIME != 0 {
            attrs.mtime = Some(FileTime { seconds: reader.zigzag()?, nanos: reader.varint32()? });
        }
        if flags & OWNER != 0 {
            (attrs.uid, attrs.gid) = (reader.varint32()?, reader.varint32()?);
        }
        if flags & XATTRS != 0 {
            for _ in 0..reader.count(3)? {
                attrs.xattrs.push((reader.bytes()?.into(), reader.bytes()?.into()));
            }
        }
        if flags & HARD_LINK != 0 {
            attrs.hard_link = Some(reader.digest()?);
        }
        if flags & CHILDREN != 0 {
            attrs.children = Some(AttrsId::new(reader.digest()?));
        }
        if flags & !FLAGS != 0 || attrs.flags() != flags {
            return Err(reader.refuse("flags that name exactly what is not default"));
        }
        reader.require(attrs.check())?;
        Ok(attrs)
    }
}

impl Item for AttrsEntry {
    const DIRECTORY: ObjectKind = ObjectKind::Attrs;
    const PAGE: ObjectKind = ObjectKind::AttrsPage;
    const LEAST: usize = 5;
    const FEWEST: usize = 1;

    fn name(&self) -> &Name {
        &self.name
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.attrs.is_default() {
            return Err("attributes that are not all default");
        }
        self.attrs.check()
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        self.attrs.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let entry = Self { name: reader.name()?, attrs: Attrs::read(reader)? };
        reader.require(entry.check())?;
        Ok(entry)
    }
}
