//! One command run inside an attempt. Its output lies with the worker, named by `exec_id`.

use serde::{Deserialize, Serialize};

use crate::id::{AttemptId, ExecId};
use crate::record::{Failure, text_forms};
use crate::time::Timestamp;

/// Where an exec stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecStatus {
    /// It was started, or is about to be.
    Running,
    /// It ended and its outcome is known.
    Finished,
    /// Its outcome is unknown: it is never run again.
    Lost,
}

text_forms!(ExecStatus { Running = "running", Finished = "finished", Lost = "lost" });

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecOutcome {
    /// Its exit code, when it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its time was over.
    pub timed_out: bool,
    /// Exact number of bytes written to standard output.
    pub stdout_bytes: u64,
    /// Exact number of bytes written to standard error.
    pub stderr_bytes: u64,
    /// Whether a reply leaves out part of the output.
    pub truncated: bool,
    /// Wall-clock duration in milliseconds.
    pub duration_ms: u64,
    /// Its class when it is more than a non-zero code.
    pub failure: Option<Failure>,
}

/// One exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its id; also names its output.
    pub exec_id: ExecId,
    /// The attempt it ran in.
    pub attempt_id: AttemptId,
    /// Running, finished or lost.
    pub status: ExecStatus,
    /// The command and its arguments.
    pub argv: Vec<String>,
    /// Its working directory inside.
    pub cwd: Option<String>,
    /// Its user inside.
    pub user: Option<String>,
    /// Its time-out in milliseconds.
    pub timeout_ms: Option<u64>,
    /// How it ended.
    pub outcome: Option<ExecOutcome>,
    /// When it was recorded.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Who asked for it.
    pub created_by: String,
    /// Trace of the request that asked for it.
    pub trace_id: String,
}
