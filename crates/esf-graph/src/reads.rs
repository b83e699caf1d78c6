//! What can be asked of the graph. Each call sees one committed state.

use std::collections::BTreeSet;

use esf_core::environment::{Base, Environment};
use esf_core::id::{AttemptId, EvaluationId, ExecId, GroupId, LeaseId, NodeId};
use esf_core::manifest::RootPin;
use esf_core::record::{Attempt, Evaluation, Event, Evidence, Exec, Group, Lease, Node};
use esf_core::{BlobId, EnvironmentDigest, RootId, Timestamp};
use rusqlite::{Connection, Params, params};

use crate::error::{Error, Result};
use crate::row::{Bytes, Columns, every, first};
use crate::{Graph, load, records, rollout, statements};

/// A registered root.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KnownRoot {
    /// The root and its attributes.
    #[serde(flatten)]
    pub root: RootPin,
    /// When it was registered.
    pub registered_at: Timestamp,
    /// Who registered it.
    pub registered_by: String,
}

impl Graph {
    /// Runs `read` on one committed state.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.inner.readers.run(read)
    }

    /// The group `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn group(&self, id: GroupId) -> Result<Group> {
        self.read(|db| load::group(db, id))
    }

    /// The group named `name`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn group_by_name(&self, name: &str) -> Result<Group> {
        self.read(|db| first(db, statements::GROUP_BY_NAME, [name], records::group))?
            .ok_or_else(|| Error::not_found("group", name))
    }

    /// The TOML text of a group's policy, byte for byte.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn policy_text(&self, id: GroupId) -> Result<String> {
        self.read(|db| first(db, statements::POLICY_OF_GROUP, [id.bytes()], |columns| columns.take()))?
            .ok_or_else(|| Error::not_found("group", id))
    }

    /// The environment that has a digest.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn environment(&self, digest: EnvironmentDigest) -> Result<Environment> {
        self.read(|db| {
            first(db, statements::ENVIRONMENT_BY_DIGEST, [digest.bytes()], |columns| columns.json())
        })?
        .ok_or_else(|| Error::not_found("environment", digest))
    }

    /// The node `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn node(&self, id: NodeId) -> Result<Node> {
        self.read(|db| load::node(db, id))
    }

    /// The attempt `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn attempt(&self, id: AttemptId) -> Result<Attempt> {
        self.read(|db| load::attempt(db, id))
    }

    /// The lease `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn lease(&self, id: LeaseId) -> Result<Lease> {
        self.read(|db| load::lease(db, id))
    }

    /// The exec `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn exec(&self, id: ExecId) -> Result<Exec> {
        self.read(|db| first(db, statements::EXEC_BY_ID, [id.bytes()], records::exec))?
            .ok_or_else(|| Error::not_found("exec", id))
    }

    /// The evaluation `id`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn evaluation(&self, id: EvaluationId) -> Result<Evaluation> {
        self.read(|db| first(db, statements::EVALUATION_BY_ID, [id.bytes()], records::evaluation))?
            .ok_or_else(|| Error::not_found("evaluation", id))
    }

    /// Every group, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn groups(&self) -> Result<Vec<Group>> {
        self.read(|db| every(db, statements::ALL_GROUPS, [], records::group))
    }

    /// Every node of a group, pruned ones too, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn nodes(&self, group: GroupId) -> Result<Vec<Node>> {
        self.nodes_by(statements::NODES_OF_GROUP, [group.bytes()])
    }

    /// The children of a node, merges included, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn children(&self, node: NodeId) -> Result<Vec<Node>> {
        self.nodes_by(statements::CHILDREN_OF_NODE, [node.bytes()])
    }

    /// The nodes that pin the tree `root`, whatever their attributes.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn nodes_of_root(&self, root: RootId) -> Result<Vec<Node>> {
        self.nodes_by(statements::NODES_OF_ROOT, [root.bytes()])
    }

    pub(crate) fn nodes_by(&self, sql: &str, params: impl Params) -> Result<Vec<Node>> {
        self.read(|db| {
            every(db, sql, params, records::node)?.into_iter().map(|node| node.complete(db)).collect()
        })
    }

    /// A node and its ancestors along first parents, the node first.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn ancestry(&self, node: NodeId) -> Result<Vec<Node>> {
        self.read(|db| {
            let mut line = vec![load::node(db, node)?];
            while let Some(parent) = line.last().and_then(|node| node.parents.first().copied()) {
                line.push(load::node(db, parent)?);
            }
            Ok(line)
        })
    }

    /// The nearest sealed node at or above `node`, along first parents.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn last_sealed(&self, node: NodeId) -> Result<Option<NodeId>> {
        self.read(|db| load::last_sealed(db, node))
    }

    /// The bases of a merge of `a` and `b`: their common ancestors of which none is above another.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn merge_bases(&self, a: NodeId, b: NodeId) -> Result<Vec<NodeId>> {
        self.read(|db| load::merge_bases(db, a, b))
    }

    /// Whether `node` is `ancestor` or descends from it.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn descends(&self, node: NodeId, ancestor: NodeId) -> Result<bool> {
        self.read(|db| load::descends(db, node, ancestor))
    }

    /// The attempts of a group, or all of them, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn attempts(&self, group: Option<GroupId>) -> Result<Vec<Attempt>> {
        self.read(|db| match group {
            Some(group) => every(db, statements::ATTEMPTS_OF_GROUP, [group.bytes()], records::attempt),
            None => every(db, statements::ALL_ATTEMPTS, [], records::attempt),
        })
    }

    /// The attempts of a node, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn attempts_of_node(&self, node: NodeId) -> Result<Vec<Attempt>> {
        self.read(|db| every(db, statements::ATTEMPTS_OF_NODE, [node.bytes()], records::attempt))
    }

    /// The attempts that wait: by priority, and within one first in, first out.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn queued(&self) -> Result<Vec<Attempt>> {
        self.read(|db| every(db, statements::QUEUED_ATTEMPTS, [], records::attempt))
    }

    /// The attempts that are active or quiescing.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn live(&self) -> Result<Vec<Attempt>> {
        self.read(|db| every(db, statements::LIVE_ATTEMPTS, [], records::attempt))
    }

    /// How many attempts are active or quiescing.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn live_count(&self) -> Result<u64> {
        Ok(self.read(|db| first(db, statements::LIVE_COUNT, [], |columns| columns.count()))?.unwrap_or(0))
    }

    /// The attempts whose unsealed delta is kept: a worker must not remove these.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn attempts_with_delta(&self) -> Result<Vec<Attempt>> {
        self.read(|db| every(db, statements::ATTEMPTS_WITH_DELTA, [], records::attempt))
    }

    /// The execs of an attempt, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn execs(&self, attempt: AttemptId) -> Result<Vec<Exec>> {
        self.read(|db| every(db, statements::EXECS_OF_ATTEMPT, [attempt.bytes()], records::exec))
    }

    /// The leases of an attempt, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn leases_of_attempt(&self, attempt: AttemptId) -> Result<Vec<Lease>> {
        self.read(|db| every(db, statements::LEASES_OF_ATTEMPT, [attempt.bytes()], records::lease))
    }

    /// The leases of a node's attempts, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn leases_of_node(&self, node: NodeId) -> Result<Vec<Lease>> {
        self.read(|db| every(db, statements::LEASES_OF_NODE, [node.bytes()], records::lease))
    }

    /// The leases that are held, expired or not.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn held_leases(&self) -> Result<Vec<Lease>> {
        self.read(|db| every(db, statements::HELD_LEASES, [], records::lease))
    }

    /// The evaluations of a node, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn evaluations(&self, node: NodeId) -> Result<Vec<Evaluation>> {
        self.read(|db| every(db, statements::EVALUATIONS_OF_NODE, [node.bytes()], records::evaluation))
    }

    /// At most `limit` events, from `from` on.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn events(&self, from: u64, limit: u64) -> Result<Vec<Event>> {
        let limits = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.read(|db| {
            every(db, statements::EVENTS_FROM, params![limits(from), limits(limit)], records::event)
        })
    }

    /// The sequence number of the last event; 0 when there is none.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn last_event(&self) -> Result<u64> {
        Ok(self.read(|db| first(db, statements::LAST_EVENT, [], |columns| columns.count()))?.unwrap_or(0))
    }

    /// Every root that was registered, oldest first.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn roots(&self) -> Result<Vec<KnownRoot>> {
        self.read(|db| {
            every(db, statements::ALL_ROOTS, [], |columns| {
                let root = RootPin { root: columns.id()?, attrs: columns.id()? };
                Ok(KnownRoot { root, registered_at: records::time(columns)?, registered_by: columns.take()? })
            })
        })
    }

    /// The registered roots with the tree `root`, oldest first: one for each set of attributes.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn root_pins(&self, root: RootId) -> Result<Vec<RootPin>> {
        self.read(|db| {
            every(db, statements::PINS_OF_ROOT, [root.bytes()], |columns| {
                Ok(RootPin { root: columns.id()?, attrs: columns.id()? })
            })
        })
    }

    /// The roots that a collection must keep: those of every node that is not pruned and the roots they
    /// begin on, images of environments in use, and registered roots that no node has used yet.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn live_roots(&self) -> Result<Vec<RootPin>> {
        self.read(|db| {
            let pin = |columns: &mut Columns<'_>| Ok(RootPin { root: columns.id()?, attrs: columns.id()? });
            let mut roots: BTreeSet<RootPin> =
                every(db, statements::LIVE_ROOTS, [], pin)?.into_iter().collect();
            let environments: Vec<Environment> =
                every(db, statements::LIVE_ENVIRONMENTS, [], |columns| columns.json())?;
            roots.extend(environments.iter().filter_map(|environment| match environment.base {
                Base::Image(root) => Some(root),
                Base::Host | Base::Root => None,
            }));
            Ok(roots.into_iter().collect())
        })
    }

    /// The artifacts that a collection must keep: the evidence of every evaluation of a node that is not
    /// pruned, and the modules of environments of groups, of live attempts, and of all attempts of such a
    /// node.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn live_blobs(&self) -> Result<Vec<BlobId>> {
        let evidence: Vec<Vec<Evidence>> =
            self.read(|db| every(db, statements::EVIDENCE_OF_KEPT_NODES, [], |columns| columns.json()))?;
        let environments: Vec<Environment> =
            self.read(|db| every(db, statements::NAMING_ENVIRONMENTS, [], |columns| columns.json()))?;
        let wasi = environments.into_iter().filter_map(|environment| environment.wasi);
        let modules = wasi.flat_map(|wasi| wasi.modules).map(|module| BlobId::new(module.digest));
        let evidence = evidence.into_iter().flatten().map(|evidence| evidence.blob);
        let mut blobs: BTreeSet<BlobId> = evidence.chain(modules).collect();
        self.read(|db| rollout::artifacts(db, &mut blobs))?;
        Ok(blobs.into_iter().collect())
    }
}
