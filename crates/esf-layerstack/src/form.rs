//! The two forms that carriers and uppers have on disk (design section 3). *Native* is overlayfs' own
//! and needs root; *portable* is what a process without root can write: everything belongs to the
//! store's user, who can read and write all of it, and what the disk cannot say is in `user.esf.*`.
//! Invariant: whoever reads or writes a carrier does so by its form; marks of one form mean nothing in
//! the other. `docs/on-disk-format.md`, section "Portable form".

use std::io;
use std::os::fd::AsFd;

use esf_core::manifest::{Attrs, Mode, Object, ObjectKind, Xattrs};
use esf_core::time::FileTime;
use rustix::fs::{AtFlags, FileType, Gid, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use crate::attributes::Portable;
use crate::handle;
use crate::upper::Unopened;

/// What begins the names of our own marks: never part of a root.
pub(crate) const OURS: &[u8] = b"user.esf.";
/// The portable mark that holds what the disk cannot say of a file or directory.
pub(crate) const RECORDED: &[u8] = b"user.esf.attrs";
/// Most bytes of an extended attribute's value that Linux takes.
const MAX_VALUE: usize = 1 << 16;

/// How a carrier or an upper says what the disk of an ordinary user cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// As overlayfs has it: owners, modes and attributes are the image's own. Takes root.
    #[default]
    Native,
    /// As any user can write it: see `docs/on-disk-format.md`, section "Portable form".
    Portable,
}

/// What the disk cannot say of an entry in portable form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) mode: Mode,
    pub(crate) owner: (u32, u32),
    /// The extended attributes that are not `user.*`, ascending by name.
    pub(crate) xattrs: Portable,
}

impl Recorded {
    /// The little-endian mode, then owner and attributes as an `Attrs` root object has them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (uid, gid) = self.owner;
        let attrs = Attrs { uid, gid, xattrs: self.xattrs.clone(), ..Attrs::default() };
        let mode = (self.mode.bits() as u16).to_le_bytes();
        [&mode[..], &Object::AttrsRoot(attrs).encode()].concat()
    }

    /// Reads what `encode` writes; none for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (mode, attrs) = bytes.split_at_checked(2)?;
        let mode = Mode::new(u16::from_le_bytes(mode.try_into().expect("two bytes")).into())?;
        let Ok(Object::AttrsRoot(attrs)) = Object::decode(ObjectKind::AttrsRoot, attrs) else { return None };
        let Attrs { mtime, uid, gid, xattrs, hard_link, children } = attrs;
        let elsewhere = mtime.is_some() || hard_link.is_some() || children.is_some();
        let on_disk = xattrs.iter().any(|(name, _)| name.starts_with(b"user."));
        (!elsewhere && !on_disk).then_some(Self { mode, owner: (uid, gid), xattrs })
    }

    /// What an entry without a record is, by its status: root's, with the permissions of the disk.
    pub(crate) fn absent(stat: &Stat) -> Self {
        Self { mode: Mode::of_stat(stat.st_mode & 0o777), owner: (0, 0), xattrs: Portable::new() }
    }

    /// Whether an entry that gets `disk` as its mode needs a record.
    pub(crate) fn is_needed(&self, disk: u32) -> bool {
        self.mode.bits() != disk || self.owner != (0, 0) || !self.xattrs.is_empty()
    }
}

/// What must be remembered of symlinks and fifos that were made in portable form, by path: they carry
/// no attributes. Goes to `LayerStack::import_scratch`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records(pub(crate) Unopened);

