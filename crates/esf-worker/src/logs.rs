//! Reading the output of commands, while they run and afterwards, with or without a worker.
//! Invariants: a cursor is a byte offset of the stream, so a reader who was cut off goes on without
//! loss or repetition; a stream whose worker was lost ends with `infra_lost`, never as if complete.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use esf_core::{AttemptId, Class, ExecId, Problem};
use serde::{Deserialize, Serialize};

use crate::message::ExecResult;
use crate::place;
use crate::spool::{Extent, Quota, SpoolReader};

/// One of a command's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The extension of its file.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Stdout => "out",
            Self::Stderr => "err",
        }
    }
}

/// What is written beside the streams when a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// How it ended.
    pub result: ExecResult,
    /// What is stored of stdout.
    pub stdout: Extent,
    /// What is stored of stderr.
    pub stderr: Extent,
}

impl Note {
    /// Reads the note of a command that ended.
    ///
    /// # Errors
    /// I/O; a note that cannot be read is `InvalidData`.
    pub fn read(store: &Path, attempt: AttemptId, exec: ExecId) -> io::Result<Option<Self>> {
        match std::fs::read(place::note(store, attempt, exec)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the note; whole or not at all.
    ///
    /// # Errors
    /// The file system's own.
    pub fn write(&self, store: &Path, attempt: AttemptId) -> io::Result<()> {
        let path = place::note(store, attempt, self.result.exec_id);
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, serde_json::to_vec(self)?)?;
        std::fs::rename(temporary, path)
    }

    /// The extent of one of the streams.
    pub fn extent(&self, stream: Stream) -> Extent {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// A place in the output of a command.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The attempt.
    pub attempt: AttemptId,
    /// The command.
    pub exec: ExecId,
    /// Which stream.
    pub stream: Stream,
    /// Byte offset to read from.
    pub from: u64,
}

/// The commands of an attempt that have output on disk, in no order that means anything.
///
/// # Errors
/// The file system's own; no directory means none.
pub fn list(store: &Path, attempt: AttemptId) -> io::Result<Vec<ExecId>> {
    let entries = match std::fs::read_dir(place::logs(store, attempt)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut execs = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        execs.extend(name.strip_suffix(".out").and_then(|id| id.parse::<ExecId>().ok()));
    }
    Ok(execs)
}

/// Copies a stream from `cursor` on to `out`; with `follow`, until the command has ended. `alive`
/// tells whether a worker is there that may still write. Returns the offset after the last byte.
///
/// # Errors
/// `not_found` when there is no such command, `infra_lost` when its worker went away before it ended,
/// I/O of the file and of `out`.
pub fn copy(
    store: &Path,
    cursor: Cursor,
    follow: bool,
    alive: &dyn Fn() -> bool,
    out: &mut dyn Write,
) -> Result<u64, Problem> {
    let Cursor { attempt, exec, stream, from } = cursor;
    let failed = |error: io::Error| failure(&error, "cannot copy the output");
    let reader =
        SpoolReader::open(&place::stream(store, attempt, exec, stream)).map_err(|error| {
            match error.kind() {
                io::ErrorKind::NotFound => {
                    Problem::new(Class::NotFound, "not_found", format!("no output of {exec} in {attempt}"))
                        .remedy("`esf logs ATTEMPT` lists the commands of an attempt")
                }
                _ => failure(&error, "cannot open the output"),
            }
        })?;
    let mut at = from;
    loop {
        // In this order: what was written before the note or before the worker's death is read below.
        let living = alive();
        let note = Note::read(store, attempt, exec).map_err(failed)?;
        let extent = match &note {
            Some(note) => note.extent(stream),
            None => reader.observed(Quota::DEFAULT).map_err(failed)?,
        };
        at = copy_stored(&reader, &extent, at, out).map_err(failed)?;
        match (note, living) {
            (Some(_), _) => return Ok(at),
            (None, false) => return Err(lost(exec, at)),
            (None, true) if !follow => return Ok(at),
            (None, true) => pause(),
        }
    }
}

/// Waits a little for more output of another process; it tells nobody when it writes.
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn copy_stored(reader: &SpoolReader, extent: &Extent, from: u64, out: &mut dyn Write) -> io::Result<u64> {
    let mut at = from;
    let mut buffer = vec![0; crate::wire::CHUNK];
    while let Some((start, _)) = extent.next(at) {
        if start > at {
            writeln!(out, "\n[esf: {} bytes were not kept]", start - at)?;
        }
        let read = reader.read(extent, start, &mut buffer)?;
        if read == 0 {
            break;
        }
        out.write_all(&buffer[..read])?;
        at = start + read as u64;
    }
    out.flush()?;
    Ok(at)
}

fn lost(exec: ExecId, at: u64) -> Problem {
    let message = format!("the worker was lost before {exec} ended; its output stops at byte {at}");
    Problem::new(Class::Failure, "infra_lost", message)
        .remedy("`esf retry` runs the attempt anew; `esf suspend` saves what it left")
        .context(serde_json::json!({ "offset": at }))
}

/// The problem that stands for an I/O error of our own.
pub(crate) fn failure(error: &io::Error, what: &str) -> Problem {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return Problem::new(Class::Failure, "storage_full", format!("{what}: {error}"))
            .remedy("free some space and try again")
            .retryable();
    }
    Problem::new(Class::Failure, "io", format!("{what}: {error}"))
}
