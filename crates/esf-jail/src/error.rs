//! Errors of the jail: what was attempted, what the kernel said, and what to do about it.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A jail could not be made, used or taken down.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan asks for something that no machine can do.
    #[error("plan field {field}: expected {expected}, found {found:?}")]
    Plan {
        /// Field of the plan.
        field: String,
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The root or a layer holds something where the jail needs a plain directory or file.
    #[error("{path}: expected {expected}, found {found}; the jail was refused")]
    Image {
        /// Path inside the jail, or the layer's path.
        path: PathBuf,
        /// What is needed there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// This machine lacks something; `doctor` lists all of it.
    #[error("{what} is not available here: {found}; {remedy}")]
    Unsupported {
        /// The missing thing.
        what: String,
        /// What was found instead.
        found: String,
        /// How to get it.
        remedy: String,
    },
    /// The kernel refused a step.
    #[error("{step}: {source}")]
    Kernel {
        /// What was being done, with its operands.
        step: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The zygote or the jail's init is gone.
    #[error("{what} is gone; start a new one")]
    Lost {
        /// Which of them.
        what: &'static str,
    },
    /// Processes did not die within the time allowed; the kernel holds them.
    #[error("processes of {group} are still alive {millis} ms after SIGKILL; they are stuck in the kernel")]
    Unkillable {
        /// The cgroup they are in.
        group: PathBuf,
        /// Time waited in milliseconds.
        millis: u64,
    },
    /// A descriptor that is neither a pipe nor `/dev/null` was given as stdio.
    #[error("{stream} must be a pipe or /dev/null, found {found}")]
    Stdio {
        /// `stdin`, `stdout` or `stderr`.
        stream: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// The path inside the jail is of a kind that the file interface does not serve.
    #[error("{path}: only regular files and directories can be opened from outside")]
    NotServed {
        /// Path inside the jail.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn kernel(step: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Kernel { step: step.into(), source: source.into() }
    }

    /// The kernel's error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Kernel { source, .. } => source.raw_os_error(),
            Error::Plan { .. }
            | Error::Image { .. }
            | Error::Unsupported { .. }
            | Error::Lost { .. }
            | Error::Unkillable { .. }
            | Error::Stdio { .. }
            | Error::NotServed { .. } => None,
        }
    }
}

/// Adds the step to the kernel's answer.
pub(crate) trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::kernel(step(), source))
    }
}

/// An error in the form that crosses a process boundary.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Report {
    Plan(String, String, String),
    Image(PathBuf, String, String),
    Unsupported(String, String, String),
    Kernel(String, i32),
}

impl From<Error> for Report {
    fn from(error: Error) -> Report {
        match error {
            Error::Plan { field, expected, found } => Report::Plan(field, expected, found),
            Error::Image { path, expected, found } => Report::Image(path, expected, found),
            Error::Unsupported { what, found, remedy } => Report::Unsupported(what, found, remedy),
            Error::Kernel { step, source } => match source.raw_os_error() {
                Some(errno) => Report::Kernel(step, errno),
                None => Report::Kernel(format!("{step}: {source}"), libc::EIO),
            },
            other @ (Error::Lost { .. }
            | Error::Unkillable { .. }
            | Error::Stdio { .. }
            | Error::NotServed { .. }) => Report::Kernel(other.to_string(), libc::EIO),
        }
    }
}

impl From<Report> for Error {
    fn from(report: Report) -> Error {
        match report {
            Report::Plan(field, expected, found) => Error::Plan { field, expected, found },
            Report::Image(path, expected, found) => Error::Image { path, expected, found },
            Report::Unsupported(what, found, remedy) => Error::Unsupported { what, found, remedy },
            Report::Kernel(step, errno) => {
                Error::Kernel { step, source: io::Error::from_raw_os_error(errno) }
            }
        }
    }
}

/// A program could not be started in a live jail.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No such program inside; the exit code of convention is 127.
    #[error("{program}: not found inside")]
    NotFound {
        /// `argv[0]`.
        program: String,
    },
    /// The program is there and cannot be executed; the exit code of convention is 126.
    #[error("{program}: cannot be executed: {source}")]
    NotExecutable {
        /// `argv[0]`.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The working directory cannot be entered.
    #[error("working directory {cwd}: {source}")]
    BadCwd {
        /// As asked for.
        cwd: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A user or group id outside the jail's range.
    #[error("id {id} is outside the jail's range 0..{count}")]
    BadUser {
        /// The id.
        id: u32,
        /// Number of ids the jail has.
        count: u32,
    },
    /// The jail's limit on processes is reached.
    #[error("the jail's limit on processes is reached")]
    PidsLimit,
    /// An argument or variable holds a NUL byte, or there is no argument at all.
    #[error("{what}")]
    BadArgument {
        /// What is wrong.
        what: String,
    },
    /// The jail is gone; what the program did is unknown if it was started.
    #[error("the jail is gone")]
    Lost,
    /// Anything else.
    #[error(transparent)]
    Other(#[from] Error),
}

impl SpawnError {
    /// The exit code that shells report for it: 127, 126, or none.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            SpawnError::NotFound { .. } => Some(127),
            SpawnError::NotExecutable { .. } => Some(126),
            SpawnError::BadCwd { .. }
            | SpawnError::BadUser { .. }
            | SpawnError::PidsLimit
            | SpawnError::BadArgument { .. }
            | SpawnError::Lost
            | SpawnError::Other(_) => None,
        }
    }
}

/// A jail could not be brought to rest; its upper directories must not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum QuiesceError {
    /// Something outside still holds the filesystem, so it could still change.
    #[error("{mount} is still in use after every process of the jail died; something outside holds it")]
    Busy {
        /// The mount, or the upper directory whose overlay still lives.
        mount: PathBuf,
    },
    /// Anything else.
    #[error(transparent)]
    Other(#[from] Error),
}
