//! One command under supervision: its pipes drained into spools, its time-out, its end.
//! Invariants: the child never waits for a reader; the end is the direct child's own end, with all it
//! wrote, whoever else still holds the pipes (P10); a time-out kills the whole tree of this command and
//! nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use esf_core::ExecId;
use esf_core::record::Failure;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::executor::{ExecutorError, Exit, Running};
use crate::logs::Stream;
use crate::message::ExecResult;
use crate::server::leftover::Leftovers;
use crate::spool::{Extent, Spool};
use crate::wire::{CHUNK, wait};

/// Takes a lock whose holder may have panicked; what it guards stays consistent between statements.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A counter that can be waited for together with descriptors.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // It can only fail when it rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        // It can only fail when it does not ring.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a command has written, and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) stdout: Extent,
    pub(crate) stderr: Extent,
    pub(crate) result: Option<ExecResult>,
}

impl Progress {
    pub(crate) fn extent(&self, stream: Stream) -> Extent {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// A command, as everybody but its supervisor sees it.
pub(crate) struct Command {
    pub(crate) exec_id: ExecId,
    pub(crate) argv: Vec<String>,
    running: Option<Box<dyn Running>>,
    progress: Mutex<Progress>,
    watchers: Mutex<Vec<Weak<Bell>>>,
    condemned: Mutex<Option<Failure>>,
}

impl Command {
    pub(crate) fn new(exec_id: ExecId, argv: Vec<String>, running: Box<dyn Running>, fresh: Extent) -> Self {
        Self {
            exec_id,
            argv,
            running: Some(running),
            progress: Mutex::new(Progress { stdout: fresh, stderr: fresh, result: None }),
            watchers: Mutex::default(),
            condemned: Mutex::default(),
        }
    }

    /// A command that could not start.
    pub(crate) fn ended(exec_id: ExecId, argv: Vec<String>, fresh: Extent) -> Self {
        let progress = Mutex::new(Progress { stdout: fresh, stderr: fresh, result: None });
        let (watchers, condemned) = (Mutex::default(), Mutex::default());
        Self { exec_id, argv, running: None, progress, watchers, condemned }
    }

    fn running(&self) -> Result<&dyn Running, ExecutorError> {
        let never = || ExecutorError::Lost { what: "it never started".to_owned() };
        self.running.as_deref().ok_or_else(never)
    }

    pub(crate) fn progress(&self) -> Progress {
        locked(&self.progress).clone()
    }

    /// Rings `bell` at each change from now on.
    pub(crate) fn watch(&self, bell: &Arc<Bell>) {
        locked(&self.watchers).push(Arc::downgrade(bell));
    }

    fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut locked(&self.progress));
        for bell in locked(&self.watchers).iter().filter_map(Weak::upgrade) {
            bell.ring();
        }
    }

    /// Says why the command is about to die; the first reason stays.
    pub(crate) fn condemn(&self, failure: Failure) {
        locked(&self.condemned).get_or_insert(failure);
    }

    /// Kills the whole tree, for the given reason.
    pub(crate) fn kill(&self, failure: Failure) -> Result<(), ExecutorError> {
        self.condemn(failure);
        self.running()?.kill_tree()
    }

    pub(crate) fn signal(&self, signal: i32) -> Result<(), ExecutorError> {
        self.running()?.signal(signal)
    }

    /// Publishes the end; nothing changes afterwards.
    pub(crate) fn finish(&self, result: ExecResult) {
        self.update(|progress| progress.result = Some(result));
    }
}

/// One of the two pipes.
struct Drain {
    stream: Stream,
    pipe: Option<OwnedFd>,
    spool: Spool,
}

/// The two streams of a command, on their way from pipes to spools.
pub(crate) struct Drains([Drain; 2]);

/// What is kept of a command that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Its output through a loss of power.
    pub(crate) durably: bool,
    /// The processes that it left behind.
    pub(crate) processes: bool,
}

