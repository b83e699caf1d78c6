//! The one shape in which errors leave the libraries: a class, a stable code, and what was expected,
//! found and is to be done (style rule 16). Exit codes, HTTP statuses and retry advice derive from
//! the class, each in one place at its edge.

use serde::{Deserialize, Serialize};

/// The class of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The request itself is malformed (exit 2).
    Usage,
    /// Something named does not exist (exit 3).
    NotFound,
    /// State moved or forbids it: stale generation, key conflict, not sealed (exit 4).
    Conflict,
    /// A quota or a policy says no (exit 5).
    Refused,
    /// Stored data is damaged or of an unknown version (exit 6).
    Damaged,
    /// Ours or the machine's failure: I/O, full disk, a lost worker (exit 125).
    Failure,
}

/// A problem that is told to a user or a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The class, from which exit code and retry advice derive.
    pub class: Class,
    /// A stable code such as `not_sealed` or `stale_generation`.
    pub code: String,
    /// One lower-case sentence without a full stop.
    pub message: String,
    /// What would have been accepted.
    #[serde(default)]
    pub expected: Option<String>,
    /// What was there instead.
    #[serde(default)]
    pub found: Option<String>,
    /// What to do now.
    #[serde(default)]
    pub remediation: Option<String>,
    /// Whether the same request may succeed later unchanged.
    pub retryable: bool,
    /// Facts for programs: current generation, lease ids and the like; null when there are none.
    #[serde(skip_serializing_if = "serde_json::Value::is_null", default)]
    pub context: serde_json::Value,
}

impl Problem {
    /// A problem of `class` with a stable `code`; not retryable unless said.
    pub fn new(class: Class, code: &str, message: impl Into<String>) -> Self {
        Self {
            class,
            code: code.to_owned(),
            message: message.into(),
            expected: None,
            found: None,
            remediation: None,
            retryable: false,
            context: serde_json::Value::Null,
        }
    }

    /// Adds what would have been accepted.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Adds what was there instead.
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }

    /// Adds what to do now.
    pub fn remedy(mut self, remediation: impl Into<String>) -> Self {
        self.remediation = Some(remediation.into());
        self
    }

    /// Marks that the same request may succeed later unchanged.
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Adds facts for programs.
    pub fn context(mut self, context: serde_json::Value) -> Self {
        self.context = context;
        self
    }
}
