//! The owner's handle on one running program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::cgroup::ExecGroup;
use crate::error::Step;
use crate::exec_groups::ExecGroups;
use crate::home::PATIENCE;
use crate::wire::{self, Reader};
use crate::{Error, SpawnError};

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A program started in a jail. Dropping the handle ends nothing: what the program left running
/// lives as long as the jail.
#[derive(Debug)]
pub struct Process {
    channel: OwnedFd,
    pidfd: OwnedFd,
    /// Always there until drop.
    group: Option<ExecGroup>,
    groups: Arc<ExecGroups>,
    status: Mutex<Option<ExitStatus>>,
}

impl Process {
    pub(crate) fn new(
        channel: OwnedFd,
        pidfd: OwnedFd,
        group: ExecGroup,
        groups: Arc<ExecGroups>,
    ) -> Process {
        Process { channel, pidfd, group: Some(group), groups, status: Mutex::new(None) }
    }

    fn group(&self) -> &ExecGroup {
        self.group.as_ref().expect("the group leaves by drop alone")
    }

    /// Waits until the program itself has ended, or until the deadline, which gives `None`.
    ///
    /// # Errors
    /// [`SpawnError::Lost`] if the jail died first: how the program ended is unknown.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<Option<ExitStatus>, SpawnError> {
        loop {
            let left =
                deadline.map(|deadline| wire::timespec(deadline.saturating_duration_since(Instant::now())));
            if let Some(status) = *self.status() {
                return Ok(Some(status));
            }
            let ready = self.ready(left.as_ref())?;
            let mut status = self.status();
            if status.is_some() {
                return Ok(*status);
            }
            if !ready {
                return Ok(None);
            }
            // Another waiter may have taken the report meanwhile, and then left the status.
            if self.ready(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
                *status = Some(receive_status(&self.channel).ok_or(SpawnError::Lost)?);
                return Ok(*status);
            }
        }
    }

    fn status(&self) -> std::sync::MutexGuard<'_, Option<ExitStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self, patience: Option<&Timespec>) -> Result<bool, SpawnError> {
        let mut fds = [PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN)];
        match poll(&mut fds, patience) {
            Ok(count) => Ok(count > 0),
            // The caller's loop asks again with what is left of its deadline.
            Err(rustix::io::Errno::INTR) => self.ready(patience),
            Err(error) => Err(Error::kernel("wait for a program", error).into()),
        }
    }

    /// Sends a signal to the program itself; one that has ended is fine.
    ///
    /// # Errors
    /// [`Error::Kernel`] for a number that is no signal.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| Error::kernel("send a signal", rustix::io::Errno::INVAL))?;
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            other => other.step(|| format!("send {signal:?}")),
        }
    }

    /// Kills the program and every descendant, whatever session or parent it has now, and waits
    /// until none is left. Other programs of the jail are not touched.
    ///
    /// # Errors
    /// [`Error::Unkillable`] if a process outlives SIGKILL.
    pub fn kill_tree(&self) -> Result<(), Error> {
        let gone = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
        match self.group().kill() {
            // The group was removed with its jail.
            Err(error) if gone(&error) => return Ok(()),
            other => other.step(|| "kill a program's cgroup".into())?,
        }
        if self.group().wait_empty(PATIENCE).step(|| "watch a program's cgroup".into())? {
            return Ok(());
        }
        let millis = PATIENCE.as_millis() as u64;
        Err(Error::Unkillable { group: "a program's cgroup".into(), millis })
    }

    /// Whether the program or a descendant is still alive.
    pub fn alive(&self) -> bool {
        !self.group().is_empty().unwrap_or(true)
    }

    /// A pidfd of the program: readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            self.groups.give_back(group);
        }
    }
}

fn receive_status(channel: &OwnedFd) -> Option<ExitStatus> {
    let message = wire::receive(channel).ok()??;
    let mut reader = Reader(&message.bytes);
    let (kind, value) = (reader.number().ok()?, reader.number().ok()? as i32);
    Some(if kind == 0 { ExitStatus::Code(value) } else { ExitStatus::Signal(value) })
}
