//! What prune takes and what it keeps, and why.

use std::collections::BTreeMap;

use esf_core::environment::{Environment, ExecutorKind, PinnedModule, Wasi};
use esf_core::id::NodeId;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_merge::{CommitMerge, MergeOutcome};
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::lapse::Lapse;
use esf_core::ops::promote::Promote;
use esf_core::ops::prune::{Kept, Prune, Reason};
use esf_core::policy::PolicyDocument;
use esf_core::record::{Changed, Json, PrivateDelta};
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_core::{BlobId, Digest};
use serde_json::json;

use super::{Fixture, code, meta, root, seal, work};

fn prune(node: NodeId) -> Prune {
    Prune { node, discard: false, unsealed: BTreeMap::new() }
}

fn merge(fixture: &Fixture, parents: &[NodeId]) -> NodeId {
    let command = CommitMerge {
        parents: parents.to_vec(),
        base: None,
        expect: 0,
        outcome: MergeOutcome::Merged,
        changed: Changed::default(),
        state: None,
        options: Json::Null,
        provenance: Json::Null,
    };
    fixture.graph.commit_merge_pin(&meta(), command, Some(root("merged"))).expect("merge").node.node_id
}

#[test]
fn a_subtree_goes_at_once_and_its_roots_are_no_longer_live() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let top = fixture.sealed(canonical, "top").node.node_id;
    let below = fixture.sealed(top, "below").node.node_id;
    let reply = fixture.graph.prune(&meta(), prune(top)).expect("prune");
    assert_eq!(reply.pruned, [top, below]);
    assert_eq!(reply.kept, []);
    assert_eq!(fixture.graph.node(below).expect("node").status, NodeStatus::Pruned);
    assert_eq!(fixture.graph.live_roots().expect("roots"), [root("base")]);
    let again = fixture.graph.prune(&meta(), prune(top)).expect("again");
    assert_eq!(again.pruned, []);
}

#[test]
fn a_leased_or_canonical_top_is_refused_by_name() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    assert_eq!(code(&fixture.graph.prune(&meta(), prune(canonical)).expect_err("canonical")), "canonical");
    let started = fixture.active(canonical);
    let problem = fixture.graph.prune(&meta(), prune(started.attempt.node_id)).expect_err("leased").problem();
    assert_eq!(problem.code, "leased");
    assert_eq!(problem.context["lease_id"], json!(started.lease.lease_id));
    assert_eq!(problem.context["attempt_id"], json!(started.attempt.attempt_id));
}

#[test]
fn leased_tagged_canonical_and_their_ancestors_are_kept_with_reasons() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let top = fixture.sealed(canonical, "top").node.node_id;
    let middle = fixture.sealed(top, "middle").node.node_id;
    let leased = fixture.active(middle).attempt.node_id;
    let tagged = fixture.sealed(top, "tagged").node.node_id;
    fixture.graph.tag(&meta(), tagged, "keep").expect("tag");
    let promoted = fixture.sealed(top, "promoted").node.node_id;
    fixture.graph.promote(&meta(), Promote { node: promoted, expect: 0, replace: false }).expect("promote");
    let loser = fixture.sealed(top, "loser").node.node_id;
    let reply = fixture.graph.prune(&meta(), prune(top)).expect("prune");
    assert_eq!(reply.pruned, [loser]);
    let mut expected = [
        Kept { id: top, reason: Reason::Ancestor },
        Kept { id: middle, reason: Reason::Ancestor },
        Kept { id: leased, reason: Reason::Leased },
        Kept { id: tagged, reason: Reason::Tagged },
        Kept { id: promoted, reason: Reason::Canonical },
    ];
    expected.sort_by_key(|kept| kept.id);
    assert_eq!(reply.kept, expected);
    assert_eq!(fixture.graph.check().expect("check"), Vec::<String>::new());
}

