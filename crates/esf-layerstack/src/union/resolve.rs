//! Paths of guests, resolved component by component in the union's own table. Invariant: whatever
//! links and `..` say, nothing outside of the directory that resolution began at is ever looked at.

use std::borrow::Cow;

use rustix::io::Errno;

use super::listing::Entry;
use super::tree::{Id, Tree};
use super::{Kind, Result};

/// Links that one resolution follows.
const MAX_LINKS: usize = 40;
/// The longest path that is taken, as the kernel's.
const MAX_LENGTH: usize = 4095;
const MAX_NAME: usize = 255;

/// Whether a link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    /// Only when a slash comes after it, which demands a directory.
    Keep,
    /// Never: the name itself is to be made or removed.
    Name,
}

/// Where a path leads.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory itself, or the one that has or may have the name.
    pub(super) directory: Id,
    /// None when the path leads to a directory without naming it (`.`, `a/..`).
    pub(super) name: Option<Box<[u8]>>,
    /// What is there of that name.
    pub(super) entry: Option<Entry>,
    /// A slash comes after the name: only a directory will do.
    pub(super) slash: bool,
}

/// The directory, the name, what is there, and whether a slash comes after it.
pub(super) type Named = (Id, Box<[u8]>, Option<Entry>, bool);

impl Place {
    /// The name, for operations that must have one; `error` is for paths without.
    pub(super) fn named(self, error: Errno) -> Result<Named> {
        Ok((self.directory, self.name.ok_or(error)?, self.entry, self.slash))
    }
}

/// Refuses what is no path, nor the target of a link.
pub(super) fn check(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if path.len() > MAX_LENGTH {
        return Err(Errno::NAMETOOLONG);
    }
    if path.contains(&0) { Err(Errno::INVAL) } else { Ok(()) }
}

impl Tree {
    /// Resolves `path` inside of the directory `at`.
    pub(super) fn resolve(&mut self, at: Id, path: &[u8], last: Last) -> Result<Place> {
        check(path)?;
        if self.node(at).gone {
            return Err(Errno::NOENT);
        }
        let (mut rest, mut directory, mut depth, mut links) = (Cow::Borrowed(path), at, 0usize, 0);
        loop {
            if rest.first() == Some(&b'/') {
                return Err(Errno::PERM);
            }
            let (name, after) = split(&rest);
            let ends = after.iter().all(|byte| *byte == b'/');
            let slash = !after.is_empty();
            match name {
                b"" | b"." if ends => return Ok(Place { directory, name: None, entry: None, slash }),
                b"" | b"." => {}
                b".." => {
                    depth = depth.checked_sub(1).ok_or(Errno::PERM)?;
                    directory = self.node(directory).parent;
                    if ends {
                        return Ok(Place { directory, name: None, entry: None, slash });
                    }
                }
                name => {
                    if name.len() > MAX_NAME {
                        return Err(Errno::NAMETOOLONG);
                    }
                    if !ends && let Some(child) = self.node(directory).children.get(name) {
                        (directory, depth) = (*child, depth + 1);
                    } else {
                        let entry = self.lookup(directory, name)?;
                        let kind = entry.as_ref().map(|entry| entry.kind);
                        let follow = !ends || last == Last::Follow || last == Last::Keep && slash;
                        match (kind, &entry) {
                            (Some(Kind::Symlink), Some(entry)) if follow => {
                                links += 1;
                                if links > MAX_LINKS {
                                    return Err(Errno::LOOP);
                                }
                                let mut target = self.read_target(directory, name, entry)?;
                                target.extend_from_slice(after);
                                rest = Cow::Owned(target);
                                continue;
                            }
                            _ if ends => {
                                let name = Some(name.into());
                                self.touch(directory);
                                return Ok(Place { directory, name, entry, slash });
                            }
                            (Some(Kind::Directory), Some(entry)) => {
                                (directory, depth) = (self.child(directory, name, entry)?, depth + 1);
                            }
                            (Some(_), _) => return Err(Errno::NOTDIR),
                            (None, _) => return Err(Errno::NOENT),
                        }
                    }
                }
            }
            // More than one slash between two components is one.
            let start = after.iter().position(|byte| *byte != b'/').unwrap_or(after.len());
            let start = rest.len() - after.len() + start;
            rest = match rest {
                Cow::Borrowed(path) => Cow::Borrowed(&path[start..]),
                Cow::Owned(mut path) => {
                    path.drain(..start);
                    Cow::Owned(path)
                }
            };
        }
    }

    /// The target of a link.
    pub(super) fn read_target(&mut self, directory: Id, name: &[u8], entry: &Entry) -> Result<Vec<u8>> {
        let fd = self.descriptor(directory, entry.layer)?;
        Ok(rustix::fs::readlinkat(&*fd, name, Vec::new())?.into_bytes())
    }
}

/// The first component, and what comes after it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    path.split_at(path.iter().position(|byte| *byte == b'/').unwrap_or(path.len()))
}
