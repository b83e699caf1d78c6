//! The contract of executors, as one suite that is run against every implementation: the fake of this
//! crate's tests, the Linux executor, the WASI executor. It speaks to `Executor` alone, below any worker,
//! and asks for programs by what they do (`Programs`): what they are is each executor's matter.

// No executor's tests use all of it.
#![allow(dead_code)]

mod cases;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esf_core::AttemptId;
use esf_core::environment::{Environment, Limits};
use esf_core::manifest::RootPin;
use esf_layerstack::{ImportOptions, LayerStack, Workspace};
use esf_worker::executor::{
    Activation, ExecSpec, Executor, Exit, Extra, Running, Sandbox, SpawnError, Stdio,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use cases::CASES;

/// How long anything may take that takes an instant.
const PATIENCE: Duration = Duration::from_secs(20);

/// A command line.
pub(crate) type Argv = Vec<String>;

/// What an executor's programs are called. Each does one thing and exits with 0 unless it says otherwise.
pub(crate) struct Programs {
    /// What every case begins with.
    pub(crate) environment: Environment,
    /// Where the tree is inside.
    pub(crate) workspace: &'static str,
    /// Puts the programs into a tree that is to be imported.
    pub(crate) install: fn(&Path),
    /// Prints the text and a line end, exits with the code.
    pub(crate) say: fn(&str, i32) -> Argv,
    /// Prints the variable's value, and a line end.
    pub(crate) variable: fn(&str) -> Argv,
    /// Sleeps for a minute.
    pub(crate) sleep: fn() -> Argv,
    /// Computes for ever.
    pub(crate) spin: fn() -> Argv,
    /// Writes the text into a file of the working directory.
    pub(crate) write: fn(&str, &str) -> Argv,
    /// Appends to a file of the working directory for ever.
    pub(crate) keep_writing: fn(&str) -> Argv,
    /// Copies its input to its output.
    pub(crate) copy: fn() -> Argv,
    /// Writes so many bytes to its output, then exits with the code.
    pub(crate) flood: fn(u64, i32) -> Argv,
    /// Takes so many bytes of memory and touches them; ends otherwise than with 0 when it cannot.
    pub(crate) take_memory: fn(u64) -> Argv,
    /// Writes a file of so many bytes; exits with 3 when there is no room.
    pub(crate) fill: fn(&str, u64) -> Argv,
    /// A file of the tree that is there and is no program.
    pub(crate) no_program: &'static str,
    /// Whether there is a wall between the sandbox and this machine; the fake has none.
    pub(crate) isolates: bool,
}

/// A stack with one tree: a file `a` that says `one`, a directory `d`, the programs.
pub(crate) struct Ground {
    pub(crate) programs: Programs,
    stack: LayerStack,
    base: RootPin,
    attempts: Cell<u8>,
    _directory: tempfile::TempDir,
}

impl Ground {
    /// Makes it.
    pub(crate) fn new(programs: Programs) -> Self {
        let directory = tempfile::tempdir().expect("tempdir");
        let source = directory.path().join("source");
        std::fs::create_dir_all(source.join("d")).expect("mkdir");
        std::fs::write(source.join("a"), "one\n").expect("writes");
        (programs.install)(&source);
        let stack = LayerStack::create(&directory.path().join("store")).expect("a store");
        let imported = stack.import_directory(&source, &ImportOptions::default(), &()).expect("imports");
        Self { base: *imported.sealed.pin(), programs, stack, attempts: Cell::new(1), _directory: directory }
    }

    /// The store's directory, for executors that need to know it.
    pub(crate) fn store(&self) -> &Path {
        self.stack.directory()
    }

    /// A path of the tree as it is inside.
    pub(crate) fn inside(&self, path: &str) -> PathBuf {
        Path::new(self.programs.workspace).join(path)
    }

    /// A live sandbox with its workspace.
    pub(crate) fn live(&self, executor: &dyn Executor) -> (Workspace, Box<dyn Sandbox>) {
        self.live_with(executor, &self.programs.environment)
    }

    pub(crate) fn live_with(
        &self,
        executor: &dyn Executor,
        environment: &Environment,
    ) -> (Workspace, Box<dyn Sandbox>) {
        // An overlay's work directory serves one sandbox.
        let attempt = AttemptId::from_bytes([self.attempts.replace(self.attempts.get() + 1); 16]);
        let workspace = self.stack.open_workspace(&self.base, attempt).expect("a workspace");
        let activation = Activation { attempt, workspace: &workspace, environment, extra: &Extra::default() };
        let sandbox = executor.activate(activation).unwrap_or_else(|error| panic!("{error}"));
        (workspace, sandbox)
    }

    fn limited(&self, limits: Limits) -> Environment {
        Environment { limits, ..self.programs.environment.clone() }
    }
}

/// A command with the far ends of its pipes.
pub(crate) struct Started {
    pub(crate) running: Box<dyn Running>,
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: Option<File>,
    stderr: File,
}

/// Starts a command whose input is open.
pub(crate) fn start(sandbox: &dyn Sandbox, argv: &Argv) -> Result<Started, SpawnError> {
    start_spec(sandbox, ExecSpec { argv: argv.iter().map(OsString::from).collect(), ..ExecSpec::default() })
}

pub(crate) fn start_spec(sandbox: &dyn Sandbox, spec: ExecSpec) -> Result<Started, SpawnError> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
    let ((inner_in, stdin), (stdout, inner_out), (stderr, inner_err)) = (pipe(), pipe(), pipe());
    let stdio = Stdio { stdin: inner_in, stdout: inner_out, stderr: inner_err };
    let running = sandbox.exec(&spec, stdio)?;
    Ok(Started { running, stdin: Some(stdin.into()), stdout: Some(stdout.into()), stderr: stderr.into() })
}

