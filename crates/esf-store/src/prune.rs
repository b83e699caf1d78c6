//! `prune`: a subtree goes out of sight at once; its bytes go with the next collection. Invariant:
//! unsealed work is given up only when that was said. The graph commits first; a crash before the
//! uppers of given-up attempts are discarded leaves them to collection.

use std::collections::BTreeMap;

use esf_core::ops::Meta;
use esf_core::ops::prune::{Prune, PruneReply};
use esf_core::record::Node;
use esf_core::state::NodeStatus;
use esf_core::{AttemptId, NodeId};

use crate::boundary::{Boundary, reach};
use crate::{Error, Store};

impl Store {
    /// Prunes the subtree of `node`, keeping what is leased, tagged, canonical or reachable otherwise.
    ///
    /// # Errors
    /// `leased` or `canonical` for the node itself; `unsealed_changes` with the count without `discard`.
    pub fn prune(&self, meta: &Meta, node: NodeId, discard: bool) -> Result<PruneReply, Error> {
        let mut unsealed = BTreeMap::new();
        if !discard {
            for attempt in self.graph().deltas_below(node)? {
                unsealed.insert(attempt, self.unsealed(attempt)?);
            }
        }
        let reply = self.graph().prune(meta, Prune { node, discard, unsealed })?;
        reach(Boundary::PruneDiscard)?;
        for attempt in &reply.released {
            self.stack().discard_workspace(*attempt)?;
        }
        Ok(reply)
    }

    /// How many unsealed changes the upper of `attempt` has on this machine; one from an earlier boot has
    /// none that could be sealed.
    ///
    /// # Errors
    /// What stands in the way of looking.
    pub fn unsealed(&self, attempt: AttemptId) -> Result<u64, Error> {
        match self.stack().changed(attempt) {
            Ok(changes) => Ok(changes.count()),
            Err(esf_layerstack::Error::WorkspaceLost(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// A node that has a tree and is in sight.
    ///
    /// # Errors
    /// `not_found`, `pruned`, and `not_sealed` naming the last sealed ancestor.
    pub fn sealed_node(&self, id: NodeId) -> Result<Node, Error> {
        let node = self.graph().node(id)?;
        match node.status {
            NodeStatus::Sealed | NodeStatus::Terminal => Ok(node),
            NodeStatus::Draft => {
                Err(Error::NotSealed { node: id, last_sealed: self.graph().last_sealed(id)? })
            }
            NodeStatus::Pruned => Err(Error::Pruned { node: id }),
        }
    }
}
