//! The durable records, field for field as the specification names them (design section 4).
//! Plain data with serde: what a record may *become* is in `state`, what may be done with it in `ops`.
//! Invariant: no record holds a path of a worker, a file descriptor or a carrier id.

mod attempt;
mod evaluation;
mod event;
mod exec;
mod group;
mod lease;
mod logical_state;
mod node;

pub use attempt::{Attempt, Failure, PrivateDelta, Purpose};
pub use evaluation::{Evaluation, EvaluationClass, Evaluator, Evidence, ParseVerdictError, Verdict};
pub use event::{Event, EventKind};
pub use exec::{Exec, ExecOutcome, ExecStatus};
pub use group::Group;
pub use lease::{Lease, LeaseStatus};
pub use logical_state::{LogicalState, StateTooLarge};
pub use node::{Changed, MergeTerms, Node};

/// Any JSON value.
pub type Json = serde_json::Value;

/// Gives a fieldless enum its stable text form, for the schema and for JSON.
macro_rules! text_forms {
    ($name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The stable text form, as in the schema and in JSON.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),*
                }
            }

            /// Reads the text form.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| {
                    serde::de::Error::custom(format!(concat!("not a ", stringify!($name), ": {:?}"), text))
                })
            }
        }
    };
}
pub(crate) use text_forms;
