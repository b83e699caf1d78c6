//! What of an entry's status and extended attributes enters a root, and what does not.
//! Invariant: only portable attributes enter; everything else is named, so nothing is dropped in
//! silence; overlay's own marks are told apart from forged ones (security notes 0.3, 2C).

use esf_core::manifest::{Attrs, MAX_XATTRS, Mode, is_portable_xattr, portable_capability};
use rustix::fs::Stat;

use crate::Error;
use crate::form::{Form, OURS, RECORDED, Recorded};
use crate::handle::{self, Kind};

const CAPABILITY: &[u8] = b"security.capability";
/// Marks that the kernel leaves in an upper and that mean nothing in a carrier.
const LEFT_BY_KERNEL: [&[u8]; 5] = [
    b"trusted.overlay.origin",
    b"trusted.overlay.impure",
    b"trusted.overlay.nlink",
    b"trusted.overlay.uuid",
    b"trusted.overlay.upper",
];
/// What the kernel makes of a `trusted.overlay.` name that was set through a merged view.
const ESCAPED: &[u8] = b"trusted.overlay.overlay.";

/// Extended attributes as a root holds them, ascending by name.
pub(crate) type Portable = Vec<(Box<[u8]>, Box<[u8]>)>;
/// Raw extended attributes, name and value.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Extended attributes sorted by what becomes of them.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    /// They enter the root.
    pub(crate) portable: Portable,
    /// The directory is opaque.
    pub(crate) opaque: bool,
    /// What the disk cannot say in portable form.
    pub(crate) recorded: Option<Recorded>,
    /// The kernel's own marks: taken off without a word.
    pub(crate) marks: Vec<Vec<u8>>,
    /// A root cannot hold them: taken off by name.
    pub(crate) foreign: Vec<Vec<u8>>,
    /// Portable, but not in their one form: replaced on disk.
    pub(crate) rewritten: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Sorts the attributes of an entry of an import's source: no mark means anything there.
pub(crate) fn sort_foreign(path: &[u8], xattrs: Xattrs) -> Result<Sorted, Error> {
    let mut sorted = Sorted::default();
    for (name, value) in xattrs {
        sorted.take(name, value);
    }
    sorted.check(path)
}

/// Sorts the attributes of an entry of an upper or a carrier by its form; refuses marks that no sandbox
/// of ours makes.
pub(crate) fn sort_upper(form: Form, path: &[u8], directory: bool, xattrs: Xattrs) -> Result<Sorted, Error> {
    match form {
        Form::Native => sort_native(path, directory, xattrs),
        Form::Portable => sort_portable(path, directory, xattrs),
    }
}

fn forged(path: &[u8], mark: &[u8]) -> Error {
    Error::ForgedMark { path: crate::error::show(path), mark: mark.escape_ascii().to_string() }
}

/// What is not `user.*` is the host's own there (a security label, an inherited ACL): it says nothing.
fn sort_portable(path: &[u8], directory: bool, xattrs: Xattrs) -> Result<Sorted, Error> {
    let mut sorted = Sorted::default();
    for (name, value) in xattrs {
        if name == Form::Portable.opaque() && directory && value == b"y" {
            sorted.opaque = true;
        } else if name == RECORDED {
            sorted.recorded = Some(Recorded::decode(&value).ok_or_else(|| forged(path, &name))?);
        } else if name.starts_with(OURS) || name.starts_with(b"trusted.overlay.") {
            return Err(forged(path, &name));
        } else if name.starts_with(b"user.") {
            sorted.take(name, value);
        }
    }
    sorted.check(path)
}

fn sort_native(path: &[u8], directory: bool, xattrs: Xattrs) -> Result<Sorted, Error> {
    let mut sorted = Sorted::default();
    for (name, value) in xattrs {
        if name == Form::Native.opaque() && directory && value == b"y" {
            sorted.opaque = true;
        } else if LEFT_BY_KERNEL.contains(&name.as_slice()) {
            sorted.marks.push(name);
        } else if name.starts_with(b"trusted.overlay.") && !name.starts_with(ESCAPED) {
            return Err(forged(path, &name));
        } else {
            sorted.take(name, value);
        }
    }
    sorted.check(path)
}