/// The mode that a file or directory gets in portable form: its user can always read and change it.
fn portable_mode(directory: bool, mode: u32) -> u32 {
    mode & 0o777 | if directory { 0o700 } else { 0o600 }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

impl Form {
    /// The form that this process can write: native if it is root's and has all the privilege that takes,
    /// which root of a container seldom has.
    pub fn of_this_process() -> Self {
        if rustix::process::geteuid().is_root() && is_privileged() { Self::Native } else { Self::Portable }
    }

    /// The stable text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Portable => "portable",
        }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Native, Self::Portable].into_iter().find(|form| form.as_str() == text)
    }

    /// The mark of a directory that hides what lies beneath it; its value is `y`.
    pub(crate) const fn opaque(self) -> &'static [u8] {
        match self {
            Self::Native => b"trusted.overlay.opaque",
            Self::Portable => b"user.esf.opaque",
        }
    }

    /// Whether a directory hides what lies beneath it.
    pub(crate) fn is_opaque(self, directory: impl AsFd) -> io::Result<bool> {
        let mut value = [0; 1];
        match rustix::fs::fgetxattr(directory, self.opaque(), &mut value[..]) {
            Ok(length) => Ok(value[..length] == *b"y"),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a new directory hide what lies beneath it.
    pub(crate) fn mark_opaque(self, directory: impl AsFd) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(directory, self.opaque(), b"y", XattrFlags::CREATE)?)
    }

    /// What the disk cannot say of an open file or directory in this form; none when it says all.
    ///
    /// # Errors
    /// `InvalidData` for a record that no build writes.
    pub(crate) fn recorded(self, file: impl AsFd) -> io::Result<Option<Recorded>> {
        if self == Self::Native {
            return Ok(None);
        }
        // Nearly every record is small: one call without asking for its size.
        let mut small = [0; 256];
        let read = match rustix::fs::fgetxattr(&file, RECORDED, &mut small[..]) {
            Ok(length) => Recorded::decode(&small[..length]),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(Errno::RANGE) => {
                let mut large = vec![0; MAX_VALUE];
                let length = rustix::fs::fgetxattr(&file, RECORDED, &mut large[..])?;
                Recorded::decode(&large[..length])
            }
            Err(error) => return Err(error.into()),
        };
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "user.esf.attrs is no record of ours");
        read.map(Some).ok_or_else(damaged)
    }

    /// The permission bits that an open file or directory has in its root.
    pub(crate) fn mode_of(self, file: impl AsFd, stat: &Stat) -> io::Result<Mode> {
        match self {
            Self::Native => Ok(Mode::of_stat(stat.st_mode)),
            Self::Portable => Ok(self.recorded(file)?.unwrap_or_else(|| Recorded::absent(stat)).mode),
        }
    }

    /// Gives an open file or directory the permission bits that it will have in its root.
    pub(crate) fn set_mode(self, file: impl AsFd, mode: Mode) -> io::Result<()> {
        if self == Self::Native {
            return Ok(rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(mode.bits()))?);
        }
        let stat = rustix::fs::fstat(&file)?;
        let had = self.recorded(&file)?;
        let now = Recorded { mode, ..had.clone().unwrap_or_else(|| Recorded::absent(&stat)) };
        record(&file, &stat, &now, had.is_some())
    }

    /// What the kernel does when a file is written to, done to its record: file capabilities go.
    pub(crate) fn forget_capability(self, file: impl AsFd) -> io::Result<()> {
        let Some(mut had) = self.recorded(&file)? else { return Ok(()) };
        let count = had.xattrs.len();
        had.xattrs.retain(|(name, _)| **name != *b"security.capability");
        if had.xattrs.len() == count {
            return Ok(());
        }
        record(&file, &rustix::fs::fstat(&file)?, &had, true)
    }

    /// Gives an open file or directory its owner, extended attributes, mode and time, in the order that
    /// keeps all. `xattrs` are those that a root may hold, ascending by name. In native form a process
    /// that is not root's sets an owner only if that is not 0:0.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn set_open(
        self,
        copy: impl AsFd,
        mode: u32,
        mtime: Option<FileTime>,
        owner: (u32, u32),
        xattrs: &Xattrs,
    ) -> io::Result<()> {
        match self {
            Self::Native => set_native(&copy, mode, owner, xattrs)?,
            Self::Portable => set_portable(&copy, mode, owner, xattrs)?,
        }
        match mtime {
            Some(mtime) => Ok(rustix::fs::futimens(&copy, &handle::times(mtime))?),
            None => Ok(()),
        }
    }

    /// Gives an open file or directory the mode and attributes that a root records.
    pub(crate) fn set_attributes(self, file: impl AsFd, mode: Mode, attrs: &Attrs) -> io::Result<()> {
        self.set_open(file, mode.bits(), attrs.mtime, (attrs.uid, attrs.gid), &attrs.xattrs)
    }

    /// Gives a new symlink, or a fifo with its mode, its owner and time; `path` is where it will be in its
    /// root, and `records` keep what it cannot carry.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn set_unopened_entry(
        self,
        parent: impl AsFd,
        name: &[u8],
        fifo: Option<Mode>,
        owner: (u32, u32),
        mtime: FileTime,
        (path, records): (&[u8], &mut Records),
    ) -> io::Result<()> {
        let kept = self.set_unopened(parent, name, fifo, owner, Some(mtime))?;
        records.0.extend(kept.map(|recorded| (path.to_vec(), recorded)));
        Ok(())
    }

    /// Gives a symlink, or a fifo with its mode, owner and time; answers the record that must be kept
    /// elsewhere, since neither can carry one.
    pub(crate) fn set_unopened(
        self,
        parent: impl AsFd,
        name: &[u8],
        fifo: Option<Mode>,
        owner: (u32, u32),
        mtime: Option<FileTime>,
    ) -> io::Result<Option<Recorded>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let mut disk = fifo.unwrap_or(Mode::SYMLINK).bits();
        let mut kept = None;
        if self == Self::Portable {
            disk &= 0o777;
            let recorded = Recorded { mode: fifo.unwrap_or(Mode::SYMLINK), owner, xattrs: Portable::new() };
            kept = recorded.is_needed(disk).then_some(recorded);
        } else if owner != (0, 0) || rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            rustix::fs::chownat(&parent, name, Some(uid), Some(gid), flags)?;
        }
        if fifo.is_some() {
            rustix::fs::chmodat(&parent, name, rustix::fs::Mode::from_raw_mode(disk), AtFlags::empty())?;
        }
        if let Some(mtime) = mtime {
            rustix::fs::utimensat(&parent, name, &handle::times(mtime), flags)?;
        }
        Ok(kept)
    }

    /// The same with everything that a root records of the entry; only a fifo has extended attributes.
    pub(crate) fn set_recorded(
        self,
        parent: impl AsFd,
        name: &[u8],
        fifo: Option<Mode>,
        attrs: &Attrs,
    ) -> io::Result<Option<Recorded>> {
        let owner = (attrs.uid, attrs.gid);
        let kept = self.set_unopened(&parent, name, fifo, owner, attrs.mtime)?;
        let Some(mode) = fifo.filter(|_| !attrs.xattrs.is_empty()) else { return Ok(kept) };
        match self {
            Self::Portable => Ok(Some(Recorded { mode, owner, xattrs: attrs.xattrs.clone() })),
            Self::Native => {
                let fifo = handle::open_handle(&parent, name)?;
                for (xattr, value) in &attrs.xattrs {
                    rustix::fs::setxattr(handle::magic_path(&fifo), &**xattr, value, XattrFlags::empty())?;
                }
                Ok(kept)
            }
        }
    }

    /// Copies what an open file or directory of this form has beside its contents to another of the
    /// same form, but for the marks that say where it lies in a stack.
    pub(crate) fn copy_attributes(self, from: impl AsFd, to: impl AsFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(&from)?;
        let xattrs = handle::xattrs(&from)?.into_iter();
        let kept = xattrs.filter(|(name, _)| match self {
            Self::Native => esf_core::manifest::is_portable_xattr(name),
            Self::Portable => name.starts_with(b"user.") && name != self.opaque(),
        });
        let kept: Portable = kept.map(|(name, value)| (name.into(), value.into())).collect();
        let mtime = handle::mtime(&stat);
        match self {
            Self::Native => self.set_open(to, stat.st_mode, Some(mtime), (stat.st_uid, stat.st_gid), &kept),
            Self::Portable => {
                set_attributes(&to, &kept)?;
                chmod(&to, portable_mode(is_directory(&stat), stat.st_mode))?;
                Ok(rustix::fs::futimens(&to, &handle::times(mtime))?)
            }
        }
    }
}