impl Started {
    /// Reads all that it writes, in a thread of its own; counts and keeps the first 64 KiB.
    fn read_all(&mut self) -> JoinHandle<(u64, Vec<u8>)> {
        let mut stdout = self.stdout.take().expect("not read yet");
        std::thread::spawn(move || {
            let (mut total, mut kept, mut buffer) = (0_u64, Vec::new(), vec![0; 1 << 16]);
            loop {
                match stdout.read(&mut buffer).expect("reads") {
                    0 => return (total, kept),
                    length => {
                        total += length as u64;
                        let room = (1 << 16) - kept.len();
                        kept.extend(&buffer[..length.min(room)]);
                    }
                }
            }
        })
    }

    pub(crate) fn exit(&self) -> Exit {
        assert!(ready(self.running.exited(), PATIENCE), "it does not end");
        self.running.wait().expect("a status")
    }

    fn is_over(&self) -> bool {
        ready(self.running.exited(), Duration::ZERO)
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).expect("reads");
        text
    }
}

fn ready(fd: impl AsFd, patience: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("polls") > 0
}

/// Runs a command to its end; its exit and what it printed.
pub(crate) fn run(sandbox: &dyn Sandbox, argv: &Argv) -> (Exit, String) {
    let mut started = start(sandbox, argv).unwrap_or_else(|error| panic!("{argv:?}: {error}"));
    drop(started.stdin.take());
    let read = started.read_all();
    let exit = started.exit();
    let (_, out) = read.join().expect("reads");
    (exit, String::from_utf8_lossy(&out).into_owned())
}

/// Runs what must end with 0.
fn run_ok(sandbox: &dyn Sandbox, argv: &Argv) -> String {
    let mut started = start(sandbox, argv).unwrap_or_else(|error| panic!("{argv:?}: {error}"));
    drop(started.stdin.take());
    let read = started.read_all();
    let exit = started.exit();
    assert_eq!(exit, Exit::Code(0), "{argv:?}: {}", started.errors());
    String::from_utf8_lossy(&read.join().expect("reads").1).into_owned()
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "in vain waited until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Programs that are a shell's: for executors that run what this machine has.
pub(crate) fn shell_programs() -> Programs {
    fn shell(script: String) -> Argv {
        vec!["sh".to_owned(), "-c".to_owned(), script]
    }
    Programs {
        environment: Environment::default(),
        workspace: "/workspace",
        install: |_| {},
        say: |text, code| shell(format!("echo {text}; exit {code}")),
        variable: |name| shell(format!("echo ${name}")),
        sleep: || vec!["sleep".to_owned(), "60".to_owned()],
        spin: || shell("while :; do :; done".to_owned()),
        write: |path, text| shell(format!("printf '{text}' > {path}")),
        keep_writing: |path| shell(format!("while :; do echo x >> {path}; done")),
        copy: || vec!["cat".to_owned()],
        flood: |bytes, code| shell(format!("head -c {bytes} /dev/zero; exit {code}")),
        take_memory: |bytes| shell(format!("head -c {bytes} /dev/zero | tail > /dev/null")),
        fill: |path, bytes| shell(format!("head -c {bytes} /dev/zero > {path} || exit 3")),
        no_program: "a",
        isolates: true,
    }
}
