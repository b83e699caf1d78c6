//! The owner's handle on a live jail.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::cgroup::JailGroup;
use crate::error::{Report, Step};
use crate::exec_groups::ExecGroups;
use crate::home::{ANSWER, PATIENCE};
use crate::init::{NOT_SERVED, request};
use crate::owner::Shared;
use crate::plan::layer_path;
use crate::process::Process;
use crate::spawn::{self, Stage};
use crate::unmount::{Outcome, upper_in_use};
use crate::wire::{self, Reader, Writer};
use crate::{Error, Plan, QuiesceError, SpawnError, Stats, zygote};

/// A program to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecSpec {
    /// Arguments; the first names the program and is looked up along `PATH` of `env` if it has no
    /// slash.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory inside; its last part and all before it may be symlinks, but not a
    /// process' descriptor.
    pub cwd: PathBuf,
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// Standard streams of a program: ends of pipes, or `/dev/null`, which becomes the jail's own.
#[derive(Debug)]
pub struct Stdio {
    /// Read by the program.
    pub stdin: OwnedFd,
    /// Written by the program.
    pub stdout: OwnedFd,
    /// Written by the program.
    pub stderr: OwnedFd,
}

/// A live jail. Dropping it kills what runs in it.
#[derive(Debug)]
pub struct Jail {
    zygote: Arc<Shared>,
    id: String,
    init: OwnedFd,
    init_exit: OwnedFd,
    group: JailGroup,
    execs: Arc<ExecGroups>,
    id_base: u32,
    id_count: u32,
    /// Upper and work directory of each overlay.
    layers: Vec<(PathBuf, PathBuf)>,
    /// When init last answered anybody.
    last_answer: Mutex<Instant>,
    ended: bool,
}

/// Proof that a jail is at rest: every process dead, every mount undone, no overlay alive over its
/// upper directories.
#[derive(Debug)]
#[must_use = "a jail at rest is about to be sealed or discarded"]
pub struct Quiesced {
    stats: Stats,
}

impl Quiesced {
    /// Counters at the end.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

impl Jail {
    pub(crate) fn launch(zygote: &Arc<Shared>, plan: &Plan) -> Result<Jail, Error> {
        plan.check()?;
        let absolute = |path| layer_path(&zygote.layers_dir, path).map(|path| zygote.layers_dir.join(path));
        let layers = plan
            .overlays()
            .map(|overlay| Ok((absolute(&overlay.upper)?, absolute(&overlay.work)?)))
            .collect::<Result<_, Error>>()?;
        let text = serde_json::to_vec(plan).map_err(|error| Error::Plan {
            field: "paths".into(),
            expected: "UTF-8".into(),
            found: error.to_string(),
        })?;
        let slot = zygote.take_slot()?;
        let group = JailGroup::new(&zygote.home, &slot.id);
        let execs = ExecGroups::new(group.open()?, plan.id_base);
        // From here on a failure drops the jail, which cleans up.
        let jail = Jail {
            zygote: Arc::clone(zygote),
            id: slot.id,
            init: slot.socket,
            init_exit: slot.pidfd,
            group,
            execs,
            id_base: plan.id_base,
            id_count: plan.id_count,
            layers,
            last_answer: Mutex::new(Instant::now()),
            ended: false,
        };
        jail.group.limit(&plan.cgroup)?;
        jail.group.delegate(plan.id_base, plan.id_base)?;
        let lost = || Error::Lost { what: "the slot" };
        // A slot that failed to prepare itself has closed its end, and left a report before.
        let sent = wire::send(&jail.init, &text, &[]);
        if sent.is_ok() {
            jail.execs.make_spare();
        }
        let answer = wire::receive_within(&jail.init, ANSWER).map_err(|_| lost())?.ok_or_else(lost)?;
        let done: Result<(), Report> = serde_json::from_slice(&answer.bytes)
            .map_err(|error| Error::kernel("read the launch's report", io::Error::other(error)))?;
        done?;
        Ok(jail)
    }

