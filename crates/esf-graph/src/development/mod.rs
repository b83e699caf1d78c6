//! Tasks and the merge queue in the graph: the facts of `esf_core::development` in SQLite.
//! `docs/schema.md` describes the tables, `docs/development.md` the use.
//!
//! Invariants: the canonical node moves in the same transaction as the entry that moved it, so a crash finds both or
//! neither; an entry ends once; a node that waits is kept by prune.

mod rows;

use esf_core::development::{EntryStatus, Outcome, QueueEntry, Refusal, Task};
use esf_core::id::{EntryId, GroupId, NodeId, TaskId};
use esf_core::ops::development::{self, CloseTask, CreateTask, Integrate, Refuse, Settled, Submit};
use esf_core::ops::{Decision, Meta, fork, promote};
use esf_core::record::Node;
use rusqlite::{Connection, params};

use crate::error::{Error, Result};
use crate::mutate::decided;
use crate::row::{Bytes, change, count, every, first, json, optional};
use crate::{Graph, load, statements};

impl Graph {
    /// Makes a task with the draft in which its work begins.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `BadName`, `NameTaken`, `BadArgument`, or what `fork` refuses.
    pub fn create_task(&self, meta: &Meta, command: CreateTask) -> Result<Task> {
        let answer = self.mutate(meta, "create_task", &command.clone(), move |db, request| {
            let group = load::group(db, command.group)?;
            let parent = load::node(db, command.from.unwrap_or(group.canonical_node_id))?;
            let from = fork::Snapshot { last_sealed: load::last_sealed_of_draft(db, &parent)?, parent };
            let holder = by_name(db, group.group_id, &command.name)?.map(|task| task.task_id);
            let decision = decided(development::create(&group, &from, holder, &command, request))?;
            // The task refers to its draft, which is committed after it: the reference is looked at in the end.
            insert_task(db, &decision.reply)?;
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// Puts a node of a task into its group's queue.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `TaskOver`, `AlreadyQueued`, `NotOfTask`, `NotSealed`, `Terminal`, `Pruned`.
    pub fn submit_task(&self, meta: &Meta, command: Submit) -> Result<Settled> {
        let answer = self.mutate(meta, "submit_task", &command, move |db, request| {
            let task = task(db, command.task)?;
            let parent = load::node(db, command.node)?;
            let waiting = waiting_of(db, task.task_id)?.map(|entry| entry.entry_id);
            let descends =
                parent.group_id == task.group_id && load::descends(db, parent.node_id, task.first_node_id)?;
            let node = fork::Snapshot { last_sealed: load::last_sealed_of_draft(db, &parent)?, parent };
            let decision = decided(development::submit(&task, &node, descends, waiting, &command, request))?;
            insert_entry(db, &decision.reply.entry)?;
            update_task(db, &decision.reply.task)?;
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// Takes what waits of a task out of the queue.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `TaskOver` or `NothingQueued`.
    pub fn withdraw_task(&self, meta: &Meta, id: TaskId) -> Result<Settled> {
        let answer = self.mutate(meta, "withdraw_task", &id, move |db, request| {
            let task = task(db, id)?;
            let decision = decided(development::withdraw(&task, waiting_of(db, id)?.as_ref(), request))?;
            end_entry(db, &decision.reply.entry)?;
            update_task(db, &decision.reply.task)?;
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// Gives a task up. Its nodes stay, until they are pruned.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `TaskOver` or `BadArgument`.
    pub fn close_task(&self, meta: &Meta, command: CloseTask) -> Result<Task> {
        let answer = self.mutate(meta, "close_task", &command.clone(), move |db, request| {
            let task = task(db, command.task)?;
            let waiting = waiting_of(db, task.task_id)?;
            let mut decision = decided(development::close(&task, &command, request))?;
            if let Some(entry) = waiting {
                let withdrawn = decided(development::withdraw(&task, Some(&entry), request))?;
                end_entry(db, &withdrawn.reply.entry)?;
                decision.transitions.splice(0..0, withdrawn.transitions);
            }
            update_task(db, &decision.reply)?;
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// Makes a result the canonical node and ends its entry, both or neither.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `EntryOver`, `NotOfTask`, `StaleEvidence`, or what `promote` refuses.
    pub fn integrate(&self, meta: &Meta, command: Integrate) -> Result<Settled> {
        let answer = self.mutate(meta, "integrate", &command.clone(), move |db, request| {
            let (task, entry) = both(db, command.entry)?;
            let node = load::node(db, command.result)?;
            let group = load::group(db, task.group_id)?;
            let holds = node.group_id == task.group_id && load::descends(db, command.result, entry.node_id)?;
            let result = promote::Snapshot {
                last_sealed: load::last_sealed_of_draft(db, &node)?,
                descends: group.generation == command.expect
                    && load::descends(db, command.result, group.canonical_node_id)?,
                node,
                group,
            };
            let decision = decided(development::integrate(&task, &entry, &result, holds, &command, request))?;
            settle(db, &decision)?;
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// Ends an entry that is not taken; its task is open again.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `EntryOver` or `StaleGeneration`.
    pub fn refuse(&self, meta: &Meta, command: Refuse) -> Result<Settled> {
        let answer = self.mutate(meta, "refuse", &command.clone(), move |db, request| {
            let (task, entry) = both(db, command.entry)?;
            let group = load::group(db, task.group_id)?;
            let decision = decided(development::refuse(&task, &entry, &group, &command, request))?;
            settle(db, &decision)?;
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// The task `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn task(&self, id: TaskId) -> Result<Task> {
        self.read(|db| task(db, id))
    }

    /// The task of a group that has a name.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn task_by_name(&self, group: GroupId, name: &str) -> Result<Task> {
        self.read(|db| by_name(db, group, name))?.ok_or_else(|| Error::not_found("task", name))
    }

    /// The tasks of a group, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn tasks(&self, group: GroupId) -> Result<Vec<Task>> {
        self.read(|db| every(db, statements::TASKS_OF_GROUP, [group.bytes()], rows::task))
    }

    /// The tasks whose work became canonical with `node`.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn integrated_as(&self, node: NodeId) -> Result<Vec<Task>> {
        self.read(|db| every(db, statements::TASKS_INTEGRATED_AS, [node.bytes()], rows::task))
    }

    /// The nodes of a task, oldest first: what follows its first along first parents, and the nodes at which work
    /// on its refused entries goes on, with what follows them. At most 10 000.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn line(&self, id: TaskId) -> Result<Vec<Node>> {
        let task = self.task(id)?;
        self.nodes_by(statements::LINE_OF_TASK, params![task.first_node_id.bytes(), id.bytes()])
    }

    /// The queue entry `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn queue_entry(&self, id: EntryId) -> Result<QueueEntry> {
        self.read(|db| entry(db, id))
    }

    /// Every entry that a task ever had, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn entries_of_task(&self, task: TaskId) -> Result<Vec<QueueEntry>> {
        self.read(|db| every(db, statements::QUEUE_ENTRIES_OF_TASK, [task.bytes()], rows::entry))
    }

    /// Every entry that a group ever had, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn entries_of_group(&self, group: GroupId) -> Result<Vec<QueueEntry>> {
        self.read(|db| every(db, statements::QUEUE_ENTRIES_OF_GROUP, [group.bytes()], rows::entry))
    }

    /// The entries that wait, in the order in which they are taken.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn waiting(&self, group: GroupId) -> Result<Vec<QueueEntry>> {
        self.read(|db| every(db, statements::QUEUE_ENTRIES_WAITING, [group.bytes()], rows::entry))
    }
}

fn task(db: &Connection, id: TaskId) -> Result<Task> {
    first(db, statements::TASK_BY_ID, [id.bytes()], rows::task)?.ok_or_else(|| Error::not_found("task", id))
}

fn by_name(db: &Connection, group: GroupId, name: &str) -> Result<Option<Task>> {
    first(db, statements::TASK_BY_NAME, params![group.bytes(), name], rows::task)
}

fn entry(db: &Connection, id: EntryId) -> Result<QueueEntry> {
    first(db, statements::QUEUE_ENTRY_BY_ID, [id.bytes()], rows::entry)?
        .ok_or_else(|| Error::not_found("queue entry", id))
}

fn both(db: &Connection, id: EntryId) -> Result<(Task, QueueEntry)> {
    let entry = entry(db, id)?;
    Ok((task(db, entry.task_id)?, entry))
}

fn waiting_of(db: &Connection, task: TaskId) -> Result<Option<QueueEntry>> {
    first(db, statements::QUEUE_ENTRY_WAITING_OF_TASK, [task.bytes()], rows::entry)
}

/// The entry that waits with `node`.
pub(crate) fn waiting_with(db: &Connection, node: NodeId) -> Result<Option<EntryId>> {
    first(db, statements::QUEUE_ENTRY_NEEDING_NODE, [node.bytes()], |columns| columns.id())
}

fn settle(db: &Connection, decision: &Decision<Settled>) -> Result<()> {
    end_entry(db, &decision.reply.entry)?;
    update_task(db, &decision.reply.task)
}

fn insert_task(db: &Connection, task: &Task) -> Result<()> {
    let values = params![
        task.task_id.bytes(),
        task.group_id.bytes(),
        task.name,
        task.goal,
        task.base_node_id.bytes(),
        count(task.base_generation)?,
        task.first_node_id.bytes(),
        task.status.as_str(),
        optional(task.integrated_as.as_ref()),
        task.reason,
        task.created_at.0,
        task.created_by,
        task.ended_at.map(|at| at.0),
        task.trace_id,
    ];
    change(db, statements::INSERT_TASK, values, "task")
}

fn update_task(db: &Connection, task: &Task) -> Result<()> {
    let values = params![
        task.status.as_str(),
        optional(task.integrated_as.as_ref()),
        task.reason,
        task.ended_at.map(|at| at.0),
        task.task_id.bytes(),
    ];
    change(db, statements::UPDATE_TASK, values, "task")
}

/// The node at which work on a refused entry goes on: the draft with the conflicts, or what failed its checks.
fn goes_on_at(entry: &QueueEntry) -> Option<&NodeId> {
    let Some(Outcome::Refused { why, .. }) = &entry.outcome else { return None };
    match why {
        Refusal::Conflicts { draft_node_id, .. } => Some(draft_node_id),
        Refusal::Checks { result_node_id, .. } => Some(result_node_id),
        Refusal::Reviews { .. } | Refusal::NoBase { .. } => None,
    }
}

fn insert_entry(db: &Connection, entry: &QueueEntry) -> Result<()> {
    debug_assert_eq!(entry.status, EntryStatus::Queued);
    let values = params![
        entry.entry_id.bytes(),
        entry.group_id.bytes(),
        entry.task_id.bytes(),
        entry.node_id.bytes(),
        entry.priority,
        entry.status.as_str(),
        json(&entry.outcome)?,
        optional(goes_on_at(entry)),
        entry.created_at.0,
        entry.created_by,
        entry.ended_at.map(|at| at.0),
        entry.trace_id,
    ];
    change(db, statements::INSERT_QUEUE_ENTRY, values, "queue entry")
}

fn end_entry(db: &Connection, entry: &QueueEntry) -> Result<()> {
    let values = params![
        entry.status.as_str(),
        json(&entry.outcome)?,
        optional(goes_on_at(entry)),
        entry.ended_at.map(|at| at.0),
        entry.entry_id.bytes(),
    ];
    change(db, statements::END_QUEUE_ENTRY, values, "queue entry")
}
