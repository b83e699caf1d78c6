//! Directories and files as open descriptors: every walk of the state plane goes through here.
//! Invariant: nothing is ever reached by a path string that a tenant shaped; no symlink is followed,
//! no fifo, socket or device is opened (security notes 0.4, 2C).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use esf_core::manifest::MAX_PATH;
use esf_core::time::FileTime;
use esf_core::{BlobId, Digest, Name};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::Error;
use crate::error::show;

/// One megabyte: how much is read at a time.
pub(crate) const BUFFER: usize = 1 << 20;
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Opens a directory of this machine by path.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Opens a child directory, never through a symlink.
pub(crate) fn open_child(parent: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Opens an entry whose type is known to be regular, for reading; never waits, never follows.
pub(crate) fn open_regular(parent: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Opens an entry as a mere handle, whatever it is.
pub(crate) fn open_handle(parent: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Opens a path beneath a directory without passing through any symlink or mount.
pub(crate) fn open_beneath(top: impl AsFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(top, path, flags, Mode::empty(), resolve)?)
}

/// Creates a new regular file for reading and writing.
pub(crate) fn create_file(parent: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?)
}

/// Creates a new directory and opens it.
pub(crate) fn create_directory(parent: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
    open_child(parent, name)
}

/// The status of an entry, not following it.
pub(crate) fn stat_entry(parent: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    Ok(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The names in a directory, ascending.
pub(crate) fn list(directory: impl AsFd) -> io::Result<Vec<Name>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(Name::new(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A path one component longer, within the limits of a root.
pub(crate) fn join(parent: &[u8], name: &Name) -> Result<Vec<u8>, Error> {
    let mut path = parent.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    if path.len() > MAX_PATH {
        let (found, limit) = (path.len() as u64, MAX_PATH as u64);
        return Err(Error::limit("path_too_long", &path, "path length", found, limit));
    }
    Ok(path)
}

/// What an entry is, as far as a root or an overlay layer may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Symlink,
    Fifo,
    /// The overlay's mark of a removed name: character device 0:0.
    Whiteout,
    Socket,
    Device,
}

impl Kind {
    pub(crate) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Directory,
            FileType::RegularFile => Self::File,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice if stat.st_rdev == 0 => Self::Whiteout,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Self::Device,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::File => "file",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Whiteout => "whiteout",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// The modification time of a status.
pub(crate) fn mtime(stat: &Stat) -> FileTime {
    FileTime { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
}

/// Whether two statuses of one inode say that nobody wrote to it in between.
pub(crate) fn unchanged(before: &Stat, after: &Stat) -> bool {
    let key = |s: &Stat| (s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
    key(before) == key(after)
}

/// Times that set the modification time and leave the access time alone.
pub(crate) fn times(mtime: FileTime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() },
    }
}

/// A path by which the kernel finds an open descriptor's inode again, symlinks included.
pub(crate) fn magic_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The extended attributes of an open file or directory (`name` and `value`), ascending by name.
pub(crate) fn xattrs(fd: impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let list = loop {
        let size = match rustix::fs::flistxattr_query(&fd) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            size => size?,
        };
        let mut list = vec![0; size];
        match rustix::fs::flistxattr(&fd, &mut list[..]) {
            Ok(length) => break list[..length].to_vec(),
            Err(Errno::RANGE) => continue,
            Err(error) => return Err(error.into()),
        }
    };
    read_values(&list, |name, value| rustix::fs::fgetxattr(&fd, name, value))
}

/// The extended attributes of an entry that cannot be opened (symlink, fifo), through a handle.
pub(crate) fn xattrs_of_handle(handle: impl AsFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = magic_path(handle);
    let list = loop {
        let size = match rustix::fs::listxattr_query(&path) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            size => size?,
        };
        let mut list = vec![0; size];
        match rustix::fs::listxattr(&path, &mut list[..]) {
            Ok(length) => break list[..length].to_vec(),
            Err(Errno::RANGE) => continue,
            Err(error) => return Err(error.into()),
        }
    };
    read_values(&list, |name, value| rustix::fs::getxattr(&path, name, value))
}

fn read_values(
    list: &[u8],
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    // The kernel's own limit on one value.
    let mut value = vec![0; 1 << 16];
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match get(name, &mut value) {
            Ok(length) => found.push((name.to_vec(), value[..length].to_vec())),
            // Gone since it was listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_full(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&fd, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// Writes all of `bytes`.
pub(crate) fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What was read of a file: its digest and its logical size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) blob: BlobId,
    pub(crate) size: u64,
}

/// Why a file's bytes could not be taken in.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// A system call failed: doing what, and how.
    Io(&'static str, io::Error),
    /// There are more bytes of holes than may be hashed.
    Holes(u64),
}

/// Most bytes of holes in one file: hashing them takes seconds, and storing them nothing.
pub(crate) const MAX_HOLES: u64 = 16 << 30;

/// Tells of a file that could not be read, by its path.
pub(crate) fn read_error(error: ReadError, path: &[u8]) -> Error {
    match error {
        ReadError::Io(action, source) => Error::Io { action, path: show(path), source },
        ReadError::Holes(size) => Error::limit("file_too_sparse", path, "size of holes", size, MAX_HOLES),
    }
}

/// Reads a whole file from its beginning, hashing, and copies it to `copy` if given, holes as holes.
/// What was hashed is what was written, whoever edits the source meanwhile.
pub(crate) fn take_in(
    file: impl AsFd,
    stat: &Stat,
    copy: Option<&OwnedFd>,
    buffer: &mut [u8],
) -> Result<Content, ReadError> {
    let sparse = (stat.st_blocks as u64).saturating_mul(512) < stat.st_size as u64;
    let mut hasher = blake3::Hasher::new();
    let size = if sparse {
        take_in_sparse(&file, stat.st_size as u64, copy, &mut hasher, buffer)?
    } else {
        copy_run(&file, u64::MAX, copy, &mut hasher, buffer)?
    };
    let blob = BlobId::new(Digest::from_bytes(*hasher.finalize().as_bytes()));
    Ok(Content { blob, size })
}

/// Copies and hashes up to `most` bytes from the file's position on.
fn copy_run(
    file: impl AsFd,
    most: u64,
    copy: Option<&OwnedFd>,
    hasher: &mut blake3::Hasher,
    buffer: &mut [u8],
) -> Result<u64, ReadError> {
    let mut done = 0;
    while done < most {
        let want = buffer.len().min(usize::try_from(most - done).unwrap_or(usize::MAX));
        let read = read_full(&file, &mut buffer[..want]).map_err(|e| ReadError::Io("read", e))?;
        hasher.update(&buffer[..read]);
        if let Some(copy) = copy {
            write_all(copy, &buffer[..read]).map_err(|e| ReadError::Io("write a copy of", e))?;
        }
        done += read as u64;
        if read < want {
            break;
        }
    }
    Ok(done)
}

fn take_in_sparse(
    file: impl AsFd,
    size: u64,
    copy: Option<&OwnedFd>,
    hasher: &mut blake3::Hasher,
    buffer: &mut [u8],
) -> Result<u64, ReadError> {
    let read_error = |error: Errno| ReadError::Io("read", error.into());
    let (mut at, mut holes) = (0, 0);
    while at < size {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => size,
            Err(error) => return Err(read_error(error)),
        };
        holes += data - at;
        if holes > MAX_HOLES {
            return Err(ReadError::Holes(size));
        }
        hash_zeros(hasher, data - at);
        at = data;
        if at == size {
            break;
        }
        let end = rustix::fs::seek(&file, SeekFrom::Hole(at)).map_err(read_error)?.min(size);
        rustix::fs::seek(&file, SeekFrom::Start(at)).map_err(read_error)?;
        if let Some(copy) = copy {
            rustix::fs::seek(copy, SeekFrom::Start(at)).map_err(read_error)?;
        }
        let read = copy_run(&file, end - at, copy, hasher, buffer)?;
        at += read;
        if read == 0 {
            break;
        }
    }
    if let Some(copy) = copy {
        rustix::fs::ftruncate(copy, at).map_err(|e| ReadError::Io("write a copy of", e.into()))?;
    }
    Ok(at)
}

fn hash_zeros(hasher: &mut blake3::Hasher, mut count: u64) {
    while count > 0 {
        let some = count.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..some as usize]);
        count -= some;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn sparse_files_hash_as_their_logical_bytes_and_stay_sparse() {
        let mut source = tempfile::tempfile().expect("temporary file");
        source.set_len(10 << 20).expect("grow");
        rustix::fs::seek(&source, SeekFrom::Start(3 << 20)).expect("seek");
        source.write_all(&[7; 5000]).expect("write");
        rustix::fs::seek(&source, SeekFrom::Start(0)).expect("seek");
        let stat = rustix::fs::fstat(&source).expect("stat");
        let copy: OwnedFd = tempfile::tempfile().expect("temporary file").into();
        let content = take_in(&source, &stat, Some(&copy), &mut vec![0; BUFFER]).expect("read");
        let mut bytes = vec![0; 10 << 20];
        bytes[3 << 20..(3 << 20) + 5000].fill(7);
        assert_eq!(content, Content { blob: BlobId::of(&bytes), size: 10 << 20 });
        let copied = rustix::fs::fstat(&copy).expect("stat");
        assert_eq!(copied.st_size, 10 << 20);
        assert!(copied.st_blocks * 512 < 1 << 20, "{}", copied.st_blocks);
    }
}
