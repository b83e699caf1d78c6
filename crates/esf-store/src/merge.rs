//! `merge`: n sealed nodes into one, three-way by path over their nearest common ancestor, folded in the
//! order in which they are named. Invariant: the canonical node is never touched, and at a conflict
//! *ours* stays in the tree while all three terms go on record. A crash before the commit leaves
//! objects and a carrier that nobody names, for collection; the commit is one graph transaction.

use esf_core::diff::{ChangeKind, diff};
use esf_core::manifest::{EntryKind, MemoryObjects, ObjectError, ObjectKind, Objects, RootPin};
use esf_core::merge::{self, Conflict, merge3};
use esf_core::ops::commit_merge::{self, CommitMerge};
use esf_core::ops::{Meta, promote::Promote};
use esf_core::record::{Changed, Group, LogicalState, Node};
use esf_core::{Digest, NodeId};
use esf_layerstack::SealedRoot;
use serde::Serialize;
use serde_json::{Value, json};

use crate::bases::{Ancestor, nearest};
use crate::boundary::{Boundary, reach};
use crate::create::root_of;
use crate::{Error, Store};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The merged nodes, *ours* first; two or more.
    pub nodes: Vec<NodeId>,
    /// The generation that the caller saw.
    pub expect: u64,
    /// The base to use instead of the nearest common ancestor, for every step.
    pub base: Option<NodeId>,
    /// Says what would happen, and writes nothing.
    pub dry_run: bool,
}

/// One step of the fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MergeStep {
    /// The common ancestor that was used.
    pub base: NodeId,
    /// The node that was merged in.
    pub theirs: NodeId,
    /// How many paths conflicted.
    pub conflicts: usize,
}

/// What a merge came to. `node` is none for a dry run.
#[derive(Clone, Debug, PartialEq)]
pub enum MergeOutcome {
    /// It was clean; the node is sealed.
    Merged {
        /// The new node.
        node: Option<Node>,
    },
    /// Some paths conflict; the node is a draft with *ours* at them.
    Conflicted {
        /// The new draft.
        node: Option<Node>,
        /// The conflicts as they are on record: path, kind, base, ours, theirs, and `theirs_node`.
        conflicts: Vec<Value>,
    },
    /// The group is at another generation than expected; nothing was done.
    Stale {
        /// The current generation.
        generation: u64,
        /// The current canonical node.
        canonical_node_id: NodeId,
    },
}

/// A conflict as it goes on record.
pub fn conflict_json(conflict: &Conflict) -> Value {
    serde_json::to_value(conflict).expect("a conflict has text keys alone")
}

/// The state of a fold.
struct Fold {
    merged: Vec<Node>,
    pin: RootPin,
    sealed: Option<SealedRoot>,
    state: State,
    steps: Vec<MergeStep>,
    conflicts: Vec<Value>,
    /// What a dry run made instead of writing it.
    made: Vec<MemoryObjects>,
}

/// The logical state of the result, and from where.
struct State {
    value: LogicalState,
    both_changed: bool,
}

impl Store {
    /// Merges sealed nodes of one group.
    ///
    /// # Errors
    /// `bad_request` for fewer than two nodes, `not_sealed`, `pruned`, `other_group`, and
    /// `ambiguous_base` when the nearest common ancestor is not one and none was named. Conflicts and a
    /// stale generation are outcomes.
    pub fn merge(&self, meta: &Meta, request: &Merge) -> Result<MergeOutcome, Error> {
        if let Some(outcome) = self.merged_before(meta, request)? {
            return Ok(outcome);
        }
        // Until the graph names it, nothing but this lock keeps collection from what is made here.
        let _held = self.stack().lock_shared()?;
        let nodes = self.merge_nodes(&request.nodes)?;
        let group = self.graph().group(nodes[0].group_id)?;
        if group.generation != request.expect {
            // Perhaps moved by the outcome of this very request, sent twice at once.
            return Ok(self.merged_before(meta, request)?.unwrap_or_else(|| stale(&group)));
        }
        let mut fold = Fold {
            pin: root_of(&nodes[0])?,
            state: State { value: nodes[0].logical_state.clone(), both_changed: false },
            merged: vec![nodes[0].clone()],
            sealed: None,
            steps: Vec::new(),
            conflicts: Vec::new(),
            made: Vec::new(),
        };
        for theirs in &nodes[1..] {
            self.merge_step(&mut fold, theirs, request)?;
        }
        if request.dry_run {
            return Ok(outcome(None, fold.conflicts));
        }
        reach(Boundary::MergeCommit)?;
        self.commit(meta, request, &nodes, fold)
    }

