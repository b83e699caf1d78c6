//! A group's policy: TOML, parsed strictly, stored as its text with its digest on the group
//! (design section 4). Pure: the reader of files is elsewhere.

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, PolicyDigest};
use crate::environment::Environment;

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
    /// Default environment of the group's attempts.
    pub environment: Option<Environment>,
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
            [environment]
            base = { kind = "root" }
            limits = { pids = 64 }
        "#;
        let document = PolicyDocument::parse(text).expect("valid");
        let policy = document.policy();
        assert_eq!(policy.durability, Durability::Relaxed);
        assert_eq!(policy.on_expiry, OnExpiry::Discard);
        assert_eq!(policy.quotas.max_live_attempts, Some(4));
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
            ("durability =", ""),
        ] {
            let error = PolicyDocument::parse(text).expect_err(text);
            assert!(error.reason.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_written_is_the_policy_read() {
        let policy = Policy { environment: Some(Environment::default()), ..Policy::default() };
        let document = PolicyDocument::from_policy(&policy).expect("writable");
        assert_eq!(document.policy(), &policy);
    }
}
