//! Mutations of groups and nodes: roots, groups, forks, merges, promotions, prunes, names, evaluations.

use std::sync::mpsc::sync_channel;

use esf_core::NodeId;
use esf_core::manifest::RootPin;
use esf_core::ops::commit_merge::{CommitMerge, MergeReply};
use esf_core::ops::create_group::{CreateGroup, Created};
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::ops::fork::{Fork, Forked};
use esf_core::ops::promote::Promote;
use esf_core::ops::prune::{Prune, PruneReply};
use esf_core::ops::tag::{Tag, Untag, Untagged};
use esf_core::ops::{
    Decision, Meta, Reject, Transition, commit_merge, create_group, evaluate, fork, promote, prune, tag,
};
use esf_core::record::{Evaluation, EventKind, Group, Node};
use esf_layerstack::SealedRoot;
use rusqlite::{Connection, params};
use serde::Serialize;

use crate::error::Result;
use crate::mutate::decided;
use crate::row::{Bytes, first};
use crate::{Graph, apply, load, records, statements};

impl Graph {
    /// Makes a sealed root known, so that groups may begin with it.
    ///
    /// # Errors
    /// `IdempotencyConflict`, and failures of the database.
    pub fn register_root(&self, meta: &Meta, root: &SealedRoot) -> Result<RootPin> {
        self.register_pin(meta, *root.pin())
    }

