//! A crash at every boundary of the operations that need both planes (acceptance S10): a child process
//! is killed there, the store is opened and recovered, everything in it must be whole, and the same
//! requests repeated must come to what they would have come to without the crash.
//! Runs with `--features failpoints`; the list of boundaries is generated from the code.
#![cfg(feature = "failpoints")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};

use esf_core::digest::RootId;
use esf_core::ops::fail_attempt::FailAttempt;
use esf_core::{FailureClass, NodeId};
use esf_exchange::identity;
use esf_store::boundary::{self, BOUNDARIES};
use esf_store::{
    Export, Format, ImportOptions, Merge, MergeOutcome, Source, Store, WorkerLock, verify_export,
};
use support::{Lab, meta, privileged, request, shell};

/// What the prepared store holds, for the child to work on.
#[derive(serde::Serialize, serde::Deserialize)]
struct Prepared {
    start: NodeId,
    nodes: [NodeId; 3],
    loser: NodeId,
}

/// A store with work to merge, a failed attempt with unsealed changes, a lost attempt, a seal that the
/// graph has committed and one that it has not.
fn prepare(dir: &Path) {
    let lab = Lab::at(dir);
    let start = lab.group("g", "echo 1 > f; mkdir d; echo x > d/x; ln d/x d/y").node.node_id;
    let nodes =
        ["echo 2 > f; rm d/y", "echo new > n", "echo 3 > f"].map(|script| lab.work(start, script).node_id);
    let failed = lab.start(start);
    lab.change(&failed, "echo unsealed > u");
    let command = FailAttempt {
        attempt: failed.attempt.attempt_id,
        epoch: Some(failed.attempt.lease_epoch),
        class: FailureClass::InfraLost,
        stage: "exec".to_owned(),
        detail: "gone".to_owned(),
        delta_kept: true,
    };
    lab.store.graph().fail_attempt(&lab.meta(), command).unwrap();
    let [lost, prepared, committed] = [0, 1, 2].map(|_| lab.start(start));
    for (started, script) in [(&lost, "echo l > l"), (&prepared, "echo p > p"), (&committed, "echo c > c")] {
        lab.change(started, script);
    }
    drop(lab.prepare(&prepared));
    let seal = lab.prepare(&committed);
    lab.commit(&committed, &seal);
    drop(seal);
    let logs = lab.store.directory().join("logs").join(failed.attempt.attempt_id.to_string());
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("out"), b"output").unwrap();
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    shell(&source, "echo other > o; mkdir e; head -c 200000 /dev/urandom > e/big");
    let prepared = Prepared { start, nodes, loser: failed.attempt.node_id };
    fs::write(dir.join("prepared.json"), serde_json::to_vec(&prepared).unwrap()).unwrap();
}

/// Everything, under fixed keys; what it came to, for comparison.
fn operate(dir: &Path) -> Result<String, esf_store::Error> {
    let Prepared { start, nodes, loser } =
        serde_json::from_slice(&fs::read(dir.join("prepared.json")).unwrap()).unwrap();
    let fresh = Store::open_or_create(&dir.join("fresh"))?;
    let mut told = vec![format!("groups {}", fresh.graph().groups()?.len())];
    let store = Store::open(&dir.join("store"))?;
    let lock = WorkerLock::try_acquire(store.directory()).unwrap().expect("no worker lives");
    store.recover(&lock, &meta("recover"))?;
    let made = store.create_group(&meta("group"), request("h", &dir.join("source")), &())?;
    told.push(format!("{} {:?}", made.group.group_id, made.node.root_id));
    let (source, options) = (Source::Directory(dir.join("source/e")), ImportOptions::default());
    told.push(format!("{:?}", store.import_root(&meta("import"), &source, &options, &())?.pin));
    let merge = |key: &str, nodes: &[NodeId]| {
        store.merge(&meta(key), &Merge { nodes: nodes.to_vec(), expect: 0, ..Merge::default() })
    };
    let MergeOutcome::Merged { node: Some(merged), .. } = merge("clean", &nodes[..2])? else {
        panic!("a clean merge")
    };
    told.push(format!("{} {:?}", merged.node_id, merged.root_id));
    let MergeOutcome::Conflicted { node: Some(draft), .. } = merge("clash", &[nodes[0], nodes[2]])? else {
        panic!("conflicts")
    };
    told.push(format!("{} {:?}", draft.node_id, draft.base_root_id));
    for (name, format) in [("out", Format::Dir), ("out.tar", Format::Tar), ("out.patch", Format::Patch)] {
        let to = dir.join("exports").join(name);
        let from = (format == Format::Patch).then_some(start);
        if !to.exists() {
            let request = Export { from, ..Export::new(merged.node_id, format, &to) };
            store.export(&meta("export"), &request, &())?;
        }
        told.push(format!("{name} {}", verify_export(&to)?.digest));
    }
    told.push(format!("{:?}", store.prune(&meta("prune"), loser, true)?.pruned));
    store.gc(&meta("gc"), false)?;
    store.stack().empty_trash();
    Ok(told.join("\n"))
}

