//! Messages between processes: one SEQPACKET packet each, descriptors beside it.
//!
//! A payload too long for a packet travels in a memfd. Both ends are one program at one version,
//! so there is no negotiation; lengths are still checked, never trusted.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Longest payload sent in the packet itself.
const INLINE: usize = 32 * 1024;
/// Longest payload of all.
const LONGEST: u64 = 64 * 1024 * 1024;
/// Most descriptors of one message.
const MOST_FDS: usize = 8;

/// A received message.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// A connected pair of SEQPACKET sockets.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message; a vanished peer is an error, never a signal.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() <= INLINE {
        return send_packet(socket.as_fd(), 0, bytes, fds);
    }
    let memory = rustix::fs::memfd_create("message", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(&memory, &bytes[written..], written as u64)?;
    }
    let mut all = vec![memory.as_fd()];
    all.extend_from_slice(fds);
    send_packet(socket.as_fd(), 1, &[], &all)
}

fn send_packet(socket: BorrowedFd<'_>, kind: u8, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let parts = [IoSlice::new(std::slice::from_ref(&kind)), IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one message; `None` when the peer is gone.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let mut buffer = vec![0; INLINE + 1];
    receive_with(socket.as_fd(), &mut buffer)
}

/// Receives one message; the error `TimedOut` says that none came within a time.
pub(crate) fn receive_within(socket: impl AsFd, patience: Duration) -> io::Result<Option<Message>> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return receive(socket),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// Receives one message into a caller's buffer of any length.
pub(crate) fn receive_with(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> io::Result<Option<Message>> {
    buffer.resize(INLINE + 1, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        let parts = &mut [IoSliceMut::new(buffer)];
        match rustix::net::recvmsg(socket, parts, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            // Said once by a peer that closed with messages unread; what it sent before follows.
            Err(rustix::io::Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(invalid("a message arrived truncated: descriptors or bytes were lost"));
    }
    if buffer[0] == 0 {
        return Ok(Some(Message { bytes: buffer[1..received.bytes].to_vec(), fds }));
    }
    if fds.is_empty() {
        return Err(invalid("a long message without its memory"));
    }
    let memory = fds.remove(0);
    Ok(Some(Message { bytes: read_memory(&memory)?, fds }))
}

fn read_memory(memory: &OwnedFd) -> io::Result<Vec<u8>> {
    let length = rustix::fs::fstat(memory)?.st_size as u64;
    if length > LONGEST {
        return Err(invalid("a message longer than 64 MiB"));
    }
    let mut bytes = vec![0; length as usize];
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(memory, &mut bytes[read..], read as u64)? {
            0 => return Err(invalid("a long message was cut short")),
            count => read += count,
        }
    }
    Ok(bytes)
}

pub(crate) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes numbers and byte strings in the order given.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn number(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.number(value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }
}

/// Reads what a [`Writer`] wrote.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn number(&mut self) -> io::Result<u32> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(|| invalid("short message"))?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*head))
    }

    pub(crate) fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = self.number()? as usize;
        let (head, rest) = self.0.split_at_checked(length).ok_or_else(|| invalid("short message"))?;
        self.0 = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_messages_arrive_whole_with_their_descriptors() {
        let (left, right) = pair().unwrap();
        for length in [0, 1, INLINE, INLINE + 1, 3_000_000] {
            let sent: Vec<u8> = (0..length).map(|index| index as u8).collect();
            send(&left, &sent, &[left.as_fd(), right.as_fd()]).unwrap();
            let message = receive(&right).unwrap().unwrap();
            assert!(message.bytes == sent, "{length}");
            assert_eq!(message.fds.len(), 2, "{length}");
        }
        let late = receive_within(&right, Duration::from_millis(5)).map(drop).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(left);
        assert!(receive(&right).unwrap().is_none());
        assert!(send(&right, b"x", &[]).is_err());
    }

    #[test]
    fn a_peers_last_words_arrive() {
        let (left, right) = pair().unwrap();
        send(&left, b"never read", &[]).unwrap();
        send(&right, b"last words", &[]).unwrap();
        drop(right);
        assert_eq!(receive(&left).unwrap().unwrap().bytes, b"last words");
        assert!(receive(&left).unwrap().is_none());
    }

    #[test]
    fn a_reader_never_reads_past_the_end() {
        let mut writer = Writer::default();
        writer.number(7).bytes(b"abc");
        for cut in 0..writer.0.len() {
            let mut reader = Reader(&writer.0[..cut]);
            assert!(reader.number().and_then(|_| reader.bytes()).is_err(), "{cut}");
        }
    }
}
