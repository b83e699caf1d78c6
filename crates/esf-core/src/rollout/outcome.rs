//! How a sibling ends: its outcome, the reward that follows from it, and the statistics of a prompt.
//! Invariants: null means not scored, never zero; an outcome that was not the policy's doing has no score.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::Digest;
use crate::id::NodeId;
use crate::record::{Failure, Json, text_forms};

/// Where a sibling is in the life of its revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiblingStatus {
    /// Nobody has begun it.
    Waiting,
    /// A trial of it goes on.
    Running,
    /// It ended with something that can be graded.
    Result,
    /// It ended with a failure that says nothing of the policy.
    Error,
    /// It was given up.
    Cancelled,
}

text_forms!(SiblingStatus {
    Waiting = "waiting",
    Running = "running",
    Result = "result",
    Error = "error",
    Cancelled = "cancelled",
});

impl SiblingStatus {
    /// Whether it is one in which a revision ends.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Result | Self::Error | Self::Cancelled)
    }
}

/// Why something was given up before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// Somebody said so.
    User,
    /// Its policy version had become too old.
    Stale,
    /// There was more than could be done.
    Overload,
    /// A budget was used up.
    Budget,
}

text_forms!(CancelReason { User = "user", Stale = "stale", Overload = "overload", Budget = "budget" });

/// What cut a rollout off before it ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Truncation {
    /// The most turns.
    Turns,
    /// The most tokens.
    Tokens,
    /// The longest time.
    Time,
    /// The most output.
    Output,
    /// A quota.
    Quota,
}

text_forms!(Truncation {
    Turns = "turns",
    Tokens = "tokens",
    Time = "time",
    Output = "output",
    Quota = "quota",
});

/// A named reward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The score; null when it was not scored.
    pub score: Option<f64>,
    /// How much it counts in the reward; as the run declares, or else 1, when absent.
    #[serde(default)]
    pub weight: Option<f64>,
}

/// What a rollout used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Tokens, sampled and read.
    pub tokens: u64,
    /// Time from its beginning to its end, in milliseconds.
    pub wall_ms: u64,
    /// Time on processors, in milliseconds.
    pub cpu_ms: u64,
    /// The most memory at once, in bytes.
    pub peak_memory: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// What came of a sibling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Outcome {
    /// The node that it left; the last step's when absent.
    pub node_id: Option<NodeId>,
    /// Named rewards.
    pub rewards: BTreeMap<String, Score>,
    /// The scalar reward; the weighted sum of what was scored when absent, null when nothing was.
    pub reward: Option<f64>,
    /// Further numbers and words; a JSON object or null.
    pub metrics: Json,
    /// Whether it ended by itself.
    pub terminated: bool,
    /// What cut it off, if something did.
    pub truncated: Option<Truncation>,
    /// Why it stopped, in words.
    pub stop_reason: String,
    /// What went wrong, if something did. One that cannot be graded makes the outcome an error.
    pub failure: Option<Failure>,
    /// Whether it may be trained on; the rules say so when absent, and can only be tightened.
    pub usable: Option<bool>,
    /// What it used.
    pub cost: Cost,
    /// The least policy version that sampled a part of it; that of its beginning or its steps when absent.
    pub policy_version_start: Option<u64>,
    /// The greatest one.
    pub policy_version_end: Option<u64>,
    /// Digest of the signed statement about it, where there is one.
    pub statement_digest: Option<Digest>,
}

/// Why an outcome cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableOutcome {
    /// The field.
    pub field: String,
    /// What would do.
    pub expected: String,
    /// What was there.
    pub found: String,
}

impl Outcome {
    /// The most named rewards.
    pub const MAX_REWARDS: usize = 64;
    /// The most bytes of metrics, as JSON.
    pub const MAX_METRICS: usize = 16_384;
    /// The most bytes of a text.
    pub const MAX_TEXT: usize = 4096;

    /// What tells two outcomes apart.
    pub fn digest(&self) -> Digest {
        canonical::digest("esf sibling outcome v1", self)
    }

    /// `result`, or `error` when a failure cannot be graded.
    pub fn status(&self) -> SiblingStatus {
        match &self.failure {
            Some(failure) if !failure.gradable => SiblingStatus::Error,
            Some(_) | None => SiblingStatus::Result,
        }
    }

