//! `prune`: an unleased subtree goes out of sight, at once and logically; collecting its bytes is a
//! later matter. Invariant: what is leased, tagged, canonical, queued, needed by a search or a run, or reachable from outside
//! the subtree stays, together with its ancestors inside it, so a node that can be selected never loses one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{AttemptId, EntryId, GroupId, LeaseId, NodeId, RolloutId, RunId, SearchId};
use crate::ops::{Change, Decision, Reject, Request, Transition, development, rollout, search};
use crate::record::{Attempt, EventKind, text_forms};
use crate::state::{AttemptStatus, AttemptStep, NodeStatus};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prune {
    /// The top of the subtree.
    pub node: NodeId,
    /// Whether unsealed changes of failed attempts in it may be given up.
    pub discard: bool,
    /// How many unsealed changes each failed attempt in it has; the deltas live with a worker. An
    /// attempt that keeps a delta and is not named here is taken to have some.
    pub unsealed: BTreeMap<AttemptId, u64>,
}

/// A node of the subtree, as the decision sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The node.
    pub node_id: NodeId,
    /// Its parents.
    pub parents: Vec<NodeId>,
    /// Its status.
    pub status: NodeStatus,
    /// A queued or live attempt on it, with its lease.
    pub open: Option<(AttemptId, Option<LeaseId>)>,
    /// Whether it has a name.
    pub tagged: bool,
    /// A search that needs it: one with a rollout that is held and begins there, or an open one that has it and
    /// did not give it up.
    pub searched: Option<(SearchId, Option<RolloutId>)>,
    /// An open run that names it.
    pub run: Option<RunId>,
    /// An entry of the queue that waits with it.
    pub queued: Option<EntryId>,
    /// Its failed attempts that keep a delta.
    pub kept: Vec<Attempt>,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The group.
    pub group_id: GroupId,
    /// Its canonical node.
    pub canonical: NodeId,
    /// The top of the subtree and everything below it.
    pub subtree: Vec<Candidate>,
}

/// Why a node was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A queued or live attempt holds it.
    Leased,
    /// It is the canonical node.
    Canonical,
    /// A rollout that is held begins at it.
    Rollout,
    /// An open search has it, and did not give it up.
    Searched,
    /// An open run names it.
    Run,
    /// It waits in the queue.
    Queued,
    /// It has a name.
    Tagged,
    /// It is reachable from outside the subtree, through a merge.
    Reachable,
    /// A kept node descends from it.
    Ancestor,
}

text_forms!(Reason {
    Leased = "leased",
    Canonical = "canonical",
    Rollout = "rollout",
    Searched = "searched",
    Run = "run",
    Queued = "queued",
    Tagged = "tagged",
    Reachable = "reachable",
    Ancestor = "ancestor",
});

/// A node that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The node.
    pub id: NodeId,
    /// Why.
    pub reason: Reason,
}

/// The reply.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PruneReply {
    /// The nodes that went out of sight.
    pub pruned: Vec<NodeId>,
    /// The nodes that were kept.
    pub kept: Vec<Kept>,
    /// The failed attempts whose deltas were given up.
    pub released: Vec<AttemptId>,
}

/// Decides.
///
/// # Errors
/// `Leased`, `Canonical`, `Queued`, `Searched` or `InRun` when that is so of the top itself; `UnsealedChanges` with
/// the count.
pub fn decide(
    snapshot: &Snapshot,
    command: &Prune,
    request: &Request<'_>,
) -> Result<Decision<PruneReply>, Reject> {
    check_top(snapshot, command.node)?;
    let kept = kept(snapshot, command.node);
    let gone: Vec<&Candidate> = snapshot
        .subtree
        .iter()
        .filter(|node| node.status != NodeStatus::Pruned && !kept.contains_key(&node.node_id))
        .collect();
    check_unsealed(&gone, command)?;
    let now = request.meta.now;
    let mut decision = Decision::new(PruneReply {
        pruned: gone.iter().map(|node| node.node_id).collect(),
        kept: kept.into_iter().map(|(id, reason)| Kept { id, reason }).collect(),
        released: Vec::new(),
    });
    for node in gone {
        decision.changes.push(Change::PruneNode { node_id: node.node_id, was: node.status, at: now });
        decision.transitions.push(Transition {
            group_id: Some(snapshot.group_id),
            node_id: Some(node.node_id),
            ..Transition::new(EventKind::NodePruned)
        });
        for attempt in &node.kept {
            let mut released = attempt.clone();
            released.take(AttemptStep::Release, now)?;
            decision.reply.released.push(attempt.attempt_id);
            decision.transitions.push(Transition::of_attempt(EventKind::AttemptReleased, &released));
            decision
                .changes
                .push(Change::UpdateAttempt { attempt: Box::new(released), was: AttemptStatus::Failed });
        }
    }
    Ok(decision)
}

