//! Reads single records and the facts that decisions look at. Everything here runs on one connection
//! within one transaction, so what is read together was true together.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use esf_core::id::{AttemptId, GroupId, LeaseId, NodeId, RolloutId, RunId, SearchId};
use esf_core::manifest::RootPin;
use esf_core::ops::{fail_attempt, prune};
use esf_core::record::{Attempt, Exec, Group, Lease, Node};
use esf_core::state::NodeStatus;
use rusqlite::{Connection, params};

use crate::error::{Error, Result};
use crate::row::{Bytes, Columns, every, first};
use crate::{development, records, statements};

/// The group `id`.
pub(crate) fn group(db: &Connection, id: GroupId) -> Result<Group> {
    first(db, statements::GROUP_BY_ID, [id.bytes()], records::group)?
        .ok_or_else(|| Error::not_found("group", id))
}

/// The node `id`.
pub(crate) fn node(db: &Connection, id: NodeId) -> Result<Node> {
    first(db, statements::NODE_BY_ID, [id.bytes()], records::node)?
        .ok_or_else(|| Error::not_found("node", id))?
        .complete(db)
}

/// The attempt `id`.
pub(crate) fn attempt(db: &Connection, id: AttemptId) -> Result<Attempt> {
    first(db, statements::ATTEMPT_BY_ID, [id.bytes()], records::attempt)?
        .ok_or_else(|| Error::not_found("attempt", id))
}

/// The lease `id`.
pub(crate) fn lease(db: &Connection, id: LeaseId) -> Result<Lease> {
    first(db, statements::LEASE_BY_ID, [id.bytes()], records::lease)?
        .ok_or_else(|| Error::not_found("lease", id))
}

/// Whether `root` is known.
pub(crate) fn root_known(db: &Connection, root: RootPin) -> Result<bool> {
    let values = params![root.root.bytes(), root.attrs.bytes()];
    Ok(first(db, statements::ROOT_KNOWN, values, |columns| columns.take::<i64>())?.is_some())
}

/// A number that `sql` counts for `group`.
pub(crate) fn count_in_group(db: &Connection, sql: &str, group: GroupId) -> Result<u64> {
    Ok(first(db, sql, [group.bytes()], |columns| columns.count())?.unwrap_or(0))
}

/// The queued or live attempt of the draft `node`.
pub(crate) fn open_attempt(db: &Connection, node: NodeId) -> Result<Option<AttemptId>> {
    first(db, statements::OPEN_ATTEMPT_OF_DRAFT, [node.bytes()], |columns| columns.id())
}

/// The execs of `attempt` that have no outcome yet.
pub(crate) fn running(db: &Connection, attempt: AttemptId) -> Result<Vec<Exec>> {
    every(db, statements::RUNNING_EXECS, [attempt.bytes()], records::exec)
}

/// What the end of an attempt looks at.
pub(crate) fn ending(db: &Connection, id: AttemptId) -> Result<fail_attempt::Snapshot> {
    let attempt = attempt(db, id)?;
    let lease = attempt.lease_id.map(|id| lease(db, id)).transpose()?;
    Ok(fail_attempt::Snapshot { lease, running: running(db, id)?, attempt })
}

/// A node's parents, depth and status, without the rest.
struct Lineage {
    parents: Vec<NodeId>,
    depth: u64,
    status: NodeStatus,
}

fn lineage(db: &Connection, id: NodeId) -> Result<Lineage> {
    let read = |columns: &mut Columns<'_>| {
        let parents: Vec<NodeId> = columns.optional_id()?.into_iter().collect();
        let count = columns.count()?;
        Ok((Lineage { parents, depth: columns.count()?, status: columns.word(NodeStatus::parse)? }, count))
    };
    let (mut lineage, count) = first(db, statements::LINEAGE_OF_NODE, [id.bytes()], read)?
        .ok_or_else(|| Error::not_found("node", id))?;
    if count > 1 {
        lineage.parents.extend(records::merge_parents(db, id)?);
    }
    Ok(lineage)
}

/// The nearest ancestor of `node` along first parents that is sealed; the node itself when it is.
pub(crate) fn last_sealed(db: &Connection, node: NodeId) -> Result<Option<NodeId>> {
    let mut next = Some(node);
    while let Some(id) = next {
        let lineage = lineage(db, id)?;
        if lineage.status == NodeStatus::Sealed {
            return Ok(Some(id));
        }
        next = lineage.parents.first().copied();
    }
    Ok(None)
}

/// `last_sealed` for a draft; `None` for a node that is needed as it is.
pub(crate) fn last_sealed_of_draft(db: &Connection, node: &Node) -> Result<Option<NodeId>> {
    if node.status == NodeStatus::Draft { last_sealed(db, node.node_id) } else { Ok(None) }
}

