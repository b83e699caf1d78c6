//! A group's policy: TOML, parsed strictly, stored as its text with its digest on the group
//! (design section 4). Pure: the reader of files is elsewhere.

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, PolicyDigest};
use crate::environment::Environment;
use crate::units::parse_duration_ms;

/// What a lease's or lifetime's end does with unsealed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// Seal it into a child.
    #[default]
    Seal,
    /// Discard it; an event names what was discarded.
    Discard,
}

impl OnExpiry {
    /// The stable text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Discard => "discard",
        }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Seal, Self::Discard].into_iter().find(|value| value.as_str() == text)
    }
}

/// What survives a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Everything acknowledged.
    #[default]
    Full,
    /// What the machine happened to write; for throw-away rollouts.
    Relaxed,
}

/// How long what is not selected is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Days for which the delta of a failed attempt is kept; for ever when absent.
    pub failed_attempt_days: Option<u32>,
    /// Days for which logs of released attempts are kept; for ever when absent.
    pub log_days: Option<u32>,
}

/// Upper bounds; absent means not bounded by this group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Attempts that are active or quiescing at one time.
    pub max_live_attempts: Option<u64>,
    /// Attempts that wait at one time.
    pub max_queued_attempts: Option<u64>,
}

/// A duration as people type it (`30s`), in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Millis(pub u64);

impl TryFrom<String> for Millis {
    type Error = crate::units::ParseUnitError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        parse_duration_ms(&text).map(Self)
    }
}

impl From<Millis> for String {
    fn from(Millis(millis): Millis) -> Self {
        if millis.is_multiple_of(1000) { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
    }
}

/// How long each part of an attempt's life may take: one budget for each, so that what scores a result
/// never runs on what its agent left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budgets {
    /// From the start of an attempt until its sandbox lives; over it, the attempt fails as `infra_prepare`.
    pub prepare: Millis,
    /// The agent's own work.
    pub agent: Millis,
    /// Until everything in the sandbox is at rest.
    pub quiesce: Millis,
    /// One run of an evaluator, in an attempt of its own.
    pub verify: Millis,
    /// What is added to the sum of them for everything between.
    pub margin: Millis,
}

impl Default for Budgets {
    /// Six minutes to prepare, half an hour of work, 30 s of rest, ten minutes to verify, five of margin.
    fn default() -> Self {
        Self {
            prepare: Millis(360_000),
            agent: Millis(1_800_000),
            quiesce: Millis(30_000),
            verify: Millis(600_000),
            margin: Millis(300_000),
        }
    }
}

impl Budgets {
    /// The lifetime of an attempt that keeps to them, in milliseconds: their sum and the margin.
    pub fn lifetime(&self) -> u64 {
        let parts = [self.prepare, self.agent, self.quiesce, self.verify, self.margin];
        parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.0))
    }
}

/// How often what failed is tried again. Who holds the work (a search's run, an evaluation) asks; nobody
/// beneath it tries again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retries {
    /// Further tries after a failure of the infrastructure: `infra_lost`, `infra_prepare`, `quota`.
    pub infra: u32,
    /// Further tries after `evaluator_error`.
    pub evaluator: u32,
    /// The pause before the first further try; it doubles with each.
    pub backoff: Millis,
    /// The longest pause.
    pub backoff_most: Millis,
}

impl Default for Retries {
    /// Two for the infrastructure, one for an evaluator, pauses of 1 s to 60 s.
    fn default() -> Self {
        Self { infra: 2, evaluator: 1, backoff: Millis(1_000), backoff_most: Millis(60_000) }
    }
}

/// What the merge queue asks of a node before it makes it canonical.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Names of the evaluators that must pass on the node that becomes canonical.
    pub evaluators: Vec<String>,
    /// Reviewers that must have accepted the submitted node; `trusted_actors` says whose word counts.
    pub reviews: u32,
}

/// The rules of a group.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// What survives a loss of power.
    pub durability: Durability,
    /// Default of attempts that do not say it themselves.
    pub on_expiry: OnExpiry,
    /// Actors whose attached evaluations count.
    pub trusted_actors: Vec<String>,
    /// How long what is not selected is kept.
    pub retention: Retention,
    /// Upper bounds.
    pub quotas: Quotas,
    /// How long each part of an attempt may take. With it an attempt that names no lifetime has theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budgets: Option<Budgets>,
    /// How often what failed is tried again.
    #[serde(skip_serializing_if = "is_default")]
    pub retries: Retries,
    /// What the merge queue asks for.
    #[serde(skip_serializing_if = "is_default")]
    pub queue: Queue,
    /// Default environment of the group's attempts.
    pub environment: Option<Environment>,
}

