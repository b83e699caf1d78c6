//! A crash at every boundary that the code lists, by a panic and by SIGKILL: no node or one complete
//! node, whoever was told "sealed" finds it, and the same request then succeeds (S10).
//!
//! The list comes from the binary, and a boundary that no phase reaches fails the test.

use std::collections::BTreeSet;
use std::process::Output;

use crate::needs_root;
use crate::support::*;
use crate::wasi::{NOBODY, as_nobody, take_over};

const FAILPOINTS: &str = "ESF_FAILPOINTS";

#[test]
fn s10_crash_by_kill_at_every_boundary() {
    needs_root!();
    at_every_boundary("kill");
}

#[test]
fn s10_crash_by_panic_at_every_boundary() {
    needs_root!();
    at_every_boundary("panic");
}

fn at_every_boundary(action: &str) {
    let boundaries: Vec<String> =
        Lab::new().text(["debug", "boundaries"]).lines().map(str::to_owned).collect();
    let distinct: BTreeSet<_> = boundaries.iter().collect();
    assert_eq!(distinct.len(), boundaries.len(), "each is listed once");
    let reached: BTreeSet<&String> =
        boundaries.iter().filter(|boundary| crash_at(boundary, action)).collect();
    let missed: Vec<_> = distinct.difference(&reached).collect();
    eprintln!("{action}: {} of {} boundaries reached", reached.len(), boundaries.len());
    assert!(missed.is_empty(), "no phase reaches {missed:?}");
}

/// The life of a store with the boundary armed in each phase; true when it was reached.
fn crash_at(boundary: &str, action: &str) -> bool {
    let mut lab = Lab::new();
    let armed = format!("{boundary}={action}");
    let tree = lab.tree("t", "mkdir d; echo a > d/a; echo keep > keep");
    let source = tree.display().to_string();
    let mut reached = false;

    let create = ["--idempotency-key", "create", "group", "create", "g", "--from", &source];
    let (output, crashed) = phase(&mut lab, &armed, &create);
    reached |= crashed;
    let base = id(&parsed(&output)["group"], "canonical_node_id");

    // Many files are made durable by one syncfs, few by an fsync each.
    let many = "rm -r d; mkdir d; for i in $(seq 30); do echo $i > d/f$i; done; echo new > keep";
    let (first, crashed) = seal(&mut lab, &armed, &base, many);
    reached |= crashed;
    assert_eq!(lab.cat(&first, "d/f30"), b"30\n", "{armed}");
    assert_eq!(lab.cat(&first, "keep"), b"new\n", "{armed}");
    assert_eq!(lab.dump(&first).matches("d/f").count(), 30, "{armed}");
    let (second, crashed) = seal(&mut lab, &armed, &first, "rm d/f30; echo newer > keep");
    reached |= crashed;
    assert_eq!(lab.cat(&second, "keep"), b"newer\n", "{armed}");
    assert_eq!(lab.dump(&second).matches("d/f").count(), 29, "{armed}");

    reached |= give_up(&mut lab, &armed, &base);
    reached |= recover_again(&mut lab, &armed, &base);
    let other = lab.step(&base, "echo other > other");
    let to = lab.path("exported").display().to_string();
    let merge = ["--idempotency-key", "merge", "merge", &second, &other, "--expect", "0"];
    let (output, crashed) = phase(&mut lab, &armed, &merge);
    reached |= crashed;
    let merged = id(&parsed(&output)["node"], "node_id");
    for args in [
        vec!["export", &merged, "--format", "dir", "--to", &to],
        vec!["root", "import", &source],
        vec!["squash", &merged],
        vec!["prune", &merged],
        vec!["prune", &first],
        vec!["gc"],
    ] {
        reached |= phase(&mut lab, &armed, &args).1;
        assert_sound(&lab, &armed);
    }
    assert_eq!(std::fs::read(lab.path("exported").join("keep")).unwrap(), b"newer\n", "{armed}");
    reached || hand_over(&armed)
}

/// A user's store that was given to root: its carriers are converted when they are first mounted; true
/// when the boundary was reached.
fn hand_over(armed: &str) -> bool {
    let mut lab = Lab::new();
    let tree = lab.tree("t", "echo a > a; chmod 4755 a; mkdir d; mkfifo d/pipe");
    for path in [tree.parent().unwrap(), &tree] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let create = ["-o", "json", "group", "create", "g", "--from", tree.to_str().unwrap()];
    let created = as_nobody(lab.esf(create)).output().unwrap();
    let base = id(&parsed(&created)["group"], "canonical_node_id");
    take_over(lab.store());
    let dump = lab.dump(&base);
    let draft = lab.fork(&base);
    let (attempt, crashed) = armed_worker(&mut lab, armed, &draft);
    // An attempt that failed with its worker stays failed; the next one finds the store whole.
    let attempt = if crashed { lab.activate(&base) } else { attempt };
    assert_eq!(lab.sh(&attempt, "cat a && ls d"), "a\npipe\n", "{armed}");
    let sealed = lab.suspend(&attempt);
    assert_eq!(lab.dump(&sealed), dump, "{armed}");
    assert_sound(&lab, armed);
    crashed
}

