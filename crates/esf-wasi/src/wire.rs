//! The messages between the executor, which is trusted, and an attempt's host process, which is not once a
//! guest has run in it. Invariants: nothing that a host sends makes the executor allocate more than a
//! message's bound or wait longer than its patience; a descriptor travels with the message that names it.
//!
//! One socket for each host carries `Order`s one way. Whatever is asked and answered (`Request`, `Answer`)
//! has a socket of its own, handed over by an order, so that nobody waits for anybody else's answer.
//! A message is its length (4 bytes, little endian), its kind (1 byte: JSON or plain bytes), its body.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use esf_worker::executor::FileEntry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of a message. Arguments and variables of a command may be as long as a kernel takes.
pub(crate) const LARGEST: usize = 16 << 20;
/// Most bytes of a message that a host sends.
pub(crate) const LARGEST_ANSWER: usize = 1 << 20;
/// Descriptors of a message.
const DESCRIPTORS: usize = 4;
const HEADER: usize = 5;
const JSON: u8 = 0;
const PLAIN: u8 = 1;

/// The first message to a host: the attempt that it is for. With it come the lock that the host holds for its
/// life, and the end of a pipe whose other end tells of its death.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Directories of the layers, topmost first; as bytes, since a store may be called anything.
    pub(crate) lowers: Vec<Vec<u8>>,
    pub(crate) upper: Vec<u8>,
    pub(crate) work: Vec<u8>,
    /// Whether the upper is in the portable form.
    pub(crate) portable: bool,
    /// Most bytes of the delta.
    pub(crate) disk: Option<u64>,
    /// Most bytes of all guests' memory.
    pub(crate) memory: Option<u64>,
    /// Most guests at once.
    pub(crate) guests: Option<u64>,
    /// Most fuel of one guest.
    pub(crate) fuel: Option<u64>,
    /// Whether guests have sockets.
    pub(crate) network: bool,
    /// Paths of the tree that are not shown.
    pub(crate) hide: Vec<Vec<u8>>,
    pub(crate) view: crate::view::View,
}

/// What a host is told on its own socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The descriptor that comes with it is the socket of a request.
    Serve,
    /// End the guest of this number, wherever it is.
    Kill(u64),
}

/// What a host answers to `Start`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Begun {
    /// It serves; a line for each part of its jail that this machine does not have.
    Ready { lacks: Vec<String> },
    /// The view names what the tree does not have.
    Invalid { what: String, expected: String },
    /// The disk is full.
    Full { what: String },
    /// Anything else.
    Failed { what: String },
}

/// The first message on a socket of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Run a guest; its three standard streams come with it.
    Exec(Exec),
    /// Tell what was used.
    Stats,
    /// Open a file for reading.
    Open { path: Vec<u8> },
    /// Write a file: plain messages follow, then `Finish`.
    Create { temporary: Vec<u8>, path: Vec<u8> },
    /// List a directory.
    List { path: Vec<u8> },
    /// Remove a file or an empty directory.
    Remove { path: Vec<u8> },
}

/// One command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Exec {
    /// A number of the executor's, never used twice for one host.
    pub(crate) number: u64,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Where it starts.
    pub(crate) cwd: crate::view::Cwd,
    /// The module when it is of the tree; a pinned one comes as an artefact with `Run`.
    pub(crate) program: Option<Vec<u8>>,
}

/// The second message of an exec: the artefact comes with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) key: String,
}

/// The end of an upload. One that is broken off is abandoned, too.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Finish {
    Publish { mode: u32 },
    Abandon,
}

/// What a host says on the socket of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Done as asked.
    Done,
    /// The module of an exec: its file comes with it.
    Module,
    /// An exec that is not started.
    Refused(Refusal),
    /// The guest runs.
    Started,
    /// The guest ended.
    Ended(Ended),
    /// A file for reading comes with it.
    Opened { mode: u32 },
    /// Some entries of a directory; none at its end.
    Entries(Vec<FileEntry>),
    /// What was used.
    Used { memory: u64, guests: u64, refused: u64, cpu_us: u64 },
    /// The number of an error of the kernel's kind.
    Failed { errno: i32 },
}

