//! Commits a decision: each change as rows, each transition as an event, in order. Invariant: a row
//! that is no longer as the snapshot saw it is refused, and the log's sequence has no gap.

use esf_core::StateId;
use esf_core::environment::Environment;
use esf_core::manifest::RootPin;
use esf_core::ops::{Change, Meta, Transition};
use esf_core::policy::PolicyDocument;
use esf_core::record::{Attempt, Evaluation, Event, Exec, Group, Lease, Node};
use esf_core::state::{AttemptStatus, NodeStatus};
use rusqlite::{Connection, params};

use crate::error::Result;
use crate::row::{Bytes, change, count, first, json, optional};
use crate::statements;
use crate::writer::Transaction;

/// Applies `changes` and logs `transitions`.
pub(crate) fn commit(
    transaction: &mut Transaction<'_>,
    meta: &Meta,
    changes: &[Change],
    transitions: &[Transition],
) -> Result<()> {
    let db = transaction.db;
    let mut known_state = None;
    for change in changes {
        apply(db, change, &mut known_state)?;
    }
    let traced = tracing::enabled!(tracing::Level::DEBUG);
    for transition in transitions {
        log(db, meta, transition)?;
        if traced {
            transaction.log.push(event(meta, transition));
        }
    }
    Ok(())
}

fn apply(db: &Connection, change: &Change, known_state: &mut Option<StateId>) -> Result<()> {
    match change {
        Change::InsertGroup(group, policy) => insert_group(db, group, policy),
        Change::MoveCanonical { group_id, node_id, was, generation } => {
            let values = params![node_id.bytes(), count(*generation)?, group_id.bytes(), count(*was)?];
            self::change(db, statements::MOVE_CANONICAL, values, "canonical node")
        }
        Change::InsertNode(node) => insert_node(db, node, known_state),
        Change::UpdateNode { node, was } => update_node(db, node, *was),
        Change::PruneNode { node_id, was, at } => {
            self::change(db, statements::PRUNE_NODE, params![at.0, node_id.bytes(), was.as_str()], "node")
        }
        Change::InsertTag { group_id, name, node_id, created_by, created_at } => {
            let values = params![group_id.bytes(), name, node_id.bytes(), created_at.0, created_by];
            self::change(db, statements::INSERT_TAG, values, "tag")?;
            self::change(db, statements::COUNT_TAGS, [node_id.bytes()], "tagged node")
        }
        Change::DeleteTag { group_id, name } => {
            let node: Option<Vec<u8>> =
                first(db, statements::DELETE_TAG, params![group_id.bytes(), name], |columns| columns.take())?;
            node.map_or(Ok(()), |node| self::change(db, statements::COUNT_TAGS, [node], "tagged node"))
        }
        Change::InsertAttempt(attempt) => insert_attempt(db, attempt),
        Change::UpdateAttempt { attempt, was } => update_attempt(db, attempt, *was),
        Change::InsertLease(lease) => insert_lease(db, lease),
        Change::UpdateLease(lease) => update_lease(db, lease),
        Change::InsertExec(exec) => insert_exec(db, exec),
        Change::UpdateExec(exec) => update_exec(db, exec),
        Change::InsertEvaluation(evaluation) => insert_evaluation(db, evaluation),
    }
}

/// Makes `root` known.
pub(crate) fn insert_root(db: &Connection, root: RootPin, meta: &Meta) -> Result<bool> {
    let values = params![root.root.bytes(), root.attrs.bytes(), meta.now.0, meta.actor, meta.trace_id];
    Ok(db.prepare_cached(statements::INSERT_ROOT)?.execute(values)? == 1)
}

pub(crate) fn insert_environment(db: &Connection, environment: &Environment) -> Result<()> {
    let digest = environment.digest();
    let values = params![
        digest.bytes(),
        environment.executor.as_str(),
        environment.secrets_policy,
        json(environment)?
    ];
    db.prepare_cached(statements::INSERT_ENVIRONMENT)?.execute(values)?;
    Ok(())
}

fn insert_group(db: &Connection, group: &Group, policy: &PolicyDocument) -> Result<()> {
    let digest = group.policy_digest;
    db.prepare_cached(statements::INSERT_POLICY)?.execute(params![digest.bytes(), policy.text()])?;
    insert_environment(db, &group.default_environment)?;
    let environment = group.default_environment.digest();
    let values = params![
        group.group_id.bytes(),
        group.name,
        group.canonical_node_id.bytes(),
        count(group.generation)?,
        digest.bytes(),
        group.source,
        environment.bytes(),
        group.created_at.0,
        group.created_by,
        group.trace_id,
    ];
    change(db, statements::INSERT_GROUP, values, "group")
}