impl Policy {
    /// The budgets in force: the group's own, else the defaults.
    pub fn budgets(&self) -> Budgets {
        self.budgets.unwrap_or_default()
    }

    /// The lifetime of an attempt that names none, in milliseconds; none unless the group has budgets.
    pub fn lifetime(&self) -> Option<u64> {
        self.budgets.as_ref().map(Budgets::lifetime)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A policy together with the text it was read from.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct PolicyDocument {
    text: String,
    #[serde(skip)]
    policy: Policy,
}

/// A text that is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a group policy: {reason}")]
pub struct ParsePolicyError {
    /// What the parser said, with line and column.
    pub reason: String,
}

impl PolicyDocument {
    /// Longest text in bytes.
    pub const MAX: usize = 64 * 1024;

    /// Parses `text`; an empty text gives the defaults.
    ///
    /// # Errors
    /// `ParsePolicyError` for bad TOML, an unknown key, a value of the wrong kind, or over 64 KiB.
    pub fn parse(text: &str) -> Result<Self, ParsePolicyError> {
        if text.len() > Self::MAX {
            let reason = format!("expected at most {} bytes, found {}", Self::MAX, text.len());
            return Err(ParsePolicyError { reason });
        }
        let policy = toml::from_str(text).map_err(|error| ParsePolicyError { reason: error.to_string() })?;
        Ok(Self { text: text.to_owned(), policy })
    }

    /// Writes `policy` as TOML.
    ///
    /// # Errors
    /// `ParsePolicyError` when it has a number that TOML cannot hold.
    pub fn from_policy(policy: &Policy) -> Result<Self, ParsePolicyError> {
        let refused = |reason: String| ParsePolicyError { reason };
        let text = toml::to_string(policy).map_err(|error| refused(error.to_string()))?;
        Self::parse(&text)
    }

    /// The text, byte for byte as given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the text says.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The digest of the text.
    pub fn digest(&self) -> PolicyDigest {
        PolicyDigest::new(Digest::in_context("esf policy v1", self.text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_policy_is_read() {
        let text = r#"
            durability = "relaxed"
            on_expiry = "discard"
            trusted_actors = ["ci"]
            [retention]
            failed_attempt_days = 7
            [quotas]
            max_live_attempts = 4
            [budgets]
            agent = "10m"
            [retries]
            infra = 5
            [environment]
            base = { kind = "root" }
            limits = { pids = 64 }
        "#;
        let document = PolicyDocument::parse(text).expect("valid");
        let policy = document.policy();
        assert_eq!(policy.durability, Durability::Relaxed);
        assert_eq!(policy.on_expiry, OnExpiry::Discard);
        assert_eq!(policy.quotas.max_live_attempts, Some(4));
        assert_eq!(policy.budgets, Some(Budgets { agent: Millis(600_000), ..Budgets::default() }));
        assert_eq!(policy.lifetime(), Some(360_000 + 600_000 + 30_000 + 600_000 + 300_000));
        assert_eq!((policy.retries.infra, policy.retries.backoff), (5, Millis(1_000)));
        assert_eq!(policy.environment.as_ref().and_then(|e| e.limits.pids), Some(64));
        assert_ne!(document.digest(), PolicyDocument::default().digest());
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        for (text, word) in [
            ("durabilty = \"full\"", "durabilty"),
            ("[quotas]\nmax_live = 4", "max_live"),
            ("on_expiry = \"drop\"", "drop"),
            ("[environment.limits]\nram = 1", "ram"),
            ("[quotas]\nmax_live_attempts = -1", "-1"),
            ("[budgets]\nprepair = \"1s\"", "prepair"),
            ("[budgets]\nprepare = 30", "integer"),
            ("[retries]\nbackoff = \"soon\"", "soon"),
            ("durability =", ""),
        ] {
            let error = PolicyDocument::parse(text).expect_err(text);
            assert!(error.reason.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_written_is_the_policy_read() {
        let budgets = Budgets { quiesce: Millis(1_500), ..Budgets::default() };
        let retries = Retries { infra: 0, ..Retries::default() };
        let environment = Some(Environment::default());
        let policy = Policy { environment, budgets: Some(budgets), retries, ..Policy::default() };
        let document = PolicyDocument::from_policy(&policy).expect("writable");
        assert_eq!(document.policy(), &policy);
    }
}