/// Why a guest does not start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    NotFound,
    NotExecutable(String),
    BadCwd(String),
    TooMany,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    Code(i32),
    /// Killed on request, or for memory that it could not get.
    Killed,
    /// Something that no program may do.
    Trapped,
    OutOfFuel,
    /// Not the guest's own doing.
    Lost(String),
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Message {
    kind: u8,
    body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Message {
    /// The plain bytes, or the JSON.
    pub(crate) fn read<T: DeserializeOwned>(self) -> io::Result<Result<T, Vec<u8>>> {
        match self.kind {
            JSON => Ok(Ok(serde_json::from_slice(&self.body).map_err(io::Error::other)?)),
            PLAIN => Ok(Err(self.body)),
            kind => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of kind {kind}"))),
        }
    }

    /// The JSON.
    pub(crate) fn json<T: DeserializeOwned>(self) -> io::Result<T> {
        let plain = |_| io::Error::new(io::ErrorKind::InvalidData, "expected JSON, found plain bytes");
        self.read()?.map_err(plain)
    }
}

impl Channel {
    /// Two connected ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self(one), Self(other)))
    }

    /// Lets no message take longer to send than this.
    pub(crate) fn bound_sends(&self, patience: Duration) -> io::Result<()> {
        self.0.set_write_timeout(Some(patience))
    }

    /// Sends a value as JSON, and descriptors with it.
    pub(crate) fn send<T: Serialize>(&self, value: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.put(JSON, &serde_json::to_vec(value).map_err(io::Error::other)?, descriptors)
    }

    /// Sends a value to a peer that may have given its last answer before it heard this, and have gone:
    /// then the answer waits at this end, and is told by it and not by the sending.
    pub(crate) fn send_unless_answered<T: Serialize>(
        &self,
        value: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        match self.send(value, descriptors) {
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            sent => sent,
        }
    }

    /// Sends plain bytes.
    pub(crate) fn send_plain(&self, bytes: &[u8]) -> io::Result<()> {
        self.put(PLAIN, bytes, &[])
    }

    fn put(&self, kind: u8, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LARGEST);
        let length =
            length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "too long a message"))?;
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&length.to_le_bytes());
        header[4] = kind;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(
                control.push(SendAncillaryMessage::ScmRights(descriptors)),
                "no more than there is room for"
            );
        }
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?;
        match sent.checked_sub(HEADER) {
            Some(sent) => (&self.0).write_all(&body[sent..]),
            None => {
                (&self.0).write_all(&header[sent..])?;
                (&self.0).write_all(body)
            }
        }
    }

    /// The next message; nothing at the end.
    ///
    /// # Errors
    /// `TimedOut` when it is not all there by `deadline`, `InvalidData` when it is longer than `largest`.
    pub(crate) fn receive(&self, largest: usize, deadline: Option<Instant>) -> io::Result<Option<Message>> {
        let mut header = [0; HEADER];
        let mut descriptors = Vec::new();
        let mut filled = 0;
        while filled < HEADER {
            self.wait(deadline)?;
            match self.take_header(&mut header[filled..], &mut descriptors)? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => filled += length,
            }
        }
        let length = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let length = usize::try_from(length).expect("a length of 32 bits");
        if length > largest {
            let what = format!("a message of {length} bytes, expected at most {largest}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut body = vec![0; length];
        let mut filled = 0;
        while filled < length {
            self.wait(deadline)?;
            match (&self.0).read(&mut body[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => filled += length,
            }
        }
        Ok(Some(Message { kind: header[4], body, descriptors }))
    }

    /// The next message of JSON, which must come.
    pub(crate) fn expect<T: DeserializeOwned>(
        &self,
        largest: usize,
        deadline: Option<Instant>,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut message = self.receive(largest, deadline)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let descriptors = std::mem::take(&mut message.descriptors);
        Ok((message.json()?, descriptors))
    }

    fn take_header(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(into)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        Ok(received.bytes)
    }

    /// Waits until something can be read, the end included.
    fn wait(&self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(deadline) = deadline else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if readable(self.0.as_fd(), left)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

/// Whether a descriptor becomes readable, or is at its end, within `patience`.
pub(crate) fn readable(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(10))
    }

    #[test]
    fn an_answer_given_early_is_still_heard() {
        let (one, other) = Channel::pair().expect("a pair");
        other.send(&Answer::Refused(Refusal::TooMany), &[]).expect("answers");
        drop(other);
        one.send(&Run { key: String::new() }, &[]).expect_err("nobody is there");
        one.send_unless_answered(&Run { key: String::new() }, &[]).expect("the answer counts");
        let (answer, _) = one.expect::<Answer>(LARGEST_ANSWER, soon()).expect("comes");
        assert!(matches!(answer, Answer::Refused(Refusal::TooMany)), "{answer:?}");
    }

    #[test]
    fn values_bytes_and_descriptors_arrive() {
        let (one, other) = Channel::pair().expect("a pair");
        let (read, write) = io::pipe().expect("a pipe");
        one.send(&Order::Kill(7), &[]).expect("sends");
        one.send(&Order::Serve, &[write.as_fd(), read.as_fd()]).expect("sends");
        drop((read, write));
        let long = vec![b'x'; 300_000];
        let sender = std::thread::spawn(move || {
            one.send_plain(&long).expect("sends");
            long.len()
        });
        let (order, none) = other.expect::<Order>(LARGEST, soon()).expect("comes");
        assert!(matches!(order, Order::Kill(7)) && none.is_empty());
        let (order, descriptors) = other.expect::<Order>(LARGEST, soon()).expect("comes");
        assert!(matches!(order, Order::Serve));
        let [write, read]: [OwnedFd; 2] = descriptors.try_into().expect("two");
        rustix::io::write(&write, b"x").expect("the pipe's end");
        assert_eq!(rustix::io::read(&read, &mut [0; 2]).expect("the other"), 1);
        let message = other.receive(LARGEST, soon()).expect("comes").expect("a message");
        let bytes = message.read::<Order>().expect("reads").expect_err("plain");
        assert_eq!(bytes.len(), sender.join().expect("sent"));
        assert!(other.receive(LARGEST, soon()).expect("the end").is_none());
    }

    #[test]
    fn what_is_too_long_or_too_slow_is_refused() {
        let (one, other) = Channel::pair().expect("a pair");
        one.send_plain(&[0; 100]).expect("sends");
        let long = other.receive(99, soon()).expect_err("too long");
        assert_eq!(long.kind(), io::ErrorKind::InvalidData);
        let (one, other) = Channel::pair().expect("a pair");
        (&one.0).write_all(&[1, 0]).expect("half a header");
        let slow = other.receive(99, Some(Instant::now() + Duration::from_millis(20))).expect_err("slow");
        assert_eq!(slow.kind(), io::ErrorKind::TimedOut);
        (&one.0).write_all(&[1, 0]).expect("half a header");
        drop(one);
        let cut = other.receive(99, soon()).expect_err("cut short");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest::proptest! {
        /// Whatever a host that was taken over sends, it is a message, an error or the end, within the bounds.
        #[test]
        fn any_bytes_are_a_message_an_error_or_the_end(bytes in proptest::collection::vec(0_u8.., 0..600)) {
            let (one, other) = Channel::pair().expect("a pair");
            (&one.0).write_all(&bytes).expect("a socket holds that");
            drop(one);
            while let Ok(Some(message)) = other.receive(256, soon()) {
                proptest::prop_assert!(message.body.len() <= 256);
                // Mostly an error, and never a panic.
                drop(message.read::<Answer>());
            }
        }
    }

    #[test]
    fn a_peer_that_does_not_read_does_not_hold_the_sender() {
        let (one, _other) = Channel::pair().expect("a pair");
        one.bound_sends(Duration::from_millis(20)).expect("sets");
        let stuck = one.send_plain(&vec![0; 8 << 20]).expect_err("nobody reads");
        assert!(matches!(stuck.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{stuck:?}");
    }
}