#[test]
fn a_merge_with_a_parent_outside_is_kept_with_its_line() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let inside = fixture.sealed(canonical, "inside").node.node_id;
    let outside = fixture.sealed(canonical, "outside").node.node_id;
    let loser = fixture.sealed(inside, "loser").node.node_id;
    let merged = merge(&fixture, &[inside, outside]);
    let below = fixture.sealed(merged, "below the merge").node.node_id;
    let reply = fixture.graph.prune(&meta(), prune(inside)).expect("prune");
    assert_eq!(reply.pruned, [loser]);
    let reasons: BTreeMap<_, _> = reply.kept.iter().map(|kept| (kept.id, kept.reason)).collect();
    let expected =
        BTreeMap::from([(inside, Reason::Ancestor), (merged, Reason::Reachable), (below, Reason::Reachable)]);
    assert_eq!(reasons, expected);
}

#[test]
fn unsealed_changes_are_counted_before_they_are_lost() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let attempt = fixture.active(canonical).attempt;
    let lapse = Lapse { attempt: attempt.attempt_id, reason: "gone".to_owned() };
    fixture.graph.lapse(&meta(), lapse).expect("lapse");
    assert_eq!(fixture.graph.deltas_below(attempt.node_id).expect("deltas"), [attempt.attempt_id]);
    let counted = Prune { unsealed: BTreeMap::from([(attempt.attempt_id, 12)]), ..prune(attempt.node_id) };
    let problem = fixture.graph.prune(&meta(), counted).expect_err("unsealed").problem();
    assert_eq!(problem.code, "unsealed_changes");
    assert_eq!(problem.context["unsealed"], json!(12));
    assert_eq!(
        code(&fixture.graph.prune(&meta(), prune(attempt.node_id)).expect_err("unknown")),
        "unsealed_changes"
    );
    let discard = Prune { discard: true, ..prune(attempt.node_id) };
    let reply = fixture.graph.prune(&meta(), discard).expect("discard");
    assert_eq!((reply.pruned, reply.released), (vec![attempt.node_id], vec![attempt.attempt_id]));
    let released = fixture.graph.attempt(attempt.attempt_id).expect("attempt");
    assert_eq!((released.status, released.private_delta), (AttemptStatus::Released, PrivateDelta::Discarded));
}

#[test]
fn modules_are_kept_while_a_record_that_is_needed_names_them() {
    let fixture = Fixture::new();
    let pinned = |name: &str| {
        let modules = vec![PinnedModule { name: "m".to_owned(), digest: Digest::of(name.as_bytes()) }];
        let wasi = Some(Wasi { modules, ..Wasi::default() });
        Environment { executor: ExecutorKind::Wasi, wasi, ..Environment::default() }
    };
    fixture.graph.register_pin(&meta(), root("base")).expect("root");
    let command = CreateGroup {
        name: "project".to_owned(),
        root: root("base"),
        policy: PolicyDocument::default(),
        source: "directory:example".to_owned(),
        default_environment: pinned("of the group"),
        provenance: Json::Null,
    };
    let canonical = fixture.graph.create_group_pin(&meta(), command, None).expect("group").node.node_id;
    let enqueue = |name: &str| {
        let command = Enqueue { environment: pinned(name), ..work(canonical) };
        fixture.graph.enqueue(&meta(), command).expect("enqueue").attempt_id
    };
    let kept = |names: &[&str]| {
        let mut blobs: Vec<_> = names.iter().map(|name| BlobId::of(name.as_bytes())).collect();
        blobs.sort();
        assert_eq!(fixture.graph.live_blobs().expect("blobs"), blobs);
    };
    kept(&["of the group"]);
    let (sealed, _queued) = (enqueue("of a node"), enqueue("of a queued attempt"));
    kept(&["of the group", "of a node", "of a queued attempt"]);
    let started = fixture.start(sealed);
    let command = BeginQuiesce { attempt: sealed, epoch: started.lease.epoch };
    let attempt = fixture.graph.begin_quiesce(&meta(), command).expect("quiesce");
    let node = fixture.graph.commit_seal_pin(&meta(), seal(&attempt), root("sealed")).expect("seal").node;
    kept(&["of the group", "of a node", "of a queued attempt"]);
    fixture.graph.prune(&meta(), prune(node.node_id)).expect("prune");
    kept(&["of the group", "of a queued attempt"]);
}
