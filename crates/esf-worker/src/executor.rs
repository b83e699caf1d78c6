//! The contract between a worker and whatever runs a sandbox: `Executor`, `Sandbox`, `Running`
//! (design section 5). Invariant: nothing here may block on what a sandboxed process does, and a
//! sandbox ends in exactly one of two ways, `quiesce` (its delta is whole) or `release`.
//! One contract suite (`contract` tests) is run against every implementation.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use esf_core::environment::Environment;
use esf_core::{AttemptId, Class, FailureClass, Problem};
use esf_layerstack::Workspace;
use serde::{Deserialize, Serialize};

pub use crate::message::FileEntry;

/// What an executor can do; anything else is refused before it starts. `docs/executors.md` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// What it runs: `native` programs of this machine, `wasm` modules.
    pub programs: Vec<String>,
    /// Privilege it needs: `root` or `none`.
    pub privilege: String,
    /// Operating systems it is made for.
    pub systems: Vec<String>,
    /// Bases it can build: `host`, `root`, `image`.
    pub bases: Vec<String>,
    /// Network policies it enforces: `none`, `host`, `allow`.
    pub networks: Vec<String>,
    /// Limits it enforces: `cpu`, `memory`, `pids`, `disk`.
    pub limits: Vec<String>,
    /// Whether a command's work can be bounded by a count instead of time (`fuel`).
    pub fuel: bool,
    /// Whether it offers terminals.
    pub terminals: bool,
    /// Signals that reach a command: their names, or `all`.
    pub signals: Vec<String>,
    /// Whether commands can run as another user than the tree's root.
    pub users: bool,
    /// Whether a command may start others, and leave some behind that live on.
    pub processes: bool,
    /// Whether host paths can be bound.
    pub binds: bool,
    /// Whether a command can be given a part of the tree only.
    pub preopens: bool,
    /// What of an evaluator it can lay out: `hide`, `files`, `result`.
    pub evaluator: Vec<String>,
    /// File names that commands can use: `bytes`, or `utf-8` (others stay in the tree, unseen).
    pub names: String,
}

/// One requirement of an executor on this machine, for `esf doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Its name.
    pub name: String,
    /// Whether it is met.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// How to get it, when it is not met.
    pub remedy: String,
}

/// What an evaluator adds to a sandbox. Worker-local: it crosses the worker's socket, never a database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extra {
    /// A directory laid read-only over the workspace.
    pub files: Option<PathBuf>,
    /// Paths of the workspace that are not shown, without a leading slash.
    pub hide: Vec<Vec<u8>>,
    /// Whether a small tmpfs outside the tree takes a result; its file is named in `ESF_RESULT`.
    pub result_channel: bool,
    /// A layer of changes over the workspace, below the others: what an earlier command left, for its
    /// scorer. Whoever names it keeps it until the sandbox is gone.
    pub left: Option<PathBuf>,
}

impl Extra {
    /// Where the result channel is inside.
    pub const CHANNEL: &'static str = "/run/esf";
    /// The result file inside.
    pub const RESULT: &'static str = "/run/esf/result.json";
    /// Where the evaluator's files are bound read-only inside, whatever the tree does to itself.
    pub const FILES: &'static str = "/run/esf/files";

    /// Whether nothing is added.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// All that is needed to bring an attempt to life.
#[derive(Clone, Copy, Debug)]
pub struct Activation<'a> {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its layers and its private upper.
    pub workspace: &'a Workspace,
    /// The pinned environment.
    pub environment: &'a Environment,
    /// What an evaluator adds.
    pub extra: &'a Extra,
}

/// One command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// Program and arguments; the program is looked up in the sandbox's `PATH` when it has no slash.
    pub argv: Vec<OsString>,
    /// Added to the environment's variables.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory inside; the environment's own when absent.
    pub cwd: Option<PathBuf>,
    /// User, `NAME|UID[:GROUP|GID]`; the environment's own when absent.
    pub user: Option<String>,
}

/// The three pipe ends that a command gets; never a caller's descriptor (design 5.1).
#[derive(Debug)]
pub struct Stdio {
    /// Read end, or `/dev/null`.
    pub stdin: OwnedFd,
    /// Write end.
    pub stdout: OwnedFd,
    /// Write end.
    pub stderr: OwnedFd,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal of this number ended it.
    Signal(i32),
}

/// What a sandbox has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Memory in use, bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Processor time, microseconds.
    pub cpu_us: u64,
    /// How often the memory limit killed something.
    pub oom_kills: u64,
    /// How often the process limit refused something.
    pub pids_refused: u64,
}

/// Brings workspaces to life.
pub trait Executor: Send + Sync {
    /// The name users type.
    fn name(&self) -> &'static str;

    /// What it can do here.
    fn capabilities(&self) -> Capabilities;

    /// What it needs of this machine.
    fn requirements(&self) -> Vec<Requirement>;

