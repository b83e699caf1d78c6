//! What is asked of tasks and of the queue, and what is decided. Pure; committed by `esf-graph`.
//! Invariants: one entry of a task waits at a time; an entry that has ended is never changed, and saying the same
//! again is answered as before; the canonical node and the entry that moved it change in one transaction.

pub mod reject;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::development::{Binding, EntryStatus, Outcome, QueueEntry, Refusal, Task, TaskStatus};
use crate::id::{EntryId, GroupId, NodeId, TaskId};
use crate::ops::{Decision, Reject, Request, Transition, fork, label, promote};
use crate::record::{EventKind, Group, Node};

/// Most bytes of a task's goal, or of a reason.
pub const MAX_TEXT: usize = 64 << 10;

/// Makes a task: a draft on a sealed node, with a name and a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateTask {
    /// The group.
    pub group: GroupId,
    /// Its name: as of a tag, unique in the group.
    pub name: String,
    /// What is to be reached; at most [`MAX_TEXT`] bytes.
    pub goal: String,
    /// The sealed node on which it begins; the canonical one when absent.
    pub from: Option<NodeId>,
}

/// Puts a node of a task into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submit {
    /// The task.
    pub task: TaskId,
    /// A sealed node that descends from the task's first.
    pub node: NodeId,
    /// Greater goes first.
    pub priority: i64,
}

/// Gives a task up; what waits of it is withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseTask {
    /// The task.
    pub task: TaskId,
    /// Why.
    pub reason: String,
}

/// Makes the result of an entry the canonical node, and ends the entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Integrate {
    /// The entry.
    pub entry: EntryId,
    /// The node that becomes canonical: the submitted one or a merge of it.
    pub result: NodeId,
    /// The generation on which the evidence stands.
    pub expect: u64,
    /// What it is let through by.
    pub evidence: Vec<Binding>,
}

/// Ends an entry that is not taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refuse {
    /// The entry.
    pub entry: EntryId,
    /// Why.
    pub why: Refusal,
    /// The generation against which it was tried.
    pub expect: u64,
    /// The evidence that there was.
    pub evidence: Vec<Binding>,
    /// What to do.
    pub remedy: String,
}

/// A task and its entry, after a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// The task.
    pub task: Task,
    /// The entry.
    pub entry: QueueEntry,
}

fn check_text(argument: &'static str, text: &str, least: usize) -> Result<(), Reject> {
    if (least..=MAX_TEXT).contains(&text.len()) {
        return Ok(());
    }
    let expected = format!("{least} to {MAX_TEXT} bytes");
    Err(Reject::BadArgument { argument, expected, found: format!("{} bytes", text.len()) })
}

fn of_task(kind: EventKind, task: &Task) -> Transition {
    Transition {
        group_id: Some(task.group_id),
        node_id: Some(task.first_node_id),
        ..Transition::new(kind).detail(json!({ "task_id": task.task_id, "name": task.name }))
    }
}

fn of_entry(kind: EventKind, entry: &QueueEntry, why: Option<&Refusal>) -> Transition {
    let mut detail = json!({ "task_id": entry.task_id, "entry_id": entry.entry_id });
    if let Some(why) = why {
        detail["reason"] = why.as_str().into();
    }
    Transition {
        group_id: Some(entry.group_id),
        node_id: Some(entry.node_id),
        ..Transition::new(kind).detail(detail)
    }
}