    /// The same, where what the caller asked for decides whether a request is repeated, and not which
    /// root came of it: a directory may have changed since.
    ///
    /// # Errors
    /// As for `register_root`.
    pub fn register_root_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        root: &SealedRoot,
    ) -> Result<RootPin> {
        self.register_pin_asked(meta, asked, *root.pin())
    }

    /// The root that was registered under this actor and key, if any.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn recorded_root(&self, meta: &Meta) -> Result<Option<RootPin>> {
        self.recorded(meta, "register_root")
    }

    /// `register_root` without the proof; within this crate only, where tests need it.
    pub(crate) fn register_pin(&self, meta: &Meta, root: RootPin) -> Result<RootPin> {
        self.register_pin_asked(meta, &root, root)
    }

    fn register_pin_asked<B: Serialize>(&self, meta: &Meta, asked: &B, root: RootPin) -> Result<RootPin> {
        meta.check()?;
        let by = meta.clone();
        let answer = self.mutate(meta, "register_root", asked, move |db, _| {
            let mut decision = Decision::new(root);
            if apply::insert_root(db, root, &by)? {
                decision = decision.log(Transition::new(EventKind::RootRegistered).root(Some(root.root)));
            }
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// Makes a group and its canonical node, sealed on a root that was registered before.
    ///
    /// # Errors
    /// `Rejected` with `BadName`, `NameTaken` or `UnknownRoot`; `IdempotencyConflict`.
    pub fn create_group(&self, meta: &Meta, command: CreateGroup) -> Result<Group> {
        self.create_group_with_node(meta, command, None).map(|created| created.group)
    }

    /// `create_group`, also returning the canonical node. A root that comes with its proof is registered
    /// in the same transaction, so that a refused group leaves no root behind.
    ///
    /// # Errors
    /// As `create_group`; `BadArgument` when the proof is of another root.
    pub fn create_group_with_node(
        &self,
        meta: &Meta,
        command: CreateGroup,
        root: Option<&SealedRoot>,
    ) -> Result<Created> {
        self.create_group_pin(meta, command, root.map(|root| *root.pin()))
    }

    /// The same, where what the caller asked for decides whether a request is repeated, and not what
    /// was found when it was answered.
    ///
    /// # Errors
    /// As for `create_group`.
    pub fn create_group_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: CreateGroup,
        root: Option<&SealedRoot>,
    ) -> Result<Created> {
        self.create_group_pin_asked(meta, asked, command, root.map(|root| *root.pin()))
    }

    /// `create_group_with_node` without the proof; within this crate only, where tests need it.
    pub(crate) fn create_group_pin(
        &self,
        meta: &Meta,
        command: CreateGroup,
        proven: Option<RootPin>,
    ) -> Result<Created> {
        let body = command.clone();
        self.create_group_pin_asked(meta, &body, command, proven)
    }

    fn create_group_pin_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: CreateGroup,
        proven: Option<RootPin>,
    ) -> Result<Created> {
        let by = meta.clone();
        let answer = self.mutate(meta, "create_group", asked, move |db, request| {
            if let Some(proven) = proven.filter(|proven| *proven != command.root) {
                let (expected, found) = (command.root.root.to_string(), proven.root.to_string());
                return Err(Reject::BadArgument { argument: "root", expected, found }.into());
            }
            let taken = first(db, statements::GROUP_BY_NAME, [&command.name], records::group)?;
            let snapshot = create_group::Snapshot {
                root_known: proven.is_some() || load::root_known(db, command.root)?,
                name_taken_by: taken.map(|group| group.group_id),
            };
            let decision = decided(create_group::decide(&snapshot, &command, request))?;
            if let Some(root) = proven {
                apply::insert_root(db, root, &by)?;
            }
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// The group that was created under this actor and key, if any: a repeated request need not import
    /// again.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn recorded_group(&self, meta: &Meta) -> Result<Option<Created>> {
        self.recorded(meta, "create_group")
    }

    /// Forks a sealed node into drafts: O(1) metadata each, nothing else.
    ///
    /// # Errors
    /// `Rejected` with `NotSealed` naming the last sealed node, `Terminal`, `Pruned`, `BadArgument`.
    pub fn fork(&self, meta: &Meta, command: Fork) -> Result<Vec<Node>> {
        // The stored reply is small: the children follow from it and from the parent, whose root and state
        // are fixed. The parent that the decision saw is taken along, to spare a second look.
        let (saw, seen) = sync_channel(1);
        let answer = self.mutate(meta, "fork", &command, move |db, request| {
            let parent = load::node(db, command.parent)?;
            let last_sealed = load::last_sealed_of_draft(db, &parent)?;
            let snapshot = fork::Snapshot { parent, last_sealed };
            let decision = decided(fork::decide(&snapshot, &command, request))?;
            // The other end waits for this job, so it is there; if it is not, it looks the parent up.
            saw.try_send(snapshot.parent).ok();
            Ok(decision)
        })?;
        let forked: Forked = answer.reply;
        let parent = seen.try_recv().or_else(|_| self.node(forked.parent))?;
        Ok(fork::children(&parent, &forked, self.inner.store))
    }

    /// Records what a merge came to. `root` is the merged tree, or nothing when it is that of the first
    /// parent; a conflicted merge makes a draft that begins on it.
    ///
    /// # Errors
    /// `Rejected` with `StaleGeneration`, `NotSealed`, `Pruned`, `OtherGroup`, `BadArgument`.
    pub fn commit_merge(
        &self,
        meta: &Meta,
        command: CommitMerge,
        root: Option<&SealedRoot>,
    ) -> Result<MergeReply> {
        self.commit_merge_pin(meta, command, root.map(|root| *root.pin()))
    }

    /// The same, where what the caller asked for decides whether a request is repeated, and not what
    /// came of it.
    ///
    /// # Errors
    /// As for `commit_merge`.
    pub fn commit_merge_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: CommitMerge,
        root: Option<&SealedRoot>,
    ) -> Result<MergeReply> {
        self.commit_merge_pin_asked(meta, asked, command, root.map(|root| *root.pin()))
    }

    /// `commit_merge` without the proof; within this crate only, where tests need it.
    pub(crate) fn commit_merge_pin(
        &self,
        meta: &Meta,
        command: CommitMerge,
        root: Option<RootPin>,
    ) -> Result<MergeReply> {
        let body = (command.clone(), root);
        self.commit_merge_pin_asked(meta, &body, command, root)
    }

    fn commit_merge_pin_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: CommitMerge,
        root: Option<RootPin>,
    ) -> Result<MergeReply> {
        let by = meta.clone();
        let answer = self.mutate(meta, "commit_merge", asked, move |db, request| {
            let parents = command.parents.iter().map(|id| load::node(db, *id)).collect::<Result<Vec<_>>>()?;
            let Some(ours) = parents.first() else {
                let expected = "two or more sealed nodes".to_owned();
                let found = "none".to_owned();
                return Err(Reject::BadArgument { argument: "parents", expected, found }.into());
            };
            let group = load::group(db, ours.group_id)?;
            let snapshot = commit_merge::Snapshot { parents, group };
            let decision = decided(commit_merge::decide(&snapshot, &command, root, request))?;
            if let Some(root) = root {
                apply::insert_root(db, root, &by)?;
            }
            Ok(decision)
        })?;
        Ok(answer.reply)
    }

    /// The merge that was recorded under this actor and key, if any.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn recorded_merge(&self, meta: &Meta) -> Result<Option<MergeReply>> {
        self.recorded(meta, "commit_merge")
    }

    /// Moves the canonical node of a group, if its generation is still the expected one.
    ///
    /// # Errors
    /// `Rejected` with `StaleGeneration` naming the current generation and canonical node,
    /// `NotDescendant`, `NotSealed`, `Terminal`, `Pruned`.
    pub fn promote(&self, meta: &Meta, command: Promote) -> Result<Group> {
        let answer = self.mutate(meta, "promote", &command, move |db, request| {
            let node = load::node(db, command.node)?;
            let group = load::group(db, node.group_id)?;
            let snapshot = promote::Snapshot {
                last_sealed: load::last_sealed_of_draft(db, &node)?,
                // A stale caller is told so without a walk through the ancestry.
                descends: group.generation == command.expect
                    && load::descends(db, command.node, group.canonical_node_id)?,
                node,
                group,
            };
            decided(promote::decide(&snapshot, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Puts an unleased subtree out of sight; says what was kept and why.
    ///
    /// # Errors
    /// `Rejected` with `Leased`, `Canonical` or `UnsealedChanges` with the count.
    pub fn prune(&self, meta: &Meta, command: Prune) -> Result<PruneReply> {
        // The counts are facts of the moment and no part of what is asked.
        let body = (command.node, command.discard);
        let answer = self.mutate(meta, "prune", &body, move |db, request| {
            let group = load::group(db, load::node(db, command.node)?.group_id)?;
            let snapshot = prune::Snapshot {
                group_id: group.group_id,
                canonical: group.canonical_node_id,
                subtree: load::subtree(db, command.node)?,
            };
            decided(prune::decide(&snapshot, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// The failed attempts below `node` that keep an unsealed delta: a caller counts their changes for
    /// `prune`.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn deltas_below(&self, node: NodeId) -> Result<Vec<esf_core::AttemptId>> {
        self.read(|db| {
            let below = load::subtree(db, node)?;
            Ok(below.iter().flat_map(|node| &node.kept).map(|attempt| attempt.attempt_id).collect())
        })
    }

    /// Gives a node a name, unique in its group. A named node is kept by prune.
    ///
    /// # Errors
    /// `Rejected` with `BadName`, `NameTaken` or `Pruned`.
    pub fn tag(&self, meta: &Meta, node: NodeId, name: &str) -> Result<Node> {
        let command = Tag { node, name: name.to_owned() };
        let answer = self.mutate(meta, "tag", &command.clone(), move |db, request| {
            let node = load::node(db, command.node)?;
            let holder = holder(db, &node, &command.name)?;
            decided(tag::decide(&node, holder, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Takes a name away; a name that nothing has is left as it is.
    ///
    /// # Errors
    /// `NotFound` for the group, and failures of the database.
    pub fn untag(&self, meta: &Meta, command: Untag) -> Result<Untagged> {
        let answer = self.mutate(meta, "untag", &command.clone(), move |db, request| {
            load::group(db, command.group)?;
            let values = params![command.group.bytes(), command.name];
            let holder: Option<NodeId> = first(db, statements::NODE_OF_TAG, values, |columns| columns.id())?;
            let holder = holder.map(|id| load::node(db, id)).transpose()?;
            decided(tag::untag(holder.as_ref(), &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Attaches an evaluation to a sealed node.
    ///
    /// # Errors
    /// `Rejected` with `NotSealed`, `Pruned`, `BadArgument`, or `LeaseFenced` for a run whose lease is over.
    pub fn evaluate(&self, meta: &Meta, command: NewEvaluation) -> Result<Evaluation> {
        self.evaluate_asked(meta, &command.clone(), command)
    }

    /// `evaluate` for a caller who was `asked` something smaller than the command, which also has what
    /// the evaluator found: a repeated request is the same when `asked` is. See `recorded_asked`.
    ///
    /// # Errors
    /// As `evaluate`.
    pub fn evaluate_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: NewEvaluation,
    ) -> Result<Evaluation> {
        let answer = self.mutate(meta, "evaluate", asked, move |db, request| {
            let node = load::node(db, command.node)?;
            let snapshot = evaluate::Snapshot {
                last_sealed: load::last_sealed_of_draft(db, &node)?,
                policy: load::group(db, node.group_id)?.policy,
                run: command.run_attempt.map(|run| load::attempt(db, run)).transpose()?,
                node,
            };
            decided(evaluate::decide(&snapshot, &command, request))
        })?;
        Ok(answer.reply)
    }
}

fn holder(db: &Connection, node: &Node, name: &str) -> Result<Option<NodeId>> {
    first(db, statements::NODE_OF_TAG, params![node.group_id.bytes(), name], |columns| columns.id())
}
