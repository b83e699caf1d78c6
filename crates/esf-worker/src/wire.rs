//! Frames of the worker's socket: length (u32, little-endian, of what follows), kind (u8), payload.
//! Control payloads are JSON, everything else raw bytes. Invariant: a frame is at most `MAX` bytes
//! and an unknown kind is an error, so a stranger on the socket costs nothing. Both ends read without
//! blocking when they have something else to wait for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use esf_core::{Class, Problem};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Serialize, de::DeserializeOwned};

/// Version of this protocol; both ends must be of the same.
pub(crate) const VERSION: u32 = 2;
/// Longest frame in bytes.
pub(crate) const MAX: usize = 16 << 20;
/// Bytes of a stream that go into one frame.
pub(crate) const CHUNK: usize = 64 << 10;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// What a frame is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $($(#[$doc])* $name = $value,)* }

        impl Kind {
            fn read(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// JSON; the first frame in each direction.
    Hello = 0,
    /// JSON `Request`.
    Request = 1,
    /// JSON; ends a request.
    Reply = 2,
    /// JSON `Problem`; ends a request.
    Problem = 3,
    /// JSON `QueueNews`: the attempt waits.
    Queued = 4,
    /// JSON `ExecId`: the command was admitted under this id.
    Started = 5,
    /// From the client: bytes for the command's stdin, or of a file.
    Input = 6,
    /// From the client: no more input.
    InputEnd = 7,
    /// Bytes of stdout.
    Stdout = 8,
    /// Bytes of stderr.
    Stderr = 9,
    /// u64 little-endian: so many bytes of stdout are left out here.
    StdoutGap = 10,
    /// The same for stderr.
    StderrGap = 11,
    /// Bytes of a file, or JSON lines of a listing.
    Data = 12,
    /// From the client: end the running request as soon as can be.
    Cancel = 13,
}

/// One frame.
#[derive(Debug)]
pub(crate) struct Frame {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its payload.
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Reads the JSON payload.
    ///
    /// # Errors
    /// `protocol` when it is not what was expected.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.payload).map_err(|error| {
            protocol(format!("cannot read a {:?} frame: {error}", self.kind))
                .remedy("use the same version of esf for the command and the worker")
        })
    }
}

/// A breach of the protocol.
pub(crate) fn protocol(message: String) -> Problem {
    Problem::new(Class::Failure, "protocol", message)
}

/// The bytes of a frame.
pub(crate) fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 1).expect("payloads are cut to MAX by their makers");
    let mut bytes = Vec::with_capacity(payload.len() + 5);
    bytes.extend(length.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend(payload);
    bytes
}

/// A connection: buffered frames in, whole frames out.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    consumed: usize,
    ended: bool,
}

