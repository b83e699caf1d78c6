//! Tasks and queue entries as rows. The columns are those of the statements, in order.

use esf_core::development::{EntryStatus, QueueEntry, Task, TaskStatus};

use crate::error::Result;
use crate::records::{optional_time, time};
use crate::row::Columns;

/// Reads a task.
pub(super) fn task(columns: &mut Columns<'_>) -> Result<Task> {
    Ok(Task {
        task_id: columns.id()?,
        group_id: columns.id()?,
        name: columns.take()?,
        goal: columns.take()?,
        base_node_id: columns.id()?,
        base_generation: columns.count()?,
        first_node_id: columns.id()?,
        status: columns.word(TaskStatus::parse)?,
        integrated_as: columns.optional_id()?,
        reason: columns.take()?,
        created_at: time(columns)?,
        created_by: columns.take()?,
        ended_at: optional_time(columns)?,
        trace_id: columns.take()?,
    })
}

/// Reads a queue entry.
pub(super) fn entry(columns: &mut Columns<'_>) -> Result<QueueEntry> {
    Ok(QueueEntry {
        entry_id: columns.id()?,
        group_id: columns.id()?,
        task_id: columns.id()?,
        node_id: columns.id()?,
        priority: columns.take()?,
        status: columns.word(EntryStatus::parse)?,
        outcome: columns.json()?,
        created_at: time(columns)?,
        created_by: columns.take()?,
        ended_at: optional_time(columns)?,
        trace_id: columns.take()?,
    })
}
