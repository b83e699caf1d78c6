//! What client and worker say to each other, as values (the frames are in `wire`).
//! Worker-local: these types cross one machine's socket and are never stored in the graph.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use esf_core::environment::Environment;
use esf_core::ops::cancel::CancelReason;
use esf_core::policy::OnExpiry;
use esf_core::record::{Attempt, ExecOutcome, Failure, Node};
use esf_core::{AttemptId, ExecId, FailureClass, GroupId, NodeId, RootId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::executor::{Capabilities, Extra, Stats};

/// Who asks, under which idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestMeta {
    /// The actor on record.
    pub actor: String,
    /// The idempotency key; equal keys with equal bodies have one effect.
    pub key: String,
    /// Correlates what belongs to one request of a user.
    pub trace_id: String,
}

/// Bytes to one stream that a reply carries by default when it is asked to be bounded.
pub const DEFAULT_REPLY_WINDOW: u64 = 10 << 20;

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivatePurpose {
    /// Work on a draft, to be sealed.
    Work,
    /// Run an evaluator on a sealed node; nothing of it is sealed.
    Evaluate,
}

/// Brings a node to life.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivateRequest {
    /// Who asks.
    pub meta: RequestMeta,
    /// A draft, or a sealed node (which forks one draft first, except to evaluate it).
    pub node: NodeId,
    /// How its commands run.
    pub environment: Environment,
    /// Milliseconds after which the worker itself seals or discards; never when absent.
    pub lifetime_ms: Option<u64>,
    /// Which of both; the group's policy when absent.
    pub on_expiry: Option<OnExpiry>,
    /// Refuse with `quota` instead of waiting.
    pub no_wait: bool,
    /// Higher is started earlier.
    #[serde(default)]
    pub priority: i32,
    /// What for.
    pub purpose: ActivatePurpose,
    /// What an evaluator adds.
    pub extra: Extra,
}

/// What a client is told while its attempt waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueNews {
    /// How many came before it, by priority and then by arrival. Fairness between groups may let later
    /// ones pass.
    pub before: u64,
    /// What it waits for, as a word: `group_quota`, `max_live`, `memory`, ….
    pub reason: String,
}

/// Runs a command in a live attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Who asks.
    pub actor: String,
    /// Where.
    pub attempt: AttemptId,
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Variables added to the environment's.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory inside.
    pub cwd: Option<PathBuf>,
    /// `USER[:GROUP]` inside.
    pub user: Option<String>,
    /// Milliseconds after which the whole tree of the command is killed.
    pub timeout_ms: Option<u64>,
    /// Return at once; the output is in the logs.
    pub detach: bool,
    /// Bytes of each stream in the reply, half from the beginning and half from the end; everything,
    /// as it comes, when absent.
    pub max_output: Option<u64>,
    /// A key of the caller's: the command runs at most once under it.
    pub key: Option<String>,
    /// Whether the client sends stdin; `/dev/null` otherwise.
    pub stdin: bool,
    /// Correlates what belongs to one request of a user.
    pub trace_id: String,
}

/// How a command ended; partial output included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    /// The command's id.
    pub exec_id: ExecId,
    /// The code it exited with; 126 and 127 when it could not start.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its time ran out.
    pub timed_out: bool,
    /// Exact number of bytes of stdout.
    pub stdout_bytes: u64,
    /// Exact number of bytes of stderr.
    pub stderr_bytes: u64,
    /// Whether this reply left bytes out.
    pub truncated: bool,
    /// Wall-clock milliseconds from start to end.
    pub duration_ms: u64,
    /// Why it is not simply a code; null for code 0.
    pub failure: Option<Failure>,
    /// Whether it was started and left alone; then nothing above is known yet.
    #[serde(default)]
    pub detached: bool,
}

impl ExecResult {
    /// The same as the graph records it.
    pub fn outcome(&self) -> ExecOutcome {
        ExecOutcome {
            exit_code: self.exit_code,
            signal: self.signal,
            timed_out: self.timed_out,
            stdout_bytes: self.stdout_bytes,
            stderr_bytes: self.stderr_bytes,
            truncated: self.truncated,
            duration_ms: self.duration_ms,
            failure: self.failure.clone(),
        }
    }

    /// The exit code of a shell in its place: its code, 128 + signal, 124 for a time-out, and 125
    /// when it is not known how it ended.
    pub fn shell_code(&self) -> i32 {
        let lost = self.failure.as_ref().is_some_and(|f| f.class == FailureClass::InfraLost);
        match (self.timed_out, lost, self.exit_code, self.signal) {
            _ if self.detached => 0,
            (true, ..) => 124,
            (_, true, ..) => 125,
            (_, _, Some(code), _) => code,
            (_, _, None, Some(signal)) => 128 + signal,
            (_, _, None, None) => 125,
        }
    }
}

/// Seals an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuspendRequest {
    /// Who asks.
    pub meta: RequestMeta,
    /// A live attempt, or one that failed as `infra_lost` and whose delta is to be saved.
    pub attempt: AttemptId,
    /// Whether the node is terminal: evaluable, not forkable.
    pub terminal: bool,
    /// The logical state; inherited when absent.
    pub state: Option<serde_json::Value>,
    /// A line for people.
    pub message: Option<String>,
    /// Whether the work goes on, in a new attempt on the new node. Processes end all the same.
    #[serde(default)]
    pub keep: bool,
    /// With `keep`: whether an attempt in which nothing has changed stays as it is, its processes too.
    #[serde(default)]
    pub if_changed: bool,
}