    /// Checks it, and fills in what follows: weights, the reward, whether it is usable. `declared` are the run's
    /// rewards; when there are some, no others may be named.
    ///
    /// # Errors
    /// The field that cannot be recorded, with what would do.
    pub fn complete(mut self, declared: &BTreeMap<String, f64>) -> Result<Self, UnusableOutcome> {
        self.check_texts()?;
        for (name, score) in &mut self.rewards {
            let weight = match declared.get(name) {
                Some(weight) => *weight,
                None if declared.is_empty() => 1.0,
                None => {
                    let names: Vec<&str> = declared.keys().map(String::as_str).collect();
                    let expected = format!("a reward that the run declares: {}", names.join(", "));
                    return bad("rewards", &expected, name);
                }
            };
            score.weight.get_or_insert(weight);
            for (what, number) in [("score", score.score), ("weight", score.weight)] {
                if let Some(number) = number.filter(|number| !number.is_finite()) {
                    return bad(&format!("rewards.{name}.{what}"), "a finite number", number);
                }
            }
        }
        let scored =
            self.rewards.values().filter_map(|s| s.score.map(|score| score * s.weight.unwrap_or(1.0)));
        let sum = scored.fold(None, |sum: Option<f64>, part| Some(sum.unwrap_or(0.0) + part));
        self.reward = self.reward.or(sum);
        if let Some(reward) = self.reward.filter(|reward| !reward.is_finite()) {
            return bad("reward", "a finite number", reward);
        }
        if let (Some(failure), Some(reward)) = (&self.failure, self.reward)
            && !(failure.reward_valid && failure.class.reward_valid())
        {
            let found = format!("{reward} after {}", failure.class.as_str());
            return bad("reward", "none after such a failure: null is not scored", found);
        }
        let may = self.status() == SiblingStatus::Result;
        if self.usable == Some(true) && !may {
            return bad("usable", "false after a failure that cannot be graded", true);
        }
        self.usable = Some(self.usable.unwrap_or(may));
        Ok(self)
    }

    fn check_texts(&self) -> Result<(), UnusableOutcome> {
        if self.rewards.len() > Self::MAX_REWARDS {
            return bad("rewards", &format!("at most {}", Self::MAX_REWARDS), self.rewards.len());
        }
        if let Some(name) = self.rewards.keys().find(|name| !(1..=128).contains(&name.len())) {
            return bad("rewards", "names of 1 to 128 bytes", name.len());
        }
        if !(self.metrics.is_null() || self.metrics.is_object()) {
            return bad("metrics", "an object", &self.metrics);
        }
        let bytes = self.metrics.to_string().len();
        if bytes > Self::MAX_METRICS {
            return bad("metrics", &format!("at most {} bytes", Self::MAX_METRICS), bytes);
        }
        let detail = self.failure.as_ref().map_or("", |failure| failure.detail.as_str());
        let stage = self.failure.as_ref().map_or("", |failure| failure.stage.as_str());
        for (field, text) in
            [("stop_reason", self.stop_reason.as_str()), ("failure.detail", detail), ("failure.stage", stage)]
        {
            if text.len() > Self::MAX_TEXT {
                return bad(field, &format!("at most {} bytes", Self::MAX_TEXT), text.len());
            }
        }
        if let Some(failure) = &self.failure {
            let class = failure.class;
            if failure.gradable && !class.gradable() || failure.reward_valid && !class.reward_valid() {
                return bad("failure", "what follows from its class", class.as_str());
            }
        }
        if self.terminated && self.truncated.is_some() {
            return bad("truncated", "null where it terminated", "both");
        }
        Ok(())
    }
}

fn bad<T>(field: &str, expected: &str, found: impl ToString) -> Result<T, UnusableOutcome> {
    let found = found.to_string().chars().take(200).collect();
    Err(UnusableOutcome { field: field.to_owned(), expected: expected.to_owned(), found })
}

/// The rewards of a prompt's members that may be trained on and were scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RewardStats {
    /// How many there are.
    pub count: u64,
    /// How many are usable, scored or not.
    pub usable: u64,
    /// Their mean; null when there is none.
    pub mean: Option<f64>,
    /// Their sample standard deviation (divided by n - 1); null for fewer than two.
    pub std: Option<f64>,
    /// Their population standard deviation (divided by n); null when there is none.
    pub std_population: Option<f64>,
}

impl RewardStats {
    /// Those of members, each usable or not, with its reward; in the order of their places.
    pub fn of(members: impl IntoIterator<Item = (bool, Option<f64>)>) -> Self {
        let usable: Vec<Option<f64>> =
            members.into_iter().filter_map(|(usable, r)| usable.then_some(r)).collect();
        let rewards: Vec<f64> = usable.iter().copied().flatten().collect();
        let (mean, squares) = mean_and_squares(&rewards).unzip();
        let n = rewards.len() as f64;
        Self {
            count: rewards.len() as u64,
            usable: usable.len() as u64,
            mean,
            std: squares.filter(|_| n > 1.0).map(|squares| (squares / (n - 1.0)).sqrt()),
            std_population: squares.map(|squares| (squares / n).sqrt()),
        }
    }
}

/// The mean of `values` and the sum of the squares of their distances from it, in two passes; nothing for none.
fn mean_and_squares(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Some((mean, values.iter().map(|value| (value - mean).powi(2)).sum()))
}
