//! Pid 1 of a jail: starts programs, opens files, reaps everything, reports each end exactly once.
//!
//! Invariant: one thread, no blocking call but the wait for the next event and for an exec to take
//! hold. When the owner's socket closes, init ends and the kernel ends the jail.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::process::{Pid, WaitOptions};

use crate::spawn::{Failure, Spawner};
use crate::wire::{self, Message, Reader, Writer};

/// Requests to init; the first byte of a message.
pub(crate) mod request {
    pub(crate) const EXEC: u8 = 1;
    pub(crate) const OPEN: u8 = 2;
    pub(crate) const RENAME: u8 = 3;
    pub(crate) const UNLINK: u8 = 4;
}

/// Marks an answer to a file request whose object is not served.
pub(crate) const NOT_SERVED: u32 = u32::MAX;

/// Serves the owner until it goes away.
pub(crate) fn serve(owner: &OwnedFd, signals: &OwnedFd, mut spawner: Spawner) {
    let mut running: HashMap<Pid, OwnedFd> = HashMap::new();
    let mut buffer = Vec::new();
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(owner.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let (asked, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if ended {
            crate::sys::drain_signals(signals.as_fd());
            reap(&mut running);
        }
        if asked {
            match wire::receive_with(owner.as_fd(), &mut buffer) {
                Ok(Some(message)) => answer(message, &mut spawner, &mut running),
                Ok(None) => return,
                // The channel inside a damaged message is lost with it; its owner sees it close.
                Err(_) => {}
            }
        }
    }
}

fn reap(running: &mut HashMap<Pid, OwnedFd>) {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let Some(channel) = running.remove(&pid) else { continue };
        let mut report = Writer::default();
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => report.number(0).number(code as u32),
            (None, signal) => report.number(1).number(signal.unwrap_or(0) as u32),
        };
        // Nobody may be listening any more; the end is then nobody's concern.
        let _ = wire::send(&channel, &report.0, &[]);
    }
}

/// Answers one request on the channel that came with it.
fn answer(message: Message, spawner: &mut Spawner, running: &mut HashMap<Pid, OwnedFd>) {
    let Message { bytes, mut fds } = message;
    let Some((kind, body)) = bytes.split_first() else { return };
    if fds.is_empty() {
        return;
    }
    let channel = fds.remove(0);
    let mut report = Writer::default();
    // A send fails only when the asker is gone.
    let _ = match *kind {
        request::EXEC => match spawner.spawn(body, fds) {
            Ok((pid, pidfd)) => {
                report.number(0).number(pid.as_raw_nonzero().get() as u32);
                let sent = wire::send(&channel, &report.0, &[pidfd.as_fd()]);
                running.insert(pid, channel);
                sent
            }
            Err(Failure { stage, errno }) => {
                report.number(stage as u32).number(errno.raw_os_error() as u32);
                wire::send(&channel, &report.0, &[])
            }
        },
        request::OPEN => match open(body) {
            Ok(file) => {
                report.number(0);
                wire::send(&channel, &report.0, &[file.as_fd()])
            }
            Err(code) => wire::send(&channel, &report.number(code).0, &[]),
        },
        other => {
            let done = if other == request::RENAME { rename(body) } else { unlink(body) };
            report.number(done.err().unwrap_or(0));
            wire::send(&channel, &report.0, &[])
        }
    };
}

/// An error number, or [`NOT_SERVED`].
type Refusal = u32;

fn refusal(error: impl Into<io::Error>) -> Refusal {
    error.into().raw_os_error().unwrap_or(libc::EIO) as Refusal
}

/// Opens a regular file or directory; everything else, and all of procfs, is not served.
fn open(body: &[u8]) -> Result<OwnedFd, Refusal> {
    let mut body = Reader(body);
    let path = Path::new(std::ffi::OsStr::from_bytes(body.bytes().map_err(refusal)?));
    let flags = OFlags::from_bits_retain(body.number().map_err(refusal)?);
    let mode = Mode::from_raw_mode(body.number().map_err(refusal)?);
    let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
    let extra = if flags.contains(OFlags::PATH) {
        OFlags::CLOEXEC
    } else {
        OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file =
        rustix::fs::openat2(root().map_err(refusal)?, path, flags | extra, mode, resolve).map_err(refusal)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(refusal)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) || on_procfs(&file) {
        return Err(NOT_SERVED);
    }
    if !flags.contains(OFlags::PATH) {
        let now = rustix::fs::fcntl_getfl(&file).map_err(refusal)?;
        rustix::fs::fcntl_setfl(&file, now & !OFlags::NONBLOCK).map_err(refusal)?;
    }
    Ok(file)
}

fn on_procfs(file: &OwnedFd) -> bool {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC)
}

fn rename(body: &[u8]) -> Result<(), Refusal> {
    let mut body = Reader(body);
    let (from, from_name) = parent(body.bytes().map_err(refusal)?)?;
    let (to, to_name) = parent(body.bytes().map_err(refusal)?)?;
    rustix::fs::renameat(from, from_name, to, to_name).map_err(refusal)
}

fn unlink(body: &[u8]) -> Result<(), Refusal> {
    let mut body = Reader(body);
    let (directory, name) = parent(body.bytes().map_err(refusal)?)?;
    match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
        Err(rustix::io::Errno::ISDIR) => {
            rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR).map_err(refusal)
        }
        other => other.map_err(refusal),
    }
}

/// Resolves all but the last component, which is never followed.
fn parent(path: &[u8]) -> Result<(OwnedFd, &std::ffi::OsStr), Refusal> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let name = path.file_name().ok_or(libc::EINVAL as Refusal)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let root = root().map_err(refusal)?;
    let directory = if directory.as_os_str().is_empty() { Path::new("/") } else { directory };
    let parent = rustix::fs::openat2(root, directory, flags, Mode::empty(), resolve).map_err(refusal)?;
    Ok((parent, name))
}

fn root() -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
