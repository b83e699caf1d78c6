//! The client of a store's resident worker: finds it, starts it when there is none, and asks.
//! Invariant: nothing is sent before the greeting was answered, so a worker that was just leaving
//! costs a retry and never a request; a connection that breaks later is `infra_lost`, never success.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use esf_core::record::Attempt;
use esf_core::{AttemptId, Class, ExecId, Problem};
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;

use crate::logs;
use crate::message::{
    ActivateRequest, CancelRequest, Cancelled, ExecRequest, ExecResult, FileEntry, QueueNews, Request,
    RequestMeta, RetryRequest, SuspendReply, SuspendRequest, Top, WorkerStatus,
};
use crate::wire::{CHUNK, Connection, Frame, Kind, encode, protocol, wait};

/// How long a worker that was told to stop may take, with its helpers.
const STOP_MS: u64 = 15_000;

/// What a command reads.
#[derive(Debug)]
pub enum Stdin {
    /// Whatever this descriptor gives, as it comes.
    Fd(OwnedFd),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A connection to a worker; one request at a time.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    store: PathBuf,
    cancel: Option<OwnedFd>,
    pid: u32,
}

/// Input of a request: read when `ready` is, or at any time without it.
struct Source<'a> {
    reader: &'a mut dyn Read,
    ready: Option<BorrowedFd<'a>>,
}

impl Client {
    pub(crate) fn over(connection: Connection, store: PathBuf, pid: u32) -> Self {
        Self { connection, store, cancel: None, pid }
    }

    /// The worker's process id.
    pub fn worker_pid(&self) -> u32 {
        self.pid
    }

    /// Cancels the request in progress as soon as `fd` becomes readable: a running foreground command
    /// is killed with its whole tree, an attempt that waits for its turn is given up.
    pub fn set_cancel(&mut self, fd: OwnedFd) {
        self.cancel = Some(fd);
    }

    /// Brings a node to life; `queued` is told how many are before it, and why it waits, whenever that changes.
    ///
    /// # Errors
    /// `quota` with `no_wait`, `cancelled`, and whatever the graph and the executor say.
    pub fn activate(
        &mut self,
        mut request: ActivateRequest,
        queued: &mut dyn FnMut(&QueueNews),
    ) -> Result<Attempt, Problem> {
        if let Some(files) = &mut request.extra.files {
            *files = std::path::absolute(&*files)
                .map_err(|error| logs::failure(&error, "cannot find the evaluator's files"))?;
        }
        self.converse(&Request::Activate(Box::new(request)), None, &mut |frame| told(&frame, queued))
    }

    /// Makes a new attempt of the draft of a failed or released one, and brings it to life.
    ///
    /// # Errors
    /// As `activate`.
    pub fn retry(
        &mut self,
        request: RetryRequest,
        queued: &mut dyn FnMut(&QueueNews),
    ) -> Result<Attempt, Problem> {
        self.converse(&Request::Retry(request), None, &mut |frame| told(&frame, queued))
    }

    /// Runs a command. Its output goes to `out` and `err` as it comes. When this client goes away the
    /// command goes on to its end or time-out; only `set_cancel` and `kill` end it.
    ///
    /// # Errors
    /// `bad_cwd`, `bad_user`, `not_found`, `not_active`; a command that cannot start, fails or times
    /// out is a result.
    pub fn exec(
        &mut self,
        mut request: ExecRequest,
        stdin: Option<Stdin>,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<ExecResult, Problem> {
        request.stdin = stdin.is_some();
        let request = Request::Exec(Box::new(request));
        let mut sink = |frame: Frame| output(&frame, out, err);
        match stdin {
            None => self.converse(&request, None, &mut sink),
            Some(Stdin::Bytes(bytes)) => {
                let source = Source { reader: &mut &bytes[..], ready: None };
                self.converse(&request, Some(source), &mut sink)
            }
            Some(Stdin::Fd(fd)) => {
                let file = File::from(fd);
                let source = Source { reader: &mut &file, ready: Some(file.as_fd()) };
                self.converse(&request, Some(source), &mut sink)
            }
        }
    }

    /// Seals an attempt; of a lost one, saves the delta through a salvage attempt.
    ///
    /// # Errors
    /// `workspace_busy`, `storage_full` (the delta is kept, the same request may be sent again), and
    /// whatever the graph says.
    pub fn suspend(&mut self, request: SuspendRequest) -> Result<SuspendReply, Problem> {
        self.ask(&Request::Suspend(request))
    }

    /// Ends an attempt without a seal.
    ///
    /// # Errors
    /// `unsealed_changes` with their count unless `discard`.
    pub fn release(
        &mut self,
        meta: RequestMeta,
        attempt: AttemptId,
        discard: bool,
    ) -> Result<Attempt, Problem> {
        self.ask(&Request::Release { meta, attempt, discard })
    }

    /// Sends `signal` to a command, or to all of an attempt; SIGKILL kills their whole trees. Returns
    /// which commands it reached.
    ///
    /// # Errors
    /// `not_found` when there is no such attempt or command.
    pub fn kill(
        &mut self,
        attempt: AttemptId,
        exec: Option<ExecId>,
        signal: i32,
    ) -> Result<Vec<ExecId>, Problem> {
        self.ask(&Request::Kill { attempt, exec, signal })
    }

    /// Ends the attempts of a group that wait, and those that live when that is said.
    ///
    /// # Errors
    /// `not_found`, `idempotency_conflict`.
    pub fn cancel(&mut self, request: CancelRequest) -> Result<Cancelled, Problem> {
        self.ask(&Request::Cancel(request))
    }

    /// The worker's gauges.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn top(&mut self) -> Result<Top, Problem> {
        self.ask(&Request::Top)
    }

