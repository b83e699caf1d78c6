//! Files in and out of a live sandbox.
//! Invariants: every path resolves inside the sandbox's root, by a process inside; a written file appears
//! whole or not at all; memory does not grow with the file; a client that stalls holds up no seal.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use esf_core::{AttemptId, Class, Problem};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, Dir, FileType, Mode, fchmod, fstat, statat};

use crate::executor::{Extra, Files};
use crate::logs::failure;
use crate::message::FileEntry;
use crate::server::Worker;
use crate::server::connection::{Served, reply};
use crate::server::live::Live;
use crate::wire::{CHUNK, Connection, Kind, encode, wait};

/// Entries of a directory in one frame.
const BATCH: usize = 500;
/// How often a transfer looks whether its attempt is ending.
const PATIENCE_MS: u64 = 200;
/// Deepest directory of the result channel that is emptied.
const MAX_DEPTH: usize = 16;

impl Worker {
    pub(crate) fn get_file(
        &self,
        connection: &Connection,
        attempt: AttemptId,
        path: &Path,
    ) -> Result<Served, Problem> {
        let live = self.live_or_problem(attempt)?;
        let sandbox = live.admit()?;
        let fd = sandbox.files().open(path).map_err(|error| cannot(&error, "read", path))?;
        let stat = fstat(&fd).map_err(|error| cannot(&error.into(), "read", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Problem::new(
                Class::Usage,
                "not_a_file",
                format!("{} is not a regular file", path.display()),
            )
            .remedy("copy files one by one; `esf files ls` lists a directory"));
        }
        let mut file = File::from(fd);
        let mut buffer = vec![0; CHUNK];
        loop {
            match file.read(&mut buffer).map_err(|error| cannot(&error, "read", path))? {
                0 => return reply(&(stat.st_mode & 0o7777)),
                length => send(connection, &live, Kind::Data, &buffer[..length])?,
            }
        }
    }

    pub(crate) fn put_file(
        &self,
        connection: &mut Connection,
        attempt: AttemptId,
        path: &Path,
        mode: u32,
    ) -> Result<Served, Problem> {
        let live = self.live_or_problem(attempt)?;
        let sandbox = live.admit()?;
        let files = sandbox.files();
        let temporary = beside(path)?;
        let fd = files.create(&temporary, 0o600).map_err(|error| cannot(&error, "write", path))?;
        let written = receive(connection, &live, fd, mode, path).and_then(|length| {
            files.rename(&temporary, path).map_err(|error| cannot(&error, "write", path))?;
            Ok(length)
        });
        if written.is_err()
            && let Err(error) = files.remove(&temporary)
        {
            tracing::warn!(%attempt, %error, "cannot remove a half-written file");
        }
        reply(&written?)
    }

    pub(crate) fn list_files(
        &self,
        connection: &Connection,
        attempt: AttemptId,
        path: &Path,
    ) -> Result<Served, Problem> {
        let live = self.live_or_problem(attempt)?;
        let sandbox = live.admit()?;
        let failed = |error: &io::Error| cannot(error, "list", path);
        let fd = sandbox.files().open(path).map_err(|error| failed(&error))?;
        let mut count = 0_u64;
        let mut batch = Vec::with_capacity(BATCH);
        for entry in Dir::read_from(&fd).map_err(|error| failed(&error.into()))? {
            let entry = entry.map_err(|error| failed(&error.into()))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            // What is gone meanwhile is not listed.
            batch.extend(describe(&fd, name));
            count += 1;
            if batch.len() == BATCH {
                send_batch(connection, &live, &mut batch)?;
            }
        }
        send_batch(connection, &live, &mut batch)?;
        reply(&count)
    }

    /// Empties the result channel of an evaluator's run, but for the evaluator's own files.
    pub(crate) fn clear_result(&self, attempt: AttemptId) -> Result<u64, Problem> {
        let live = self.live_or_problem(attempt)?;
        let sandbox = live.admit()?;
        let top = Path::new(Extra::CHANNEL);
        clear(sandbox.files(), top, 0).map_err(|error| cannot(&error, "empty", top))
    }
}

fn clear(files: &dyn Files, directory: &Path, depth: usize) -> io::Result<u64> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("the result channel is too deep"));
    }
    let fd = files.open(directory)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let path = directory.join(std::ffi::OsStr::from_bytes(name));
        if !matches!(name, b"." | b"..") && path != Path::new(Extra::FILES) {
            let stat = statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
            names.push((path, FileType::from_raw_mode(stat.st_mode) == FileType::Directory));
        }
    }
    let mut removed = 0;
    for (path, is_directory) in names {
        if is_directory {
            removed += clear(files, &path, depth + 1)?;
        }
        files.remove(&path)?;
        removed += 1;
    }
    Ok(removed)
}