/// Not a test by itself: what a child process does.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("ESF_CRASH_DIR") else { return };
    boundary::arm(&std::env::var("ESF_CRASH_POINTS").unwrap_or_default()).unwrap();
    let dir = Path::new(&dir);
    match operate(dir) {
        Ok(told) => fs::write(dir.join("told"), told).unwrap(),
        Err(error) => {
            eprintln!("refused: {error}");
            std::process::exit(3);
        }
    }
}

fn run_child(dir: &Path, points: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("ESF_CRASH_DIR", dir)
        .env("ESF_CRASH_POINTS", points)
        .output()
        .map(|output| {
            if std::env::var_os("ESF_CRASH_SHOW").is_some() {
                eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            }
            output.status
        })
        .unwrap()
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").args(["-a"]).arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Everything in the store is whole, whatever happened to it.
fn check(dir: &Path, points: &str) {
    let store = Store::open(&dir.join("store")).unwrap_or_else(|error| panic!("{points}: {error}"));
    let recovered = store.recover_if_idle(&meta("check")).unwrap();
    assert!(recovered.is_some(), "{points}");
    assert!(store.recover_if_idle(&meta("check again")).unwrap().unwrap().is_empty(), "{points}");
    let damage = store.fsck(&()).unwrap().damage;
    assert!(damage.is_empty(), "{points}: {damage:?}");
    store.stack().empty_trash();
    support::check_ledger(store.stack(), points);
    for group in store.graph().groups().unwrap() {
        let node = store.sealed_node(group.canonical_node_id).unwrap();
        let report = store.stack().verify(&node.root().unwrap(), &()).unwrap();
        assert!(report.damaged.is_empty(), "{points}");
    }
    for name in ["out", "out.tar", "out.patch"] {
        let path = dir.join("exports").join(name);
        if path.exists() {
            verify_export(&path).unwrap_or_else(|error| panic!("{points}: {error}"));
        }
    }
    if dir.join("fresh").exists() && dir.join("fresh/esf.store").exists() {
        Store::open(&dir.join("fresh")).unwrap_or_else(|error| panic!("{points}: {error}"));
    }
}

/// Nothing but exports and their statements is left beside the exports.
fn check_exports(dir: &Path, points: &str) {
    let mut names: Vec<_> = fs::read_dir(dir.join("exports"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected = Vec::new();
    for name in ["out", "out.patch", "out.tar"] {
        expected.extend([name.to_owned(), format!("{name}.provenance.json")]);
    }
    expected.sort();
    assert_eq!(names, expected, "{points}");
}

#[test]
fn a_crash_at_every_boundary_leaves_a_whole_store_and_a_repeat_completes() {
    if !privileged() {
        return;
    }
    let top = tempfile::Builder::new().prefix("esf-test-").tempdir().unwrap();
    let template = top.path().join("template");
    fs::create_dir_all(template.join("exports")).unwrap();
    prepare(&template);
    let scratch = top.path().join("run");

    copy(&template, &scratch);
    assert!(run_child(&scratch, "").success(), "the scenario itself works");
    let expected = fs::read_to_string(scratch.join("told")).unwrap();
    let exported: RootId = identity::of_directory(&scratch.join("exports/out")).unwrap();
    assert!(expected.contains(&exported.to_string()));
    check(&scratch, "no crash");
    fs::remove_dir_all(&scratch).unwrap();

    let ours = BOUNDARIES.iter().flat_map(|name| ["kill", "panic", "return"].map(|action| (*name, action)));
    let beneath =
        boundary::all().into_iter().filter(|name| !BOUNDARIES.contains(name)).map(|name| (name, "kill"));
    let (mut hit, mut missed) = (0, Vec::new());
    for (name, action) in ours.chain(beneath) {
        let points = format!("{name}={action}");
        copy(&template, &scratch);
        if run_child(&scratch, &points).success() {
            missed.push(name);
        } else {
            hit += 1;
            check(&scratch, &points);
            let repeated = run_child(&scratch, "");
            assert!(repeated.success(), "{points}: repeated after the crash: {repeated}");
            assert_eq!(fs::read_to_string(scratch.join("told")).unwrap(), expected, "{points}");
            check(&scratch, &points);
            check_exports(&scratch, &points);
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
    eprintln!("crashed {hit} times; not reached: {missed:?}");
    assert!(!missed.iter().any(|name| BOUNDARIES.contains(name)), "boundaries of this crate are all reached");
    assert!(hit >= 3 * BOUNDARIES.len() + 12, "too few boundaries beneath were reached: {missed:?}");
}
