//! `merge`: n sealed nodes into one, three-way by path over their nearest common ancestor, folded in the
//! order in which they are named. Invariant: the canonical node is never touched, and at a conflict
//! *ours* stays in the tree while all three terms go on record. A crash before the commit leaves
//! objects and a carrier that nobody names, for collection; the commit is one graph transaction.

mod matrix;
mod promote;
mod text;

use std::collections::BTreeMap;

use esf_core::diff::{ChangeKind, diff};
use esf_core::manifest::{
    EntryKind, MemoryObjects, ObjectError, ObjectKind, Objects, RootPin, escape, lookup,
};
use esf_core::merge::{self, Conflict, Term, merge3_with};
use esf_core::ops::Meta;
use esf_core::ops::commit_merge::{self, CommitMerge};
use esf_core::record::{Changed, Group, LogicalState, Node};
use esf_core::{BlobId, Digest, NodeId};
use esf_layerstack::SealedRoot;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::matrix::{MATRIX_NODES, MatrixCell, MatrixOutcome};
pub use self::text::TextMerge;
use crate::bases::{Ancestor, descends, nearest};
use crate::boundary::{Boundary, reach};
use crate::create::root_of;
use crate::{Error, Store};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merge {
    /// The merged nodes, *ours* first; two or more.
    pub nodes: Vec<NodeId>,
    /// The generation that the caller saw.
    pub expect: u64,
    /// The base to use instead of the nearest common ancestor, for every step.
    pub base: Option<NodeId>,
    /// Merges the lines of text that both sides changed; contents are whole when absent.
    pub text: Option<TextMerge>,
    /// Says what would happen, and writes nothing.
    pub dry_run: bool,
}

/// One step of the fold, as it is on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeStep {
    /// The common ancestor that was used.
    pub base: NodeId,
    /// The node that was merged in.
    pub theirs: NodeId,
    /// How many paths conflicted.
    pub conflicts: usize,
    /// Paths of the files whose lines were merged, in the escaped form of a dump.
    #[serde(default)]
    pub line_merged: Vec<String>,
    /// Paths that only one side had each, *ours* first, and that are one where case does not count. Both
    /// are in the result.
    #[serde(default)]
    pub case_collisions: Vec<[String; 2]>,
}

/// What a merge came to. `node` is none for a dry run.
#[derive(Clone, Debug, PartialEq)]
pub enum MergeOutcome {
    /// It was clean; the node is sealed.
    Merged {
        /// The new node.
        node: Option<Node>,
        /// How it came about, in order.
        steps: Vec<MergeStep>,
    },
    /// Some paths conflict; the node is a draft with *ours* at them.
    Conflicted {
        /// The new draft.
        node: Option<Node>,
        /// The conflicts as they are on record: path, kind, base, ours, theirs, and the nodes that have these
        /// terms: `base_node`, `ours_node` and `theirs_node`.
        conflicts: Vec<Value>,
        /// How it came about, in order.
        steps: Vec<MergeStep>,
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
    /// Contents that no node has: what merges of lines came to.
    contents: BTreeMap<BlobId, Vec<u8>>,
}

impl Fold {
    fn begin(ours: &Node) -> Result<Self, Error> {
        Ok(Self {
            pin: root_of(ours)?,
            state: State { value: ours.logical_state.clone(), both_changed: false },
            merged: vec![ours.clone()],
            sealed: None,
            steps: Vec::new(),
            conflicts: Vec::new(),
            made: Vec::new(),
            contents: BTreeMap::new(),
        })
    }
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
    /// `bad_request` for fewer than two nodes or a glob that cannot be read, `not_sealed`, `pruned`,
    /// `other_group`, `not_ancestor` for a named base that a side does not descend from, and `ambiguous_base`
    /// when there are several nearest common ancestors and none was named (`no_base`: when there is none).
    /// Conflicts and a stale generation are outcomes.
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
        let fold = self.fold(&nodes, request)?;
        if request.dry_run {
            return Ok(outcome(None, fold.conflicts, fold.steps));
        }
        reach(Boundary::MergeCommit)?;
        self.commit(meta, request, &nodes, fold)
    }

    /// What a merge would come to at whatever generation.
    fn predict(&self, request: &Merge) -> Result<MergeOutcome, Error> {
        let _held = self.stack().lock_shared()?;
        let fold = self.fold(&self.merge_nodes(&request.nodes)?, request)?;
        Ok(outcome(None, fold.conflicts, fold.steps))
    }

    fn fold(&self, nodes: &[Node], request: &Merge) -> Result<Fold, Error> {
        let mut fold = Fold::begin(&nodes[0])?;
        for theirs in &nodes[1..] {
            self.merge_step(&mut fold, theirs, request)?;
        }
        Ok(fold)
    }

