//! Why something asked of a run is refused. Codes are stable; nothing was changed.

use serde_json::json;

use crate::digest::Digest;
use crate::id::{NodeId, PromptId, RunId, SiblingId};
use crate::problem::Class;
use crate::record::Json;
use crate::rollout::{CancelReason, RunStatus, SiblingStatus, UnusableOutcome};

/// A refusal by a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reject {
    /// The run takes no more work.
    #[error("{run} is {status}", status = status.as_str())]
    RunOver {
        /// The run.
        run: RunId,
        /// What it is.
        status: RunStatus,
    },
    /// A policy version that was never published.
    #[error("version {version} of the policy was never published in {run}")]
    UnknownPolicyVersion {
        /// The run.
        run: RunId,
        /// The version.
        version: u64,
        /// The current one.
        current: u64,
    },
    /// A version below the current one, or the same with other weights.
    #[error("version {version} cannot be published after {current}")]
    VersionNotAscending {
        /// The version.
        version: u64,
        /// The current one.
        current: u64,
        /// Whether it was published, with other weights.
        taken: bool,
    },
    /// A span of versions that ends before it begins.
    #[error("the policy versions {start} to {end} are no span")]
    BadSpan {
        /// The first.
        start: u64,
        /// The last.
        end: u64,
    },
    /// The sibling is not one that can begin.
    #[error("{sibling} is {status}", status = status.as_str())]
    NotWaiting {
        /// The sibling.
        sibling: SiblingId,
        /// What it is.
        status: SiblingStatus,
        /// The trial that goes on.
        trial: Option<u32>,
    },
    /// The trial is not the one that goes on.
    #[error("trial {trial} of {sibling} does not go on")]
    TrialOver {
        /// The sibling.
        sibling: SiblingId,
        /// The trial.
        trial: u32,
        /// The one that counts now.
        current: Option<u32>,
        /// What the sibling is.
        status: SiblingStatus,
        /// Why it was given up.
        cancelled: Option<CancelReason>,
    },
    /// Another outcome was recorded.
    #[error("{sibling} has finished with another outcome in trial {trial}")]
    AlreadyFinished {
        /// The sibling.
        sibling: SiblingId,
        /// The trial.
        trial: u32,
        /// Digest of the outcome that was recorded.
        recorded: Digest,
        /// Digest of this one.
        given: Digest,
    },
    /// A step that does not follow the last.
    #[error("step {index} of {sibling} does not follow")]
    StepNotNext {
        /// The sibling.
        sibling: SiblingId,
        /// The step.
        index: u64,
        /// The index that would do.
        next: u64,
    },
    /// The step was recorded with other content.
    #[error("step {index} of {sibling} was recorded otherwise")]
    StepDiffers {
        /// The sibling.
        sibling: SiblingId,
        /// The step.
        index: u64,
    },
    /// A node that does not fit.
    #[error("{node} does not fit {what}")]
    NodeMismatch {
        /// What it should fit.
        what: String,
        /// The node.
        node: NodeId,
        /// What would do.
        expected: String,
        /// What it is.
        found: String,
    },
    /// An array whose length or size is wrong.
    #[error("array {name:?} of step {index} of {sibling} has a wrong length")]
    BadArray {
        /// The sibling.
        sibling: SiblingId,
        /// The step.
        index: u64,
        /// The array.
        name: String,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
    /// An outcome that cannot be recorded.
    #[error("{sibling} cannot finish so: {}", problem.field)]
    BadOutcome {
        /// The sibling.
        sibling: SiblingId,
        /// What is wrong.
        problem: UnusableOutcome,
    },
    /// A fork from steps that cannot be shared.
    #[error("{sibling} cannot go on from step {step} of {parent}")]
    BadFork {
        /// The sibling.
        sibling: SiblingId,
        /// The one it would go on from.
        parent: SiblingId,
        /// The step.
        step: u64,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
    /// As many refills as a prompt may have.
    #[error("{prompt} has had {refills} refills")]
    NoRefill {
        /// The prompt.
        prompt: PromptId,
        /// How many it had.
        refills: u32,
        /// How many it may have.
        most: u32,
    },
    /// Something of it has not ended.
    #[error("{prompt} has siblings that have not ended")]
    NotEnded {
        /// The prompt.
        prompt: PromptId,
    },
    /// A consumer trained on it, or filtered it.
    #[error("{prompt} was used by consumer {consumer:?}")]
    AlreadyUsed {
        /// The prompt.
        prompt: PromptId,
        /// The consumer.
        consumer: String,
        /// `trained` or `filtered`.
        how: &'static str,
    },
    /// What was never delivered to this consumer in this batch.
    #[error("consumer {consumer:?} never had {what}")]
    NeverLeased {
        /// The consumer.
        consumer: String,
        /// A batch, or an entry of one.
        what: String,
    },
    /// The lease ran out, and another took the entry.
    #[error("entry {sequence} was delivered again, in batch {current}")]
    LeaseLost {
        /// The entry.
        sequence: u64,
        /// The batch that was acknowledged.
        batch: u64,
        /// The batch that has it.
        current: u64,
    },
    /// Acknowledged otherwise before.
    #[error("entry {sequence} was acknowledged otherwise")]
    AckDiffers {
        /// The entry.
        sequence: u64,
        /// As what.
        recorded: String,
        /// As what now.
        given: String,
    },
    /// The consumer was made with other settings.
    #[error("consumer {consumer:?} has other settings")]
    ConsumerDiffers {
        /// The consumer.
        consumer: String,
        /// Its settings.
        recorded: String,
        /// Those of the request.
        given: String,
    },
    /// An open run needs the node.
    #[error("{node} is needed by {run}")]
    InRun {
        /// The node.
        node: NodeId,
        /// The run.
        run: RunId,
    },
}

impl Reject {
    /// The class and the stable code.
    pub const fn class_and_code(&self) -> (Class, &'static str) {
        match self {
            Self::RunOver { .. } => (Class::Conflict, "run_over"),
            Self::UnknownPolicyVersion { .. } => (Class::Conflict, "unknown_policy_version"),
            Self::VersionNotAscending { .. } => (Class::Conflict, "version_not_ascending"),
            Self::BadSpan { .. } => (Class::Usage, "bad_span"),
            Self::NotWaiting { .. } => (Class::Conflict, "not_waiting"),
            Self::TrialOver { .. } => (Class::Conflict, "trial_over"),
            Self::AlreadyFinished { .. } => (Class::Conflict, "already_finished"),
            Self::StepNotNext { .. } => (Class::Conflict, "step_not_next"),
            Self::StepDiffers { .. } => (Class::Conflict, "step_differs"),
            Self::NodeMismatch { .. } => (Class::Conflict, "node_mismatch"),
            Self::BadArray { .. } => (Class::Usage, "bad_array"),
            Self::BadOutcome { .. } => (Class::Usage, "bad_outcome"),
            Self::BadFork { .. } => (Class::Conflict, "bad_fork"),
            Self::NoRefill { .. } => (Class::Conflict, "no_refill"),
            Self::NotEnded { .. } => (Class::Conflict, "not_ended"),
            Self::AlreadyUsed { .. } => (Class::Conflict, "already_used"),
            Self::NeverLeased { .. } => (Class::Conflict, "never_leased"),
            Self::LeaseLost { .. } => (Class::Conflict, "lease_lost"),
            Self::AckDiffers { .. } => (Class::Conflict, "ack_differs"),
            Self::ConsumerDiffers { .. } => (Class::Conflict, "consumer_differs"),
            Self::InRun { .. } => (Class::Conflict, "in_run"),
        }
    }

    /// What was expected and what was found.
    pub(crate) fn expected_and_found(&self) -> (String, String) {
        let both = |expected: &str, found: &dyn ToString| (expected.to_owned(), found.to_string());
        match self {
            Self::RunOver { status, .. } => both("an open run", &status.as_str()),
            Self::UnknownPolicyVersion { version, current, .. } => {
                both(&format!("a published version, {current} at most"), version)
            }
            Self::VersionNotAscending { version, current, taken: false } => {
                both(&format!("a version above {current}"), version)
            }
            Self::VersionNotAscending { version, taken: true, .. } => {
                both(&format!("the weights that version {version} was published with"), &"others")
            }
            Self::BadSpan { start, end } => both(&format!("an end of {start} or more"), end),
            Self::NotWaiting { status, trial, .. } => {
                let trial = trial.map_or_else(String::new, |trial| format!(", trial {trial}"));
                both("a waiting sibling, or its trial in supersede", &format!("{}{trial}", status.as_str()))
            }
            Self::TrialOver { current, status, .. } => {
                let found = current.map_or_else(|| "none".to_owned(), |current| current.to_string());
                both("the trial that goes on", &format!("{}, trial {found}", status.as_str()))
            }
            Self::AlreadyFinished { recorded, given, .. } => both(&recorded.to_string(), given),
            Self::StepNotNext { index, next, .. } => both(&format!("step {next}"), index),
            Self::StepDiffers { .. } => both("the content that was recorded", &"other content"),
            Self::NodeMismatch { expected, found, .. }
            | Self::BadArray { expected, found, .. }
            | Self::BadFork { expected, found, .. } => both(expected, found),
            Self::BadOutcome { problem, .. } => both(&problem.expected, &problem.found),
            Self::NoRefill { refills, most, .. } => both(&format!("fewer than {most}"), refills),
            Self::NotEnded { .. } => both("siblings that have ended", &"open ones"),
            Self::AlreadyUsed { consumer, how, .. } => {
                both("what no consumer used", &format!("{how} by {consumer}"))
            }
            Self::NeverLeased { what, .. } => both("what was delivered in the batch", what),
            Self::LeaseLost { batch, current, .. } => both(&format!("batch {batch}"), current),
            Self::AckDiffers { recorded, given, .. } | Self::ConsumerDiffers { recorded, given, .. } => {
                both(recorded, given)
            }
            Self::InRun { run, .. } => both("a node that no open run needs", run),
        }
    }

    /// What to do.
    pub(crate) fn remediation(&self) -> Option<String> {
        Some(match self {
            Self::RunOver { .. } => "create another run: esf rollout create".to_owned(),
            Self::UnknownPolicyVersion { version, .. } => {
                format!("publish it first: esf rollout publish RUN {version}")
            }
            Self::VersionNotAscending { current, .. } => {
                format!("publish version {} or a later one, also after going back", current.saturating_add(1))
            }
            Self::BadSpan { .. } => "give the least and the greatest version that sampled".to_owned(),
            Self::NotWaiting { status: SiblingStatus::Running, trial: Some(trial), .. } => {
                format!("leave it to its holder, or take its place with supersede {trial}")
            }
            Self::NotWaiting { .. } => "refill it to have it done again".to_owned(),
            Self::TrialOver { .. } => "stop: another took over, or it has ended".to_owned(),
            Self::AlreadyFinished { .. } => {
                "what was recorded stays; refill the sibling for another".to_owned()
            }
            Self::StepNotNext { next, .. } => format!("go on with step {next}"),
            Self::StepDiffers { .. } => "what was recorded stays; start another trial".to_owned(),
            Self::NodeMismatch { .. } => "seal the step's work first, in the group of the run".to_owned(),
            Self::BadArray { .. } => "give arrays of the step's own lengths, in whole numbers".to_owned(),
            Self::BadOutcome { .. } => "say null for what was not scored".to_owned(),
            Self::BadFork { .. } => "fork from a step that the sibling has recorded".to_owned(),
            Self::NoRefill { .. } => "make the run with more refills".to_owned(),
            Self::NotEnded { .. } => "cancel or finish them first".to_owned(),
            Self::AlreadyUsed { .. } => "add a new prompt for more of the kind".to_owned(),
            Self::NeverLeased { .. } => "consume first, and acknowledge the batch's own entries".to_owned(),
            Self::LeaseLost { .. } => "let its holder acknowledge it; consume with a longer lease".to_owned(),
            Self::AckDiffers { .. } => "what was acknowledged stays; reopen what a rollback undid".to_owned(),
            Self::ConsumerDiffers { .. } => "use its settings, or another name".to_owned(),
            Self::InRun { run, .. } => format!("finish or cancel it first: esf rollout cancel {run}"),
        })
    }

    /// Facts for programs.
    pub(crate) fn context(&self) -> Json {
        match self {
            Self::RunOver { run, status } => json!({ "run_id": run, "status": status }),
            Self::UnknownPolicyVersion { run, version, current } => {
                json!({ "run_id": run, "version": version, "current": current })
            }
            Self::VersionNotAscending { version, current, .. } => {
                json!({ "version": version, "current": current })
            }
            Self::BadSpan { start, end } => json!({ "start": start, "end": end }),
            Self::NotWaiting { sibling, status, trial } => {
                json!({ "sibling_id": sibling, "status": status, "trial": trial })
            }
            Self::TrialOver { sibling, trial, current, status, cancelled } => json!({
                "sibling_id": sibling, "trial": trial, "current": current, "status": status,
                "cancelled": cancelled
            }),
            Self::AlreadyFinished { sibling, trial, recorded, given } => {
                json!({ "sibling_id": sibling, "trial": trial, "recorded": recorded, "given": given })
            }
            Self::StepNotNext { sibling, index, next } => {
                json!({ "sibling_id": sibling, "index": index, "next": next })
            }
            Self::StepDiffers { sibling, index } => json!({ "sibling_id": sibling, "index": index }),
            Self::NodeMismatch { node, .. } => json!({ "node_id": node }),
            Self::BadArray { sibling, index, name, .. } => {
                json!({ "sibling_id": sibling, "index": index, "array": name })
            }
            Self::BadOutcome { sibling, problem } => {
                json!({ "sibling_id": sibling, "field": problem.field })
            }
            Self::BadFork { sibling, parent, step, .. } => {
                json!({ "sibling_id": sibling, "parent_sibling": parent, "step": step })
            }
            Self::NoRefill { prompt, refills, most } => {
                json!({ "prompt_id": prompt, "refills": refills, "most": most })
            }
            Self::NotEnded { prompt } => json!({ "prompt_id": prompt }),
            Self::AlreadyUsed { prompt, consumer, how } => {
                json!({ "prompt_id": prompt, "consumer": consumer, "how": how })
            }
            Self::NeverLeased { consumer, .. } | Self::ConsumerDiffers { consumer, .. } => {
                json!({ "consumer": consumer })
            }
            Self::LeaseLost { sequence, batch, current } => {
                json!({ "sequence": sequence, "batch": batch, "current": current })
            }
            Self::AckDiffers { sequence, .. } => json!({ "sequence": sequence }),
            Self::InRun { node, run } => json!({ "node_id": node, "run_id": run }),
        }
    }
}