/// What a seal changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedSummary {
    /// Paths that are new.
    pub added: u64,
    /// Paths with other content or metadata.
    pub modified: u64,
    /// Paths that are gone.
    pub deleted: u64,
    /// Bytes of new content.
    pub bytes: u64,
    /// Sockets, which cannot be kept, by path (lossy text).
    pub skipped: Vec<String>,
}

/// The sealed node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuspendReply {
    /// The node.
    pub node: Node,
    /// What changed against its base.
    pub changed: ChangedSummary,
    /// The attempt in which the work goes on, when it does; `failed` when its sandbox could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
}

/// One entry of a directory inside a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name; lossy when it is not UTF-8, then `name_bytes` has it exactly.
    pub name: String,
    /// The exact name when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name_bytes: Option<Vec<u8>>,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `device`.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, seconds since the epoch.
    pub mtime: i64,
}

impl FileEntry {
    /// The entry of a name's bytes.
    pub fn new(name: &[u8], kind: &str, size: u64, mode: u32, mtime: i64) -> Self {
        let exact = std::str::from_utf8(name).is_err().then(|| name.to_vec());
        let name = String::from_utf8_lossy(name).into_owned();
        Self { name, name_bytes: exact, kind: kind.to_owned(), size, mode, mtime }
    }

    /// The exact name.
    pub fn bytes(&self) -> &[u8] {
        self.name_bytes.as_deref().unwrap_or(self.name.as_bytes())
    }
}

/// A running command, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningExec {
    /// Its id.
    pub exec_id: ExecId,
    /// Its command line, lossy.
    pub argv: Vec<String>,
}

/// A live attempt, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAttempt {
    /// Its id.
    pub attempt_id: AttemptId,
    /// Its running commands.
    pub execs: Vec<RunningExec>,
    /// What it uses; null when it is being sealed.
    pub stats: Option<Stats>,
}

/// What a worker is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its process id.
    pub pid: u32,
    /// Most live attempts at one time.
    pub max_live: u64,
    /// How many wait for their turn.
    pub queued: u64,
    /// The live ones.
    pub live: Vec<LiveAttempt>,
    /// What its executors can do, by name.
    pub executors: Vec<(String, Capabilities)>,
}

/// What of a resource is used, promised and there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauge {
    /// In use now, as measured; of processors, thousandths within the last interval.
    pub used: u64,
    /// Promised to what lives.
    pub promised: u64,
    /// Most that may be promised.
    pub most: u64,
}

/// A group that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupQueue {
    /// The group.
    pub group_id: GroupId,
    /// How many of its attempts wait.
    pub waiting: u64,
    /// How many live.
    pub live: u64,
    /// Why the first of them waits.
    pub reason: String,
    /// Since when the one that came first waits.
    pub oldest: Timestamp,
}

/// A root and how many live attempts began on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotRoot {
    /// The root.
    pub root_id: RootId,
    /// Live attempts on it.
    pub live: u64,
}

/// The worker's gauges at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// Its process id.
    pub pid: u32,
    /// Live attempts, those being started among them.
    pub live: u64,
    /// Most live attempts.
    pub max_live: u64,
    /// How many are being started.
    pub starting: u64,
    /// How many wait.
    pub queued: u64,
    /// By group, the one with most waiting first.
    pub groups: Vec<GroupQueue>,
    /// Commands that run.
    pub execs: u64,
    /// Commands that wait for their turn.
    pub execs_waiting: u64,
    /// Most commands that run.
    pub max_execs: u64,
    /// Thousandths of processors.
    pub cpu_milli: Gauge,
    /// Bytes.
    pub memory: Gauge,
    /// Bytes free on the store's file system.
    pub disk_free: u64,
    /// Bytes of it.
    pub disk_total: u64,
    /// Whether it is so full that nothing new is admitted.
    pub storage_pressure: bool,
    /// Attempts started within the last second.
    pub creates_per_second: u64,
    /// Attempts and commands that failed since the worker's start, by class.
    pub errors: BTreeMap<String, u64>,
    /// The roots that most live attempts began on, ten at most.
    pub hot_roots: Vec<HotRoot>,
}

/// The first frame in each direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) pid: u32,
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Activate(Box<ActivateRequest>),
    Exec(Box<ExecRequest>),
    Suspend(SuspendRequest),
    Release { meta: RequestMeta, attempt: AttemptId, discard: bool },
    Retry(RetryRequest),
    Kill { attempt: AttemptId, exec: Option<ExecId>, signal: i32 },
    Get { attempt: AttemptId, path: PathBuf },
    Put { attempt: AttemptId, path: PathBuf, mode: u32 },
    List { attempt: AttemptId, path: PathBuf },
    ClearResult { attempt: AttemptId },
    Status,
    Top,
    Cancel(CancelRequest),
    Stop { force: bool },
}

/// Ends the attempts of a group that wait, and those that live when that is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CancelRequest {
    /// Who asks.
    pub meta: RequestMeta,
    /// Whose.
    pub group: GroupId,
    /// Why.
    pub reason: CancelReason,
    /// The live ones too; what they have not sealed is kept until they are released.
    pub live: bool,
}

/// How many attempts were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// That waited.
    pub queued: u64,
    /// That lived.
    pub live: u64,
}

/// A new attempt of the same draft, brought to life like the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RetryRequest {
    /// Who asks.
    pub meta: RequestMeta,
    /// The failed or released attempt.
    pub attempt: AttemptId,
    /// Refuse with `quota` instead of waiting.
    pub no_wait: bool,
}