/// A worker that dies with a seal to settle and an attempt to end, and a recovery of that which
/// carries the boundary itself; true when it was reached.
fn recover_again(lab: &mut Lab, armed: &str, parent: &str) -> bool {
    let (sealing, _) = armed_worker(lab, "seal-settle=kill", &lab.fork(parent));
    let working = lab.activate(parent);
    lab.sh(&sealing, "echo sealed > sealed");
    lab.sh(&working, "echo unsealed > unsealed");
    let told = lab.output(["suspend", &sealing]).status.success();
    assert!(!told && lab.worker().is_none(), "the worker died at its boundary");
    let (_, crashed) = phase(lab, armed, &["recover"]);
    start_cold(lab, armed);
    let record = lab.inspect(&working)["attempt"].clone();
    assert_eq!(record["failure"]["class"], "infra_lost", "{armed}: {record}");
    let salvaged = lab.suspend(&working);
    assert_eq!(lab.cat(&salvaged, "unsealed"), b"unsealed\n", "{armed}");
    crashed
}

/// Seals a child of `parent` in a worker that carries the boundary; gives the node, and whether the
/// boundary was reached.
fn seal(lab: &mut Lab, armed: &str, parent: &str, script: &str) -> (String, bool) {
    let draft = lab.fork(parent);
    let (attempt, early) = armed_worker(lab, armed, &draft);
    lab.sh(&attempt, script);
    let suspend = ["-o", "json", "--idempotency-key", &draft, "suspend", &attempt];
    let output = lab.output(suspend);
    let told = output.status.success();
    let crashed = early || !told || lab.worker().is_none();
    start_cold(lab, armed);

    let status = lab.inspect(&draft)["node"]["status"].clone();
    assert!(status == "sealed" || status == "draft", "{armed}: {status}");
    assert!(status == "sealed" || !told, "{armed}: who was told \"sealed\" finds it");
    let again = lab.output(suspend);
    let node = match again.status.success() {
        true => id(&parsed(&again)["node"], "node_id"),
        // The attempt ended infra_lost; another request salvages its kept delta.
        false => lab.suspend(&attempt),
    };
    if status == "sealed" {
        assert_eq!(node, draft, "{armed}: one node, not two");
    }
    lab.json(["verify", &node]);
    assert_sound(lab, armed);
    (node, crashed)
}

/// Gives up an attempt with unsealed changes; true when the boundary was reached.
fn give_up(lab: &mut Lab, armed: &str, parent: &str) -> bool {
    let (attempt, early) = armed_worker(lab, armed, parent);
    lab.sh(&attempt, "echo unwanted > unwanted");
    let told = lab.output(["release", &attempt, "--discard"]).status.success();
    let crashed = early || !told || lab.worker().is_none();
    start_cold(lab, armed);
    if !told {
        lab.release(&attempt);
    }
    assert_eq!(lab.inspect(&attempt)["attempt"]["status"], "released", "{armed}");
    assert_sound(lab, armed);
    crashed
}

/// Activates `node` in a new worker that carries the boundary. When activation itself reaches it,
/// that was the crash: the same request then goes on in a plain worker, unless its attempt was lost.
fn armed_worker(lab: &mut Lab, armed: &str, node: &str) -> (String, bool) {
    lab.stop_worker();
    let activate = ["-o", "json", "--idempotency-key", node, "activate", node];
    lab.set(FAILPOINTS, armed);
    let first = lab.output(activate);
    lab.unset(FAILPOINTS);
    if first.status.success() {
        return (id(&parsed(&first)["attempt"], "attempt_id"), false);
    }
    start_cold(lab, armed);
    let again = lab.output(activate);
    match again.status.success() {
        true => (id(&parsed(&again)["attempt"], "attempt_id"), true),
        false => (lab.activate(node), true),
    }
}

/// Ends a worker that survived the panic of a thread, and recovers; a second recovery is idle.
fn start_cold(lab: &Lab, armed: &str) {
    if let Some(worker) = lab.worker() {
        kill(worker);
    }
    wait_until("worker and sandboxes are gone", || lab.processes().is_empty());
    lab.json(["recover"]);
    let again = lab.json(["recover"]);
    assert!(is_idle(&again), "{armed}: a second recovery has nothing to do: {again}");
    assert_sound(lab, armed);
}

/// Runs a command with the boundary armed; when that ends it, recovers and runs it again disarmed.
fn phase(lab: &mut Lab, armed: &str, args: &[&str]) -> (Output, bool) {
    lab.set(FAILPOINTS, armed);
    let first = lab.esf(["-o", "json"]).args(args).output().unwrap();
    lab.unset(FAILPOINTS);
    if first.status.success() {
        return (first, false);
    }
    // Before its header is there, there is no store to recover.
    if lab.store().join("esf.store").exists() {
        lab.json(["recover"]);
    }
    let second = lab.esf(["-o", "json"]).args(args).output().unwrap();
    assert!(second.status.success(), "{armed}: {args:?} after {}: {}", said(&first), said(&second));
    assert_sound(lab, armed);
    (second, true)
}

fn assert_sound(lab: &Lab, what: &str) {
    lab.json(["fsck"]);
    // The trash is emptied in the background.
    wait_until(&format!("{what}: nothing is staged"), || lab.json(["df"])["staging"] == 0);
}

/// Whether a recovery report counts nothing.
fn is_idle(report: &serde_json::Value) -> bool {
    match report {
        serde_json::Value::Number(number) => number.as_u64() == Some(0),
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Object(fields) => fields.values().all(is_idle),
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::String(_) => true,
    }
}