/// How the direct child ended.
pub(crate) struct End {
    pub(crate) exit: Result<Exit, ExecutorError>,
    pub(crate) timed_out: bool,
    pub(crate) condemned: Option<Failure>,
    pub(crate) stdout: Extent,
    pub(crate) stderr: Extent,
}

impl Drains {
    /// The pipes' read ends must not block.
    pub(crate) fn new(stdout: (OwnedFd, Spool), stderr: (OwnedFd, Spool)) -> Self {
        let drain = |stream, (pipe, spool)| Drain { stream, pipe: Some(pipe), spool };
        Self([drain(Stream::Stdout, stdout), drain(Stream::Stderr, stderr)])
    }

    /// Drains until the direct child ended. What others still hold open goes to `leftovers`, unless the
    /// command is to leave nothing: then all that it started is dead before its end is known.
    pub(crate) fn supervise(
        mut self,
        command: &Command,
        deadline: Option<Instant>,
        keep: Keep,
        leftovers: &Leftovers,
    ) -> io::Result<End> {
        let running = command.running().map_err(io::Error::other)?;
        let timed_out = self.run(command, running, deadline)?;
        let exit = running.wait();
        if !keep.processes {
            running.kill_tree().map_err(io::Error::other)?;
        }
        for drain in &mut self.0 {
            drain.take_what_is_there()?;
        }
        let [stdout, stderr] = [self.0[0].spool.extent(), self.0[1].spool.extent()];
        command.update(|progress| (progress.stdout, progress.stderr) = (stdout, stderr));
        for Drain { pipe, spool, .. } in self.0 {
            if keep.durably {
                spool.sync()?;
            }
            if let Some(pipe) = pipe {
                leftovers.adopt(pipe, spool);
            }
        }
        let condemned = locked(&command.condemned).clone();
        Ok(End { exit, timed_out, condemned, stdout, stderr })
    }

    /// Returns whether the time ran out.
    fn run(
        &mut self,
        command: &Command,
        running: &dyn Running,
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        let mut buffer = vec![0; CHUNK];
        let mut timed_out = false;
        loop {
            let left = deadline.filter(|_| !timed_out).map(|at| {
                let left = at.saturating_duration_since(Instant::now());
                u64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
            });
            if left == Some(0) {
                timed_out = true;
                if let Err(error) = running.kill_tree() {
                    tracing::warn!(exec = %command.exec_id, %error, "cannot kill a command whose time is up");
                }
                continue;
            }
            let mut fds = vec![PollFd::from_borrowed_fd(running.exited(), PollFlags::IN)];
            let pipes = self.0.iter().filter_map(|drain| drain.pipe.as_ref());
            fds.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            wait(&mut fds, left)?;
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let mut ready = ready.into_iter();
            if ready.next() == Some(true) {
                return Ok(timed_out);
            }
            for drain in self.0.iter_mut().filter(|drain| drain.pipe.is_some()) {
                if ready.next() == Some(true) && drain.take(&mut buffer)? > 0 {
                    let (stream, extent) = (drain.stream, drain.spool.extent());
                    command.update(|progress| match stream {
                        Stream::Stdout => progress.stdout = extent,
                        Stream::Stderr => progress.stderr = extent,
                    });
                }
            }
        }
    }
}

impl Drain {
    /// Reads once; 0 at the end, which closes the pipe, or when nothing is there.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(pipe) = &self.pipe else { return Ok(0) };
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                self.spool.append(&buffer[..length]);
                return Ok(length);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(0)
    }

    /// Takes what the pipe holds now, which is all that the ended child wrote, and not what others who
    /// hold it go on writing. Closes it when nobody else does.
    fn take_what_is_there(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let mut left = usize::try_from(rustix::io::ioctl_fionread(pipe)?).unwrap_or(usize::MAX);
        let mut buffer = vec![0; CHUNK];
        while left > 0 {
            let length = left.min(buffer.len());
            match self.take(&mut buffer[..length])? {
                0 => return Ok(()),
                taken => left -= taken,
            }
        }
        // One more look: the end of the file, unless somebody holds it or has written since.
        self.take(&mut buffer).map(|_| ())
    }
}
