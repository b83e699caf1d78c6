//! The logical state of a node: canonical JSON under its own digest, beside the tree (design 4).
//! Invariant: the text is canonical and at most 64 KiB, so equal states are equal bytes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::{Digest, StateId};
use crate::record::Json;

/// A logical state; cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct LogicalState(Arc<str>);

/// A logical state over the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "logical state too large: expected at most {} bytes of canonical JSON, found {found}",
    LogicalState::MAX
)]
pub struct StateTooLarge {
    /// Length in bytes of what was refused.
    pub found: usize,
}

impl LogicalState {
    /// Longest canonical text in bytes.
    pub const MAX: usize = 64 * 1024;

    /// Takes any JSON value.
    ///
    /// # Errors
    /// `StateTooLarge` over 64 KiB of canonical text.
    pub fn new(value: &Json) -> Result<Self, StateTooLarge> {
        let text = canonical::to_text(value);
        if text.len() > Self::MAX {
            return Err(StateTooLarge { found: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The state of a node to which nobody gave one: `{}`.
    pub fn empty() -> Self {
        Self("{}".into())
    }

    /// The canonical text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The value.
    pub fn value(&self) -> Json {
        serde_json::from_str(&self.0).expect("the text was written from a value")
    }

    /// The digest by which the state is stored once and referred to.
    pub fn id(&self) -> StateId {
        StateId::new(Digest::in_context("esf logical state v1", self.0.as_bytes()))
    }
}

impl fmt::Debug for LogicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for LogicalState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LogicalState {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_values_are_equal_states() {
        let one =
            LogicalState::new(&serde_json::from_str(r#"{"b": 1, "a": [ ]}"#).expect("json")).expect("small");
        let two = LogicalState::new(&json!({"a": [], "b": 1})).expect("small");
        assert_eq!(one, two);
        assert_eq!(one.id(), two.id());
        assert_eq!(one.text(), r#"{"a":[],"b":1}"#);
    }

    #[test]
    fn the_bound_is_on_the_canonical_text() {
        let fits = Json::from("x".repeat(LogicalState::MAX - 2));
        assert!(LogicalState::new(&fits).is_ok());
        let over = Json::from("x".repeat(LogicalState::MAX - 1));
        assert_eq!(LogicalState::new(&over), Err(StateTooLarge { found: LogicalState::MAX + 1 }));
    }
}
