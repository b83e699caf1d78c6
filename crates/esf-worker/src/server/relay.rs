//! Between one client and one running command: its input in, its output out.
//! Invariants: the client's slowness is felt by this thread alone; when the client goes away the command
//! goes on (the declared policy), unless the client cancelled it first.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use esf_core::record::Failure;
use esf_core::{AttemptId, FailureClass};
use rustix::event::{PollFd, PollFlags};

use crate::logs::Stream;
use crate::message::ExecResult;
use crate::place;
use crate::server::running::{Bell, Command, Progress};
use crate::spool::SpoolReader;
use crate::wire::{CHUNK, Connection, Kind, wait};

/// Bytes of each stream that a reply carries: so many from the beginning, so many from the end.
#[derive(Clone, Copy)]
struct Window {
    head: u64,
    tail: u64,
}

/// One stream on its way to the client.
struct Forward {
    stream: Stream,
    reader: SpoolReader,
    at: u64,
    window: Option<Window>,
    gaps: bool,
}

/// Input on its way to the command.
struct Input {
    pipe: Option<OwnedFd>,
    pending: Vec<u8>,
    ended: bool,
}

/// Serves the client until the command ended; the result tells whether bytes were left out.
///
/// # Errors
/// When the client is gone.
pub(crate) fn relay(
    connection: &mut Connection,
    store: &Path,
    attempt: AttemptId,
    command: &Command,
    stdin: Option<OwnedFd>,
    max_output: Option<u64>,
) -> io::Result<ExecResult> {
    let bell = Arc::new(Bell::new()?);
    command.watch(&bell);
    let window = max_output.map(|most| Window { head: most - most / 2, tail: most / 2 });
    let forward = |stream| -> io::Result<Forward> {
        let reader = SpoolReader::open(&place::stream(store, attempt, command.exec_id, stream))?;
        Ok(Forward { stream, reader, at: 0, window, gaps: false })
    };
    let mut streams = [forward(Stream::Stdout)?, forward(Stream::Stderr)?];
    let mut input = Input { pipe: stdin, pending: Vec::new(), ended: false };
    loop {
        bell.silence();
        let progress = command.progress();
        for stream in &mut streams {
            stream.send(connection, command, &progress)?;
        }
        if let Some(mut result) = progress.result {
            result.truncated = streams.iter().any(|stream| stream.gaps);
            return Ok(result);
        }
        // What came with the request is in the connection's own buffer, where no poll sees it: it is
        // taken before anything is waited for.
        let all = input.take(connection, command)?;
        if all && connection.ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        input.push();
        if all || input.pending.len() >= CHUNK {
            input.wait(connection, &bell)?;
        }
    }
}

fn cancel(command: &Command) {
    let failure = Failure::new(FailureClass::Cancelled, "exec", "cancelled by its client");
    if let Err(error) = command.kill(failure) {
        tracing::debug!(exec = %command.exec_id, %error, "a cancelled command was gone already");
    }
}

/// Sends the output of a command that ended, as `relay` would have.
///
/// # Errors
/// When the client is gone, or the output.
pub(crate) fn replay(
    connection: &Connection,
    store: &Path,
    attempt: AttemptId,
    note: &crate::logs::Note,
    max_output: Option<u64>,
) -> io::Result<ExecResult> {
    let window = max_output.map(|most| Window { head: most - most / 2, tail: most / 2 });
    let mut result = note.result.clone();
    result.truncated = false;
    for stream in [Stream::Stdout, Stream::Stderr] {
        let path = place::stream(store, attempt, result.exec_id, stream);
        let reader = SpoolReader::open(&path)?;
        let mut forward = Forward { stream, reader, at: 0, window, gaps: false };
        let extent = note.extent(stream);
        forward.send_range(connection, extent.total, true, &|| extent)?;
        result.truncated |= forward.gaps;
    }
    Ok(result)
}

impl Forward {
    fn send(&mut self, connection: &Connection, command: &Command, progress: &Progress) -> io::Result<()> {
        let stream = self.stream;
        let total = progress.extent(stream).total;
        self.send_range(connection, total, progress.result.is_some(), &|| command.progress().extent(stream))
    }

    /// Sends what there is up to `total`, gaps named; the tail only when the stream has `ended`.
    fn send_range(
        &mut self,
        connection: &Connection,
        total: u64,
        ended: bool,
        extent: &dyn Fn() -> crate::spool::Extent,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while self.at < total {
            let (start, end) = match self.window {
                Some(window) if self.at >= window.head && !ended => return Ok(()),
                Some(window) if self.at >= window.head => {
                    (self.at.max(total - window.tail.min(total)), total)
                }
                Some(window) => (self.at, window.head.min(total)),
                None => (self.at, total),
            };
            let (start, end) = match extent().next(start) {
                Some((first, last)) => (first.min(total), last.min(end)),
                None => (total, total),
            };
            self.gap(connection, start)?;
            if start >= end {
                continue;
            }
            let length = usize::try_from(end - start).unwrap_or(usize::MAX).min(buffer.len());
            let read = self.reader.read(&extent(), start, &mut buffer[..length])?;
            // A ring goes on turning while it is read: what was overtaken is asked for again, as a gap.
            if read == 0 || extent().next(start).is_none_or(|(first, _)| first > start) {
                continue;
            }
            connection.send(self.kind(), &buffer[..read])?;
            self.at = start + read as u64;
        }
        Ok(())
    }

    fn kind(&self) -> Kind {
        match self.stream {
            Stream::Stdout => Kind::Stdout,
            Stream::Stderr => Kind::Stderr,
        }
    }

    fn gap(&mut self, connection: &Connection, start: u64) -> io::Result<()> {
        if start <= self.at {
            return Ok(());
        }
        let kind = match self.stream {
            Stream::Stdout => Kind::StdoutGap,
            Stream::Stderr => Kind::StderrGap,
        };
        connection.send(kind, &(start - self.at).to_le_bytes())?;
        self.at = start;
        self.gaps = true;
        Ok(())
    }
}

impl Input {
    /// Takes frames while there is room; true when none that has arrived is left.
    fn take(&mut self, connection: &mut Connection, command: &Command) -> io::Result<bool> {
        while self.pending.len() < CHUNK {
            let Some(frame) = connection.try_read()? else { return Ok(true) };
            match frame.kind {
                Kind::Input => self.pending.extend(frame.payload),
                Kind::InputEnd => self.ended = true,
                Kind::Cancel => cancel(command),
                _ => {}
            }
        }
        Ok(false)
    }

    fn wait(&self, connection: &Connection, bell: &Bell) -> io::Result<()> {
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        if self.pending.len() < CHUNK {
            fds.push(PollFd::new(connection.stream(), PollFlags::IN));
        }
        if let Some(pipe) = self.pipe.as_ref().filter(|_| !self.pending.is_empty()) {
            fds.push(PollFd::new(pipe, PollFlags::OUT));
        }
        wait(&mut fds, None).map(|_| ())
    }

    /// Writes what the pipe takes; a command that reads no more loses the rest.
    fn push(&mut self) {
        while let Some(pipe) = &self.pipe
            && !self.pending.is_empty()
        {
            match rustix::io::write(pipe, &self.pending) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() {
            self.pending.clear();
        } else if self.ended && self.pending.is_empty() {
            self.pipe = None;
        }
    }
}