/// Decides about a new task. `from` is the node on which it begins, `holder` the task that has the name.
///
/// # Errors
/// `BadName`, `NameTaken`, `BadArgument`, `OtherGroup`; what `fork` refuses.
pub fn create(
    group: &Group,
    from: &fork::Snapshot,
    holder: Option<TaskId>,
    command: &CreateTask,
    request: &Request<'_>,
) -> Result<Decision<Task>, Reject> {
    label::check(&command.name)?;
    check_text("goal", &command.goal, 1)?;
    if let Some(holder) = holder {
        return Err(Reject::NameTaken { name: command.name.clone(), by: holder.to_string() });
    }
    if from.parent.group_id != group.group_id {
        let (expected, found) = (group.group_id.to_string(), from.parent.group_id.to_string());
        return Err(Reject::BadArgument { argument: "from", expected, found });
    }
    let node = from.parent.node_id;
    let forked = fork::decide(from, &fork::Fork { parent: node, count: 1 }, request)?;
    let [first] = &fork::children(&from.parent, &forked.reply, request.store)[..] else {
        unreachable!("a fork of one has one child")
    };
    let task = Task {
        task_id: TaskId::derive(&request.seed(group.group_id.as_bytes(), 0)),
        group_id: group.group_id,
        name: command.name.clone(),
        goal: command.goal.clone(),
        base_node_id: node,
        base_generation: group.generation,
        first_node_id: first.node_id,
        status: TaskStatus::Open,
        integrated_as: None,
        reason: None,
        created_at: request.meta.now,
        created_by: request.meta.actor.clone(),
        ended_at: None,
        trace_id: request.meta.trace_id.clone(),
    };
    let (changes, mut transitions) = (forked.changes, forked.transitions);
    transitions.push(of_task(EventKind::TaskCreated, &task));
    Ok(Decision { reply: task, changes, transitions })
}

/// Decides about a submission. `descends` says whether the node is of the task's line, `waiting` is the entry of the
/// task that waits already.
///
/// # Errors
/// `TaskOver`, `AlreadyQueued`, `NotOfTask`; `NotSealed`, `Terminal`, `Pruned`.
pub fn submit(
    task: &Task,
    node: &fork::Snapshot,
    descends: bool,
    waiting: Option<EntryId>,
    command: &Submit,
    request: &Request<'_>,
) -> Result<Decision<Settled>, Reject> {
    check_open(task)?;
    fork::forkable(&node.parent, node.last_sealed)?;
    if !descends {
        return Err(reject::Reject::NotOfTask { task: task.task_id, node: command.node }.into());
    }
    if let Some(entry) = waiting {
        return Err(reject::Reject::AlreadyQueued { task: task.task_id, entry }.into());
    }
    let entry = QueueEntry {
        entry_id: EntryId::derive(&request.seed(task.task_id.as_bytes(), 0)),
        group_id: task.group_id,
        task_id: task.task_id,
        node_id: command.node,
        priority: command.priority,
        status: EntryStatus::Queued,
        outcome: None,
        created_at: request.meta.now,
        created_by: request.meta.actor.clone(),
        ended_at: None,
        trace_id: request.meta.trace_id.clone(),
    };
    let task = Task { status: TaskStatus::Submitted, ..task.clone() };
    let submitted = of_entry(EventKind::TaskSubmitted, &entry, None);
    Ok(Decision::new(Settled { task, entry }).log(submitted))
}

fn check_open(task: &Task) -> Result<(), Reject> {
    match task.status {
        TaskStatus::Open | TaskStatus::Submitted => Ok(()),
        TaskStatus::Integrated | TaskStatus::Closed => {
            Err(reject::Reject::TaskOver { task: task.task_id, status: task.status }.into())
        }
    }
}

/// Decides about giving a task up. One that was given up already is left as it is.
///
/// # Errors
/// `TaskOver` when its work is integrated; `BadArgument`.
pub fn close(task: &Task, command: &CloseTask, request: &Request<'_>) -> Result<Decision<Task>, Reject> {
    check_text("reason", &command.reason, 0)?;
    if task.status == TaskStatus::Closed {
        return Ok(Decision::new(task.clone()));
    }
    check_open(task)?;
    let closed = Task {
        status: TaskStatus::Closed,
        reason: Some(command.reason.clone()),
        ended_at: Some(request.meta.now),
        ..task.clone()
    };
    let transition = of_task(EventKind::TaskClosed, &closed);
    Ok(Decision::new(closed).log(transition))
}

/// What of an entry that has ended may be said again.
fn check_waits(entry: &QueueEntry) -> Result<(), Reject> {
    if entry.status == EntryStatus::Queued {
        return Ok(());
    }
    Err(reject::Reject::EntryOver { entry: entry.entry_id, status: entry.status }.into())
}