    /// Promotes a node; whoever comes too late is also told whether a clean merge exists.
    ///
    /// # Errors
    /// What the graph says: `stale_generation`, `not_descendant`, `not_sealed`.
    pub fn promote(&self, meta: &Meta, command: Promote) -> Result<Group, Error> {
        let node = command.node;
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
            base: None,
            dry_run: true,
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

    /// The answer to a merge that was committed under this key already.
    fn merged_before(&self, meta: &Meta, request: &Merge) -> Result<Option<MergeOutcome>, Error> {
        if request.dry_run {
            return Ok(None);
        }
        let reply: Option<commit_merge::MergeReply> =
            self.graph().recorded_asked(meta, "commit_merge", &asked(request))?;
        Ok(reply.map(|reply| outcome(Some(reply.node), reply.conflicts)))
    }

    fn merge_nodes(&self, ids: &[NodeId]) -> Result<Vec<Node>, Error> {
        let bad = |what: &str| Error::BadRequest {
            what: what.to_owned(),
            expected: "two or more different sealed nodes of one group".to_owned(),
        };
        if ids.len() < 2 {
            return Err(bad("a merge of fewer than two nodes"));
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(ids.len());
        for id in ids {
            let node = self.sealed_node(*id)?;
            if nodes.iter().any(|other| other.node_id == *id) {
                return Err(bad("a merge of a node with itself"));
            }
            if nodes.first().is_some_and(|first| first.group_id != node.group_id) {
                return Err(bad("a merge across groups"));
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn merge_step(&self, fold: &mut Fold, theirs: &Node, request: &Merge) -> Result<(), Error> {
        let base = self.base_of(fold, theirs, request.base)?;
        let (base_pin, their_pin) = (root_of(&base)?, root_of(theirs)?);
        let merged = if request.dry_run {
            let mut made = MemoryObjects::default();
            let objects = Overlaid { beneath: self.stack().objects(), made: &fold.made };
            let merged = merge3(&objects, &mut made, &base_pin, &fold.pin, &their_pin)?;
            fold.made.push(made);
            merged
        } else {
            self.merge_and_keep(fold, &base_pin, &their_pin)?
        };
        fold.pin = merged.root;
        let found = merged.conflicts.iter().map(|conflict| {
            let mut value = conflict_json(conflict);
            value["theirs_node"] = json!(theirs.node_id);
            value
        });
        fold.conflicts.extend(found);
        fold.steps.push(MergeStep {
            base: base.node_id,
            theirs: theirs.node_id,
            conflicts: merged.conflicts.len(),
        });
        merge_state(&mut fold.state, &base, theirs);
        fold.merged.push(theirs.clone());
        Ok(())
    }

    fn merge_and_keep(
        &self,
        fold: &mut Fold,
        base: &RootPin,
        theirs: &RootPin,
    ) -> Result<merge::Merge, Error> {
        let objects = self.stack().objects();
        let mut writer = objects.writer();
        let merged = merge3(objects, &mut writer, base, &fold.pin, theirs)?;
        if merged.root != fold.pin {
            reach(Boundary::MergeObjects)?;
            writer.finish().map_err(esf_layerstack::Error::from)?;
            reach(Boundary::MergeDerive)?;
            fold.sealed = Some(self.stack().derive_root(&fold.pin, &merged, theirs)?);
        }
        Ok(merged)
    }

    fn base_of(&self, fold: &Fold, theirs: &Node, named: Option<NodeId>) -> Result<Node, Error> {
        if let Some(named) = named {
            return self.sealed_node(named);
        }
        let ours: Vec<NodeId> = fold.merged.iter().map(|node| node.node_id).collect();
        let candidates = nearest(&ours, theirs.node_id, |id| {
            let node = self.graph().node(id)?;
            Ok::<_, Error>(Ancestor { depth: node.depth, parents: node.parents })
        })?;
        match candidates.as_slice() {
            [base] => self.sealed_node(*base),
            _ => Err(Error::AmbiguousBase { ours: ours[0], theirs: theirs.node_id, candidates }),
        }
    }

    fn commit(
        &self,
        meta: &Meta,
        request: &Merge,
        nodes: &[Node],
        fold: Fold,
    ) -> Result<MergeOutcome, Error> {
        let ours = root_of(&nodes[0])?;
        let command = CommitMerge {
            parents: request.nodes.clone(),
            base: match fold.steps.as_slice() {
                [step] => Some(step.base),
                _ => request.base,
            },
            expect: request.expect,
            outcome: if fold.conflicts.is_empty() {
                commit_merge::MergeOutcome::Merged
            } else {
                commit_merge::MergeOutcome::Conflicted { conflicts: fold.conflicts.clone() }
            },
            changed: changed(self.stack().objects(), &ours, &fold.pin)?,
            state: Some(fold.state.value.clone()),
            options: json!({ "base_named": request.base.is_some(), "lines": false }),
            provenance: json!({
                "kind": "merge",
                "algorithm": "three-way by path, version 1",
                "steps": fold.steps,
                "logical_state": if fold.state.both_changed { "both changed it; ours was kept" } else { "merged" },
            }),
        };
        match self.graph().commit_merge_asked(meta, &asked(request), command, fold.sealed.as_ref()) {
            Ok(reply) => Ok(outcome(Some(reply.node), reply.conflicts)),
            Err(error) if error.problem().code == "stale_generation" => {
                Ok(stale(&self.graph().group(nodes[0].group_id)?))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What the caller asked for, as far as it decides the answer.
fn asked(request: &Merge) -> Value {
    json!({ "nodes": request.nodes, "expect": request.expect, "base": request.base })
}

fn outcome(node: Option<Node>, conflicts: Vec<Value>) -> MergeOutcome {
    if conflicts.is_empty() {
        MergeOutcome::Merged { node }
    } else {
        MergeOutcome::Conflicted { node, conflicts }
    }
}

fn stale(group: &Group) -> MergeOutcome {
    MergeOutcome::Stale { generation: group.generation, canonical_node_id: group.canonical_node_id }
}

/// The side that changed the logical state wins; *ours* when both did, and that goes on record.
fn merge_state(state: &mut State, base: &Node, theirs: &Node) {
    if theirs.logical_state == base.logical_state || theirs.logical_state == state.value {
        return;
    }
    if state.value == base.logical_state {
        state.value = theirs.logical_state.clone();
    } else {
        state.both_changed = true;
    }
}

/// How many paths `after` changes against `before`, counted as a seal counts them.
fn changed(objects: &dyn Objects, before: &RootPin, after: &RootPin) -> Result<Changed, Error> {
    let mut changed = Changed::default();
    for change in diff(objects, before, after)?.iter().filter(|change| esf_layerstack::is_told(change)) {
        match change.kind {
            ChangeKind::Added => changed.added += 1,
            ChangeKind::Modified | ChangeKind::TypeChanged => changed.modified += 1,
            ChangeKind::Deleted => changed.deleted += 1,
        }
        if let Some(EntryKind::File { size, .. }) = change.after.as_ref().map(|side| &side.kind)
            && change.changes_identity()
        {
            changed.bytes += size;
        }
    }
    Ok(changed)
}

/// Objects of the store with those that a dry run made on top.
struct Overlaid<'a> {
    beneath: &'a dyn Objects,
    made: &'a [MemoryObjects],
}

impl Objects for Overlaid<'_> {
    fn get(&self, kind: ObjectKind, id: &Digest) -> Result<Vec<u8>, ObjectError> {
        self.made
            .iter()
            .find_map(|objects| objects.get(kind, id).ok())
            .map_or_else(|| self.beneath.get(kind, id), Ok)
    }
}
