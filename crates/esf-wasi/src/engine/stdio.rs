//! A guest's standard streams over descriptors that the worker made: pipes, or `/dev/null`.
//!
//! What a guest writes goes straight into the pipe; only what a full pipe does not take is kept, at most
//! [`BUFFER`] bytes for each stream, and waited for before the exit is reported, so output is never cut short
//! by an exit. No stream is a terminal.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::cli::{stderr, stdin, stdout};
use wasmtime_wasi_io::async_trait;
use wasmtime_wasi_io::poll::Pollable;
use wasmtime_wasi_io::streams::{
    DynInputStream, DynOutputStream, InputStream, OutputStream, StreamError, StreamResult,
};

use super::filesystem;

/// Bytes of output that are kept while the pipe is full.
const BUFFER: usize = 64 << 10;

/// Bytes of input that one call takes.
const READ: usize = 64 << 10;

/// How long to wait where the system cannot say when a descriptor is ready.
const UNPOLLABLE: Duration = Duration::from_millis(5);

/// The descriptors of a guest's standard streams. Only the guest's end of each pipe: it is made nonblocking.
#[derive(Debug)]
pub(crate) struct GuestStdio {
    /// Read by the guest.
    pub(crate) stdin: OwnedFd,
    /// Written by the guest.
    pub(crate) stdout: OwnedFd,
    /// Written by the guest, and by us when it traps.
    pub(crate) stderr: OwnedFd,
}

/// The three streams of a running guest; every handle that a guest asks for is onto one of these.
#[derive(Clone)]
pub(super) struct Stdio {
    stdin: Input,
    stdout: Output,
    pub(super) stderr: Output,
}

impl Stdio {
    pub(super) fn new(stdio: GuestStdio) -> rustix::io::Result<Self> {
        Ok(Self {
            stdin: Input(Arc::new(Pipe::new(stdio.stdin, Interest::READABLE)?)),
            stdout: Output::new(stdio.stdout)?,
            stderr: Output::new(stdio.stderr)?,
        })
    }

    /// Waits until all output is in the pipes, or nobody reads them any more.
    pub(super) async fn flush(&self) {
        self.stdout.drain().await;
        self.stderr.drain().await;
    }
}

/// One end of a pipe, registered with the runtime only once it has to be waited for.
struct Pipe {
    fd: Arc<OwnedFd>,
    interest: Interest,
    registered: OnceLock<Option<AsyncFd<Arc<OwnedFd>>>>,
}

impl Pipe {
    fn new(fd: OwnedFd, interest: Interest) -> rustix::io::Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Self { fd: Arc::new(fd), interest, registered: OnceLock::new() })
    }

    fn is_ready(&self) -> bool {
        let flags = if self.interest.is_readable() { PollFlags::IN } else { PollFlags::OUT };
        let mut fds = [PollFd::new(&*self.fd, flags)];
        // A descriptor that cannot be asked is tried: the call itself then says what is wrong.
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |ready| ready > 0)
    }

    #[expect(deprecated, reason = "the Arc keeps the descriptor open for as long as it is registered")]
    fn register(&self) -> Option<AsyncFd<Arc<OwnedFd>>> {
        AsyncFd::with_interest(Arc::clone(&self.fd), self.interest).ok()
    }

    async fn ready(&self) {
        while !self.is_ready() {
            match self.registered.get_or_init(|| self.register()) {
                Some(registered) => match registered.ready(self.interest).await {
                    Ok(mut guard) if !self.is_ready() => guard.clear_ready(),
                    Ok(_) | Err(_) => return,
                },
                None => tokio::time::sleep(UNPOLLABLE).await,
            }
        }
    }
}

/// Standard input. Handles share it: what one reads, the others do not see.
#[derive(Clone)]
struct Input(Arc<Pipe>);

#[async_trait]
impl Pollable for Input {
    async fn ready(&mut self) {
        self.0.ready().await;
    }
}

#[async_trait]
impl InputStream for Input {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size == 0 {
            return Ok(Bytes::new());
        }
        let mut bytes = vec![0; size.min(READ)];
        match rustix::io::retry_on_intr(|| rustix::io::read(&*self.0.fd, &mut bytes[..])) {
            Ok(0) => Err(StreamError::Closed),
            Ok(read) => {
                bytes.truncate(read);
                Ok(bytes.into())
            }
            Err(Errno::AGAIN) => Ok(Bytes::new()),
            Err(errno) => Err(filesystem::failed(errno)),
        }
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        loop {
            self.0.ready().await;
            // Another handle may have been faster.
            let bytes = self.read(size)?;
            if !bytes.is_empty() || size == 0 {
                return Ok(bytes);
            }
        }
    }
}

/// Standard output or error. Handles share its buffer, so their pieces stay whole and in order.
#[derive(Clone)]
pub(super) struct Output {
    pipe: Arc<Pipe>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pending: Bytes,
    /// Why nothing more can be written.
    failed: Option<Errno>,
}

impl Output {
    fn new(fd: OwnedFd) -> rustix::io::Result<Self> {
        Ok(Self { pipe: Arc::new(Pipe::new(fd, Interest::WRITABLE)?), state: Arc::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes as much of what is pending as the pipe takes.
    fn advance(&self) -> StreamResult<MutexGuard<'_, State>> {
        let mut state = self.state();
        while state.failed.is_none() && !state.pending.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::write(&*self.pipe.fd, &state.pending)) {
                Ok(written) => state.pending.advance(written),
                Err(Errno::AGAIN) => break,
                Err(errno) => state.failed = Some(errno),
            }
        }
        match state.failed {
            None => Ok(state),
            Some(Errno::PIPE) => Err(StreamError::Closed),
            Some(errno) => Err(filesystem::failed(errno)),
        }
    }

    async fn drain(&self) {
        while self.advance().is_ok_and(|state| !state.pending.is_empty()) {
            self.pipe.ready().await;
        }
    }

    /// Writes a message of the host's after what the guest wrote.
    pub(super) fn say(&self, message: &str) {
        let mut state = self.state();
        let mut all = Vec::from(std::mem::take(&mut state.pending));
        all.extend_from_slice(message.as_bytes());
        state.pending = all.into();
    }
}

#[async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {
        self.drain().await;
    }
}

#[async_trait]
impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut state = self.advance()?;
        if !state.pending.is_empty() || bytes.len() > BUFFER {
            return Err(StreamError::trap("expected a write of what check-write permits, found more"));
        }
        state.pending = bytes;
        drop(state);
        self.advance().map(drop)
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.advance().map(drop)
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(if self.advance()?.pending.is_empty() { BUFFER } else { 0 })
    }

    async fn write_ready(&mut self) -> StreamResult<usize> {
        self.drain().await;
        self.check_write()
    }
}

/// Tells the linker what a guest's request for a standard stream works on.
pub(super) struct HasStdio;

impl HasData for HasStdio {
    type Data<'a> = View<'a>;
}

/// The host's side of such a request.
pub(super) struct View<'a> {
    pub(super) stdio: &'a Stdio,
    pub(super) table: &'a mut ResourceTable,
}

impl stdin::Host for View<'_> {
    fn get_stdin(&mut self) -> wasmtime::Result<Resource<DynInputStream>> {
        let stream: DynInputStream = Box::new(self.stdio.stdin.clone());
        Ok(self.table.push(stream)?)
    }
}

impl stdout::Host for View<'_> {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(self.stdio.stdout.clone());
        Ok(self.table.push(stream)?)
    }
}

impl stderr::Host for View<'_> {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(self.stdio.stderr.clone());
        Ok(self.table.push(stream)?)
    }
}
