//! Giving up losing subtrees. Invariants: what live rollouts need, the principal path, the best positions and
//! what leads to all of these stay; statistics and provenance stay for all; a node is only named for the graph's
//! own prune when nothing else needs it, and never before what was made from it.

use std::collections::{HashMap, HashSet};

use esf_core::id::NodeId;
use esf_core::ops::search::{Keep, KeptNode, PruneSearch, PrunedSearch};
use esf_core::ops::{Decision, Meta, Transition};
use esf_core::record::EventKind;
use esf_core::search::{BestKind, EdgeStatus, Expansion, PositionNumber, rules};
use esf_core::state::NodeStatus;
use rusqlite::{Connection, params};
use serde_json::json;

use super::reads::{principal, top, walk};
use super::rows::{self, PositionRow, SearchRow};
use super::session::{self, Session};
use crate::error::Result;
use crate::row::{Bytes, change, count, every};
use crate::{Graph, load, statements};

impl Graph {
    /// Gives up what a search need not keep: nothing leads there any more, and its nodes may go. Says which
    /// nodes; pruning them from the graph is the caller's next step.
    ///
    /// # Errors
    /// `NotFound`; `IdempotencyConflict`.
    pub fn prune_search(&self, meta: &Meta, command: PruneSearch) -> Result<PrunedSearch> {
        if command.dry_run {
            return self.read(|db| Ok(plan(db, &session::search(db, command.search)?, command.keep)?.reply));
        }
        let answer = self.mutate(meta, "prune_search", &command, move |db, request| {
            let mut session = Session::begin(db, request.meta, command.search)?;
            let plan = plan(db, &session.row, command.keep)?;
            for edge in plan.edges {
                change(db, statements::PRUNE_EDGE, params!["its subtree was pruned", edge], "edge")?;
            }
            for position in plan.positions {
                change(db, statements::PRUNE_POSITION, [position], "position")?;
            }
            let reply = plan.reply;
            let detail =
                json!({ "edges": reply.edges, "positions": reply.positions, "nodes": reply.nodes.len() });
            session.log(Transition::new(EventKind::SearchPruned).detail(detail));
            let (_, transitions) = session.finish()?;
            Ok(Decision { reply, changes: Vec::new(), transitions })
        })?;
        Ok(answer.reply)
    }
}

/// What a prune would do.
struct Plan {
    edges: Vec<i64>,
    positions: Vec<i64>,
    reply: PrunedSearch,
}

fn plan(db: &Connection, search: &SearchRow, keep: Keep) -> Result<Plan> {
    let kept = kept(db, search, keep)?;
    let (mut edges, mut positions) = (Vec::new(), Vec::new());
    let (mut dropped, mut needed) = (HashSet::new(), HashSet::new());
    walk(db, search.number, |row| {
        if !kept.contains(&row.stats.number) {
            if !row.pruned {
                positions.push(count(row.stats.number.0)?);
            }
            // Nodes of what was given up before as well: who was to prune them may have died.
            dropped.extend(row.node_id);
            return Ok(());
        }
        needed.extend(row.node_id);
        for edge in session::edges(db, row.stats.number)? {
            if edge.status != EdgeStatus::Pruned && edge.child.is_some_and(|child| !kept.contains(&child)) {
                edges.push(count(edge.number.0)?);
            }
        }
        Ok(())
    })?;
    // What a rollout made where the state had a position already, or before it came to nothing: none stands on it.
    let made: Vec<NodeId> =
        every(db, statements::NODES_OF_ROLLOUTS, [search.number], |columns| columns.id())?;
    dropped.extend(made);
    dropped.retain(|node| !needed.contains(node));
    let (nodes, kept) = nodes(db, search, &dropped)?;
    let (edge_count, position_count) = (edges.len() as u64, positions.len() as u64);
    let reply = PrunedSearch { edges: edge_count, positions: position_count, nodes, kept };
    Ok(Plan { edges, positions, reply })
}

