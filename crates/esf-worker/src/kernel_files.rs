//! File access for executors whose files are the kernel's own: what `Files` asks for, made of plain
//! operations on paths inside. Invariant: a file appears whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, fchmod, fstat, statat};

use crate::executor::{FileEntry, OpenFile, Upload};

/// The plain operations; paths resolve inside the sandbox.
pub trait KernelFiles {
    /// Makes a file that must not exist, for writing, readable by nobody else.
    ///
    /// # Errors
    /// The kernel's own.
    fn create_new(&self, path: &Path) -> io::Result<OwnedFd>;

    /// Renames over whatever is at `to`.
    ///
    /// # Errors
    /// The kernel's own.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// The kernel's own.
    fn unlink(&self, path: &Path) -> io::Result<()>;
}

/// What was opened for reading, if it is a regular file.
///
/// # Errors
/// `IsADirectory`, or `InvalidInput` for what is neither file nor directory.
pub fn regular(fd: OwnedFd) -> io::Result<OpenFile> {
    let stat = fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(OpenFile { content: fd, mode: stat.st_mode & 0o7777 }),
        FileType::Directory => Err(rustix::io::Errno::ISDIR.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Calls `each` for every entry of an open directory.
///
/// # Errors
/// The kernel's own, and those of `each`.
pub fn list(directory: &OwnedFd, each: &mut dyn FnMut(FileEntry) -> io::Result<()>) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        // What is gone meanwhile is not listed.
        if let Some(entry) = describe(directory, name) {
            each(entry)?;
        }
    }
    Ok(())
}

fn describe(directory: impl AsFd, name: &[u8]) -> Option<FileEntry> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => "device",
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Some(FileEntry::new(name, kind, size, stat.st_mode & 0o7777, stat.st_mtime))
}

/// Begins an upload to `path`: written beside it, then renamed.
///
/// # Errors
/// `InvalidInput` when the path names no file, and the kernel's own.
pub fn upload<'a>(files: &'a dyn KernelFiles, path: &Path) -> io::Result<Box<dyn Upload + 'a>> {
    let temporary = beside(path)?;
    let file = files.create_new(&temporary)?.into();
    Ok(Box::new(Partial { files, file, temporary: Some(temporary), path: path.to_owned() }))
}

/// A name beside `path` that nobody else uses.
///
/// # Errors
/// `InvalidInput` when the path names no file.
pub fn beside(path: &Path) -> io::Result<PathBuf> {
    let nameless = || io::Error::new(io::ErrorKind::InvalidInput, "it names no file");
    let name = path.file_name().ok_or_else(nameless)?;
    let mut hidden = OsString::from(".");
    // Cut so that a name of 255 bytes has a neighbour too.
    hidden.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(180)]));
    hidden.push(format!(".{}", crate::clock::draw()));
    Ok(path.with_file_name(hidden))
}

struct Partial<'a> {
    files: &'a dyn KernelFiles,
    file: File,
    /// Taken when it was renamed.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl Upload for Partial<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn publish(mut self: Box<Self>, mode: u32) -> io::Result<()> {
        // After the content: writing clears set-id bits.
        fchmod(&self.file, Mode::from_raw_mode(mode & 0o7777))?;
        let temporary = self.temporary.as_ref().expect("published once");
        self.files.rename(temporary, &self.path)?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary
            && let Err(error) = self.files.unlink(temporary)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a half-written file");
        }
    }
}
