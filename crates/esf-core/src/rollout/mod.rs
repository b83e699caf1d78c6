//! Rollouts for training (design section 6): a *run* has *prompts*, each a group of *siblings* that begin on one
//! sealed node; what a sibling does is its *steps*, and it ends in exactly one terminal event for each revision.
//! Pure records and rules; `esf_core::ops::rollout` has what is asked, `esf-graph` keeps it.
//!
//! Invariants: a reward is finite, or null where nothing was scored; a failure that says nothing of the policy
//! never becomes a reward; only usable members enter a prompt's statistics.

mod content;
mod outcome;
mod record;
pub mod rules;

pub use content::{Array, Content, Contents, Dtype, MAX_ARRAYS, bad_array};
pub use outcome::{
    CancelReason, Cost, Outcome, RewardStats, Score, SiblingStatus, Truncation, UnusableOutcome,
};
pub use record::{
    Consumer, Delivery, DeliveryKind, DropReason, GenerationSource, Policy, PolicyVersion, Prompt,
    PromptStatus, Refill, Run, RunStatus, Sibling, Step, Task, Trial, TrialStatus, Unit,
};

#[cfg(test)]
mod tests;
