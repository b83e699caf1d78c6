//! What an upper weighs that was there before the union. Invariant: the sum is the one that `quota.rs`
//! defines; the walk is iterative, relative to descriptors, and opens nothing but directories.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use rustix::fs::Dir;
use rustix::io::Errno;

use super::quota::{NAME, Quota, allocated, dense};
use super::tree::{open_directory, stat};
use super::{Kind, Result};

/// Deeper uppers are no union's work.
const MAX_DEPTH: usize = 512;

/// Charges everything in `upper`.
pub(super) fn weigh(upper: &OwnedFd, quota: &Quota) -> Result<()> {
    let mut linked = HashSet::new();
    let mut open = vec![open_directory(upper, b".").and_then(|top| Ok((Dir::read_from(&top)?, top)))?];
    while let Some((names, directory)) = open.last_mut() {
        let Some(entry) = names.next() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        quota.force(NAME);
        let found = stat(&*directory, name)?;
        match Kind::of(&found) {
            Some(Kind::Directory) => {
                let child = open_directory(&*directory, name)?;
                open.push((Dir::read_from(&child)?, child));
                if open.len() > MAX_DEPTH {
                    return Err(Errno::NAMETOOLONG);
                }
            }
            Some(Kind::File) if found.st_nlink == 1 || linked.insert(found.st_ino) => {
                let (size, disk) = (dense(found.st_size as u64), allocated(&found));
                quota.force(disk);
                quota.set_sparse(found.st_ino, (disk < size).then_some(disk));
            }
            _ => {}
        }
    }
    Ok(())
}