/// Decides about integrating an entry. `of_entry` says whether the result is the submitted node or descends from it.
///
/// # Errors
/// `EntryOver`, `NotOfTask`, `BadEvidence`; what `promote` refuses.
pub fn integrate(
    task: &Task,
    entry: &QueueEntry,
    result: &promote::Snapshot,
    holds_node: bool,
    command: &Integrate,
    request: &Request<'_>,
) -> Result<Decision<Settled>, Reject> {
    check_waits(entry)?;
    if !holds_node {
        return Err(reject::Reject::NotOfTask { task: task.task_id, node: command.result }.into());
    }
    let onto = result.group.canonical_node_id;
    // A review is of what was submitted; everything else of what becomes canonical.
    let stale = command.evidence.iter().find(|one| {
        one.evaluator_digest.is_some()
            && (result.node.root_id != Some(one.root_id) || one.base_node_id != onto)
    });
    if let Some(stale) = stale {
        return Err(reject::Reject::StaleEvidence { evaluation: stale.evaluation_id, base: onto }.into());
    }
    let command_of_group = promote::Promote { node: command.result, expect: command.expect, replace: false };
    let promoted = promote::decide(result, &command_of_group, request)?;
    let now = request.meta.now;
    let entry = QueueEntry {
        status: EntryStatus::Integrated,
        outcome: Some(Outcome::Integrated {
            onto,
            result_node_id: command.result,
            generation: promoted.reply.generation,
            evidence: command.evidence.clone(),
        }),
        ended_at: Some(now),
        ..entry.clone()
    };
    let task = Task {
        status: TaskStatus::Integrated,
        integrated_as: Some(command.result),
        ended_at: Some(now),
        ..task.clone()
    };
    let (changes, mut transitions) = (promoted.changes, promoted.transitions);
    transitions.push(of_entry(EventKind::TaskIntegrated, &entry, None));
    Ok(Decision { reply: Settled { task, entry }, changes, transitions })
}

/// Decides about refusing an entry. Its task is open again.
///
/// # Errors
/// `EntryOver`; `StaleGeneration` when the group has moved since it was tried.
pub fn refuse(
    task: &Task,
    entry: &QueueEntry,
    group: &Group,
    command: &Refuse,
    request: &Request<'_>,
) -> Result<Decision<Settled>, Reject> {
    check_waits(entry)?;
    promote::expect(group, command.expect)?;
    let refused = of_entry(EventKind::TaskRefused, entry, Some(&command.why));
    let entry = QueueEntry {
        status: EntryStatus::Refused,
        outcome: Some(Outcome::Refused {
            why: command.why.clone(),
            against: group.canonical_node_id,
            generation: group.generation,
            evidence: command.evidence.clone(),
            remedy: command.remedy.clone(),
        }),
        ended_at: Some(request.meta.now),
        ..entry.clone()
    };
    let task = Task { status: TaskStatus::Open, ..task.clone() };
    Ok(Decision::new(Settled { task, entry }).log(refused))
}

/// Decides about taking what waits of a task out of the queue. The task is open again.
///
/// # Errors
/// `TaskOver`, `NothingQueued`.
pub fn withdraw(
    task: &Task,
    waiting: Option<&QueueEntry>,
    request: &Request<'_>,
) -> Result<Decision<Settled>, Reject> {
    check_open(task)?;
    let Some(waiting) = waiting else {
        return Err(reject::Reject::NothingQueued { task: task.task_id }.into());
    };
    let entry =
        QueueEntry { status: EntryStatus::Withdrawn, ended_at: Some(request.meta.now), ..waiting.clone() };
    let transition = of_entry(EventKind::TaskWithdrawn, &entry, None);
    let task = Task { status: TaskStatus::Open, ..task.clone() };
    Ok(Decision::new(Settled { task, entry }).log(transition))
}

/// Which of `leaves`, the sealed ends of a task's line, is meant when none is named.
///
/// # Errors
/// `NothingSealed`, or `SeveralEnds` naming them.
pub fn newest(task: &Task, leaves: &[Node]) -> Result<NodeId, Reject> {
    match leaves {
        [] => Err(reject::Reject::NothingSealed { task: task.task_id, draft: task.first_node_id }.into()),
        [one] => Ok(one.node_id),
        several => Err(reject::Reject::SeveralEnds {
            task: task.task_id,
            ends: several.iter().map(|node| node.node_id).collect(),
        }
        .into()),
    }
}
