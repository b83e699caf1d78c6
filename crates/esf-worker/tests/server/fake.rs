//! An executor for tests: commands are plain processes whose directory is the upper. It isolates nothing
//! and needs no privilege, so that the worker's own rules can be tested anywhere.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use esf_core::environment::Environment;
use esf_layerstack::Workspace;
use esf_worker::executor::{
    Activation, Capabilities, ExecSpec, Executor, ExecutorError, Exit, Extra, FileEntry, Files, OpenFile,
    QuiesceError, Requirement, Running, Sandbox, SpawnError, Stats, Stdio, Upload,
};
use esf_worker::kernel_files::{self, KernelFiles};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Where the tree is said to be inside.
const WORKSPACE: &str = "/workspace";

/// The executor. `FAKE=full` in an environment makes its activation fail, `FAKE=slow` makes it slow.
pub(crate) struct Fake;

struct FakeSandbox {
    upper: PathBuf,
    env: BTreeMap<String, String>,
    processes: Mutex<Vec<Arc<FakeProcess>>>,
    died: OwnedFd,
    _alive: OwnedFd,
}

struct FakeProcess {
    pid: Pid,
    pidfd: OwnedFd,
    child: Mutex<Child>,
}

struct Handle(Arc<FakeProcess>);

impl Executor for Fake {
    fn name(&self) -> &'static str {
        "oci"
    }

    fn capabilities(&self) -> Capabilities {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Capabilities {
            programs: words(&["native"]),
            bases: words(&["host"]),
            networks: words(&["none"]),
            signals: words(&["all"]),
            processes: true,
            names: "bytes".to_owned(),
            ..Capabilities::default()
        }
    }

    fn requirements(&self) -> Vec<Requirement> {
        Vec::new()
    }

    fn check(&self, environment: &Environment, extra: &Extra) -> Result<(), ExecutorError> {
        let plain = Environment {
            env: environment.env.clone(),
            cwd: environment.cwd.clone(),
            workspace: environment.workspace.clone(),
            ..Environment::default()
        };
        // Says that it bounds, for the worker's own rules about what is asked for.
        let bounded = environment.env.get("FAKE").is_some_and(|word| word == "bounded");
        let plain = Environment { limits: if bounded { environment.limits } else { plain.limits }, ..plain };
        let refused = ExecutorError::Unsupported { what: "it".to_owned(), expected: "less".to_owned() };
        if *environment == plain && extra.is_empty() { Ok(()) } else { Err(refused) }
    }

    fn prepare(&self) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn activate(&self, activation: Activation<'_>) -> Result<Box<dyn Sandbox>, ExecutorError> {
        match activation.environment.env.get("FAKE").map(String::as_str) {
            Some("full") => return Err(ExecutorError::Full { what: "as asked for".to_owned() }),
            // This executor shows the upper alone: the suite asks for the whole tree in it.
            Some("copy") => copy(&activation.workspace.lowers, &activation.workspace.upper),
            Some("slow") => std::thread::sleep(std::time::Duration::from_millis(400)),
            _ => {}
        }
        let (died, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
        let upper = activation.workspace.upper.clone();
        let env = activation.environment.env.clone();
        Ok(Box::new(FakeSandbox { upper, env, processes: Mutex::default(), died, _alive: alive }))
    }

    fn in_use(&self, workspace: &Workspace) -> Result<bool, ExecutorError> {
        Ok(held(&workspace.upper))
    }

    fn recover(&self) -> Result<Vec<String>, ExecutorError> {
        Ok(Vec::new())
    }

    fn shut_down(&self) {}
}

fn copy(lowers: &[PathBuf], upper: &Path) {
    for lower in lowers.iter().rev() {
        let copied = Command::new("cp").arg("-a").arg(lower.join(".")).arg(upper).status();
        assert!(copied.expect("runs").success());
    }
}

/// Whether this process holds a file of the upper open.
fn held(upper: &Path) -> bool {
    let links = fs::read_dir("/proc/self/fd").expect("lists").flatten();
    links
        .filter_map(|link| fs::read_link(link.path()).ok())
        .any(|target| target.starts_with(upper) && target != upper)
}

