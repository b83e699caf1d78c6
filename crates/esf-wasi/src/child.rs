//! A host process, from outside: started, begun, asked, ended.
//! Invariants: no answer is waited for without a bound, since a guest may have taken its host over; a host
//! that does not do as it is told dies; one that is dropped is dead and reaped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use esf_core::environment::Network;
use esf_layerstack::Form;
use esf_worker::executor::{Activation, ExecutorError};

use crate::executor::{machine, within};
use crate::host::NAME;
use crate::view::View;
use crate::wire::{Answer, Begun, Channel, LARGEST_ANSWER, Order, Request, Start, readable};

/// How long a host may take to begin.
const BEGIN: Duration = Duration::from_secs(20);
/// How long a host may take for an answer: longer than a large file's copy on a slow disk.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);
/// How long a killed process may take to be gone.
pub(crate) const DEATH: Duration = Duration::from_secs(10);

/// A host process that has no attempt yet.
pub(crate) struct Idle {
    /// The host's end of the pipe that tells of its death: given up before it is waited for.
    alive: OwnedFd,
    child: Child,
}

/// An attempt's host process.
pub(crate) struct Child {
    process: Mutex<std::process::Child>,
    orders: Mutex<Channel>,
    /// At its end when the host is dead.
    died: OwnedFd,
}

impl Idle {
    /// Starts a host, which waits for its attempt.
    ///
    /// # Errors
    /// When the machine has no process to give.
    pub(crate) fn start(store: &Path) -> Result<Self, ExecutorError> {
        let failed = |error: io::Error| machine("cannot start the attempt's host", &error);
        let (orders, theirs) = Channel::pair().map_err(failed)?;
        orders.bound_sends(ANSWER).map_err(failed)?;
        let (died, alive) = io::pipe().map_err(failed)?;
        let mut command = Command::new(program());
        command.arg0(NAME).arg("--store").arg(store).env_clear().current_dir("/");
        // Its complaints go where the worker's go.
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let process = command.spawn().map_err(failed)?;
        let child = Child { process: Mutex::new(process), orders: Mutex::new(orders), died: died.into() };
        Ok(Self { alive: alive.into(), child })
    }

    /// Gives it its attempt, and waits until it serves. It holds `lock` for its life.
    ///
    /// # Errors
    /// `Lost` when it had died meanwhile, so that another may be tried; else what it cannot do.
    pub(crate) fn begin(self, activation: &Activation<'_>, lock: &File) -> Result<Child, ExecutorError> {
        let Self { alive, child } = self;
        let begun = {
            let orders = child.orders();
            let start = start(activation)?;
            let sent = orders.send(&start, &[lock.as_fd(), alive.as_fd()]);
            drop(alive);
            sent.map_err(|error| ExecutorError::Lost { what: format!("a waiting host: {error}") })?;
            orders.expect::<Begun>(LARGEST_ANSWER, within(BEGIN))
        };
        match begun.map(|(begun, _)| begun) {
            Ok(Begun::Ready { lacks }) => {
                for lack in lacks {
                    tracing::warn!(attempt = %activation.attempt, "a host's jail lacks {lack}");
                }
                Ok(child)
            }
            Ok(Begun::Invalid { what, expected }) => Err(ExecutorError::Invalid { what, expected }),
            Ok(Begun::Full { what }) => Err(ExecutorError::Full { what }),
            Ok(Begun::Failed { what }) => Err(ExecutorError::Machine { what }),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ExecutorError::Lost { what: "the attempt's host died at its beginning".to_owned() })
            }
            Err(error) => Err(machine("the attempt's host did not begin", &error)),
        }
    }
}

impl Child {
    fn orders(&self) -> MutexGuard<'_, Channel> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells it to end a guest.
    pub(crate) fn order_kill(&self, number: u64) -> io::Result<()> {
        self.orders().send(&Order::Kill(number), &[])
    }

    /// Sends a request on a socket of its own.
    pub(crate) fn ask(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Channel, ExecutorError> {
        let ask = || -> io::Result<Channel> {
            let (own, theirs) = Channel::pair()?;
            own.bound_sends(ANSWER)?;
            self.orders().send(&Order::Serve, &[theirs.as_fd()])?;
            drop(theirs);
            own.send(request, descriptors)?;
            Ok(own)
        };
        ask().map_err(|error| self.lost(&error))
    }

    /// The next answer on a request's socket.
    pub(crate) fn answer(&self, channel: &Channel) -> io::Result<(Answer, Vec<OwnedFd>)> {
        channel.expect(LARGEST_ANSWER, within(ANSWER))
    }

    /// What came of a conversation that broke off.
    pub(crate) fn lost(&self, error: &io::Error) -> ExecutorError {
        if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
            // It is alive and does not do its work: nothing can be had of it any more.
            self.kill();
        }
        ExecutorError::Lost { what: format!("the attempt's host: {error}") }
    }

    /// At its end when the host is dead.
    pub(crate) fn died(&self) -> BorrowedFd<'_> {
        self.died.as_fd()
    }

    /// Bytes of this machine's memory that it holds.
    pub(crate) fn resident(&self) -> io::Result<u64> {
        let pid = self.process.lock().unwrap_or_else(PoisonError::into_inner).id();
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm"))?;
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        Ok(pages.unwrap_or(0) * rustix::param::page_size() as u64)
    }

    /// Kills the host. It may be dead already.
    pub(crate) fn kill(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = process.kill() {
            tracing::warn!(%error, "cannot kill an attempt's host");
        }
    }

    /// Kills the host and waits until it is gone.
    ///
    /// # Errors
    /// `TimedOut` when it does not die.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.kill();
        if !readable(self.died.as_fd(), DEATH)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the attempt's host does not die"));
        }
        self.process.lock().unwrap_or_else(PoisonError::into_inner).wait().map(drop)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "an attempt's host is left");
        }
    }
}

#[cfg(target_os = "linux")]
fn program() -> PathBuf {
    // The running image even if its file was replaced.
    "/proc/self/exe".into()
}

#[cfg(not(target_os = "linux"))]
fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "esf".into())
}

fn start(activation: &Activation<'_>) -> Result<Start, ExecutorError> {
    let Activation { workspace, environment, extra, .. } = activation;
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    Ok(Start {
        lowers: workspace.lowers.iter().map(|lower| bytes(lower)).collect(),
        upper: bytes(&workspace.upper),
        work: bytes(&workspace.work),
        portable: workspace.form == Form::Portable,
        disk: environment.limits.disk,
        memory: environment.limits.memory,
        guests: environment.limits.pids,
        fuel: environment.wasi.as_ref().and_then(|wasi| wasi.fuel),
        network: environment.network == Network::Host,
        hide: extra.hide.clone(),
        view: View::new(environment)?,
    })
}
