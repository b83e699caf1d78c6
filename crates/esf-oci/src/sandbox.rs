//! One live jail as a sandbox.
//! Invariant: what the sandbox says about its users is read with a bound, as plain bytes; the identity,
//! the variables and the directory of each command are settled here, below nothing but the environment.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use esf_core::AttemptId;
use esf_core::environment::{Base, Environment};
use esf_jail::{ExitStatus, Jail, Mode, OFlags, Process};
use esf_worker::executor::{
    Activation, ExecSpec, ExecutorError, Exit, Extra, FileEntry, Files, OpenFile, QuiesceError, Running,
    Sandbox, SpawnError, Stats, Stdio, Upload,
};
use esf_worker::kernel_files::{self, KernelFiles};

use crate::executor::of_jail;
use crate::host::{GROUP, PASSWD};
use crate::idrange::IdRange;
use crate::plan::workspace;
use crate::users::{self, Identity};
use crate::variables::variables;

/// A live jail and what it was made from.
pub(crate) struct OciSandbox {
    jail: Jail,
    attempt: AttemptId,
    environment: Environment,
    extra: Extra,
    /// Given back after the jail is gone.
    _range: IdRange,
}

impl OciSandbox {
    pub(crate) fn new(jail: Jail, range: IdRange, activation: &Activation<'_>) -> Self {
        Self {
            jail,
            attempt: activation.attempt,
            environment: activation.environment.clone(),
            extra: activation.extra.clone(),
            _range: range,
        }
    }

    fn identity(&self, own: Option<&str>) -> Result<Identity, SpawnError> {
        let Some(user) = own.or(self.environment.user.as_deref()) else { return Ok(Identity::root()) };
        let bad = |reason: String| SpawnError::BadUser(format!("{user}: {reason}"));
        let (passwd, group) = match self.environment.base {
            Base::Host => (PASSWD.as_bytes().to_vec(), GROUP.as_bytes().to_vec()),
            Base::Root | Base::Image(_) => {
                // A number means something whatever the tree's files are.
                let number = user.split(':').all(|part| part.parse::<u32>().is_ok());
                let read = |path: &str| match self.read_bounded(Path::new(path)) {
                    Err(_) if number => Ok(Vec::new()),
                    read => read.map_err(|error| bad(error.to_string())),
                };
                (read("/etc/passwd")?, read("/etc/group")?)
            }
        };
        users::resolve(user, &passwd, &group).map_err(|error| SpawnError::BadUser(error.to_string()))
    }

