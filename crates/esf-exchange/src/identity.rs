//! The portable identity of a directory on disk, and of a root as it leaves without privilege: what
//! lets an export be checked without the store it came from. Nothing is stored and no link followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use esf_core::manifest::{
    Entry, EntryKind, MAX_DEPTH, Mode, ObjectError, ObjectKind, ObjectSink, Objects, load_root, load_tree,
    store_root, store_tree,
};
use esf_core::{BlobId, Digest, Name, RootId, TreeId};
use rustix::fs::{AtFlags, CWD, Dir, FileType, OFlags, openat, readlinkat, statat};

use crate::{Error, readable};

/// Takes objects for their ids alone.
struct Nowhere;

impl ObjectSink for Nowhere {
    fn put(&mut self, _: ObjectKind, _: &Digest, _: &[u8]) -> Result<(), ObjectError> {
        Ok(())
    }
}

/// The mode with which an entry leaves when its privilege stays behind: setuid and setgid bits of
/// all but directories are dropped.
pub fn unprivileged_mode(mode: Mode, directory: bool) -> Mode {
    Mode::of_stat(if directory { mode.bits() } else { mode.bits() & !0o6000 })
}

/// The identity of `root` as it leaves without setuid and setgid bits.
///
/// # Errors
/// Objects that cannot be read.
pub fn without_privilege(objects: &dyn Objects, root: RootId) -> Result<RootId, Error> {
    let top = load_root(objects, root)?;
    let tree = tree_without_privilege(objects, top.tree)?;
    Ok(store_root(&mut Nowhere, top.mode, tree)?)
}

fn tree_without_privilege(objects: &dyn Objects, tree: TreeId) -> Result<TreeId, Error> {
    let mut entries = load_tree(objects, tree)?;
    for entry in &mut entries {
        let directory = entry.kind.is_directory();
        entry.mode = unprivileged_mode(entry.mode, directory);
        if let EntryKind::Directory { tree } = &mut entry.kind {
            *tree = tree_without_privilege(objects, *tree)?;
        }
    }
    Ok(store_tree(&mut Nowhere, entries)?)
}

/// The root id of the directory at `path`, from its entries and the bytes of its files.
///
/// # Errors
/// What cannot be read, a socket or device, or a tree deeper than a root may be.
pub fn of_directory(path: &Path) -> Result<RootId, Error> {
    let subject = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, path, flags, rustix::fs::Mode::empty())
        .map_err(|e| Error::io(subject.clone())(e.into()))?;
    let mode = rustix::fs::fstat(&top).map_err(|e| Error::io(subject)(e.into()))?.st_mode;
    let tree = tree_of(&top, &mut Vec::new(), 0)?;
    Ok(store_root(&mut Nowhere, Mode::of_stat(mode), tree)?)
}

fn tree_of(directory: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<TreeId, Error> {
    if depth >= MAX_DEPTH {
        return Err(Error::Unusual { path: readable(path), what: "a path of more than 256 components" });
    }
    let mut entries = Vec::new();
    for item in Dir::read_from(directory).map_err(|e| Error::io(readable(path))(e.into()))? {
        let item = item.map_err(|e| Error::io(readable(path))(e.into()))?;
        let name = item.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let name = Name::new(name).map_err(|e| Error::io(readable(path))(io::Error::other(e)))?;
        entries.push(entry_of(directory, name, path, depth)?);
        path.truncate(length);
    }
    Ok(store_tree(&mut Nowhere, entries)?)
}

fn entry_of(directory: &OwnedFd, name: Name, path: &mut Vec<u8>, depth: usize) -> Result<Entry, Error> {
    let failed = |path: &[u8], error: rustix::io::Errno| Error::io(readable(path))(error.into());
    let stat = statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(|e| failed(path, e))?;
    let open = |flags: OFlags| {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(directory, name.as_os_str(), flags, rustix::fs::Mode::empty())
    };
    let mut mode = Mode::of_stat(stat.st_mode);
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let child = open(OFlags::DIRECTORY).map_err(|e| failed(path, e))?;
            EntryKind::Directory { tree: tree_of(&child, path, depth + 1)? }
        }
        FileType::RegularFile => {
            let file = File::from(open(OFlags::empty()).map_err(|e| failed(path, e))?);
            let (size, blob) = blob_of(&file).map_err(Error::io(readable(path)))?;
            EntryKind::File { size, blob }
        }
        FileType::Symlink => {
            mode = Mode::SYMLINK;
            let target =
                readlinkat(directory.as_fd(), name.as_os_str(), Vec::new()).map_err(|e| failed(path, e))?;
            EntryKind::Symlink { target: target.into_bytes().into() }
        }
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
            return Err(Error::Unusual { path: readable(path), what: "a socket or a device" });
        }
    };
    Ok(Entry { name, mode, kind })
}

