//! `promote`, with what the store adds to the graph's decision: lines that a merge put together are not
//! promoted before an evaluation has seen them, and a loser is told whether a clean merge exists.
//! Invariant: the canonical node moves in the graph's transaction or not at all. What is looked at before
//! it only ever grows (a node's evaluations) or never changes (its parents), so nothing can race it.

use std::collections::BTreeSet;

use esf_core::NodeId;
use esf_core::ops::{Meta, promote::Promote};
use esf_core::record::{Group, Node};
use serde_json::{Value, json};

use super::{Merge, MergeOutcome};
use crate::{Error, Store};

impl Store {
    /// Promotes a node; whoever comes too late is also told whether a clean merge exists.
    ///
    /// # Errors
    /// What the graph says: `stale_generation`, `not_descendant`, `not_sealed`; and `evaluation_wanted` for a
    /// node that has merged lines in it which no evaluation has seen.
    pub fn promote(&self, meta: &Meta, command: Promote) -> Result<Group, Error> {
        let node = command.node;
        self.check_evaluated(&command)?;
        let error = match self.graph().promote(meta, command) {
            Ok(group) => return Ok(group),
            Err(error) => error,
        };
        let mut problem = error.problem();
        if !matches!(problem.code.as_str(), "stale_generation" | "not_descendant") {
            return Err(error.into());
        }
        let node = self.graph().node(node)?;
        let group = self.graph().group(node.group_id)?;
        let merge = Merge {
            nodes: vec![group.canonical_node_id, node.node_id],
            expect: group.generation,
            dry_run: true,
            ..Merge::default()
        };
        let clean = match self.merge(meta, &merge) {
            Ok(MergeOutcome::Merged { .. }) => json!(true),
            Ok(MergeOutcome::Conflicted { .. }) => json!(false),
            // The group moved again, or there is no one base: nothing can be said.
            Ok(MergeOutcome::Stale { .. }) | Err(_) => Value::Null,
        };
        if !problem.context.is_object() {
            problem.context = json!({});
        }
        problem.context["clean_merge"] = clean;
        Err(Error::Told(Box::new(problem)))
    }

    /// Refuses what has lines merged since the canonical node that no evaluation has seen: of the merge's own
    /// node, or of one made from it since.
    fn check_evaluated(&self, command: &Promote) -> Result<(), Error> {
        let node = self.graph().node(command.node)?;
        let group = self.graph().group(node.group_id)?;
        if group.generation != command.expect || node.root().is_none() {
            return Ok(());
        }
        let canonical = self.graph().node(group.canonical_node_id)?;
        let (mut open, mut seen) = (vec![node], BTreeSet::new());
        while let Some(node) = open.pop() {
            let accepted = node.node_id == canonical.node_id || self.is_evaluated(node.node_id)?;
            if accepted || !seen.insert(node.node_id) {
                continue;
            }
            if merged_lines(&node) {
                return Err(Error::EvaluationWanted { node: command.node, merged: node.node_id });
            }
            // What is not deeper than the canonical node cannot come after it.
            if node.depth > canonical.depth || command.replace {
                let parents = node.parents.iter().filter(|parent| !seen.contains(*parent));
                open.extend(parents.map(|parent| self.graph().node(*parent)).collect::<Result<Vec<_>, _>>()?);
            }
        }
        Ok(())
    }

    fn is_evaluated(&self, node: NodeId) -> Result<bool, Error> {
        let evaluations = self.graph().evaluations(node)?;
        Ok(evaluations.iter().any(|evaluation| evaluation.counts && evaluation.failure.is_none()))
    }
}

/// Whether the merge that made a node merged lines.
fn merged_lines(node: &Node) -> bool {
    node.merge.as_ref().is_some_and(|terms| terms.options["line_merged"].as_u64().unwrap_or(0) > 0)
}