    /// A small file inside; empty when it is not there.
    fn read_bounded(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = match self.open_inside(path) {
            Ok(fd) => File::from(fd),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(users::MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > users::MAX_FILE {
            let what = format!("{} is larger than {} bytes", path.display(), users::MAX_FILE);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(bytes)
    }

    /// The command's directory; a relative one begins at the environment's.
    fn cwd(&self, own: Option<&Path>) -> PathBuf {
        let top = workspace(&self.environment);
        let default = self.environment.cwd.as_ref().map_or_else(|| top.to_owned(), |cwd| top.join(cwd));
        own.map_or(default.clone(), |cwd| default.join(cwd))
    }
}

impl Sandbox for OciSandbox {
    fn exec(&self, spec: &ExecSpec, stdio: Stdio) -> Result<Box<dyn Running>, SpawnError> {
        let identity = self.identity(spec.user.as_deref())?;
        let spec = esf_jail::ExecSpec {
            argv: spec.argv.clone(),
            env: variables(self.attempt, &self.environment, &self.extra, &identity, &spec.env),
            cwd: self.cwd(spec.cwd.as_deref()),
            uid: identity.uid,
            gid: identity.gid,
            groups: identity.groups,
        };
        let stdio = esf_jail::Stdio { stdin: stdio.stdin, stdout: stdio.stdout, stderr: stdio.stderr };
        let process = self.jail.exec(&spec, stdio).map_err(of_spawn)?;
        Ok(Box::new(OciProcess(process)))
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn stats(&self) -> Result<Stats, ExecutorError> {
        let stats = self.jail.stats();
        Ok(Stats {
            memory_bytes: stats.memory_bytes,
            pids: stats.pids,
            cpu_us: stats.cpu_us,
            oom_kills: stats.oom_kills,
            pids_refused: stats.pids_max_hits,
        })
    }

    fn died(&self) -> BorrowedFd<'_> {
        self.jail.pid1_exit()
    }

    fn quiesce(self: Box<Self>) -> Result<(), QuiesceError> {
        match self.jail.quiesce() {
            Ok(_at_rest) => Ok(()),
            Err(esf_jail::QuiesceError::Busy { mount }) => {
                Err(QuiesceError::Busy { what: format!("{} is held from outside", mount.display()) })
            }
            Err(esf_jail::QuiesceError::Other(error)) => Err(of_jail(&error).into()),
        }
    }

    fn release(self: Box<Self>) -> Result<(), ExecutorError> {
        self.jail.destroy().map_err(|error| of_jail(&error))
    }
}

impl OciSandbox {
    fn open_inside(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        self.jail.open(path, flags, Mode::empty()).map_err(to_io)
    }
}

impl Files for OciSandbox {
    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        kernel_files::regular(self.open_inside(path)?)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Upload + '_>> {
        kernel_files::upload(self, path)
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(FileEntry) -> io::Result<()>) -> io::Result<()> {
        kernel_files::list(&self.open_inside(path)?, each)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.unlink(path)
    }
}

impl KernelFiles for OciSandbox {
    fn create_new(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.jail.open(path, flags, Mode::RUSR | Mode::WUSR).map_err(to_io)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.jail.rename(from, to).map_err(to_io)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.jail.unlink(path).map_err(to_io)
    }
}

/// A running command of a jail.
struct OciProcess(Process);

impl Running for OciProcess {
    fn exited(&self) -> BorrowedFd<'_> {
        self.0.pidfd()
    }

    fn wait(&self) -> Result<Exit, ExecutorError> {
        let lost = |what: &str| ExecutorError::Lost { what: what.to_owned() };
        match self.0.wait(None) {
            Ok(Some(ExitStatus::Code(code))) => Ok(Exit::Code(code)),
            Ok(Some(ExitStatus::Signal(signal))) => Ok(Exit::Signal(signal)),
            Ok(None) => Err(lost("the command ended without a status")),
            Err(error) => Err(lost(&error.to_string())),
        }
    }

    fn signal(&self, signal: i32) -> Result<(), ExecutorError> {
        self.0.signal(signal).map_err(|error| of_jail(&error))
    }

    fn kill_tree(&self) -> Result<(), ExecutorError> {
        self.0.kill_tree().map_err(|error| of_jail(&error))
    }
}

fn of_spawn(error: esf_jail::SpawnError) -> SpawnError {
    let text = error.to_string();
    match error {
        esf_jail::SpawnError::NotFound { program } => SpawnError::NotFound(program),
        esf_jail::SpawnError::NotExecutable { .. } => SpawnError::NotExecutable(text),
        esf_jail::SpawnError::BadCwd { cwd, source } => {
            SpawnError::BadCwd(format!("{}: {source}", cwd.display()))
        }
        esf_jail::SpawnError::BadUser { .. } => SpawnError::BadUser(text),
        esf_jail::SpawnError::PidsLimit => SpawnError::PidsLimit,
        esf_jail::SpawnError::BadArgument { .. } => SpawnError::BadArguments(text),
        esf_jail::SpawnError::Lost => ExecutorError::Lost { what: text }.into(),
        esf_jail::SpawnError::Other(error) => of_jail(&error).into(),
    }
}

fn to_io(error: esf_jail::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error.to_string()),
    }
}