    /// Starts a program.
    ///
    /// # Errors
    /// See [`SpawnError`]; nothing was started then, but for `Lost`, where nothing is known.
    pub fn exec(&self, spec: &ExecSpec, stdio: Stdio) -> Result<Process, SpawnError> {
        self.check(spec)?;
        let streams = [("stdin", &stdio.stdin), ("stdout", &stdio.stdout), ("stderr", &stdio.stderr)];
        let mut null = [false; 3];
        for (index, (stream, fd)) in streams.into_iter().enumerate() {
            null[index] = is_null(stream, fd)?;
            if !null[index] {
                // Else nobody inside may open /dev/stdout anew, which scripts do.
                let (uid, gid) =
                    (Uid::from_raw(self.id_base + spec.uid), Gid::from_raw(self.id_base + spec.gid));
                rustix::fs::fchown(fd, Some(uid), Some(gid))
                    .step(|| format!("give {stream} to the program"))?;
            }
        }
        let group = self.execs.take().map_err(|e| Error::kernel("make a cgroup", e))?;
        let (ours, theirs) = wire::pair().map_err(|e| Error::kernel("make a socket", e))?;
        let given = streams.into_iter().zip(null).filter(|(_, null)| !null);
        let fds =
            spawn::descriptors(theirs.as_fd(), group.directory.as_fd(), given.map(|((_, fd), _)| fd.as_fd()));
        let sent = wire::send(&self.init, &spawn::encode(spec, null), &fds);
        drop((stdio, theirs));
        if sent.is_err() {
            return Err(SpawnError::Lost);
        }
        self.execs.make_spare();
        let mut answer = self.answer(&ours).ok_or(SpawnError::Lost)?;
        let mut reader = Reader(&answer.bytes);
        let (stage, detail) = (reader.number(), reader.number());
        let (Ok(stage), Ok(detail)) = (stage, detail) else { return Err(SpawnError::Lost) };
        if stage != 0 {
            self.execs.give_back(group);
            return Err(spawn_error(spec, stage, Errno::from_raw_os_error(detail as i32)));
        }
        let pidfd = answer.fds.pop().ok_or(SpawnError::Lost)?;
        Ok(Process::new(ours, pidfd, group, Arc::clone(&self.execs)))
    }

    /// Init's answer. An init that answers nobody is lost to its owner, and killed to make it true:
    /// a program inside may have stopped the child that init waits for.
    fn answer(&self, channel: &OwnedFd) -> Option<wire::Message> {
        loop {
            match wire::receive_within(channel, ANSWER) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    // Many may be waiting in a line that moves.
                    if self.last_answer().elapsed() > ANSWER {
                        // If even this fails, quiesce or destroy will say so.
                        let _ = self.group.kill();
                        return None;
                    }
                }
                Err(_) => return None,
                Ok(answer) => {
                    *self.last_answer() = Instant::now();
                    return answer;
                }
            }
        }
    }

    fn last_answer(&self) -> MutexGuard<'_, Instant> {
        self.last_answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, spec: &ExecSpec) -> Result<(), SpawnError> {
        let bad = |what: &str| Err(SpawnError::BadArgument { what: what.into() });
        if spec.argv.is_empty() {
            return bad("there is no program to start: argv is empty");
        }
        let nul = |text: &std::ffi::OsStr| text.as_bytes().contains(&0);
        let pair = |(name, value): &(OsString, OsString)| nul(name) || nul(value);
        if spec.argv.iter().any(|argument| nul(argument)) || spec.env.iter().any(pair) {
            return bad("an argument or variable holds a NUL byte");
        }
        if spec.env.iter().any(|(name, _)| name.is_empty() || name.as_bytes().contains(&b'=')) {
            return bad("a variable's name is empty or holds =");
        }
        let ids = [spec.uid, spec.gid].into_iter().chain(spec.groups.iter().copied());
        match ids.into_iter().find(|id| *id >= self.id_count) {
            Some(id) => Err(SpawnError::BadUser { id, count: self.id_count }),
            None => Ok(()),
        }
    }

    /// Opens a regular file or a directory inside, as uid 0 of the jail; symlinks are followed
    /// within the jail's root only. `mode` is used exactly when a file is created. While the
    /// descriptor is open the jail cannot be quiesced.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the kernel's error number; [`Error::NotServed`] for other kinds of
    /// files and for procfs.
    pub fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Error> {
        let mut writer = Writer(vec![request::OPEN]);
        writer.bytes(path.as_os_str().as_bytes()).number(flags.bits()).number(mode.bits());
        let mut fds = self.ask(&writer.0, path, "open")?;
        fds.pop().ok_or(Error::Lost { what: "the jail" })
    }

    /// Renames a file inside, replacing what is there; last components are never followed.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the kernel's error number.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let mut writer = Writer(vec![request::RENAME]);
        writer.bytes(from.as_os_str().as_bytes()).bytes(to.as_os_str().as_bytes());
        self.ask(&writer.0, from, "rename").map(drop)
    }

    /// Removes a file, or an empty directory, inside; the last component is never followed.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the kernel's error number.
    pub fn unlink(&self, path: &Path) -> Result<(), Error> {
        let mut writer = Writer(vec![request::UNLINK]);
        writer.bytes(path.as_os_str().as_bytes());
        self.ask(&writer.0, path, "unlink").map(drop)
    }

    fn ask(&self, body: &[u8], path: &Path, verb: &str) -> Result<Vec<OwnedFd>, Error> {
        let lost = || Error::Lost { what: "the jail" };
        let (ours, theirs) = wire::pair().step(|| "make a socket".into())?;
        wire::send(&self.init, body, &[theirs.as_fd()]).map_err(|_| lost())?;
        drop(theirs);
        let answer = self.answer(&ours).ok_or_else(lost)?;
        match Reader(&answer.bytes).number().map_err(|_| lost())? {
            0 => Ok(answer.fds),
            NOT_SERVED => Err(Error::NotServed { path: path.into() }),
            errno => Err(Error::Kernel {
                step: format!("{verb} {} inside", path.display()),
                source: io::Error::from_raw_os_error(errno as i32),
            }),
        }
    }

    /// Counters of the jail as a whole.
    pub fn stats(&self) -> Stats {
        self.group.stats()
    }

    /// The jail's name among its owner's cgroups.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A pidfd of pid 1: readable once the jail has died.
    pub fn pid1_exit(&self) -> BorrowedFd<'_> {
        self.init_exit.as_fd()
    }

    /// Brings the jail to rest, with proof, so that its upper directories may be sealed: kill, no
    /// process left, every mount undone plainly, no overlay alive over any upper.
    ///
    /// # Errors
    /// [`QuiesceError::Busy`] if something outside still holds a file of the jail; the jail is gone
    /// in this case too, but its upper directories could still change.
    pub fn quiesce(mut self) -> Result<Quiesced, QuiesceError> {
        let stats = self.stats();
        self.ended = true;
        let rested = self.rest();
        let cleaned = self.clean_up();
        rested?;
        cleaned?;
        Ok(Quiesced { stats })
    }

    fn rest(&self) -> Result<(), QuiesceError> {
        self.group.kill()?;
        self.group.wait_empty(PATIENCE)?;
        match self.zygote.unmount(&self.id)? {
            Outcome::Unmounted => {}
            Outcome::Busy(mount) => return Err(QuiesceError::Busy { mount }),
            Outcome::Failed(report) => return Err(Error::from(report).into()),
        }
        for (upper, work) in &self.layers {
            if upper_in_use(upper, work)? {
                return Err(QuiesceError::Busy { mount: upper.clone() });
            }
        }
        Ok(())
    }

    /// Kills and removes the jail; its layers stay on disk and prove nothing.
    ///
    /// # Errors
    /// [`Error::Unkillable`] and whatever the kernel refuses.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.ended = true;
        self.end()
    }

    fn end(&self) -> Result<(), Error> {
        self.group.kill()?;
        self.group.wait_empty(PATIENCE)?;
        self.clean_up()
    }

    fn clean_up(&self) -> Result<(), Error> {
        self.group.remove()?;
        match self.zygote.command(&zygote::Command::Forget(self.id.clone()), &[]) {
            // A zygote that is gone has forgotten everything.
            Ok(()) | Err(Error::Lost { .. }) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        if !self.ended {
            // What remains is found again by reap_leftovers.
            let _ = self.end();
        }
    }
}