/// The positions that stay.
fn kept(db: &Connection, search: &SearchRow, keep: Keep) -> Result<HashSet<PositionNumber>> {
    let mut seeds = vec![search.search.root];
    seeds.extend(principal(db, search, BestKind::Robust)?.iter().map(|line| line.position.stats.number));
    seeds.extend(top(db, search, keep.best as usize)?);
    for row in every(db, statements::HELD_ROLLOUTS, [search.number], rows::rollout)? {
        seeds.push(row.rollout.leaf);
        seeds.extend(row.rollout.path.iter().map(|step| step.position));
    }
    // By number, a position comes after the one from which it was first reached, so it is known from where.
    let mut entries: HashMap<PositionNumber, PositionNumber> = HashMap::new();
    walk(db, search.number, |row| {
        if let Some(entry) = row.entry {
            entries.insert(row.stats.number, rows::parent(entry));
        }
        if keep.frontier && !row.pruned && frontier(db, search, &row)? {
            seeds.push(row.stats.number);
        }
        Ok(())
    })?;
    let mut kept = HashSet::new();
    for seed in seeds {
        let mut next = Some(seed);
        while let Some(position) = next {
            next = kept.insert(position).then(|| entries.get(&position).copied()).flatten();
        }
    }
    Ok(kept)
}

/// Whether something is still to be tried at a position.
fn frontier(db: &Connection, search: &SearchRow, row: &PositionRow) -> Result<bool> {
    let config = &search.search.config;
    let stats = &row.stats;
    if rules::is_final(config, stats) || config.max_depth.is_some_and(|depth| stats.depth >= depth) {
        return Ok(false);
    }
    if stats.expansion != Expansion::Exhausted {
        return Ok(true);
    }
    let edges = session::edges(db, stats.number)?;
    Ok(edges.iter().any(|edge| edge.status == EdgeStatus::Open && edge.child.is_none()))
}

/// Which of the nodes may go, deepest first, and which may not.
fn nodes(
    db: &Connection,
    search: &SearchRow,
    dropped: &HashSet<NodeId>,
) -> Result<(Vec<NodeId>, Vec<KeptNode>)> {
    let canonical = load::group(db, search.search.group_id)?.canonical_node_id;
    let mut by_depth = Vec::with_capacity(dropped.len());
    for node in dropped {
        let node = load::node(db, *node)?;
        if node.status != NodeStatus::Pruned {
            by_depth.push((node.depth, node.node_id));
        }
    }
    by_depth.sort_by(|a, b| b.cmp(a));
    let (mut going, mut kept): (Vec<NodeId>, Vec<KeptNode>) = (Vec::new(), Vec::new());
    let mut gone = HashSet::new();
    for (_, node_id) in by_depth {
        let reason = reason(db, search, node_id, canonical, &gone)?;
        match reason {
            Some(reason) => kept.push(KeptNode { node_id, reason }),
            None => {
                gone.insert(node_id);
                going.push(node_id);
            }
        }
    }
    Ok((going, kept))
}

fn reason(
    db: &Connection,
    search: &SearchRow,
    node: NodeId,
    canonical: NodeId,
    gone: &HashSet<NodeId>,
) -> Result<Option<String>> {
    let candidate = load::candidate(db, node)?;
    if node == canonical {
        return Ok(Some("it is the canonical node of its group".to_owned()));
    }
    if candidate.tagged {
        return Ok(Some("it has a name".to_owned()));
    }
    if let Some((attempt, _)) = candidate.open {
        return Ok(Some(format!("{attempt} holds it")));
    }
    if let Some(run) = candidate.run {
        return Ok(Some(format!("run {run} names it")));
    }
    if let Some((other, _)) = load::searched(db, node, search.number)? {
        return Ok(Some(format!("{other} needs it")));
    }
    let children: Vec<NodeId> = every(db, statements::CHILD_IDS, [node.bytes()], |columns| columns.id())?;
    for child in children.into_iter().filter(|child| !gone.contains(child)) {
        // A draft goes with its parent, unless it is worked on; what was sealed by somebody else does not.
        let candidate = load::candidate(db, child)?;
        let work = matches!(candidate.status, NodeStatus::Sealed | NodeStatus::Terminal);
        if work || candidate.open.is_some() {
            return Ok(Some(format!("{child} was made from it")));
        }
    }
    Ok(None)
}