/// Whether this process may give files away, pass over modes, and set the marks of overlays: the last
/// takes a capability in the first user namespace, which maps every number to itself.
fn is_privileged() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::SETFCAP
        | CapabilitySet::SYS_ADMIN;
    let has = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    has && map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn chmod(file: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(mode))?)
}

fn set_attributes(file: impl AsFd, xattrs: &Portable) -> io::Result<()> {
    for (name, value) in xattrs {
        rustix::fs::fsetxattr(&file, &**name, value, XattrFlags::empty())?;
    }
    Ok(())
}

fn set_native(copy: impl AsFd, mode: u32, owner: (u32, u32), xattrs: &Portable) -> io::Result<()> {
    if owner != (0, 0) || rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&copy, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
    }
    set_attributes(&copy, xattrs)?;
    chmod(copy, mode & 0o7777)
}

fn set_portable(copy: impl AsFd, mode: u32, owner: (u32, u32), xattrs: &Portable) -> io::Result<()> {
    let (user, recorded): (Portable, Portable) =
        xattrs.iter().cloned().partition(|(name, _)| name.starts_with(b"user."));
    set_attributes(&copy, &user)?;
    let stat = rustix::fs::fstat(&copy)?;
    record(&copy, &stat, &Recorded { mode: Mode::of_stat(mode), owner, xattrs: recorded }, false)
}