/// Whether a stream is `/dev/null`; refuses what is neither that nor a pipe.
fn is_null(stream: &'static str, fd: &OwnedFd) -> Result<bool, Error> {
    let stat = rustix::fs::fstat(fd).step(|| format!("stat {stream}"))?;
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo if on_pipefs(fd) => return Ok(false),
        FileType::Fifo => "a named pipe",
        FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => return Ok(true),
        FileType::CharacterDevice => "a character device",
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symlink",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "something else",
    };
    Err(Error::Stdio { stream, found })
}

/// Whether a pipe has no name on any disk.
fn on_pipefs(fd: &OwnedFd) -> bool {
    const PIPEFS_MAGIC: i64 = 0x5049_5045;
    rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type == PIPEFS_MAGIC)
}

fn spawn_error(spec: &ExecSpec, stage: u32, errno: Errno) -> SpawnError {
    let program = spec.argv[0].to_string_lossy().into_owned();
    let source = io::Error::from(errno);
    match Stage::from_number(stage) {
        Some(Stage::NotFound) => SpawnError::NotFound { program },
        Some(Stage::Clone | Stage::NotExecutable) if errno == Errno::AGAIN => SpawnError::PidsLimit,
        Some(Stage::NotExecutable) => SpawnError::NotExecutable { program, source },
        Some(Stage::Cwd) => SpawnError::BadCwd { cwd: spec.cwd.clone(), source },
        Some(stage @ (Stage::Clone | Stage::User | Stage::Message | Stage::Prepare)) => {
            Error::kernel(format!("start {program} ({stage:?})"), source).into()
        }
        None => SpawnError::Lost,
    }
}
