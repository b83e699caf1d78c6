//! Why something asked of a search is refused. Codes are stable; nothing was changed.

use serde_json::json;

use crate::id::{EvaluationId, NodeId, RolloutId, SearchId};
use crate::problem::Class;
use crate::record::Json;
use crate::search::{Stage, StopReason};

/// A refusal by a search.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reject {
    /// The rollout was accepted with another outcome.
    #[error("{rollout} has ended with another outcome")]
    RolloutEnded {
        /// The rollout.
        rollout: RolloutId,
    },
    /// The rollout came to nothing already.
    #[error("{rollout} is void: {reason}")]
    RolloutVoid {
        /// The rollout.
        rollout: RolloutId,
        /// Why it is.
        reason: String,
        /// Whether its lease had lapsed.
        lapsed: bool,
    },
    /// The rollout waits for something else.
    #[error("{rollout} is in stage {stage}", stage = stage.as_str())]
    WrongStage {
        /// The rollout.
        rollout: RolloutId,
        /// Its stage.
        stage: Stage,
        /// What was asked for.
        asked: &'static str,
    },
    /// Somebody stopped the search: what is in flight may end, nothing new begins.
    #[error("{search} was stopped: {reason}", reason = reason.as_str())]
    SearchStopped {
        /// The search.
        search: SearchId,
        /// Why.
        reason: StopReason,
    },
    /// The node does not follow from the rollout's leaf.
    #[error("{node} is no child of the leaf of {rollout}")]
    NotChild {
        /// The rollout.
        rollout: RolloutId,
        /// The node that was given.
        node: NodeId,
        /// The node of its leaf; none where the caller keeps states itself.
        leaf: Option<NodeId>,
    },
    /// The evaluation is not one from which this value may be.
    #[error("{rollout} cannot take its value from this: {found}")]
    EvaluationMismatch {
        /// The rollout.
        rollout: RolloutId,
        /// The evaluation that was given.
        evaluation: Option<EvaluationId>,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A position that has no value yet needs one.
    #[error("{rollout} reached a position without a value")]
    ValueMissing {
        /// The rollout.
        rollout: RolloutId,
    },
    /// A number that is no value.
    #[error("bad {what}: expected {expected}, found {found}")]
    BadValue {
        /// `value`, `reward`, `discount`, `cost` or `prior`.
        what: &'static str,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
    /// Settings that contradict themselves.
    #[error("bad settings of a search: {found}")]
    BadConfig {
        /// What is wrong.
        found: String,
    },
    /// An open search needs the node.
    #[error("{node} is needed by {search}")]
    Searched {
        /// The node.
        node: NodeId,
        /// The search.
        search: SearchId,
        /// The live rollout that begins at it, if one does.
        rollout: Option<RolloutId>,
    },
}

impl Reject {
    /// The class and the stable code.
    pub const fn class_and_code(&self) -> (Class, &'static str) {
        match self {
            Self::RolloutEnded { .. } => (Class::Conflict, "rollout_ended"),
            Self::RolloutVoid { lapsed: false, .. } => (Class::Conflict, "rollout_void"),
            Self::RolloutVoid { lapsed: true, .. } => (Class::Conflict, "rollout_lapsed"),
            Self::WrongStage { .. } => (Class::Conflict, "wrong_stage"),
            Self::SearchStopped { .. } => (Class::Conflict, "search_stopped"),
            Self::NotChild { .. } => (Class::Conflict, "not_child"),
            Self::EvaluationMismatch { .. } => (Class::Conflict, "evaluation_mismatch"),
            Self::ValueMissing { .. } => (Class::Conflict, "value_missing"),
            Self::BadValue { .. } => (Class::Usage, "bad_value"),
            Self::BadConfig { .. } => (Class::Usage, "bad_config"),
            Self::Searched { .. } => (Class::Conflict, "searched"),
        }
    }

    /// What was expected and what was found.
    pub(crate) fn expected_and_found(&self) -> (String, String) {
        let both = |expected: &str, found: &dyn ToString| (expected.to_owned(), found.to_string());
        match self {
            Self::RolloutEnded { .. } => both("the outcome that was accepted", &"another outcome"),
            Self::RolloutVoid { reason, .. } => both("a rollout that is held", reason),
            Self::WrongStage { stage, asked, .. } => both(asked, &stage.as_str()),
            Self::SearchStopped { reason, .. } => both("an open search", &reason.as_str()),
            Self::NotChild { node, leaf: Some(leaf), .. } => {
                both(&format!("a sealed node made from {leaf}, or one with its root"), node)
            }
            Self::NotChild { node, leaf: None, .. } => both("no node, as its leaf has none", node),
            Self::EvaluationMismatch { expected, found, .. } => both(expected, found),
            Self::ValueMissing { .. } => both("a value, or an evaluation that has one", &"neither"),
            Self::BadValue { expected, found, .. } => both(expected, found),
            Self::BadConfig { found } => both("settings as in docs/search.md", found),
            Self::Searched { search, rollout, .. } => {
                let rollout = rollout.map_or_else(String::new, |rollout| format!(" for {rollout}"));
                both("a node that no open search needs", &format!("{search}{rollout}"))
            }
        }
    }

    /// What to do.
    pub(crate) fn remediation(&self) -> Option<String> {
        Some(match self {
            Self::RolloutEnded { .. } => "what was accepted stays; select again for another try".to_owned(),
            Self::RolloutVoid { lapsed: true, .. } => {
                "select again, with a longer lease or renewing it meanwhile".to_owned()
            }
            Self::RolloutVoid { lapsed: false, .. } => "select again".to_owned(),
            Self::WrongStage { stage: Stage::Expand, rollout, .. } => {
                format!("say what actions there are: esf search expand {rollout} --actions FILE")
            }
            Self::WrongStage { stage: Stage::Visit | Stage::Revisit, rollout, .. } => {
                format!("complete or void it: esf search complete {rollout}")
            }
            Self::SearchStopped { .. } => "void the rollout, or raise the search's budget".to_owned(),
            Self::NotChild { .. } => "take the action on the leaf's node and seal that attempt".to_owned(),
            Self::EvaluationMismatch { .. } => {
                "evaluate the node with the search's evaluator and complete with that evaluation".to_owned()
            }
            Self::ValueMissing { .. } => "evaluate the node and complete with that evaluation".to_owned(),
            Self::Searched { search, .. } => {
                format!("stop or prune the search first: esf search prune {search}")
            }
            Self::BadValue { .. } | Self::BadConfig { .. } => return None,
        })
    }

    /// The ids that are concerned.
    pub(crate) fn context(&self) -> Json {
        match self {
            Self::RolloutEnded { rollout }
            | Self::ValueMissing { rollout }
            | Self::RolloutVoid { rollout, .. }
            | Self::WrongStage { rollout, .. } => json!({ "rollout_id": rollout }),
            Self::SearchStopped { search, .. } => json!({ "search_id": search }),
            Self::NotChild { rollout, node, leaf } => {
                json!({ "rollout_id": rollout, "node_id": node, "leaf_node_id": leaf })
            }
            Self::EvaluationMismatch { rollout, evaluation, .. } => {
                json!({ "rollout_id": rollout, "evaluation_id": evaluation })
            }
            Self::Searched { node, search, rollout } => {
                json!({ "node_id": node, "search_id": search, "rollout_id": rollout })
            }
            Self::BadValue { .. } | Self::BadConfig { .. } => Json::Null,
        }
    }
}