    /// Copies output of a command from `from` on, with or without its end; returns the next offset.
    ///
    /// # Errors
    /// As `logs::copy`.
    pub fn logs(&mut self, cursor: logs::Cursor, follow: bool, out: &mut dyn Write) -> Result<u64, Problem> {
        let store = self.store.clone();
        logs::copy(&store, cursor, follow, &|| crate::lock::held(&store), out)
    }

    /// Copies a file out of a live sandbox; returns its mode bits.
    ///
    /// # Errors
    /// `not_found`, `not_a_file`.
    pub fn get_file(&mut self, attempt: AttemptId, path: &Path, out: &mut dyn Write) -> Result<u32, Problem> {
        let request = Request::Get { attempt, path: path.to_owned() };
        self.converse(&request, None, &mut |frame| match frame.kind {
            Kind::Data => written(out.write_all(&frame.payload)),
            _ => Err(unexpected(&frame)),
        })
    }

    /// Copies a file into a live sandbox; readers see the old or the new one, never a part.
    ///
    /// # Errors
    /// `not_found` when its directory is missing, `storage_full`.
    pub fn put_file(
        &mut self,
        attempt: AttemptId,
        path: &Path,
        mode: u32,
        from: &mut dyn Read,
    ) -> Result<u64, Problem> {
        let request = Request::Put { attempt, path: path.to_owned(), mode };
        let source = Source { reader: from, ready: None };
        self.converse(&request, Some(source), &mut |frame| Err(unexpected(&frame)))
    }

    /// Lists a directory of a live sandbox in the kernel's order; returns how many entries it has.
    ///
    /// # Errors
    /// `not_found`.
    pub fn list_files(
        &mut self,
        attempt: AttemptId,
        path: &Path,
        each: &mut dyn FnMut(FileEntry),
    ) -> Result<u64, Problem> {
        let request = Request::List { attempt, path: path.to_owned() };
        self.converse(&request, None, &mut |frame| match frame.kind {
            Kind::Data => {
                frame.json::<Vec<FileEntry>>().map(|entries| entries.into_iter().for_each(&mut *each))
            }
            _ => Err(unexpected(&frame)),
        })
    }

    /// Empties the result channel of an evaluator's run, but for the evaluator's own files; returns how
    /// many entries were removed.
    ///
    /// # Errors
    /// `not_found` when the attempt has no result channel.
    pub fn clear_result(&mut self, attempt: AttemptId) -> Result<u64, Problem> {
        self.ask(&Request::ClearResult { attempt })
    }

    /// What the worker is doing.
    ///
    /// # Errors
    /// When it is gone.
    pub fn status(&mut self) -> Result<WorkerStatus, Problem> {
        self.ask(&Request::Status)
    }

