//! The subprocess: git with a fixed environment, without configuration of user or system, without hooks,
//! monitors, lazy fetches, replaced objects or terminals; under a deadline, and killed when given up.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::Error;

/// How long a question may take.
pub(super) const SOON: Duration = Duration::from_secs(120);
/// How long the transfer of a whole tree may take.
pub(super) const LONG: Duration = Duration::from_secs(3600);
/// Most bytes of git's complaints that are kept.
const COMPLAINTS: u64 = 4096;

/// The variables git gets; there are no others.
const VARIABLES: [(&str, &str); 15] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/nonexistent"),
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "/bin/false"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "/bin/false"),
];

/// Configuration that a repository's own cannot override.
const SETTINGS: [&str; 9] = [
    "safe.directory=*",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
];

/// The program git.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
}

impl Git {
    /// The one in the system's directories.
    pub fn system() -> Self {
        Self::at("git")
    }

    /// The one at `program`.
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// A command of git that has nothing yet but its safeguards.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(VARIABLES).current_dir("/");
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command
    }
}

/// A running git; killed when dropped.
pub(super) struct Running {
    child: Child,
    what: &'static str,
    limit: Duration,
    complaints: Option<JoinHandle<Vec<u8>>>,
    timer: Option<(Sender<()>, JoinHandle<()>)>,
    late: Arc<AtomicBool>,
}

/// How a git ended.
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) complaints: String,
}

impl Running {
    /// Starts `command` with pipes as its input and output.
    pub(super) fn start(command: Command, what: &'static str, limit: Duration) -> Result<Self, Error> {
        Self::start_on(command, Stdio::piped(), what, limit)
    }

    /// The same, with `input` as its input.
    pub(super) fn start_on(
        mut command: Command,
        input: impl Into<Stdio>,
        what: &'static str,
        limit: Duration,
    ) -> Result<Self, Error> {
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Error::Missing { said: error.to_string() })?;
        let stderr = child.stderr.take().expect("stderr was piped");
        let complaints = Some(std::thread::spawn(move || read_some(stderr)));
        let (late, pid) = (Arc::new(AtomicBool::new(false)), child.id());
        let (sender, receiver) = channel::<()>();
        let flag = Arc::clone(&late);
        let timer = std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                flag.store(true, Ordering::Relaxed);
                // It is reaped only after this thread was joined, so the pid is still its own.
                if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                    kill_process(pid, Signal::KILL).unwrap_or_default();
                }
            }
        });
        Ok(Self { child, what, limit, complaints, timer: Some((sender, timer)), late })
    }

    pub(super) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin is taken once")
    }

    pub(super) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("stdout is taken once")
    }

    /// Waits for its end, whatever it is.
    pub(super) fn end(mut self) -> Result<Ended, Error> {
        drop(self.child.stdin.take());
        drop(self.child.stdout.take());
        let complaints = self.complaints.take().expect("it is joined once").join().unwrap_or_default();
        // The child is waited for without being reaped, so that the timer's pid stays its own.
        rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_child(&self.child)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .map_err(|error| self.failed(&error.to_string()))?;
        self.stop_timer();
        let status = self.child.wait().map_err(|error| self.failed(&error.to_string()))?;
        if self.late.load(Ordering::Relaxed) {
            return Err(Error::TimedOut { what: self.what, seconds: self.limit.as_secs() });
        }
        let complaints = String::from_utf8_lossy(&complaints).trim().to_owned();
        Ok(Ended { code: status.code(), complaints })
    }

    /// Waits for its success.
    pub(super) fn succeed(self) -> Result<(), Error> {
        let what = self.what;
        let ended = self.end()?;
        if ended.code == Some(0) { Ok(()) } else { Err(Error::Failed { what, said: ended.complaints }) }
    }

    fn failed(&self, said: &str) -> Error {
        Error::Failed { what: self.what, said: said.to_owned() }
    }

    fn stop_timer(&mut self) {
        if let Some((sender, timer)) = self.timer.take() {
            drop(sender);
            timer.join().unwrap_or_default();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and was reaped.
        self.child.kill().unwrap_or_default();
        self.stop_timer();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Reads a little and drops the rest.
fn read_some(mut from: impl Read) -> Vec<u8> {
    let mut some = Vec::new();
    let read = from.by_ref().take(COMPLAINTS).read_to_end(&mut some);
    // A pipe that breaks has said all it will say.
    if read.is_ok() {
        io::copy(&mut from, &mut io::sink()).unwrap_or_default();
    }
    some
}

/// Asks a question whose answer has at most `most` bytes; answers how git ended, and what it said.
pub(super) fn ask(
    command: Command,
    what: &'static str,
    input: &[u8],
    most: u64,
) -> Result<(Ended, Vec<u8>), Error> {
    let mut running = Running::start(command, what, SOON)?;
    let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
    let mut answer = Vec::new();
    let read = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A git that ends early has its reasons, which its status tells.
            stdin.write_all(input).unwrap_or_default();
        });
        let read = stdout.by_ref().take(most + 1).read_to_end(&mut answer);
        drop(stdout);
        read
    });
    read.map_err(|error| Error::Failed { what, said: error.to_string() })?;
    if answer.len() as u64 > most {
        return Err(Error::Failed { what, said: format!("an answer of more than {most} bytes") });
    }
    Ok((running.end()?, answer))
}

/// The same for a question that git must be able to answer.
pub(super) fn answer(
    command: Command,
    what: &'static str,
    input: &[u8],
    most: u64,
) -> Result<Vec<u8>, Error> {
    let (ended, answer) = ask(command, what, input, most)?;
    if ended.code == Some(0) { Ok(answer) } else { Err(Error::Failed { what, said: ended.complaints }) }
}
