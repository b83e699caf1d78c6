//! Ids of records: derived, never drawn, so a repeated request names the same records (design 2).
//! As text: a prefix of the kind and 32 hex digits; users may type any unique prefix of that.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub(crate) fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

pub(crate) fn read_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let nibble = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected {expected} and 32 lower-case hex digits, found {found:?}")]
pub struct ParseIdError {
    /// The prefix that was expected.
    pub expected: &'static str,
    /// The text that was refused.
    pub found: String,
}

/// What an id is derived from; equal seeds give equal ids.
#[derive(Debug, Clone, Copy)]
pub struct Seed<'a> {
    /// The store in which the record lives.
    pub store: StoreId,
    /// Who asked.
    pub principal: &'a str,
    /// The operation's name.
    pub operation: &'a str,
    /// The idempotency key.
    pub key: &'a str,
    /// What the operation acts on.
    pub target: &'a [u8],
    /// Distinguishes the records that one request makes.
    pub ordinal: u64,
}

impl Seed<'_> {
    fn derive(&self, prefix: &str) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_derive_key("esf id v1");
        let fields: [&[u8]; 6] = [
            prefix.as_bytes(),
            self.store.as_bytes(),
            self.principal.as_bytes(),
            self.operation.as_bytes(),
            self.key.as_bytes(),
            self.target,
        ];
        for field in fields {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        hasher.update(&self.ordinal.to_le_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        id
    }
}

macro_rules! id_types {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// What the text form begins with.
            pub const PREFIX: &'static str = $prefix;

            /// Wraps the 16 bytes of an existing id.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The 16 bytes.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// Derives the id that `seed` stands for.
            pub fn derive(seed: &Seed<'_>) -> Self {
                Self(seed.derive(Self::PREFIX))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Self::PREFIX)?;
                write_hex(f, &self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.strip_prefix(Self::PREFIX).and_then(read_hex::<16>).map(Self).ok_or_else(|| {
                    ParseIdError { expected: Self::PREFIX, found: text.chars().take(80).collect() }
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

id_types! {
    /// Names a store; drawn once at its creation.
    StoreId = "sto_";
    /// Names a sandbox group.
    GroupId = "grp_";
    /// Names a sandbox node: a checkpoint, or a draft of one.
    NodeId = "nod_";
    /// Names an execution attempt.
    AttemptId = "att_";
    /// Names one command run inside an attempt.
    ExecId = "exe_";
    /// Names an evaluation.
    EvaluationId = "evl_";
    /// Names a lease.
    LeaseId = "lse_";
    /// Names a resident worker.
    WorkerId = "wrk_";
    /// Names a tree search.
    SearchId = "sea_";
    /// Names one rollout of a search: a selected path and what came of it.
    RolloutId = "rol_";
    /// Names a run: rollouts for training, under one policy.
    RunId = "run_";
    /// Names a prompt of a run: a group of siblings that begin on one node.
    PromptId = "prm_";
    /// Names a sibling: one logical rollout of a prompt, whatever is tried for it.
    SiblingId = "sib_";
    /// Names a task: a line of nodes with a goal.
    TaskId = "tsk_";
    /// Names an entry of a group's queue.
    EntryId = "que_";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_depend_on_every_part_of_the_seed() {
        let store = StoreId::from_bytes([1; 16]);
        let seed = Seed { store, principal: "p", operation: "fork", key: "k", target: b"t", ordinal: 0 };
        let base = NodeId::derive(&seed);
        assert_eq!(base, NodeId::derive(&seed));
        let others = [
            Seed { store: StoreId::from_bytes([2; 16]), ..seed },
            Seed { principal: "pf", operation: "ork", ..seed },
            Seed { operation: "retry", ..seed },
            Seed { key: "l", ..seed },
            Seed { target: b"u", ..seed },
            Seed { ordinal: 1, ..seed },
        ];
        for other in others {
            assert_ne!(base, NodeId::derive(&other), "{other:?}");
        }
        assert_ne!(base.as_bytes(), AttemptId::derive(&seed).as_bytes());
    }

    #[test]
    fn text_round_trips_and_the_prefix_is_checked() {
        let id = NodeId::from_bytes([0xab; 16]);
        assert_eq!(id.to_string().parse::<NodeId>(), Ok(id));
        assert!(id.to_string().parse::<GroupId>().is_err());
        assert!("nod_12".parse::<NodeId>().is_err());
    }
}
