//! The event log: one record for every committed transition, with the ids that correlate it.
//! Invariant: `seq` is dense from 1, so a consumer that saw n has missed nothing up to n.

use serde::{Deserialize, Serialize};

use crate::digest::RootId;
use crate::id::{
    AttemptId, EvaluationId, ExecId, GroupId, LeaseId, NodeId, RolloutId, RunId, SearchId, SiblingId,
};
use crate::record::{Json, text_forms};
use crate::time::Timestamp;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A sealed root became known.
    RootRegistered,
    /// A group was made.
    GroupCreated,
    /// A node was made, as a draft or, for imports and merges, sealed.
    NodeCreated,
    /// A draft was sealed.
    NodeSealed,
    /// A node became terminal.
    NodeTerminal,
    /// A node was pruned.
    NodePruned,
    /// A node was given a name.
    NodeTagged,
    /// A name was taken away.
    NodeUntagged,
    /// An attempt was asked for.
    AttemptQueued,
    /// An attempt began under a lease.
    AttemptActive,
    /// An attempt admits no more work.
    AttemptQuiescing,
    /// An attempt sealed its draft.
    AttemptSealed,
    /// An attempt failed.
    AttemptFailed,
    /// An attempt was released.
    AttemptReleased,
    /// A lease lapsed: its holder was gone.
    LeaseLapsed,
    /// A command was recorded.
    ExecStarted,
    /// A command ended.
    ExecFinished,
    /// A command's outcome is unknown.
    ExecLost,
    /// An evaluation was recorded.
    Evaluated,
    /// The canonical node of a group moved.
    Promoted,
    /// A search was made.
    SearchCreated,
    /// A search takes no more rollouts.
    SearchStopped,
    /// What a search may spend was changed; one that had spent it goes on.
    SearchBudgeted,
    /// Subtrees of a search were given up.
    SearchPruned,
    /// Rollouts were selected, by one request.
    RolloutsSelected,
    /// Actions of a position became known, by a rollout's `expand`.
    PositionExpanded,
    /// A rollout was counted.
    RolloutAccepted,
    /// A rollout came to nothing.
    RolloutVoid,
    /// A run was made.
    RunCreated,
    /// A run takes no more work.
    RunOver,
    /// A version of a run's policy was published.
    PolicyPublished,
    /// Prompts were added to a run, by one request.
    PromptsAdded,
    /// Trials of siblings began, by one request.
    SiblingsStarted,
    /// A revision of a sibling ended.
    SiblingEnded,
    /// All siblings of a prompt have ended.
    PromptEnded,
    /// A sibling, or a whole prompt, is to be done again.
    Refilled,
    /// A consumer acknowledged entries.
    Acknowledged,
    /// What a consumer trained on after a step is open again.
    Reopened,
    /// A task was made.
    TaskCreated,
    /// A node of a task waits in the queue.
    TaskSubmitted,
    /// A task's work became part of the canonical node.
    TaskIntegrated,
    /// A task's node was not taken.
    TaskRefused,
    /// A task's node was taken out of the queue.
    TaskWithdrawn,
    /// A task was given up.
    TaskClosed,
}

text_forms!(EventKind {
    RootRegistered = "root_registered",
    GroupCreated = "group_created",
    NodeCreated = "node_created",
    NodeSealed = "node_sealed",
    NodeTerminal = "node_terminal",
    NodePruned = "node_pruned",
    NodeTagged = "node_tagged",
    NodeUntagged = "node_untagged",
    AttemptQueued = "attempt_queued",
    AttemptActive = "attempt_active",
    AttemptQuiescing = "attempt_quiescing",
    AttemptSealed = "attempt_sealed",
    AttemptFailed = "attempt_failed",
    AttemptReleased = "attempt_released",
    LeaseLapsed = "lease_lapsed",
    ExecStarted = "exec_started",
    ExecFinished = "exec_finished",
    ExecLost = "exec_lost",
    Evaluated = "evaluated",
    Promoted = "promoted",
    SearchCreated = "search_created",
    SearchStopped = "search_stopped",
    SearchBudgeted = "search_budgeted",
    SearchPruned = "search_pruned",
    RolloutsSelected = "rollouts_selected",
    PositionExpanded = "position_expanded",
    RolloutAccepted = "rollout_accepted",
    RolloutVoid = "rollout_void",
    RunCreated = "run_created",
    RunOver = "run_over",
    PolicyPublished = "policy_published",
    PromptsAdded = "prompts_added",
    SiblingsStarted = "siblings_started",
    SiblingEnded = "sibling_ended",
    PromptEnded = "prompt_ended",
    Refilled = "refilled",
    Acknowledged = "acknowledged",
    Reopened = "reopened",
    TaskCreated = "task_created",
    TaskSubmitted = "task_submitted",
    TaskIntegrated = "task_integrated",
    TaskRefused = "task_refused",
    TaskWithdrawn = "task_withdrawn",
    TaskClosed = "task_closed",
});

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the log: dense, from 1.
    pub seq: u64,
    /// When it was committed, by the clock of the request.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
    /// The group.
    pub group_id: Option<GroupId>,
    /// The node.
    pub node_id: Option<NodeId>,
    /// The attempt.
    pub attempt_id: Option<AttemptId>,
    /// The lease.
    pub lease_id: Option<LeaseId>,
    /// The exec.
    pub exec_id: Option<ExecId>,
    /// The evaluation.
    pub evaluation_id: Option<EvaluationId>,
    /// The root.
    pub root_id: Option<RootId>,
    /// The search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_id: Option<SearchId>,
    /// The rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_id: Option<RolloutId>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The sibling of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sibling_id: Option<SiblingId>,
    /// Who asked.
    pub actor: String,
    /// The trace of the request.
    pub trace_id: String,
    /// What else there is to say; null for most.
    pub detail: Json,
}
