//! `Evaluation`: versioned evidence and decision for one sealed result.
//! Invariant: verdict `error` has no reward and a failure, so an evaluator that broke never scores.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::{BlobId, Digest};
use crate::id::{AttemptId, EvaluationId, GroupId, NodeId};
use crate::record::{Failure, Json, text_forms};
use crate::time::Timestamp;

/// The decision: `pass`, `fail`, `error`, or another word of the evaluator's own.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Verdict(String);

/// A text that is not a verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a verdict: expected 1 to 64 of a-z, 0-9, `_` and `-`, beginning with a letter; found {found:?}")]
pub struct ParseVerdictError {
    /// The refused text, at most 80 characters.
    pub found: String,
}

impl Verdict {
    /// The work is good.
    pub fn pass() -> Self {
        Self("pass".to_owned())
    }

    /// The work is not good.
    pub fn fail() -> Self {
        Self("fail".to_owned())
    }

    /// The evaluator could not decide; never a reward.
    pub fn error() -> Self {
        Self("error".to_owned())
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the evaluator could not decide.
    pub fn is_error(&self) -> bool {
        self.0 == "error"
    }
}

impl FromStr for Verdict {
    type Err = ParseVerdictError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
        let good = (1..=64).contains(&text.len())
            && text.as_bytes()[0].is_ascii_lowercase()
            && text.bytes().all(word);
        if !good {
            return Err(ParseVerdictError { found: text.chars().take(80).collect() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Verdict {
    type Error = ParseVerdictError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Verdict> for String {
    fn from(verdict: Verdict) -> Self {
        verdict.0
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluator {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Digest of its definition and files; null for one given by hand.
    pub digest: Option<Digest>,
}

/// A named artifact that supports an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Its name.
    pub name: String,
    /// Its content.
    pub blob: BlobId,
    /// Its length in bytes.
    pub bytes: u64,
}

/// How an evaluation came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvaluationClass {
    /// An evaluator ran on the sealed node, in an attempt of its own.
    Run,
    /// Somebody gave it by hand.
    Attached,
}

text_forms!(EvaluationClass { Run = "run", Attached = "attached" });

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Its id.
    pub evaluation_id: EvaluationId,
    /// The group of the node.
    pub group_id: GroupId,
    /// The sealed node it is about.
    pub node_id: NodeId,
    /// The attempt that produced that node; null for imports and merges.
    pub attempt_id: Option<AttemptId>,
    /// The evaluator's own attempt; null when attached by hand.
    pub run_attempt_id: Option<AttemptId>,
    /// The evaluator's name.
    pub evaluator: String,
    /// The evaluator's version.
    pub evaluator_version: String,
    /// Digest of the evaluator's definition and files.
    pub evaluator_digest: Option<Digest>,
    /// Run or attached.
    pub class: EvaluationClass,
    /// The reward; finite, or null.
    pub reward: Option<f64>,
    /// The decision.
    pub verdict: Verdict,
    /// Further numbers and words.
    pub metrics: Json,
    /// Supporting artifacts.
    pub evidence: Vec<Evidence>,
    /// Why there is no verdict.
    pub failure: Option<Failure>,
    /// Whether it counts for search, queue and promotion: a run does, an attached one only of an actor
    /// that the group's policy trusts.
    pub counts: bool,
    /// When it was recorded.
    pub created_at: Timestamp,
    /// Who recorded it.
    pub created_by: String,
    /// Trace of the request that recorded it.
    pub trace_id: String,
    /// Digest of the signed statement about it, once there is one.
    pub statement_digest: Option<Digest>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_plain_words() {
        for good in ["pass", "fail", "error", "needs-work", "a1_b"] {
            assert_eq!(good.parse::<Verdict>().expect(good).as_str(), good);
        }
        for bad in ["", "Pass", "1a", "a b", "é", &"a".repeat(65)] {
            assert!(bad.parse::<Verdict>().is_err(), "{bad}");
        }
    }
}