/// A name beside `path` that nobody else uses.
fn beside(path: &Path) -> Result<PathBuf, Problem> {
    let Some(name) = path.file_name() else {
        return Err(Problem::new(Class::Usage, "not_a_file", format!("{} names no file", path.display())));
    };
    let mut hidden = std::ffi::OsString::from(".");
    // Cut so that a name of 255 bytes has a neighbour too.
    hidden.push(std::ffi::OsStr::from_bytes(&name.as_bytes()[..name.len().min(180)]));
    hidden.push(format!(".{}", crate::clock::draw()));
    Ok(path.with_file_name(hidden))
}

fn receive(
    connection: &mut Connection,
    live: &Live,
    fd: OwnedFd,
    mode: u32,
    path: &Path,
) -> Result<u64, Problem> {
    let failed = |error: io::Error| cannot(&error, "write", path);
    let mut file = File::from(fd);
    let mut length = 0;
    loop {
        match connection.try_read().map_err(failed)? {
            Some(frame) if frame.kind == Kind::Input => {
                file.write_all(&frame.payload).map_err(failed)?;
                length += frame.payload.len() as u64;
            }
            Some(frame) if frame.kind == Kind::InputEnd => {
                // After the content: writing clears set-id bits.
                fchmod(&file, Mode::from_raw_mode(mode & 0o7777)).map_err(|error| failed(error.into()))?;
                return Ok(length);
            }
            Some(_) => return Err(Problem::new(Class::Failure, "cancelled", "the upload was cancelled")),
            None if connection.ended() => {
                return Err(Problem::new(Class::Failure, "cancelled", "the client is gone"));
            }
            None => {
                stay(live)?;
                let mut fds = [PollFd::new(connection.stream(), PollFlags::IN)];
                wait(&mut fds, Some(PATIENCE_MS)).map_err(failed)?;
            }
        }
    }
}

/// Sends a frame, unless the attempt ends before the client takes it.
fn send(connection: &Connection, live: &Live, kind: Kind, payload: &[u8]) -> Result<(), Problem> {
    let gone = |error: io::Error| failure(&error, "the client is gone");
    let bytes = encode(kind, payload);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let sent = connection.send_some(rest).map_err(gone)?;
        rest = &rest[sent..];
        if sent == 0 {
            // Half a frame cannot be taken back: the connection ends with the attempt.
            if let Err(problem) = stay(live) {
                let _ = rustix::net::shutdown(connection.stream(), rustix::net::Shutdown::Both);
                return Err(problem);
            }
            let mut fds = [PollFd::new(connection.stream(), PollFlags::OUT)];
            wait(&mut fds, Some(PATIENCE_MS)).map_err(gone)?;
        }
    }
    stay(live)
}

fn send_batch(connection: &Connection, live: &Live, batch: &mut Vec<FileEntry>) -> Result<(), Problem> {
    if batch.is_empty() {
        return Ok(());
    }
    let payload =
        serde_json::to_vec(&batch).map_err(|error| failure(&error.into(), "cannot write a listing"))?;
    batch.clear();
    send(connection, live, Kind::Data, &payload)
}

fn stay(live: &Live) -> Result<(), Problem> {
    if live.is_closing() {
        return Err(Problem::new(Class::Conflict, "not_active", "the attempt ended during the transfer"));
    }
    Ok(())
}

fn describe(directory: &OwnedFd, name: &[u8]) -> Option<FileEntry> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => "device",
    };
    let exact = std::str::from_utf8(name).is_err().then(|| name.to_vec());
    Some(FileEntry {
        name: String::from_utf8_lossy(name).into_owned(),
        name_bytes: exact,
        kind: kind.to_owned(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        mtime: stat.st_mtime,
    })
}

fn cannot(error: &io::Error, what: &str, path: &Path) -> Problem {
    let message = format!("cannot {what} {} in the sandbox: {error}", path.display());
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOENT) => Problem::new(Class::NotFound, "not_found", message),
        Some(rustix::io::Errno::NOTDIR) => Problem::new(Class::NotFound, "not_found", message),
        Some(rustix::io::Errno::ISDIR) => Problem::new(Class::Usage, "not_a_file", message),
        Some(rustix::io::Errno::LOOP | rustix::io::Errno::XDEV) => {
            Problem::new(Class::Refused, "path_escape", message)
        }
        Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
            Problem::new(Class::Failure, "storage_full", message).retryable()
        }
        _ => failure(error, &format!("cannot {what} {} in the sandbox", path.display())),
    }
}