/// Stores the logical state once; a fork's children all share one, so it is remembered.
fn insert_state(db: &Connection, node: &Node, known: &mut Option<StateId>) -> Result<()> {
    if *known == Some(node.state_id) {
        return Ok(());
    }
    if first(db, statements::STATE_KNOWN, [node.state_id.bytes()], |columns| columns.take::<i64>())?.is_none()
    {
        let values = params![node.state_id.bytes(), node.logical_state.text()];
        db.prepare_cached(statements::INSERT_STATE)?.execute(values)?;
    }
    *known = Some(node.state_id);
    Ok(())
}

fn insert_node(db: &Connection, node: &Node, known_state: &mut Option<StateId>) -> Result<()> {
    insert_state(db, node, known_state)?;
    let values = params![
        node.node_id.bytes(),
        node.group_id.bytes(),
        optional(node.parents.first()),
        count(node.parents.len() as u64)?,
        count(node.depth)?,
        node.status.as_str(),
        optional(node.root_id.as_ref()),
        optional(node.attrs_id.as_ref()),
        optional(node.base_root_id.as_ref()),
        optional(node.base_attrs_id.as_ref()),
        node.state_id.bytes(),
        optional(node.attempt_id.as_ref()),
        node.message,
        json(&node.result)?,
        json(&node.provenance)?,
        json(&node.changed)?,
        json(&node.merge)?,
        optional(node.statement_digest.as_ref()),
        node.created_at.0,
        node.created_by,
        node.sealed_at.map(|at| at.0),
        node.pruned_at.map(|at| at.0),
        node.trace_id,
    ];
    change(db, statements::INSERT_NODE, values, "node")?;
    for (position, parent) in (1_i64..).zip(node.parents.iter().skip(1)) {
        let values = params![node.node_id.bytes(), position, parent.bytes()];
        change(db, statements::INSERT_MERGE_PARENT, values, "parent")?;
    }
    Ok(())
}

fn update_node(db: &Connection, node: &Node, was: NodeStatus) -> Result<()> {
    insert_state(db, node, &mut None)?;
    let values = params![
        node.status.as_str(),
        optional(node.root_id.as_ref()),
        optional(node.attrs_id.as_ref()),
        node.state_id.bytes(),
        optional(node.attempt_id.as_ref()),
        node.message,
        json(&node.result)?,
        json(&node.provenance)?,
        json(&node.changed)?,
        json(&node.merge)?,
        optional(node.statement_digest.as_ref()),
        node.sealed_at.map(|at| at.0),
        node.pruned_at.map(|at| at.0),
        node.node_id.bytes(),
        was.as_str(),
    ];
    change(db, statements::UPDATE_NODE, values, "node")
}

fn insert_attempt(db: &Connection, attempt: &Attempt) -> Result<()> {
    insert_environment(db, &attempt.environment)?;
    let failure = attempt.failure.as_ref();
    let salvaged_from = match &attempt.purpose {
        esf_core::record::Purpose::Salvage { from } => Some(from),
        esf_core::record::Purpose::Work | esf_core::record::Purpose::Evaluate => None,
    };
    let values = params![
        attempt.attempt_id.bytes(),
        attempt.group_id.bytes(),
        attempt.node_id.bytes(),
        attempt.purpose.as_str(),
        optional(salvaged_from),
        optional(attempt.retry_of.as_ref()),
        attempt.executor.as_str(),
        attempt.environment_digest.bytes(),
        attempt.status.as_str(),
        attempt.private_delta.as_str(),
        optional(attempt.lease_id.as_ref()),
        count(attempt.lease_epoch)?,
        optional(attempt.worker_id.as_ref()),
        attempt.boot_id,
        attempt.priority,
        attempt.lifetime_ms.map(count).transpose()?,
        attempt.on_expiry.as_str(),
        failure.map(|failure| failure.class.as_str()),
        failure.map(|failure| &failure.stage),
        failure.map(|failure| &failure.detail),
        attempt.queued_at.0,
        attempt.started_at.map(|at| at.0),
        attempt.ended_at.map(|at| at.0),
        attempt.created_by,
        attempt.trace_id,
    ];
    change(db, statements::INSERT_ATTEMPT, values, "attempt")
}

fn update_attempt(db: &Connection, attempt: &Attempt, was: AttemptStatus) -> Result<()> {
    let failure = attempt.failure.as_ref();
    let values = params![
        attempt.status.as_str(),
        attempt.private_delta.as_str(),
        optional(attempt.lease_id.as_ref()),
        count(attempt.lease_epoch)?,
        optional(attempt.worker_id.as_ref()),
        attempt.boot_id,
        failure.map(|failure| failure.class.as_str()),
        failure.map(|failure| &failure.stage),
        failure.map(|failure| &failure.detail),
        attempt.started_at.map(|at| at.0),
        attempt.ended_at.map(|at| at.0),
        attempt.attempt_id.bytes(),
        was.as_str(),
    ];
    change(db, statements::UPDATE_ATTEMPT, values, "attempt")
}