fn check_top(snapshot: &Snapshot, top: NodeId) -> Result<(), Reject> {
    let candidate = snapshot.subtree.iter().find(|node| node.node_id == top);
    if let Some((attempt, lease)) = candidate.and_then(|node| node.open) {
        return Err(Reject::Leased { node: top, attempt, lease });
    }
    if snapshot.canonical == top {
        return Err(Reject::Canonical { node: top });
    }
    if let Some(entry) = candidate.and_then(|node| node.queued) {
        return Err(development::reject::Reject::Queued { node: top, entry }.into());
    }
    if let Some((search, rollout)) = candidate.and_then(|node| node.searched) {
        return Err(search::reject::Reject::Searched { node: top, search, rollout }.into());
    }
    if let Some(run) = candidate.and_then(|node| node.run) {
        return Err(rollout::reject::Reject::InRun { node: top, run }.into());
    }
    Ok(())
}

fn check_unsealed(gone: &[&Candidate], command: &Prune) -> Result<(), Reject> {
    if command.discard {
        return Ok(());
    }
    let count = |attempt: &Attempt| command.unsealed.get(&attempt.attempt_id).copied().unwrap_or(1);
    let unsealed: Vec<(AttemptId, u64)> = gone
        .iter()
        .flat_map(|node| &node.kept)
        .map(|attempt| (attempt.attempt_id, count(attempt)))
        .filter(|(_, count)| *count > 0)
        .collect();
    if unsealed.is_empty() {
        return Ok(());
    }
    Err(Reject::UnsealedChanges {
        count: unsealed.iter().map(|(_, count)| count).sum(),
        attempts: unsealed.iter().map(|(attempt, _)| *attempt).collect(),
    })
}

/// The nodes that stay: those with a reason of their own, what is below a way in from outside, and the
/// ancestors inside the subtree of all of these.
fn kept(snapshot: &Snapshot, top: NodeId) -> BTreeMap<NodeId, Reason> {
    let inside: BTreeMap<NodeId, &Candidate> =
        snapshot.subtree.iter().filter(|n| n.status != NodeStatus::Pruned).map(|n| (n.node_id, n)).collect();
    let mut kept: BTreeMap<NodeId, Reason> = inside
        .values()
        .filter_map(|node| own_reason(node, snapshot.canonical).map(|reason| (node.node_id, reason)))
        .collect();
    for node in reachable_from_outside(snapshot, &inside, top) {
        kept.entry(node).or_insert(Reason::Reachable);
    }
    let mut upwards: Vec<NodeId> = kept.keys().copied().collect();
    while let Some(id) = upwards.pop() {
        // The top's own parents are outside the subtree, so the walk ends there.
        for parent in inside.get(&id).into_iter().filter(|_| id != top).flat_map(|node| &node.parents) {
            if inside.contains_key(parent) && !kept.contains_key(parent) {
                kept.insert(*parent, Reason::Ancestor);
                upwards.push(*parent);
            }
        }
    }
    kept
}

fn own_reason(node: &Candidate, canonical: NodeId) -> Option<Reason> {
    if node.open.is_some() {
        Some(Reason::Leased)
    } else if node.node_id == canonical {
        Some(Reason::Canonical)
    } else if let Some((_, rollout)) = node.searched {
        Some(rollout.map_or(Reason::Searched, |_| Reason::Rollout))
    } else if node.run.is_some() {
        Some(Reason::Run)
    } else if node.queued.is_some() {
        Some(Reason::Queued)
    } else if node.tagged {
        Some(Reason::Tagged)
    } else {
        None
    }
}

fn reachable_from_outside(
    snapshot: &Snapshot,
    inside: &BTreeMap<NodeId, &Candidate>,
    top: NodeId,
) -> BTreeSet<NodeId> {
    let all: BTreeSet<NodeId> = snapshot.subtree.iter().map(|node| node.node_id).collect();
    let mut children: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for node in inside.values() {
        for parent in &node.parents {
            children.entry(*parent).or_default().push(node.node_id);
        }
    }
    let enters = |node: &&&Candidate| node.node_id != top && node.parents.iter().any(|p| !all.contains(p));
    let mut frontier: Vec<NodeId> = inside.values().filter(enters).map(|node| node.node_id).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = frontier.pop() {
        if found.insert(id) {
            frontier.extend(children.get(&id).into_iter().flatten());
        }
    }
    found
}
