//! Records as rows: how each is read back. The columns are those of the statements, in order.

use esf_core::environment::Environment;
use esf_core::failure::FailureClass;
use esf_core::policy::{OnExpiry, PolicyDocument};
use esf_core::record::{
    Attempt, Evaluation, EvaluationClass, Event, EventKind, Exec, ExecStatus, Failure, Group, Lease,
    LeaseStatus, LogicalState, Node, PrivateDelta, Purpose,
};
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_core::time::BootMillis;
use esf_core::{NodeId, Timestamp};
use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::row::{Bytes, Columns, every};
use crate::statements;

/// Reads a group.
pub(crate) fn group(columns: &mut Columns<'_>) -> Result<Group> {
    Ok(Group {
        group_id: columns.id()?,
        name: columns.take()?,
        canonical_node_id: columns.id()?,
        generation: columns.count()?,
        policy: policy(columns)?.policy().clone(),
        policy_digest: columns.id()?,
        source: columns.take()?,
        default_environment: columns.json()?,
        created_at: time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    })
}

/// Reads a policy's text.
pub(crate) fn policy(columns: &mut Columns<'_>) -> Result<PolicyDocument> {
    let text: String = columns.take()?;
    PolicyDocument::parse(&text).map_err(|error| Error::damaged(error.to_string()))
}

/// A node as its row has it, before its further parents and its tags are looked up.
pub(crate) struct NodeRow {
    node: Node,
    parent_count: u64,
    tag_count: u64,
}

/// Reads a node's row.
pub(crate) fn node(columns: &mut Columns<'_>) -> Result<NodeRow> {
    let node_id = columns.id()?;
    let group_id = columns.id()?;
    let parents = columns.optional_id()?.into_iter().collect();
    let parent_count = columns.count()?;
    let depth = columns.count()?;
    let status = columns.word(NodeStatus::parse)?;
    let (root_id, attrs_id) = (columns.optional_id()?, columns.optional_id()?);
    let (base_root_id, base_attrs_id) = (columns.optional_id()?, columns.optional_id()?);
    let logical_state: LogicalState = columns.json()?;
    let state_id = columns.id()?;
    let attempt_id = columns.optional_id()?;
    let (message, result, provenance) = (columns.take()?, columns.json()?, columns.json()?);
    let (changed, merge) = (columns.json()?, columns.json()?);
    let tag_count = columns.count()?;
    let statement_digest = columns.optional_id()?;
    let (created_at, created_by) = (time(columns)?, columns.take()?);
    let (sealed_at, pruned_at) = (optional_time(columns)?, optional_time(columns)?);
    let node = Node {
        node_id,
        group_id,
        parents,
        root_id,
        attrs_id,
        base_root_id,
        base_attrs_id,
        logical_state,
        state_id,
        status,
        attempt_id,
        message,
        result,
        provenance,
        changed,
        merge,
        tags: Vec::new(),
        depth,
        created_at,
        created_by,
        sealed_at,
        pruned_at,
        trace_id: columns.take()?,
        statement_digest,
    };
    Ok(NodeRow { node, parent_count, tag_count })
}

impl NodeRow {
    /// The whole node.
    pub(crate) fn complete(self, db: &Connection) -> Result<Node> {
        let Self { mut node, parent_count, tag_count } = self;
        if parent_count > 1 {
            node.parents.extend(merge_parents(db, node.node_id)?);
        }
        if tag_count > 0 {
            node.tags =
                every(db, statements::TAGS_OF_NODE, [node.node_id.bytes()], |columns| columns.take())?;
        }
        Ok(node)
    }
}

/// The second and further parents of a merge node.
pub(crate) fn merge_parents(db: &Connection, node: NodeId) -> Result<Vec<NodeId>> {
    every(db, statements::MERGE_PARENTS, [node.bytes()], |columns| columns.id())
}

