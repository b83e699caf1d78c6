//! The queue as a whole: how much of it there is, what a scheduler needs to know of it, and the end of all
//! that waits in a group. Invariant: what is read of each attempt is small, so that a hundred thousand of
//! them fit where a few records do.

use esf_core::environment::{ExecutorKind, Limits};
use esf_core::id::{AttemptId, GroupId, NodeId};
use esf_core::ops::cancel::{self, Cancel};
use esf_core::ops::{Meta, Request};
use esf_core::{RootId, Timestamp};
use rusqlite::params;

use crate::error::Result;
use crate::mutate::{remember, replay, request_digest};
use crate::row::{Bytes, every};
use crate::{Graph, apply, load, records, statements};

/// Attempts that are cancelled between two looks at the queue; bounds memory, not the transaction.
const PAGE: i64 = 500;

/// The part of an environment that is read here.
#[derive(serde::Deserialize)]
struct Limited {
    limits: Limits,
}

/// A draft begins on its base; what runs on a sealed node begins on that.
fn base_or_own(base: Option<RootId>, own: Option<RootId>) -> Option<RootId> {
    base.or(own)
}

/// What a scheduler needs to know of an attempt that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedAttempt {
    /// Its id.
    pub attempt_id: AttemptId,
    /// The group of its node.
    pub group_id: GroupId,
    /// The node that its draft was forked from.
    pub parent_id: Option<NodeId>,
    /// `work`, `evaluate` or `salvage`.
    pub purpose: String,
    /// Whether it tries again what was tried.
    pub is_retry: bool,
    /// The back end.
    pub executor: ExecutorKind,
    /// Its limits.
    pub limits: Limits,
    /// The tree it begins on.
    pub root_id: Option<RootId>,
    /// Higher is started earlier.
    pub priority: i32,
    /// When it was asked for.
    pub queued_at: Timestamp,
}

/// How much of a group waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedCount {
    /// The group.
    pub group_id: GroupId,
    /// How many of its attempts wait.
    pub waiting: u64,
    /// When the one that waits longest was asked for.
    pub oldest: Timestamp,
}

impl Graph {
    /// The attempts that wait, as a scheduler sees them, in order of arrival.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn queue(&self) -> Result<Vec<QueuedAttempt>> {
        self.read(|db| {
            every(db, statements::QUEUE, [], |columns| {
                Ok(QueuedAttempt {
                    attempt_id: columns.id()?,
                    group_id: columns.id()?,
                    parent_id: columns.optional_id()?,
                    purpose: columns.take()?,
                    is_retry: columns.optional_id::<AttemptId>()?.is_some(),
                    limits: columns.json::<Limited>()?.limits,
                    executor: columns.word(ExecutorKind::parse)?,
                    root_id: base_or_own(columns.optional_id()?, columns.optional_id()?),
                    priority: columns.take()?,
                    queued_at: records::time(columns)?,
                })
            })
        })
    }

    /// How much of each group waits.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn queue_by_group(&self) -> Result<Vec<QueuedCount>> {
        self.read(|db| {
            every(db, statements::QUEUE_BY_GROUP, [], |columns| {
                let (group_id, waiting) = (columns.id()?, columns.count()?);
                Ok(QueuedCount { group_id, waiting, oldest: records::time(columns)? })
            })
        })
    }

    /// The ids of the attempts that wait, in order of arrival.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn queued_ids(&self) -> Result<Vec<AttemptId>> {
        self.read(|db| every(db, statements::QUEUED_IDS, [], |columns| columns.id()))
    }

    /// Ends every attempt of a group that waits, in one transaction; returns how many.
    ///
    /// # Errors
    /// `NotFound` when there is no such group, and failures of the database.
    pub fn cancel(&self, meta: &Meta, command: Cancel) -> Result<u64> {
        const OPERATION: &str = "cancel";
        meta.check()?;
        let digest = request_digest(OPERATION, &command);
        let (meta, store) = (meta.clone(), self.inner.store);
        self.inner.writer.run(move |transaction| {
            if let Some(count) = replay(transaction.db, &meta, OPERATION, Some(digest))? {
                return Ok(count);
            }
            load::group(transaction.db, command.group)?;
            let request = Request { store, operation: OPERATION, meta: &meta };
            let mut count = 0_u64;
            loop {
                let page = params![command.group.bytes(), PAGE];
                let waiting = every(transaction.db, statements::QUEUED_OF_GROUP, page, records::attempt)?;
                if waiting.is_empty() {
                    break;
                }
                for attempt in &waiting {
                    let decision = cancel::decide(attempt, &command, &request)?;
                    apply::commit(transaction, &meta, &decision.changes, &decision.transitions)?;
                }
                count += waiting.len() as u64;
            }
            remember(transaction, &meta, OPERATION, digest, &count)?;
            Ok(count)
        })
    }
}