/// Whether `node` is `ancestor` or descends from it. Depth bounds the walk.
pub(crate) fn descends(db: &Connection, node: NodeId, ancestor: NodeId) -> Result<bool> {
    let floor = lineage(db, ancestor)?.depth;
    let mut seen = HashSet::from([node]);
    let mut frontier = vec![node];
    while let Some(id) = frontier.pop() {
        if id == ancestor {
            return Ok(true);
        }
        let lineage = lineage(db, id)?;
        if lineage.depth > floor {
            frontier.extend(lineage.parents.into_iter().filter(|parent| seen.insert(*parent)));
        }
    }
    Ok(false)
}

/// The common ancestors of `a` and `b` of which none is an ancestor of another: the bases of a merge.
pub(crate) fn merge_bases(db: &Connection, a: NodeId, b: NodeId) -> Result<Vec<NodeId>> {
    const BOTH: u8 = 3;
    const BELOW: u8 = 4;
    let mut marks = HashMap::from([(a, 1_u8)]);
    *marks.entry(b).or_default() |= 2;
    // Deepest first, so a node is looked at when everything that descends from it has been.
    let mut queue = BTreeSet::from([(lineage(db, a)?.depth, a), (lineage(db, b)?.depth, b)]);
    let mut bases = Vec::new();
    while queue.iter().any(|(_, id)| marks[id] & BELOW == 0) {
        let Some((_, id)) = queue.pop_last() else { break };
        if marks[&id] == BOTH {
            bases.push(id);
            marks.insert(id, BOTH | BELOW);
        }
        let mark = marks[&id];
        for parent in lineage(db, id)?.parents {
            *marks.entry(parent).or_default() |= mark;
            queue.insert((lineage(db, parent)?.depth, parent));
        }
    }
    bases.sort();
    Ok(bases)
}

/// Everything below `top`, itself included, as prune sees it.
pub(crate) fn subtree(db: &Connection, top: NodeId) -> Result<Vec<prune::Candidate>> {
    let mut seen = HashSet::from([top]);
    let mut waiting = VecDeque::from([top]);
    let mut found = Vec::new();
    while let Some(id) = waiting.pop_front() {
        found.push(candidate(db, id)?);
        let children: Vec<NodeId> = every(db, statements::CHILD_IDS, [id.bytes()], |columns| columns.id())?;
        waiting.extend(children.into_iter().filter(|child| seen.insert(*child)));
    }
    Ok(found)
}

/// A node as prune sees it.
pub(crate) fn candidate(db: &Connection, node_id: NodeId) -> Result<prune::Candidate> {
    let read = |columns: &mut Columns<'_>| {
        let parents: Vec<NodeId> = columns.optional_id()?.into_iter().collect();
        Ok((parents, columns.count()?, columns.word(NodeStatus::parse)?, columns.count()?))
    };
    let (mut parents, parent_count, status, tags) =
        first(db, statements::CANDIDATE, [node_id.bytes()], read)?
            .ok_or_else(|| Error::not_found("node", node_id))?;
    if parent_count > 1 {
        parents.extend(records::merge_parents(db, node_id)?);
    }
    let open = first(db, statements::OPEN_ATTEMPT_OF_NODE, [node_id.bytes()], |columns| {
        Ok((columns.id()?, columns.optional_id()?))
    })?;
    let kept = every(db, statements::KEPT_ATTEMPTS_OF_NODE, [node_id.bytes()], records::attempt)?;
    let searched = searched(db, node_id, 0)?;
    Ok(prune::Candidate {
        node_id,
        parents,
        status,
        open,
        tagged: tags > 0,
        searched,
        run: run_needing(db, node_id)?,
        queued: development::waiting_with(db, node_id)?,
        kept,
    })
}

/// An open run that names `node`.
pub(crate) fn run_needing(db: &Connection, node: NodeId) -> Result<Option<RunId>> {
    first(db, statements::RUNS_NEEDING_NODE, [node.bytes()], |columns| columns.id())
}

/// A search that needs `node`, other than the one with the number `but` in the database.
pub(crate) fn searched(
    db: &Connection,
    node: NodeId,
    but: i64,
) -> Result<Option<(SearchId, Option<RolloutId>)>> {
    let held = first(db, statements::ROLLOUTS_NEEDING_NODE, [node.bytes()], |columns| {
        Ok((columns.id()?, Some(columns.id()?)))
    })?;
    if held.is_some() {
        return Ok(held);
    }
    first(db, statements::SEARCHES_NEEDING_NODE, params![node.bytes(), but], |columns| {
        Ok((columns.id()?, None))
    })
}