    /// The answer to a merge that was committed under this key already.
    fn merged_before(&self, meta: &Meta, request: &Merge) -> Result<Option<MergeOutcome>, Error> {
        if request.dry_run {
            return Ok(None);
        }
        let reply: Option<commit_merge::MergeReply> =
            self.graph().recorded_asked(meta, "commit_merge", &asked(request))?;
        Ok(reply.map(|reply| {
            let steps = recorded_steps(&reply.node);
            outcome(Some(reply.node), reply.conflicts, steps)
        }))
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
                return Err(Error::OtherGroup { node: *id });
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn merge_step(&self, fold: &mut Fold, theirs: &Node, request: &Merge) -> Result<(), Error> {
        let base = self.base_of(fold, theirs, request.base)?;
        let (base_pin, their_pin) = (root_of(&base)?, root_of(theirs)?);
        let (merged, lines) = self.merge_roots(fold, [&base_pin, &their_pin], request)?;
        fold.pin = merged.root;
        for conflict in &merged.conflicts {
            let mut value = conflict_json(conflict);
            value["base_node"] = json!(conflict.base.as_ref().map(|_| base.node_id));
            value["ours_node"] = json!(self.node_of(&fold.merged, &conflict.path, conflict.ours.as_ref())?);
            value["theirs_node"] = json!(theirs.node_id);
            fold.conflicts.push(value);
        }
        let collisions = merged.case_collisions.iter();
        fold.steps.push(MergeStep {
            base: base.node_id,
            theirs: theirs.node_id,
            conflicts: merged.conflicts.len(),
            line_merged: text::taken(&lines, &merged.conflicts),
            case_collisions: collisions.map(|paths| paths.each_ref().map(|path| escape(path))).collect(),
        });
        merge_state(&mut fold.state, &base, theirs);
        fold.merged.push(theirs.clone());
        Ok(())
    }

    /// Merges *theirs* into what was merged so far; also the paths of files whose lines were merged.
    fn merge_roots(
        &self,
        fold: &mut Fold,
        [base, theirs]: [&RootPin; 2],
        request: &Merge,
    ) -> Result<(merge::Merge, Vec<Vec<u8>>), Error> {
        let roots: Vec<RootPin> = fold.merged.iter().filter_map(Node::root).chain([*base, *theirs]).collect();
        let mut text = text::Merger::new(self, request.text.as_ref(), &roots, &mut fold.contents)?;
        let sides = [base, &fold.pin, theirs];
        let stored = self.stack().objects();
        let merged = if request.dry_run {
            let mut made = MemoryObjects::default();
            let objects = Overlaid { beneath: stored, made: &fold.made };
            let merged = merge3_with(&objects, &mut made, sides, &mut |path, three| text.merge(path, three))?;
            fold.made.push(made);
            merged
        } else {
            let mut writer = stored.writer();
            let merged = merge3_with(stored, &mut writer, sides, &mut |path, three| text.merge(path, three))?;
            if merged.root != fold.pin {
                reach(Boundary::MergeObjects)?;
                writer.finish().map_err(esf_layerstack::Error::from)?;
            }
            merged
        };
        let lines = text.finish()?;
        if !request.dry_run && merged.root != fold.pin {
            reach(Boundary::MergeDerive)?;
            fold.sealed = Some(self.stack().derive_root(&fold.pin, &merged, theirs, &fold.contents)?);
        }
        Ok((merged, lines))
    }

    /// The first of `nodes` that has this term at the path; none if the term was made by the merge itself.
    fn node_of(&self, nodes: &[Node], path: &[u8], term: Option<&Term>) -> Result<Option<NodeId>, Error> {
        let Some(term) = term else { return Ok(None) };
        for node in nodes {
            let entry = lookup(self.stack().objects(), &root_of(node)?, path)?;
            if entry.is_some_and(|entry| entry.mode == term.mode && entry.kind.digest() == term.digest) {
                return Ok(Some(node.node_id));
            }
        }
        Ok(None)
    }

    fn base_of(&self, fold: &Fold, theirs: &Node, named: Option<NodeId>) -> Result<Node, Error> {
        let ours: Vec<NodeId> = fold.merged.iter().map(|node| node.node_id).collect();
        let load = |id| {
            let node = self.graph().node(id)?;
            Ok::<_, Error>(Ancestor { depth: node.depth, parents: node.parents })
        };
        if let Some(named) = named {
            let base = self.sealed_node(named)?;
            if base.group_id != theirs.group_id {
                return Err(Error::OtherGroup { node: named });
            }
            let above = (base.node_id, base.depth);
            for (side, nodes) in [(ours[0], ours.as_slice()), (theirs.node_id, &[theirs.node_id])] {
                if !descends(nodes, above, load)? {
                    return Err(Error::NotAncestor { base: named, side });
                }
            }
            return Ok(base);
        }
        let candidates = nearest(&ours, theirs.node_id, load)?;
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
            options: json!({
                "base_named": request.base.is_some(),
                "text": request.text,
                "line_merged": fold.steps.iter().map(|step| step.line_merged.len()).sum::<usize>(),
            }),
            provenance: json!({
                "kind": "merge",
                "algorithm": "three-way by path, version 1",
                "text": request.text.as_ref().map(TextMerge::provenance),
                "steps": fold.steps,
                "logical_state": if fold.state.both_changed { "both changed it; ours was kept" } else { "merged" },
            }),
        };
        match self.graph().commit_merge_asked(meta, &asked(request), command, fold.sealed.as_ref()) {
            Ok(reply) => Ok(outcome(Some(reply.node), reply.conflicts, fold.steps)),
            Err(error) if error.problem().code == "stale_generation" => {
                Ok(stale(&self.graph().group(nodes[0].group_id)?))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What the caller asked for, as far as it decides the answer.
fn asked(request: &Merge) -> Value {
    let mut asked = json!({ "nodes": request.nodes, "expect": request.expect, "base": request.base });
    if let Some(text) = &request.text {
        asked["text"] = json!(text);
    }
    asked
}

fn outcome(node: Option<Node>, conflicts: Vec<Value>, steps: Vec<MergeStep>) -> MergeOutcome {
    if conflicts.is_empty() {
        MergeOutcome::Merged { node, steps }
    } else {
        MergeOutcome::Conflicted { node, conflicts, steps }
    }
}

/// The steps on record of a node that a merge made.
fn recorded_steps(node: &Node) -> Vec<MergeStep> {
    serde_json::from_value(node.provenance["steps"].clone()).unwrap_or_default()
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