    /// Refuses, before anything is recorded, what `activate` could not honour.
    ///
    /// # Errors
    /// `Unsupported` naming the field.
    fn check(&self, environment: &Environment, extra: &Extra) -> Result<(), ExecutorError>;

    /// Gets ready to activate, so that the first activation is as quick as the others. Called once, after
    /// `recover`.
    ///
    /// # Errors
    /// As `activate`, which will say so again.
    fn prepare(&self) -> Result<(), ExecutorError>;

    /// Makes a sandbox; nothing stays behind when it fails.
    ///
    /// # Errors
    /// Typed; see `ExecutorError`.
    fn activate(&self, activation: Activation<'_>) -> Result<Box<dyn Sandbox>, ExecutorError>;

    /// Whether something may still write into an upper that no sandbox of ours owns any more.
    ///
    /// # Errors
    /// When the probe itself cannot be made; then nobody may seal.
    fn in_use(&self, workspace: &Workspace) -> Result<bool, ExecutorError>;

    /// Removes what a dead worker left of its sandboxes; returns a line for each thing removed.
    /// The caller holds the worker's lock. Nothing to do is the normal case.
    ///
    /// # Errors
    /// When something cannot be removed.
    fn recover(&self) -> Result<Vec<String>, ExecutorError>;

    /// Ends what it started for itself, and waits for that; called once, after the last sandbox is gone.
    fn shut_down(&self);
}

/// One live sandbox. Dropping it kills everything in it; the delta stays on disk.
pub trait Sandbox: Send + Sync {
    /// Starts a command.
    ///
    /// # Errors
    /// `SpawnError`, before the program's first instruction.
    fn exec(&self, spec: &ExecSpec, stdio: Stdio) -> Result<Box<dyn Running>, SpawnError>;

    /// The files inside, seen as the root user inside sees them.
    fn files(&self) -> &dyn Files;

    /// What it has used so far.
    ///
    /// # Errors
    /// When it is gone.
    fn stats(&self) -> Result<Stats, ExecutorError>;

    /// Becomes readable when the sandbox died by itself.
    fn died(&self) -> BorrowedFd<'_>;

    /// Kills everything and proves that nobody can write into the upper any more.
    ///
    /// # Errors
    /// `Busy` when something outside still holds the workspace; everything inside is dead then too.
    fn quiesce(self: Box<Self>) -> Result<(), QuiesceError>;

    /// Kills everything and takes the sandbox down; the upper stays for the caller.
    ///
    /// # Errors
    /// When something is left.
    fn release(self: Box<Self>) -> Result<(), ExecutorError>;
}

/// A regular file of a sandbox, open for reading.
#[derive(Debug)]
pub struct OpenFile {
    /// Its bytes; read-only, at its beginning.
    pub content: OwnedFd,
    /// Its permission bits.
    pub mode: u32,
}

/// File access inside a live sandbox; every path resolves inside its root, links and `..` included.
pub trait Files {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// The kernel's own; `InvalidInput` for what is neither file nor directory.
    fn open(&self, path: &Path) -> io::Result<OpenFile>;

    /// Begins to write the file at `path`, which changes only when the upload is published.
    ///
    /// # Errors
    /// The kernel's own; `InvalidInput` when the path names no file.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Upload + '_>>;

    /// Calls `each` for every entry of the directory at `path`, in no order, and stops at its first error.
    ///
    /// # Errors
    /// The kernel's own, and those of `each`.
    fn list(&self, path: &Path, each: &mut dyn FnMut(FileEntry) -> io::Result<()>) -> io::Result<()>;

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// The kernel's own.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file on its way into a sandbox. Dropped before it is published, it leaves nothing behind; nothing can
/// be written through it once the sandbox came to rest.
#[must_use = "an upload that is not published leaves nothing"]
pub trait Upload {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// The kernel's own; `StorageFull` or `QuotaExceeded` at the limit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Gives it exactly the permission bits `mode` and its name, over whatever has that name.
    ///
    /// # Errors
    /// The kernel's own.
    fn publish(self: Box<Self>, mode: u32) -> io::Result<()>;
}

/// One running command.
pub trait Running: Send + Sync {
    /// Becomes readable when the direct child ended.
    fn exited(&self) -> BorrowedFd<'_>;

    /// How the direct child ended; waits for it.
    ///
    /// # Errors
    /// `Lost` when the sandbox died with it.
    fn wait(&self) -> Result<Exit, ExecutorError>;

    /// Sends `signal` to the direct child.
    ///
    /// # Errors
    /// When it is gone; `Unsupported` for a signal that is not among the executor's.
    fn signal(&self, signal: i32) -> Result<(), ExecutorError>;

