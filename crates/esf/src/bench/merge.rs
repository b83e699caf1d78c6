//! Rows of the merge: two nodes that changed ten files each, in a root of 77 000, merged as a dry run and for good.

use std::fs;
use std::path::Path;

use esf_core::environment::Environment;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::CommitSeal;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::start::Start;
use esf_core::policy::Durability;
use esf_core::record::{Changed, Json, Purpose};
use esf_core::{Digest, NodeId, Problem, WorkerId};
use esf_layerstack::SealRequest;
use esf_store::{Merge, MergeOutcome};

use super::{Lab, Row, control, failed, timed};

/// Files of the root that both sides began on, and how many each has changed.
const FILES: usize = 77_000;
const CHANGED: usize = 10;

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let start = control::group(lab, "merge", FILES, 16)?;
    let ours = work(lab, start, "ours", 0)?;
    let samples = lab.samples.min(30);
    // A merged root that is known already needs no carrier, so each sample has a *theirs* of its own.
    let theirs = (0..samples + 2).map(|number| work(lab, start, &format!("theirs-{number}"), 1));
    let theirs = theirs.collect::<Result<Vec<NodeId>, Problem>>()?;
    let pair = |number: u64| [ours, theirs[usize::try_from(number - 1).unwrap_or(0)]];
    let (mut dry, mut done) = (0_u64, 0_u64);
    let (value, foretold) = lab.pair(
        samples,
        || {
            done += 1;
            timed(|| merge(lab, pair(done), &format!("merge-{done}"), false))
        },
        || {
            dry += 1;
            timed(|| merge(lab, pair(dry), &format!("merge-dry-{dry}"), true))
        },
    )?;
    let row = |name, value| Row {
        name,
        value,
        unit: "us",
        floor: None,
        must: Some(5_000.0),
        aim: Some(2_500.0),
        samples,
    };
    lab.add(row("merge_dry_run", foretold));
    lab.add(row("merge_committed", value));
    Ok(())
}

fn merge(lab: &Lab<'_>, nodes: [NodeId; 2], key: &str, dry_run: bool) -> Result<(), Problem> {
    let request = Merge { nodes: nodes.to_vec(), dry_run, ..Merge::default() };
    match lab.store.merge(&lab.context.meta(key)?, &request).map_err(|error| error.problem())? {
        MergeOutcome::Merged { .. } => Ok(()),
        other => Err(failed("merge", format!("{other:?}"))),
    }
}

/// A node whose attempt changed a file of ten directories.
fn work(lab: &Lab<'_>, parent: NodeId, key: &str, file: usize) -> Result<NodeId, Problem> {
    let (graph, stack) = (lab.store.graph(), lab.store.stack());
    let problem = |error: esf_graph::Error| error.problem();
    let meta = |step: &str| lab.context.meta(&format!("merge-{key}-{step}"));
    let node = control::fork(lab, parent, 1, &format!("merge-{key}-fork"))?;
    let enqueue = Enqueue {
        node,
        environment: Environment::default(),
        lifetime_ms: None,
        on_expiry: None,
        priority: 0,
        purpose: Purpose::Work,
    };
    let attempt = graph.enqueue(&meta("enqueue")?, enqueue).map_err(problem)?.attempt_id;
    let start = Start { attempt, worker: WorkerId::from_bytes([1; 16]), lease_ms: 600_000 };
    let epoch = graph.start(&meta("start")?, start).map_err(problem)?.attempt.lease_epoch;
    let base = graph.node(node).map_err(problem)?.base_root();
    let base = base.ok_or_else(|| failed("merge", "a draft begins on a root"))?;
    let workspace = stack.open_workspace(&base, attempt).map_err(|error| error.problem())?;
    change(&workspace.upper, file, key).map_err(|error| failed("change files", error))?;
    graph.begin_quiesce(&meta("quiesce")?, BeginQuiesce { attempt, epoch }).map_err(problem)?;
    let request = SealRequest {
        attempt,
        base,
        key: format!("merge-{key}-seal"),
        request_digest: esf_core::digest::RequestDigest::new(Digest::of(key.as_bytes())),
        durability: Durability::Full,
    };
    let prepared = stack.seal(&request, &()).map_err(|error| error.problem())?;
    let command = CommitSeal {
        attempt,
        epoch,
        terminal: false,
        state: None,
        message: None,
        result: Json::Null,
        provenance: Json::Null,
        changed: Changed { modified: CHANGED as u64, ..Changed::default() },
        reason: None,
        statement_digest: None,
        keep: None,
    };
    let node = graph.commit_seal(&meta("seal")?, command, prepared.sealed()).map_err(problem)?.node;
    stack.settle_seal(prepared, true).map_err(|error| error.problem())?;
    Ok(node.node_id)
}

fn change(upper: &Path, file: usize, text: &str) -> std::io::Result<()> {
    for number in 0..CHANGED {
        let number = number * FILES / CHANGED / 100 * 100 + file;
        let directory = upper.join(format!("d{:05}", number / 100));
        fs::create_dir(&directory)?;
        fs::write(directory.join(format!("f{number:07}")), text)?;
    }
    Ok(())
}