impl Sorted {
    fn take(&mut self, name: Vec<u8>, value: Vec<u8>) {
        if !is_portable_xattr(&name) {
            self.foreign.push(name);
            return;
        }
        if name != CAPABILITY {
            self.portable.push((name.into(), value.into()));
            return;
        }
        match portable_capability(&value) {
            Some(portable) => {
                if portable != *value {
                    self.rewritten.push((name.clone(), portable.to_vec()));
                }
                self.portable.push((name.into(), Box::new(portable)));
            }
            None => self.foreign.push(name),
        }
    }

    /// What the entry is in its root, given its status. Nothing but files and directories can carry a
    /// record: `unopened` is that of a symlink or fifo, kept elsewhere.
    pub(crate) fn shown(self, form: Form, stat: &Stat, unopened: Option<&Recorded>) -> Shown {
        if form == Form::Native {
            let owner = (stat.st_uid, stat.st_gid);
            return Shown { mode: Mode::of_stat(stat.st_mode), owner, xattrs: self.portable };
        }
        let carries = matches!(Kind::of(stat), Kind::File | Kind::Directory);
        let recorded = if carries { self.recorded } else { unopened.cloned() };
        let Recorded { mode, owner, xattrs } = recorded.unwrap_or_else(|| Recorded::absent(stat));
        // Those of a record begin with `security.` or `system.`, the disk's own with `user.`.
        Shown { mode, owner, xattrs: [xattrs, self.portable].concat() }
    }

    fn check(self, path: &[u8]) -> Result<Self, Error> {
        let size: usize = self.portable.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > MAX_XATTRS {
            let (found, limit) = (size as u64, MAX_XATTRS as u64);
            return Err(Error::limit("xattrs_too_large", path, "size of extended attributes", found, limit));
        }
        Ok(self)
    }
}

/// Mode, owner and extended attributes of an entry as its root has them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) mode: Mode,
    pub(crate) owner: (u32, u32),
    pub(crate) xattrs: Portable,
}

impl Shown {
    /// The attributes of the entry as a root holds them; `stat` tells its time.
    pub(crate) fn attrs(self, stat: &Stat) -> Attrs {
        attrs_of(stat, self.owner, self.xattrs)
    }
}

/// Says that an attribute was left out.
pub(crate) fn left_out(name: &[u8]) -> String {
    format!("extended attribute {} is not kept", name.escape_ascii())
}

/// The attributes of an entry as a root holds them.
pub(crate) fn attrs_of(stat: &Stat, owner: (u32, u32), xattrs: Portable) -> Attrs {
    Attrs {
        mtime: Some(handle::mtime(stat)),
        uid: owner.0,
        gid: owner.1,
        xattrs,
        hard_link: None,
        children: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upper(directory: bool, name: &str, value: &[u8]) -> Result<Sorted, Error> {
        sort_upper(Form::Native, b"d", directory, vec![(name.into(), value.into())])
    }

    #[test]
    fn marks_of_the_kernel_are_told_from_forged_ones() {
        assert!(upper(true, "trusted.overlay.opaque", b"y").expect("kernel's").opaque);
        assert_eq!(upper(false, "trusted.overlay.origin", b"x").expect("kernel's").marks.len(), 1);
        for (directory, name, value) in [
            (false, "trusted.overlay.opaque", b"y"),
            (true, "trusted.overlay.opaque", b"x"),
            (true, "trusted.overlay.redirect", b"y"),
            (false, "trusted.overlay.metacopy", b""),
            (false, "trusted.overlay.whiteout", b""),
        ] as [(bool, &str, &[u8]); 5]
        {
            assert!(matches!(upper(directory, name, value), Err(Error::ForgedMark { .. })), "{name}");
        }
        for name in ["user.overlay.opaque", "trusted.overlay.overlay.opaque", "security.selinux", "trusted.x"]
        {
            assert_eq!(upper(true, name, b"y").expect("left out").foreign, [name.as_bytes()], "{name}");
        }
    }

    #[test]
    fn imports_interpret_no_mark() {
        let marks = vec![(Form::Native.opaque().to_vec(), b"y".to_vec())];
        let sorted = sort_foreign(b"d", marks).expect("left out");
        assert!(!sorted.opaque && sorted.foreign.len() == 1);
    }
}
