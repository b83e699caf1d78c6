//! The records of work that several agents do on one group: a *task* is a named line of nodes with a goal, a *queue
//! entry* a node of it that asks to become the canonical one (design section 6).
//! Invariants: a node is integrated only with evidence of its own root on its own base; an entry ends once, and one
//! that was refused says against what and what to do; an integrated task names the canonical node that has its work.

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, RootId};
use crate::id::{EntryId, EvaluationId, GroupId, NodeId, TaskId};
use crate::record::{Evaluation, Json, Verdict, text_forms};
use crate::time::Timestamp;

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// It is worked on.
    Open,
    /// A node of it waits in the queue.
    Submitted,
    /// Its work is in the canonical node.
    Integrated,
    /// It was given up.
    Closed,
}

text_forms!(TaskStatus {
    Open = "open",
    Submitted = "submitted",
    Integrated = "integrated",
    Closed = "closed",
});

/// A named line of nodes with a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub task_id: TaskId,
    /// The group.
    pub group_id: GroupId,
    /// Its name, unique in the group.
    pub name: String,
    /// What is to be reached, for whoever does it and for whoever reviews it.
    pub goal: String,
    /// The sealed node on which it began.
    pub base_node_id: NodeId,
    /// The group's generation then.
    pub base_generation: u64,
    /// The draft with which its line begins.
    pub first_node_id: NodeId,
    /// Where it stands.
    pub status: TaskStatus,
    /// The canonical node that has its work; null until it is integrated.
    pub integrated_as: Option<NodeId>,
    /// Why it was given up.
    pub reason: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it was integrated or given up.
    pub ended_at: Option<Timestamp>,
    /// Trace of the request that made it.
    pub trace_id: String,
}

/// Where a queue entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryStatus {
    /// It waits.
    Queued,
    /// Its work is in the canonical node.
    Integrated,
    /// It was refused; `outcome` says why and what to do.
    Refused,
    /// It was taken back.
    Withdrawn,
}

text_forms!(EntryStatus {
    Queued = "queued",
    Integrated = "integrated",
    Refused = "refused",
    Withdrawn = "withdrawn",
});

/// A node that asks to become the canonical one. It is kept by prune while it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// Its id.
    pub entry_id: EntryId,
    /// The group.
    pub group_id: GroupId,
    /// The task.
    pub task_id: TaskId,
    /// The sealed node that was submitted.
    pub node_id: NodeId,
    /// Greater goes first; equal ones in the order of submission.
    pub priority: i64,
    /// Where it stands.
    pub status: EntryStatus,
    /// What became of it; null while it waits.
    pub outcome: Option<Outcome>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// Who submitted it.
    pub created_by: String,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Trace of the request that submitted it.
    pub trace_id: String,
}

/// What became of a queue entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// Its work is in the canonical node.
    Integrated {
        /// The canonical node before.
        onto: NodeId,
        /// The node that became canonical: the submitted one, or a new one if the canonical node had moved.
        result_node_id: NodeId,
        /// The group's generation since.
        generation: u64,
        /// What its result was let through by.
        evidence: Vec<Binding>,
    },
    /// It was not taken.
    Refused {
        /// Why.
        why: Refusal,
        /// The canonical node against which it was tried.
        against: NodeId,
        /// The group's generation then.
        generation: u64,
        /// The evidence that there was.
        evidence: Vec<Binding>,
        /// What to do now.
        remedy: String,
    },
}

/// Why an entry was not taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// Its changes and those that were integrated meanwhile touch the same.
    Conflicts {
        /// The draft with *ours* at the conflicts, to be activated and resolved.
        draft_node_id: NodeId,
        /// Each path, its kind, the three terms, and `integrated_by`: the tasks that changed it meanwhile.
        conflicts: Vec<Json>,
    },
    /// A required evaluator did not pass.
    Checks {
        /// The evaluators that failed.
        failed: Vec<String>,
        /// The node on which they ran.
        result_node_id: NodeId,
    },
    /// A reviewer whom the policy trusts rejected it.
    Reviews {
        /// The rejecting evaluations.
        rejected_by: Vec<EvaluationId>,
    },
    /// There is no one base for the merge, or none at all.
    NoBase {
        /// What the merge said.
        message: String,
    },
}

impl Refusal {
    /// The word for it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Conflicts { .. } => "conflicts",
            Self::Checks { .. } => "checks",
            Self::Reviews { .. } => "reviews",
            Self::NoBase { .. } => "no_base",
        }
    }
}

/// An evaluation bound to what it is evidence of: a root, the canonical node below it, and who evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The evaluation.
    pub evaluation_id: EvaluationId,
    /// The root it is about.
    pub root_id: RootId,
    /// The canonical node on which that root stands.
    pub base_node_id: NodeId,
    /// The evaluator's name.
    pub evaluator: String,
    /// Its version.
    pub evaluator_version: String,
    /// Digest of its definition and files; null for a review.
    pub evaluator_digest: Option<Digest>,
    /// The decision.
    pub verdict: Verdict,
    /// Whether it was there before the queue looked.
    pub reused: bool,
}

impl Binding {
    /// Binds an evaluation of a node with `root` that stands on `base`.
    pub fn new(evaluation: &Evaluation, root: RootId, base: NodeId, reused: bool) -> Self {
        Self {
            evaluation_id: evaluation.evaluation_id,
            root_id: root,
            base_node_id: base,
            evaluator: evaluation.evaluator.clone(),
            evaluator_version: evaluation.evaluator_version.clone(),
            evaluator_digest: evaluation.evaluator_digest,
            verdict: evaluation.verdict.clone(),
            reused,
        }
    }
}

/// The name under which reviews are recorded as evaluations.
pub const REVIEW: &str = "review";

/// What the reviews of a node come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reviews {
    /// Those that count and accept, one for each reviewer.
    pub accepted: Vec<EvaluationId>,
    /// Those that count and reject, likewise.
    pub rejected: Vec<EvaluationId>,
}

/// Sums up the reviews among `evaluations`, which are in the order of their making: the last of each reviewer is
/// his word, and only those that count are heard.
pub fn reviews(evaluations: &[Evaluation]) -> Reviews {
    let mut last = std::collections::BTreeMap::new();
    for review in
        evaluations.iter().filter(|one| one.evaluator == REVIEW && one.run_attempt_id.is_none() && one.counts)
    {
        last.insert(&review.created_by, review);
    }
    let mut sum = Reviews::default();
    for review in last.into_values() {
        match review.verdict.as_str() {
            "accept" | "pass" => sum.accepted.push(review.evaluation_id),
            "reject" | "fail" => sum.rejected.push(review.evaluation_id),
            _ => {}
        }
    }
    sum
}

/// Whether `evaluation` is a required check that passed: run by ESF with just this evaluator.
pub fn passes(evaluation: &Evaluation, digest: Digest) -> bool {
    evaluation.counts
        && evaluation.run_attempt_id.is_some()
        && evaluation.evaluator_digest == Some(digest)
        && evaluation.verdict.as_str() == "pass"
}