impl Connection {
    /// Wraps a connected stream.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), consumed: 0, ended: false }
    }

    /// The stream, to wait on.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether the other end is gone and every frame was taken.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Takes a frame if a whole one has arrived; does not wait.
    ///
    /// # Errors
    /// I/O, or `InvalidData` for a breach of the protocol.
    pub(crate) fn try_read(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if self.ended || !self.fill(RecvFlags::DONTWAIT)? {
                return Ok(None);
            }
        }
    }

    /// Waits for a frame; nothing when the other end is gone.
    ///
    /// # Errors
    /// As `try_read`.
    pub(crate) fn read(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if self.ended {
                return Ok(None);
            }
            self.fill(RecvFlags::empty())?;
        }
    }

    /// Whether a cancellation is among the frames that have come; takes none of them, and does not wait.
    /// Looks no further than `MAX` bytes ahead.
    ///
    /// # Errors
    /// As `try_read`.
    pub(crate) fn asks_to_cancel(&mut self) -> io::Result<bool> {
        while !self.ended && self.buffer.len() - self.consumed <= MAX && self.fill(RecvFlags::DONTWAIT)? {}
        let mut pending = &self.buffer[self.consumed..];
        while let Some((length, rest)) = pending.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            match rest.get(..length) {
                Some([kind, ..]) if *kind == Kind::Cancel as u8 => return Ok(true),
                Some(frame) if !frame.is_empty() => pending = &rest[length..],
                // Not whole yet, or a breach that whoever takes it will refuse.
                Some(_) | None => break,
            }
        }
        Ok(false)
    }

    fn take(&mut self) -> io::Result<Option<Frame>> {
        let pending = &self.buffer[self.consumed..];
        let Some((length, rest)) = pending.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        if !(1..=MAX + 1).contains(&length) {
            return Err(refused(format!("frame of {length} bytes, expected 1 to {}", MAX + 1)));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let kind = Kind::read(rest[0]).ok_or_else(|| refused(format!("unknown frame kind {}", rest[0])))?;
        let payload = rest[1..length].to_vec();
        self.consumed += 4 + length;
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
        }
        Ok(Some(Frame { kind, payload }))
    }

    /// Receives once; false when nothing came and the caller asked not to wait.
    fn fill(&mut self, flags: RecvFlags) -> io::Result<bool> {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        let mut chunk = [0; CHUNK];
        loop {
            match recv(&self.stream, &mut chunk[..], flags) {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                    self.ended = true;
                    return Ok(true);
                }
                Ok((length, _)) => {
                    self.buffer.extend_from_slice(&chunk[..length]);
                    return Ok(true);
                }
                Err(rustix::io::Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a whole frame, waiting as long as the other end lives.
    ///
    /// # Errors
    /// I/O; `BrokenPipe` when the other end is gone.
    pub(crate) fn send(&self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.send_all(&encode(kind, payload))
    }

    /// Sends a value as JSON.
    ///
    /// # Errors
    /// As `send`.
    pub(crate) fn send_json<T: Serialize>(&self, kind: Kind, value: &T) -> io::Result<()> {
        let payload = serde_json::to_vec(value)?;
        if payload.len() > MAX {
            let what = format!("message of {} bytes, expected at most {MAX}", payload.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.send(kind, &payload)
    }

    fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    wait(&mut [PollFd::new(&self.stream, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends as much of `bytes` as goes without waiting; returns how much went.
    ///
    /// # Errors
    /// As `send`.
    pub(crate) fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(&self.stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => Ok(sent),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits until one of `fds` is ready, at most `millis`; true when one is.
///
/// # Errors
/// The kernel's own.
pub(crate) fn wait(fds: &mut [PollFd<'_>], millis: Option<u64>) -> io::Result<bool> {
    let timeout = millis.map(|millis| rustix::event::Timespec {
        tv_sec: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        tv_nsec: (millis % 1000 * 1_000_000).cast_signed(),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A pipe whose ends are closed on exec: `(read, write)`.
///
/// # Errors
/// When descriptors run out.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Makes reads and writes of this end return instead of waiting; the other end is not changed.
///
/// # Errors
/// The kernel's own.
pub(crate) fn nonblocking(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd();
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cutting() {
        let (left, right) = UnixStream::pair().expect("pair");
        let (left, mut right) = (Connection::new(left), Connection::new(right));
        let mut bytes = encode(Kind::Stdout, b"abc");
        bytes.extend(encode(Kind::Reply, b""));
        for (index, byte) in bytes.iter().enumerate() {
            assert!(right.try_read().expect("reads").is_none() || index == 8, "{index}");
            left.send_all(&[*byte]).expect("sends");
        }
        let frame = right.try_read().expect("reads").expect("one more");
        assert_eq!((frame.kind, frame.payload.len()), (Kind::Reply, 0));
        drop(left);
        assert!(right.read().expect("reads").is_none() && right.ended());
    }

    #[test]
    fn breaches_are_refused() {
        for bytes in [&[0, 0, 0, 0, 0][..], &[255, 255, 255, 255, 2], &[1, 0, 0, 0, 99]] {
            let (left, right) = UnixStream::pair().expect("pair");
            Connection::new(left).send_all(bytes).expect("sends");
            let error = Connection::new(right).read().expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