    /// Ends the worker. With live attempts it refuses unless `force`; forced, they end `infra_lost` and
    /// their deltas are kept.
    ///
    /// # Errors
    /// `worker_busy`.
    pub fn stop(mut self, force: bool) -> Result<(), Problem> {
        self.ask::<()>(&Request::Stop { force })?;
        let store = self.store.clone();
        // It waits for its connections, this one too.
        drop(self);
        for _ in 0..STOP_MS / 10 {
            if !crate::lock::held(&store) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let message = format!("the worker is told to stop and has not ended after {STOP_MS} ms");
        Err(Problem::new(Class::Failure, "worker_stopping", message).retryable())
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, Problem> {
        self.converse(request, None, &mut |frame| Err(unexpected(&frame)))
    }

    /// Sends a request and its input, gives every frame before the reply to `other`, reads the reply.
    fn converse<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        mut source: Option<Source<'_>>,
        other: &mut dyn FnMut(Frame) -> Result<(), Problem>,
    ) -> Result<T, Problem> {
        self.connection.send_json(Kind::Request, request).map_err(|error| gone(&error.to_string()))?;
        let mut pending = Pending::default();
        let mut cancelled = false;
        loop {
            while let Some(frame) = self.connection.try_read().map_err(|e| gone(&e.to_string()))? {
                match frame.kind {
                    Kind::Reply => return frame.json(),
                    Kind::Problem => return Err(frame.json::<Problem>()?),
                    _ => other(frame)?,
                }
            }
            if self.connection.ended() {
                return Err(gone("the connection ended"));
            }
            if self.wait_for_work(&pending, source.as_ref(), cancelled)? {
                cancelled = true;
                pending.push(Kind::Cancel, &[]);
            }
            if pending.is_empty() && source.as_ref().is_some_and(Source::is_ready) {
                pending.read_from(&mut source)?;
            }
            pending.send_over(&self.connection)?;
        }
    }

    /// Waits for the worker, for room to send, for input or for the cancel descriptor; true for the last.
    fn wait_for_work(
        &self,
        pending: &Pending,
        source: Option<&Source<'_>>,
        cancelled: bool,
    ) -> Result<bool, Problem> {
        let mut socket = PollFlags::IN;
        socket.set(PollFlags::OUT, !pending.is_empty());
        let mut fds = vec![PollFd::new(self.connection.stream(), socket)];
        let cancel = self.cancel.as_ref().filter(|_| !cancelled);
        fds.extend(cancel.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let mut patience = None;
        if let Some(source) = source.filter(|_| pending.is_empty()) {
            match source.ready {
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                None => patience = Some(0),
            }
        }
        wait(&mut fds, patience).map_err(|error| logs::failure(&error, "cannot wait for the worker"))?;
        Ok(cancel.is_some() && !fds[1].revents().is_empty())
    }
}

impl Source<'_> {
    fn is_ready(&self) -> bool {
        let Some(fd) = self.ready else { return true };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        wait(&mut fds, Some(0)).unwrap_or(false)
    }
}

/// Frames on their way out.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    sent: usize,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    fn push(&mut self, kind: Kind, payload: &[u8]) {
        self.bytes.extend(encode(kind, payload));
    }

    fn read_from(&mut self, source: &mut Option<Source<'_>>) -> Result<(), Problem> {
        let Some(open) = source else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        match open.reader.read(&mut chunk) {
            Ok(0) => {
                self.push(Kind::InputEnd, &[]);
                *source = None;
            }
            Ok(length) => self.push(Kind::Input, &chunk[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(logs::failure(&error, "cannot read the input")),
        }
        Ok(())
    }

    fn send_over(&mut self, connection: &Connection) -> Result<(), Problem> {
        if self.is_empty() {
            return Ok(());
        }
        match connection.send_some(&self.bytes[self.sent..]) {
            Ok(sent) => self.sent += sent,
            // The reply, or the loss, is in what can still be read.
            Err(_) => self.sent = self.bytes.len(),
        }
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
        Ok(())
    }
}

fn told(frame: &Frame, queued: &mut dyn FnMut(&QueueNews)) -> Result<(), Problem> {
    match frame.kind {
        Kind::Queued => frame.json::<QueueNews>().map(|news| queued(&news)),
        _ => Err(unexpected(frame)),
    }
}

fn output(frame: &Frame, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), Problem> {
    let gap = || -> Result<String, Problem> {
        let bytes: [u8; 8] = frame.payload[..].try_into().map_err(|_| unexpected(frame))?;
        Ok(format!("\n[esf: {} bytes left out; `esf logs` has them]\n", u64::from_le_bytes(bytes)))
    };
    match frame.kind {
        Kind::Started => Ok(()),
        Kind::Stdout => written(out.write_all(&frame.payload).and_then(|()| out.flush())),
        Kind::Stderr => written(err.write_all(&frame.payload).and_then(|()| err.flush())),
        Kind::StdoutGap => written(out.write_all(gap()?.as_bytes())),
        Kind::StderrGap => written(err.write_all(gap()?.as_bytes())),
        _ => Err(unexpected(frame)),
    }
}

fn written(result: io::Result<()>) -> Result<(), Problem> {
    result.map_err(|error| logs::failure(&error, "cannot write the output"))
}

fn unexpected(frame: &Frame) -> Problem {
    protocol(format!("unexpected {:?} frame from the worker", frame.kind))
}

fn gone(what: &str) -> Problem {
    Problem::new(Class::Failure, "infra_lost", format!("the worker went away: {what}"))
        .remedy("`esf ps` shows what became of the attempt; `esf retry` or `esf suspend` goes on from there")
        .retryable()
}
