//! Who collides with whom: each pair of several nodes merged as a dry run. Invariant: nothing is written, and no
//! more than `MATRIX_NODES` nodes, that is half of its square of merges, are looked at in one call.

use std::collections::BTreeSet;

use esf_core::record::Node;
use esf_core::state::NodeStatus;
use esf_core::{GroupId, NodeId, Problem};
use serde::Serialize;
use serde_json::Value;

use super::{Merge, MergeOutcome, TextMerge};
use crate::{Error, Store};

/// Most nodes of a matrix.
pub const MATRIX_NODES: usize = 64;

/// What a merge of two nodes would come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatrixOutcome {
    /// It would be clean.
    Merged,
    /// Some paths would conflict.
    Conflicted,
    /// It would be refused.
    Refused,
}

/// One pair of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatrixCell {
    /// The first node.
    pub ours: NodeId,
    /// The second node.
    pub theirs: NodeId,
    /// What their merge would come to.
    pub outcome: MatrixOutcome,
    /// The conflicts, as a merge would tell them.
    pub conflicts: Vec<Value>,
    /// Why it would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Problem>,
}

impl Store {
    /// Predicts the merge of each pair of nodes, the earlier one as *ours*.
    ///
    /// # Errors
    /// `bad_request` for fewer than two nodes, more than `MATRIX_NODES`, or one named twice; `other_group`,
    /// `not_sealed`, `pruned`. A pair that cannot be merged says so in its cell.
    pub fn merge_matrix(
        &self,
        nodes: &[NodeId],
        base: Option<NodeId>,
        text: Option<&TextMerge>,
    ) -> Result<Vec<MatrixCell>, Error> {
        if nodes.len() > MATRIX_NODES {
            return Err(Error::BadRequest {
                what: format!("a matrix of {} nodes", nodes.len()),
                expected: format!("at most {MATRIX_NODES}: they make {} merges", pairs(MATRIX_NODES)),
            });
        }
        self.merge_nodes(nodes)?;
        let mut cells = Vec::with_capacity(pairs(nodes.len()));
        for (index, ours) in nodes.iter().enumerate() {
            for theirs in &nodes[index + 1..] {
                cells.push(self.cell([*ours, *theirs], base, text)?);
            }
        }
        Ok(cells)
    }

    fn cell(
        &self,
        [ours, theirs]: [NodeId; 2],
        base: Option<NodeId>,
        text: Option<&TextMerge>,
    ) -> Result<MatrixCell, Error> {
        let request =
            Merge { nodes: vec![ours, theirs], base, text: text.cloned(), dry_run: true, expect: 0 };
        let (outcome, conflicts, refusal) = match self.predict(&request) {
            Ok(MergeOutcome::Merged { .. }) => (MatrixOutcome::Merged, Vec::new(), None),
            Ok(MergeOutcome::Conflicted { conflicts, .. }) => (MatrixOutcome::Conflicted, conflicts, None),
            Ok(MergeOutcome::Stale { .. }) => unreachable!("a prediction is of no generation"),
            Err(error @ (Error::AmbiguousBase { .. } | Error::NotAncestor { .. })) => {
                (MatrixOutcome::Refused, Vec::new(), Some(error.problem()))
            }
            Err(error) => return Err(error),
        };
        Ok(MatrixCell { ours, theirs, outcome, conflicts, refusal })
    }

    /// The sealed nodes of a group from which no other sealed node was made, in the order in which they were
    /// made: what its agents have brought and nobody has gone on from.
    ///
    /// # Errors
    /// Failures of the graph.
    pub fn frontier(&self, group: GroupId) -> Result<Vec<NodeId>, Error> {
        let nodes = self.graph().nodes(group)?;
        let sealed = |node: &&Node| matches!(node.status, NodeStatus::Sealed | NodeStatus::Terminal);
        let parents: BTreeSet<NodeId> =
            nodes.iter().filter(sealed).flat_map(|node| node.parents.iter().copied()).collect();
        let leaves = nodes.iter().filter(sealed).filter(|node| !parents.contains(&node.node_id));
        Ok(leaves.map(|node| node.node_id).collect())
    }
}

const fn pairs(nodes: usize) -> usize {
    nodes * nodes.saturating_sub(1) / 2
}
