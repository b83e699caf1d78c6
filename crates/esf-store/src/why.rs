//! `why`: what keeps a node, an attempt or a root from being pruned or collected. Invariant: an empty
//! answer means that collection may take it, and a non-empty one names each keeper.

use esf_core::record::Node;
use esf_core::state::NodeStatus;
use esf_core::{NodeId, RootId};
use esf_graph::Ref;

use crate::{Error, Store};

impl Store {
    /// Why the thing that `text` names is kept, a phrase for each reason.
    ///
    /// # Errors
    /// `not_found`, `ambiguous`, and failures of the graph.
    pub fn why(&self, text: &str) -> Result<Vec<String>, Error> {
        match self.graph().resolve(text)? {
            Ref::Node(node) => self.why_node(node),
            Ref::Root(root) => self.why_root(root),
            Ref::Attempt(attempt) => {
                let keeps = self.needs_workspace(attempt)?;
                let attempt = self.graph().attempt(attempt)?;
                let reason = format!(
                    "attempt is {}, its delta is {}",
                    attempt.status.as_str(),
                    attempt.private_delta.as_str()
                );
                Ok(keeps.then_some(reason).into_iter().collect())
            }
            Ref::Group(group) => Ok(vec![format!("group {group}: groups are kept")]),
            Ref::Evaluation(id) => Ok(vec![format!("evaluation {id}: records are kept")]),
            Ref::Lease(id) => Ok(vec![format!("lease {id}: records are kept")]),
            Ref::Exec(id) => Ok(vec![format!("exec {id}: records are kept")]),
            Ref::Search(id) => Ok(vec![format!("search {id}: records are kept")]),
            Ref::Rollout(id) => Ok(vec![format!("rollout {id}: records are kept")]),
            Ref::Run(id) => Ok(vec![format!("run {id}: records are kept")]),
            Ref::Prompt(id) => Ok(vec![format!("prompt {id}: records are kept")]),
            Ref::Sibling(id) => Ok(vec![format!("sibling {id}: records are kept")]),
            Ref::Task(id) => Ok(vec![format!("task {id}: records are kept")]),
            Ref::Entry(id) => Ok(vec![format!("queue entry {id}: records are kept")]),
        }
    }

    fn why_node(&self, id: NodeId) -> Result<Vec<String>, Error> {
        let node = self.graph().node(id)?;
        if node.status == NodeStatus::Pruned {
            return Ok(Vec::new());
        }
        let mut reasons = vec![format!("node {id} was not pruned ({})", node.status.as_str())];
        reasons.extend(self.keepers(&node)?);
        Ok(reasons)
    }

    /// What would keep a prune from taking the node.
    fn keepers(&self, node: &Node) -> Result<Vec<String>, Error> {
        let mut keepers = Vec::new();
        let group = self.graph().group(node.group_id)?;
        if group.canonical_node_id == node.node_id {
            keepers.push(format!("canonical node of group {}", group.name));
        }
        keepers.extend(node.tags.iter().map(|tag| format!("tagged {}:{tag}", group.name)));
        for attempt in self.graph().attempts_of_node(node.node_id)? {
            if self.needs_workspace(attempt.attempt_id)? {
                keepers.push(format!("attempt {} is {}", attempt.attempt_id, attempt.status.as_str()));
            }
        }
        if let Some(run) = self.graph().run_needing(node.node_id)? {
            keepers.push(format!("needed by open run {run}"));
        }
        for child in self.graph().children(node.node_id)? {
            if child.status != NodeStatus::Pruned {
                keepers.push(format!("parent of node {}", child.node_id));
            }
        }
        Ok(keepers)
    }

    fn why_root(&self, root: RootId) -> Result<Vec<String>, Error> {
        let mut reasons = Vec::new();
        for node in self.graph().nodes_of_root(root)? {
            if node.status != NodeStatus::Pruned {
                reasons.push(format!("root of node {} ({})", node.node_id, node.status.as_str()));
            }
        }
        if reasons.is_empty() && self.graph().live_roots()?.iter().any(|pin| pin.root == root) {
            reasons.push("imported and not used yet, the base of a draft, or an image in use".to_owned());
        }
        Ok(reasons)
    }
}