/// Writes what the disk can say of an entry to the disk and the rest to its record, if it needs one.
fn record(file: impl AsFd, stat: &Stat, what: &Recorded, had: bool) -> io::Result<()> {
    let disk = portable_mode(is_directory(stat), what.mode.bits());
    if what.is_needed(disk) {
        rustix::fs::fsetxattr(&file, RECORDED, &what.encode(), XattrFlags::empty())?;
    } else if had {
        rustix::fs::fremovexattr(&file, RECORDED)?;
    }
    chmod(file, disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(mode: u32) -> std::fs::File {
        let file = tempfile::tempfile().expect("temporary file");
        chmod(&file, mode).expect("chmod");
        file
    }

    fn names(file: &std::fs::File) -> Vec<Vec<u8>> {
        handle::xattrs(file).expect("list").into_iter().map(|(name, _)| name).collect()
    }

    fn disk(file: &std::fs::File) -> u32 {
        rustix::fs::fstat(file).expect("inspect").st_mode & 0o7777
    }

    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn capability() -> Portable {
        vec![((*b"security.capability").into(), CAPABILITY.into())]
    }

    proptest! {
        #[test]
        fn a_record_has_one_encoding(mode in 0u32..0o10000, uid in 0..u32::MAX, gid in 0..u32::MAX, cap: bool) {
            let xattrs = if cap { capability() } else { Portable::new() };
            let mode = Mode::new(mode).expect("in range");
            let recorded = Recorded { mode, owner: (uid, gid), xattrs };
            let bytes = recorded.encode();
            prop_assert_eq!(Recorded::decode(&bytes), Some(recorded));
            prop_assert_eq!(Recorded::decode(&[&bytes[..], b"x"].concat()), None);
            prop_assert_eq!(Recorded::decode(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn what_is_decoded_is_what_would_be_encoded(bytes in prop::collection::vec(any::<u8>(), 0..12), head: bool) {
            let bytes = if head { [b"\xed\x01ESFQ\x01", &bytes[..]].concat() } else { bytes };
            if let Some(recorded) = Recorded::decode(&bytes) {
                prop_assert_eq!(recorded.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_record_holds_nothing_that_the_disk_says() {
        let attrs = |attrs: Attrs| [b"\xa4\x01".to_vec(), Object::AttrsRoot(attrs).encode()].concat();
        let time = FileTime { seconds: 1, nanos: 0 };
        let user: Portable = vec![((*b"user.k").into(), (*b"v").into())];
        for bytes in [
            attrs(Attrs { mtime: Some(time), ..Attrs::default() }),
            attrs(Attrs { xattrs: user, ..Attrs::default() }),
            [b"\x00\x10".to_vec(), Object::AttrsRoot(Attrs::default()).encode()].concat(),
        ] {
            assert_eq!(Recorded::decode(&bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn only_what_the_disk_cannot_say_is_recorded() {
        let form = Form::Portable;
        type Row = (u32, (u32, u32), Portable, u32, bool);
        let rows: [Row; 7] = [
            (0o644, (0, 0), vec![], 0o644, false),
            (0o755, (0, 0), vec![((*b"user.k").into(), (*b"v").into())], 0o755, false),
            (0o000, (0, 0), vec![], 0o600, true),
            (0o444, (0, 0), vec![], 0o644, true),
            (0o4755, (0, 0), vec![], 0o755, true),
            (0o644, (33, 0), vec![], 0o644, true),
            (0o644, (0, 0), capability(), 0o644, true),
        ];
        for (mode, owner, xattrs, on_disk, recorded) in rows {
            let file = file(0o600);
            form.set_open(&file, mode, None, owner, &xattrs).expect("set");
            assert_eq!(disk(&file), on_disk, "{mode:o}");
            assert_eq!(names(&file).contains(&RECORDED.to_vec()), recorded, "{mode:o} {owner:?}");
            let stat = rustix::fs::fstat(&file).expect("inspect");
            assert_eq!(form.mode_of(&file, &stat).expect("mode").bits(), mode);
            let sorted =
                crate::attributes::sort_upper(form, b"f", false, handle::xattrs(&file).expect("list"));
            let shown = sorted.expect("ours").shown(form, &stat, None);
            assert_eq!((shown.mode.bits(), shown.owner, shown.xattrs), (mode, owner, xattrs));
            let copy = self::file(0o600);
            form.copy_attributes(&file, &copy).expect("copy");
            assert_eq!((names(&copy), disk(&copy)), (names(&file), on_disk));
        }
    }

    #[test]
    fn a_mode_and_a_capability_come_and_go() {
        let (form, file) = (Form::Portable, file(0o640));
        form.set_mode(&file, Mode::of_stat(0o6111)).expect("set");
        assert_eq!((disk(&file), names(&file)), (0o711, vec![RECORDED.to_vec()]));
        form.set_mode(&file, Mode::of_stat(0o640)).expect("set");
        assert_eq!((disk(&file), names(&file).len()), (0o640, 0));
        form.set_open(&file, 0o640, None, (0, 0), &capability()).expect("set");
        form.forget_capability(&file).expect("forget");
        assert_eq!((disk(&file), names(&file).len()), (0o640, 0));
        form.forget_capability(&file).expect("nothing to forget");
    }

    #[test]
    fn marks_of_one_form_mean_nothing_in_the_other() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let opened = handle::open_directory(dir.path()).expect("open");
        Form::Portable.mark_opaque(&opened).expect("mark");
        assert!(Form::Portable.is_opaque(&opened).expect("look"));
        assert!(!Form::Native.is_opaque(&opened).expect("look"));
        // Where it lies in a stack is not copied with it.
        let other = tempfile::tempdir().expect("temporary directory");
        let copy = handle::open_directory(other.path()).expect("open");
        Form::Portable.copy_attributes(&opened, &copy).expect("copy");
        assert!(!Form::Portable.is_opaque(&copy).expect("look"));
    }
}