impl FakeSandbox {
    fn end(&self) {
        for process in self.processes.lock().expect("lock").drain(..) {
            // It may be gone already.
            let _ = kill_process_group(process.pid, Signal::KILL);
            process.child.lock().expect("lock").wait().expect("waits");
        }
    }

    fn place(&self, path: &Path) -> PathBuf {
        path.strip_prefix(WORKSPACE).map_or_else(|_| path.to_owned(), |inside| self.upper.join(inside))
    }
}

impl Drop for FakeSandbox {
    fn drop(&mut self) {
        self.end();
    }
}

impl Sandbox for FakeSandbox {
    fn exec(&self, spec: &ExecSpec, stdio: Stdio) -> Result<Box<dyn Running>, SpawnError> {
        let cwd = self.place(spec.cwd.as_deref().unwrap_or(Path::new(WORKSPACE)));
        if !cwd.is_dir() {
            return Err(SpawnError::BadCwd(cwd.display().to_string()));
        }
        if spec.user.is_some() {
            let what = "a user".to_owned();
            return Err(ExecutorError::Unsupported { what, expected: "none".to_owned() }.into());
        }
        let name = spec.argv[0].to_string_lossy().into_owned();
        let mut command = Command::new(self.place(Path::new(&spec.argv[0])));
        command
            .args(&spec.argv[1..])
            .envs(&self.env)
            .envs(spec.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(cwd).process_group(0);
        command.stdin(stdio.stdin).stdout(stdio.stdout).stderr(stdio.stderr);
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SpawnError::NotFound(name),
            io::ErrorKind::InvalidInput => SpawnError::BadArguments(name),
            _ => SpawnError::NotExecutable(name),
        })?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd");
        let process = Arc::new(FakeProcess { pid, pidfd, child: Mutex::new(child) });
        self.processes.lock().expect("lock").push(Arc::clone(&process));
        Ok(Box::new(Handle(process)))
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn stats(&self) -> Result<Stats, ExecutorError> {
        Ok(Stats::default())
    }

    fn died(&self) -> BorrowedFd<'_> {
        self.died.as_fd()
    }

    fn quiesce(self: Box<Self>) -> Result<(), QuiesceError> {
        self.end();
        if held(&self.upper) { Err(QuiesceError::Busy { what: "a file is held".to_owned() }) } else { Ok(()) }
    }

    fn release(self: Box<Self>) -> Result<(), ExecutorError> {
        self.end();
        Ok(())
    }
}

impl Files for FakeSandbox {
    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        kernel_files::regular(File::open(self.place(path))?.into())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Upload + '_>> {
        kernel_files::upload(self, path)
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(FileEntry) -> io::Result<()>) -> io::Result<()> {
        kernel_files::list(&File::open(self.place(path))?.into(), each)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.unlink(path)
    }
}

impl KernelFiles for FakeSandbox {
    fn create_new(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(File::options().write(true).create_new(true).mode(0o600).open(self.place(path))?.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.place(from), self.place(to))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let path = self.place(path);
        if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }
    }
}

impl Running for Handle {
    fn exited(&self) -> BorrowedFd<'_> {
        self.0.pidfd.as_fd()
    }

    fn wait(&self) -> Result<Exit, ExecutorError> {
        let status = self.0.child.lock().expect("lock").wait();
        let status = status.map_err(|error| ExecutorError::Lost { what: error.to_string() })?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.expect("a code or a signal")),
        })
    }

    fn signal(&self, signal: i32) -> Result<(), ExecutorError> {
        let signal = Signal::from_named_raw(signal).expect("a signal");
        rustix::process::pidfd_send_signal(&self.0.pidfd, signal)
            .map_err(|error| ExecutorError::Lost { what: error.to_string() })
    }

    fn kill_tree(&self) -> Result<(), ExecutorError> {
        // It may be gone already.
        let _ = kill_process_group(self.0.pid, Signal::KILL);
        Ok(())
    }
}
