//! Why something asked of a task or of the queue is refused. Codes are stable; nothing was changed.

use serde_json::json;

use crate::development::{EntryStatus, TaskStatus};
use crate::id::{EntryId, EvaluationId, NodeId, TaskId};
use crate::problem::Class;
use crate::record::Json;

/// A refusal by a task or by the queue.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reject {
    /// The task has ended.
    #[error("{task} is {status}", status = status.as_str())]
    TaskOver {
        /// The task.
        task: TaskId,
        /// How it ended.
        status: TaskStatus,
    },
    /// The entry has ended.
    #[error("{entry} is {status}", status = status.as_str())]
    EntryOver {
        /// The entry.
        entry: EntryId,
        /// How it ended.
        status: EntryStatus,
    },
    /// An entry of the task waits already.
    #[error("{task} has an entry in the queue")]
    AlreadyQueued {
        /// The task.
        task: TaskId,
        /// The entry that waits.
        entry: EntryId,
    },
    /// Nothing of the task waits.
    #[error("{task} has no entry in the queue")]
    NothingQueued {
        /// The task.
        task: TaskId,
    },
    /// The node is not of the task's line.
    #[error("{node} does not descend from the work of {task}")]
    NotOfTask {
        /// The task.
        task: TaskId,
        /// The node.
        node: NodeId,
    },
    /// Nothing of the task is sealed.
    #[error("nothing of {task} is sealed yet")]
    NothingSealed {
        /// The task.
        task: TaskId,
        /// The draft with which it begins.
        draft: NodeId,
    },
    /// The task's line has several ends.
    #[error("{task} has {count} newest nodes", count = ends.len())]
    SeveralEnds {
        /// The task.
        task: TaskId,
        /// The sealed nodes that nothing sealed follows.
        ends: Vec<NodeId>,
    },
    /// Evidence of another root, or of another base.
    #[error("{evaluation} is no evidence of this node on {base}")]
    StaleEvidence {
        /// The evaluation.
        evaluation: EvaluationId,
        /// The canonical node.
        base: NodeId,
    },
    /// The queue needs the node.
    #[error("{node} waits in the queue")]
    Queued {
        /// The node.
        node: NodeId,
        /// The entry.
        entry: EntryId,
    },
}

impl Reject {
    /// The class and the stable code.
    pub const fn class_and_code(&self) -> (Class, &'static str) {
        match self {
            Self::TaskOver { .. } => (Class::Conflict, "task_over"),
            Self::EntryOver { .. } => (Class::Conflict, "entry_over"),
            Self::AlreadyQueued { .. } => (Class::Conflict, "already_queued"),
            Self::NothingQueued { .. } => (Class::Conflict, "nothing_queued"),
            Self::NotOfTask { .. } => (Class::Conflict, "not_of_task"),
            Self::NothingSealed { .. } => (Class::Conflict, "not_sealed"),
            Self::SeveralEnds { .. } => (Class::Conflict, "several_ends"),
            Self::StaleEvidence { .. } => (Class::Conflict, "stale_evidence"),
            Self::Queued { .. } => (Class::Conflict, "queued"),
        }
    }

    /// What was expected and what was found.
    pub(crate) fn expected_and_found(&self) -> (String, String) {
        let both = |expected: &str, found: &dyn ToString| (expected.to_owned(), found.to_string());
        match self {
            Self::TaskOver { status, .. } => both("an open task", &status.as_str()),
            Self::EntryOver { status, .. } => both("an entry that waits", &status.as_str()),
            Self::AlreadyQueued { entry, .. } => both("no entry of the task in the queue", entry),
            Self::NothingQueued { .. } => both("an entry of the task that waits", &"none"),
            Self::NotOfTask { node, .. } => both("a node that descends from the task's first", node),
            Self::NothingSealed { draft, .. } => both("a sealed node of the task", draft),
            Self::SeveralEnds { ends, .. } => {
                let ends: Vec<String> = ends.iter().map(ToString::to_string).collect();
                both("one newest node", &ends.join(", "))
            }
            Self::StaleEvidence { evaluation, base } => {
                both(&format!("evaluations of this root on {base}"), evaluation)
            }
            Self::Queued { entry, .. } => both("a node that waits in no queue", entry),
        }
    }

    /// What to do.
    pub(crate) fn remediation(&self) -> String {
        match self {
            Self::TaskOver { .. } => "`esf task create` begins another".to_owned(),
            Self::EntryOver { .. } => {
                "what it came to stays; submit the task again for another try".to_owned()
            }
            Self::AlreadyQueued { .. } => {
                "wait for `esf queue run`, or take it back with `esf task withdraw`".to_owned()
            }
            Self::NothingQueued { .. } => "`esf task submit` puts its newest node there".to_owned(),
            Self::NotOfTask { task, .. } => format!("`esf task show {task}` lists its nodes"),
            Self::NothingSealed { draft, .. } => {
                format!("`esf activate {draft}`, work in it, then `esf suspend` the attempt")
            }
            Self::SeveralEnds { ends, .. } => {
                let ends: Vec<String> = ends.iter().map(ToString::to_string).collect();
                format!(
                    "name the node that is meant; or `esf merge {} --expect GENERATION` joins them",
                    ends.join(" ")
                )
            }
            Self::StaleEvidence { .. } => "evaluate again on what is canonical now".to_owned(),
            Self::Queued { .. } => "`esf task withdraw` takes it out of the queue".to_owned(),
        }
    }

    /// What a program may look at.
    pub(crate) fn context(&self) -> Json {
        match self {
            Self::TaskOver { task, status } => json!({ "task_id": task, "status": status }),
            Self::EntryOver { entry, status } => json!({ "entry_id": entry, "status": status }),
            Self::AlreadyQueued { task, entry } => json!({ "task_id": task, "entry_id": entry }),
            Self::NothingQueued { task } => json!({ "task_id": task }),
            Self::NotOfTask { task, node } => json!({ "task_id": task, "node_id": node }),
            Self::NothingSealed { task, draft } => json!({ "task_id": task, "draft_node_id": draft }),
            Self::SeveralEnds { task, ends } => json!({ "task_id": task, "node_ids": ends }),
            Self::StaleEvidence { evaluation, base } => {
                json!({ "evaluation_id": evaluation, "canonical_node_id": base })
            }
            Self::Queued { node, entry } => json!({ "node_id": node, "entry_id": entry }),
        }
    }
}