/// Reads an attempt.
pub(crate) fn attempt(columns: &mut Columns<'_>) -> Result<Attempt> {
    let (attempt_id, group_id, node_id) = (columns.id()?, columns.id()?, columns.id()?);
    let (purpose, salvaged_from) = (columns.take::<String>()?, columns.optional_id()?);
    let purpose = match (purpose.as_str(), salvaged_from) {
        ("work", None) => Purpose::Work,
        ("evaluate", None) => Purpose::Evaluate,
        ("salvage", Some(from)) => Purpose::Salvage { from },
        _ => return Err(Error::damaged(format!("purpose {purpose:?} of {attempt_id}"))),
    };
    let retry_of = columns.optional_id()?;
    let environment: Environment = columns.json()?;
    Ok(Attempt {
        attempt_id,
        group_id,
        node_id,
        executor: environment.executor,
        environment_digest: columns.id()?,
        status: columns.word(AttemptStatus::parse)?,
        private_delta: columns.word(PrivateDelta::parse)?,
        lease_id: columns.optional_id()?,
        lease_epoch: columns.count()?,
        worker_id: columns.optional_id()?,
        boot_id: columns.take()?,
        purpose,
        budget: environment.limits,
        environment,
        priority: columns.take()?,
        lifetime_ms: columns.optional_count()?,
        on_expiry: columns.word(OnExpiry::parse)?,
        failure: failure(columns)?,
        retry_of,
        queued_at: time(columns)?,
        started_at: optional_time(columns)?,
        ended_at: optional_time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    })
}

fn failure(columns: &mut Columns<'_>) -> Result<Option<Failure>> {
    let class: Option<String> = columns.take()?;
    let (stage, detail): (Option<String>, Option<String>) = (columns.take()?, columns.take()?);
    let Some(class) = class else { return Ok(None) };
    let parsed =
        FailureClass::parse(&class).ok_or_else(|| Error::damaged(format!("failure class {class:?}")))?;
    Ok(Some(Failure::new(parsed, stage.unwrap_or_default(), detail.unwrap_or_default())))
}

/// Reads a lease.
pub(crate) fn lease(columns: &mut Columns<'_>) -> Result<Lease> {
    Ok(Lease {
        lease_id: columns.id()?,
        attempt_id: columns.id()?,
        node_id: columns.id()?,
        worker_id: columns.id()?,
        epoch: columns.count()?,
        status: columns.word(LeaseStatus::parse)?,
        lease_ms: columns.count()?,
        expires_at: BootMillis(columns.take()?),
        boot_id: columns.take()?,
        granted_at: time(columns)?,
        ended_at: optional_time(columns)?,
    })
}

/// Reads an exec.
pub(crate) fn exec(columns: &mut Columns<'_>) -> Result<Exec> {
    Ok(Exec {
        exec_id: columns.id()?,
        attempt_id: columns.id()?,
        status: columns.word(ExecStatus::parse)?,
        argv: columns.json()?,
        cwd: columns.take()?,
        user: columns.take()?,
        timeout_ms: columns.optional_count()?,
        outcome: columns.json()?,
        started_at: time(columns)?,
        ended_at: optional_time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    })
}

/// Reads an evaluation.
pub(crate) fn evaluation(columns: &mut Columns<'_>) -> Result<Evaluation> {
    Ok(Evaluation {
        evaluation_id: columns.id()?,
        group_id: columns.id()?,
        node_id: columns.id()?,
        attempt_id: columns.optional_id()?,
        run_attempt_id: columns.optional_id()?,
        evaluator: columns.take()?,
        evaluator_version: columns.take()?,
        evaluator_digest: columns.optional_id()?,
        class: columns.word(EvaluationClass::parse)?,
        verdict: columns.word(|word| word.parse().ok())?,
        reward: columns.take()?,
        metrics: columns.json()?,
        evidence: columns.json()?,
        failure: columns.json()?,
        counts: columns.take()?,
        statement_digest: columns.optional_id()?,
        created_at: time(columns)?,
        created_by: columns.take()?,
        trace_id: columns.take()?,
    })
}

/// Reads an event.
pub(crate) fn event(columns: &mut Columns<'_>) -> Result<Event> {
    Ok(Event {
        seq: columns.count()?,
        at: time(columns)?,
        kind: columns.word(EventKind::parse)?,
        group_id: columns.optional_id()?,
        node_id: columns.optional_id()?,
        attempt_id: columns.optional_id()?,
        lease_id: columns.optional_id()?,
        exec_id: columns.optional_id()?,
        evaluation_id: columns.optional_id()?,
        root_id: columns.optional_id()?,
        search_id: columns.optional_id()?,
        rollout_id: columns.optional_id()?,
        run_id: columns.optional_id()?,
        sibling_id: columns.optional_id()?,
        actor: columns.take()?,
        trace_id: columns.take()?,
        detail: columns.json()?,
    })
}

/// Reads a time.
pub(crate) fn time(columns: &mut Columns<'_>) -> Result<Timestamp> {
    columns.take().map(Timestamp)
}

/// Reads a time, or nothing.
pub(crate) fn optional_time(columns: &mut Columns<'_>) -> Result<Option<Timestamp>> {
    Ok(columns.take::<Option<i64>>()?.map(Timestamp))
}