fn insert_lease(db: &Connection, lease: &Lease) -> Result<()> {
    let values = params![
        lease.lease_id.bytes(),
        lease.attempt_id.bytes(),
        lease.node_id.bytes(),
        lease.worker_id.bytes(),
        count(lease.epoch)?,
        lease.status.as_str(),
        count(lease.lease_ms)?,
        lease.expires_at.0,
        lease.boot_id,
        lease.granted_at.0,
        lease.ended_at.map(|at| at.0),
    ];
    change(db, statements::INSERT_LEASE, values, "lease")
}

/// Stores a lease after a renewal, a release or a lapse.
pub(crate) fn update_lease(db: &Connection, lease: &Lease) -> Result<()> {
    let values = params![
        lease.status.as_str(),
        count(lease.lease_ms)?,
        lease.expires_at.0,
        lease.ended_at.map(|at| at.0),
        lease.lease_id.bytes(),
    ];
    change(db, statements::UPDATE_LEASE, values, "lease")
}

fn insert_exec(db: &Connection, exec: &Exec) -> Result<()> {
    let values = params![
        exec.exec_id.bytes(),
        exec.attempt_id.bytes(),
        exec.status.as_str(),
        json(&exec.argv)?,
        exec.cwd,
        exec.user,
        exec.timeout_ms.map(count).transpose()?,
        json(&exec.outcome)?,
        exec.outcome.as_ref().and_then(|outcome| outcome.exit_code),
        exec.started_at.0,
        exec.ended_at.map(|at| at.0),
        exec.created_by,
        exec.trace_id,
    ];
    change(db, statements::INSERT_EXEC, values, "exec")
}

fn update_exec(db: &Connection, exec: &Exec) -> Result<()> {
    let values = params![
        exec.status.as_str(),
        json(&exec.outcome)?,
        exec.outcome.as_ref().and_then(|outcome| outcome.exit_code),
        exec.ended_at.map(|at| at.0),
        exec.exec_id.bytes(),
    ];
    change(db, statements::UPDATE_EXEC, values, "exec")
}

fn insert_evaluation(db: &Connection, evaluation: &Evaluation) -> Result<()> {
    let values = params![
        evaluation.evaluation_id.bytes(),
        evaluation.group_id.bytes(),
        evaluation.node_id.bytes(),
        optional(evaluation.attempt_id.as_ref()),
        optional(evaluation.run_attempt_id.as_ref()),
        evaluation.evaluator,
        evaluation.evaluator_version,
        optional(evaluation.evaluator_digest.as_ref()),
        evaluation.class.as_str(),
        evaluation.verdict.as_str(),
        evaluation.reward,
        json(&evaluation.metrics)?,
        json(&evaluation.evidence)?,
        json(&evaluation.failure)?,
        evaluation.counts,
        optional(evaluation.statement_digest.as_ref()),
        evaluation.created_at.0,
        evaluation.created_by,
        evaluation.trace_id,
    ];
    change(db, statements::INSERT_EVALUATION, values, "evaluation")
}

fn log(db: &Connection, meta: &Meta, transition: &Transition) -> Result<()> {
    let values = params![
        meta.now.0,
        transition.kind.as_str(),
        optional(transition.group_id.as_ref()),
        optional(transition.node_id.as_ref()),
        optional(transition.attempt_id.as_ref()),
        optional(transition.lease_id.as_ref()),
        optional(transition.exec_id.as_ref()),
        optional(transition.evaluation_id.as_ref()),
        optional(transition.root_id.as_ref()),
        optional(transition.search_id.as_ref()),
        optional(transition.rollout_id.as_ref()),
        optional(transition.run_id.as_ref()),
        optional(transition.sibling_id.as_ref()),
        meta.actor,
        meta.trace_id,
        json(&transition.detail)?,
    ];
    change(db, statements::INSERT_EVENT, values, "event")
}

/// The event as it is traced; its place in the log is in the database only.
fn event(meta: &Meta, transition: &Transition) -> Event {
    Event {
        seq: 0,
        at: meta.now,
        kind: transition.kind,
        group_id: transition.group_id,
        node_id: transition.node_id,
        attempt_id: transition.attempt_id,
        lease_id: transition.lease_id,
        exec_id: transition.exec_id,
        evaluation_id: transition.evaluation_id,
        root_id: transition.root_id,
        search_id: transition.search_id,
        rollout_id: transition.rollout_id,
        run_id: transition.run_id,
        sibling_id: transition.sibling_id,
        actor: meta.actor.clone(),
        trace_id: meta.trace_id.clone(),
        detail: transition.detail.clone(),
    }
}