fn blob_of(mut file: &File) -> io::Result<(u64, BlobId)> {
    let mut hasher = blake3::Hasher::new();
    let size = io::copy(&mut file, &mut hasher)?;
    Ok((size, BlobId::new(Digest::from_bytes(*hasher.finalize().as_bytes()))))
}

/// The plain BLAKE3 digest and the size of the regular file at `path`.
///
/// # Errors
/// When it cannot be read or is no regular file.
pub fn of_file(path: &Path) -> Result<(u64, BlobId), Error> {
    let subject = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, rustix::fs::Mode::empty())
        .map_err(|e| Error::io(subject.clone())(e.into()))?;
    let file = File::from(file);
    if !file.metadata().map_err(Error::io(subject.clone()))?.is_file() {
        return Err(Error::Unusual { path: subject, what: "something else than a regular file" });
    }
    blob_of(&file).map_err(Error::io(subject))
}

#[cfg(test)]
mod tests {
    use super::*;
    use esf_core::manifest::{Attrs, MemoryObjects, Root, store_top};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn entry(name: &str, mode: u32, kind: EntryKind) -> Entry {
        Entry { name: Name::new(name.as_bytes()).unwrap(), mode: Mode::of_stat(mode), kind }
    }

    fn file(bytes: &[u8]) -> EntryKind {
        EntryKind::File { size: bytes.len() as u64, blob: BlobId::of(bytes) }
    }

    fn root(objects: &mut MemoryObjects, mode: u32) -> RootId {
        let inner = store_tree(objects, vec![entry("su", mode, file(b"x"))]).unwrap();
        let link = EntryKind::Symlink { target: b"d/su".as_slice().into() };
        let top = vec![entry("d", 0o2755, EntryKind::Directory { tree: inner }), entry("link", 0o777, link)];
        let tree = store_tree(objects, top).unwrap();
        store_top(objects, Root { mode: Mode::of_stat(0o700), tree }, &Attrs::default()).unwrap().root
    }

    #[test]
    fn a_directory_has_the_id_of_the_root_it_holds() {
        let mut objects = MemoryObjects::default();
        let (privileged, plain) = (root(&mut objects, 0o4755), root(&mut objects, 0o755));
        assert_eq!(without_privilege(&objects, privileged).unwrap(), plain);
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
        };
        let inner = dir.path().join("d");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("su"), b"x").unwrap();
        symlink("d/su", dir.path().join("link")).unwrap();
        mode(&inner.join("su"), 0o755);
        mode(&inner, 0o2755);
        mode(dir.path(), 0o700);
        assert_eq!(of_directory(dir.path()).unwrap(), plain);
        mode(&inner.join("su"), 0o4755);
        assert_eq!(of_directory(dir.path()).unwrap(), privileged);
        std::fs::write(inner.join("su"), b"y").unwrap();
        assert_ne!(of_directory(dir.path()).unwrap(), privileged);
    }

    #[test]
    fn what_no_root_holds_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        assert_eq!(of_directory(dir.path()).unwrap_err().problem().code, "not_representable");
        assert_eq!(of_file(dir.path()).unwrap_err().problem().code, "not_representable");
    }
}
