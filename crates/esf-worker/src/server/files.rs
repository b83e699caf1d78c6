//! Files in and out of a live sandbox.
//! Invariants: every path resolves inside the sandbox's root, by a process inside; a written file appears
//! whole or not at all; memory does not grow with the file; a client that stalls holds up no seal.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esf_core::{AttemptId, Class, Problem};
use rustix::event::{PollFd, PollFlags};

use crate::executor::{Extra, Files, Upload};
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
        let opened = sandbox.files().open(path).map_err(|error| cannot(&error, "read", path))?;
        let mut file = File::from(opened.content);
        let mut buffer = vec![0; CHUNK];
        loop {
            match file.read(&mut buffer).map_err(|error| cannot(&error, "read", path))? {
                0 => return reply(&opened.mode),
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
        let mut upload = sandbox.files().create(path).map_err(|error| cannot(&error, "write", path))?;
        let length = receive(connection, &live, &mut *upload, path)?;
        upload.publish(mode & 0o7777).map_err(|error| cannot(&error, "write", path))?;
        reply(&length)
    }

    pub(crate) fn list_files(
        &self,
        connection: &Connection,
        attempt: AttemptId,
        path: &Path,
    ) -> Result<Served, Problem> {
        let live = self.live_or_problem(attempt)?;
        let sandbox = live.admit()?;
        let mut count = 0_u64;
        let mut batch = Vec::with_capacity(BATCH);
        let mut broken = None;
        let listed = sandbox.files().list(path, &mut |entry| {
            batch.push(entry);
            count += 1;
            if batch.len() < BATCH {
                return Ok(());
            }
            send_batch(connection, &live, &mut batch).map_err(|problem| {
                broken = Some(problem);
                io::Error::other("the client is gone")
            })
        });
        if let Some(problem) = broken {
            return Err(problem);
        }
        listed.map_err(|error| cannot(&error, "list", path))?;
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
    let mut names = Vec::new();
    files.list(directory, &mut |entry| {
        let path = directory.join(std::ffi::OsStr::from_bytes(entry.bytes()));
        if path != Path::new(Extra::FILES) {
            names.push((path, entry.kind == "directory"));
        }
        Ok(())
    })?;
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

fn receive(
    connection: &mut Connection,
    live: &Live,
    upload: &mut dyn Upload,
    path: &Path,
) -> Result<u64, Problem> {
    let failed = |error: io::Error| cannot(&error, "write", path);
    let mut length = 0;
    loop {
        match connection.try_read().map_err(failed)? {
            Some(frame) if frame.kind == Kind::Input => {
                upload.write(&frame.payload).map_err(failed)?;
                length += frame.payload.len() as u64;
            }
            Some(frame) if frame.kind == Kind::InputEnd => return Ok(length),
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

fn cannot(error: &io::Error, what: &str, path: &Path) -> Problem {
    let message = format!("cannot {what} {} in the sandbox: {error}", path.display());
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOENT) => Problem::new(Class::NotFound, "not_found", message),
        Some(rustix::io::Errno::NOTDIR) => Problem::new(Class::NotFound, "not_found", message),
        Some(rustix::io::Errno::ISDIR) => not_a_file(message),
        None if error.kind() == io::ErrorKind::InvalidInput => not_a_file(message),
        Some(rustix::io::Errno::LOOP | rustix::io::Errno::XDEV) => {
            Problem::new(Class::Refused, "path_escape", message)
        }
        Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
            Problem::new(Class::Failure, "storage_full", message).retryable()
        }
        _ => failure(error, &format!("cannot {what} {} in the sandbox", path.display())),
    }
}

fn not_a_file(message: String) -> Problem {
    Problem::new(Class::Usage, "not_a_file", message)
        .expected("a regular file")
        .remedy("copy files one by one; `esf files ls` lists a directory")
}