    /// Kills every descendant of this command, whatever sessions they made, and waits until none is
    /// left; other commands are untouched.
    ///
    /// # Errors
    /// When something cannot be killed.
    fn kill_tree(&self) -> Result<(), ExecutorError>;
}

/// Why an executor cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The environment asks for what this executor does not do.
    #[error("{what} is not supported by this executor")]
    Unsupported {
        /// The field and value.
        what: String,
        /// What it does support.
        expected: String,
    },
    /// The environment is wrong in itself.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
        /// What would be right.
        expected: String,
    },
    /// The machine lacks something.
    #[error("this machine cannot run it: {what}")]
    Machine {
        /// What is missing, or the failed step.
        what: String,
    },
    /// The file system is full.
    #[error("no space left: {what}")]
    Full {
        /// The failed step.
        what: String,
    },
    /// The sandbox, or the process that keeps it, is gone.
    #[error("the sandbox is gone: {what}")]
    Lost {
        /// What was found.
        what: String,
    },
}

impl ExecutorError {
    /// The problem as it is told.
    pub fn problem(&self) -> Problem {
        let text = self.to_string();
        match self {
            Self::Unsupported { what, expected } => Problem::new(Class::Refused, "not_supported", text)
                .expected(expected)
                .found(what)
                .remedy("choose what the executor offers; `esf doctor` lists it"),
            Self::Invalid { expected, .. } => {
                Problem::new(Class::Usage, "bad_environment", text).expected(expected)
            }
            Self::Machine { .. } => Problem::new(Class::Failure, "infra_prepare", text)
                .remedy("run `esf doctor` to see what this machine lacks"),
            Self::Full { .. } => Problem::new(Class::Failure, "storage_full", text)
                .remedy("free some space and try again")
                .retryable(),
            Self::Lost { .. } => Problem::new(Class::Failure, "infra_lost", text).retryable(),
        }
    }
}

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No such program inside: code 127.
    #[error("command not found inside the sandbox: {0}")]
    NotFound(String),
    /// It is there and cannot be executed: code 126.
    #[error("command is not executable: {0}")]
    NotExecutable(String),
    /// The working directory is missing or is not a directory inside.
    #[error("cannot use working directory {0}")]
    BadCwd(String),
    /// The user or group does not exist inside.
    #[error("cannot run as user {0}")]
    BadUser(String),
    /// The process limit is used up.
    #[error("the process limit is used up")]
    PidsLimit,
    /// Argument list or environment too long, or a NUL inside.
    #[error("bad arguments: {0}")]
    BadArguments(String),
    /// The sandbox is gone or refused.
    #[error(transparent)]
    Sandbox(#[from] ExecutorError),
}

impl SpawnError {
    /// The exit code that stands for it, when it is a result of the command and not a problem.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::NotFound(_) => Some(127),
            Self::NotExecutable(_) => Some(126),
            Self::BadCwd(_) | Self::BadUser(_) | Self::PidsLimit => None,
            Self::BadArguments(_) | Self::Sandbox(_) => None,
        }
    }

    /// The class it is recorded under.
    pub fn failure_class(&self) -> FailureClass {
        match self {
            Self::NotFound(_) | Self::NotExecutable(_) => FailureClass::UserExit,
            Self::BadCwd(_) | Self::BadUser(_) | Self::BadArguments(_) => FailureClass::UserExit,
            Self::PidsLimit => FailureClass::Quota,
            Self::Sandbox(ExecutorError::Unsupported { .. } | ExecutorError::Invalid { .. }) => {
                FailureClass::UserExit
            }
            Self::Sandbox(_) => FailureClass::InfraLost,
        }
    }

    /// The problem as it is told.
    pub fn problem(&self) -> Problem {
        let text = self.to_string();
        let usage = |code: &str| Problem::new(Class::Usage, code, text.clone());
        match self {
            Self::NotFound(_) => usage("command_not_found"),
            Self::NotExecutable(_) => usage("not_executable"),
            Self::BadCwd(found) => usage("bad_cwd")
                .expected("a directory that exists inside the sandbox")
                .found(found)
                .remedy("create it first, or give another directory with -w"),
            Self::BadUser(found) => usage("bad_user")
                .expected("a number, or a name in the sandbox's /etc/passwd and /etc/group")
                .found(found)
                .remedy("give a numeric id with -u"),
            Self::PidsLimit => Problem::new(Class::Refused, "pids_limit", text)
                .remedy("end some processes of the attempt, or activate with a higher --pids")
                .retryable(),
            Self::BadArguments(_) => usage("bad_arguments"),
            Self::Sandbox(error) => error.problem(),
        }
    }
}

/// Why a sandbox could not be brought to rest.
#[derive(Debug, thiserror::Error)]
pub enum QuiesceError {
    /// Something outside holds the workspace open, so it cannot be unmounted for certain.
    #[error("the workspace is still in use: {what}")]
    Busy {
        /// What the kernel said.
        what: String,
    },
    /// The sandbox was lost before.
    #[error(transparent)]
    Sandbox(#[from] ExecutorError),
}

impl QuiesceError {
    /// The problem as it is told.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Busy { .. } => Problem::new(Class::Failure, "workspace_busy", self.to_string())
                .expected("a workspace that nobody holds after its processes are dead")
                .remedy("end the process outside that holds it, then suspend the attempt again")
                .retryable(),
            Self::Sandbox(error) => error.problem(),
        }
    }
}
