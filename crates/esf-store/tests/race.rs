//! Fork, write, seal and prune in many threads while collection runs (acceptance P26, S06): no root that
//! a node pins ever fails, and afterwards the disk holds what the graph reaches and nothing else.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esf_core::environment::Environment;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::CommitSeal;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::start::Start;
use esf_core::record::{Changed, Json, Node, Purpose};
use esf_core::{NodeId, WorkerId};
use esf_store::Store;
use support::{Lab, meta, privileged, request, seal_request};

const THREADS: u64 = 8;
const ROUNDS: u64 = 4;

/// One attempt on a fork of `parent` that writes a file; its upper is written to without an overlay.
fn work(store: &Store, parent: NodeId, key: &str) -> Node {
    let (graph, stack) = (store.graph(), store.stack());
    let meta = |part: &str| meta(&format!("{key}/{part}"));
    let enqueue = Enqueue {
        node: parent,
        environment: Environment::default(),
        lifetime_ms: None,
        on_expiry: None,
        priority: 0,
        purpose: Purpose::Work,
    };
    let attempt = graph.enqueue(&meta("enqueue"), enqueue).unwrap().attempt_id;
    let start = Start { attempt, worker: WorkerId::from_bytes([1; 16]), lease_ms: 60_000 };
    let started = graph.start(&meta("start"), start).unwrap();
    let base = graph.node(started.attempt.node_id).unwrap().base_root().unwrap();
    let workspace = stack.open_workspace(&base, attempt).unwrap();
    std::fs::write(workspace.upper.join(format!("file {}", key.replace('/', " "))), key.repeat(2000))
        .unwrap();
    let epoch = started.attempt.lease_epoch;
    graph.begin_quiesce(&meta("quiesce"), BeginQuiesce { attempt, epoch }).unwrap();
    let prepared = stack.seal(&seal_request(attempt, base), &()).unwrap();
    let command = CommitSeal {
        attempt,
        epoch,
        terminal: false,
        state: None,
        message: None,
        result: Json::Null,
        provenance: Json::Null,
        changed: Changed::default(),
        reason: None,
        statement_digest: None,
        keep: None,
    };
    let node = graph.commit_seal(&meta("commit"), command, prepared.sealed()).unwrap().node;
    stack.settle_seal(prepared, true).unwrap();
    node
}

/// A chain of two nodes; the first round's are kept, of the others one half is pruned.
fn rounds(store: &Store, start: NodeId, thread: u64, checked: &AtomicU64) {
    for round in 0..ROUNDS {
        let key = format!("{thread}/{round}");
        let first = work(store, start, &format!("{key}/a"));
        let second = work(store, first.node_id, &format!("{key}/b"));
        let report = store.stack().verify(&second.root().unwrap(), &()).unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
        checked.fetch_add(1, Ordering::Relaxed);
        if round % 2 == 1 {
            store.prune(&meta(&format!("{key}/prune")), first.node_id, false).unwrap();
        }
    }
}

/// Not a test by itself: what each of several processes does at once.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("ESF_RACE_DIR") else { return };
    let dir = std::path::Path::new(&dir);
    // As close together as may be.
    while !dir.join("go").exists() {
        std::hint::spin_loop();
    }
    for round in 0..3 {
        let store = Store::open_or_create(&dir.join("store")).unwrap();
        let name = format!("g{round}");
        let made = store.create_group(&meta(&name), request(&name, &dir.join("source")), &()).unwrap();
        println!("told {} {:?}", made.group.group_id, made.node.root_id.unwrap());
    }
}

#[test]
fn one_request_of_several_processes_at_once_is_done_once() {
    let dir = tempfile::Builder::new().prefix("esf-test-").tempdir().unwrap();
    std::fs::create_dir(dir.path().join("source")).unwrap();
    for index in 0..50 {
        std::fs::write(dir.path().join(format!("source/{index}")), index.to_string()).unwrap();
    }
    let start = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("ESF_RACE_DIR", dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..5).map(|_| start()).collect();
    std::fs::write(dir.path().join("go"), b"").unwrap();
    let mut told = std::collections::BTreeSet::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        told.insert(text.lines().filter(|line| line.starts_with("told")).collect::<Vec<_>>().join("\n"));
    }
    assert_eq!(told.len(), 1, "{told:?}");
    let store = Store::open(&dir.path().join("store")).unwrap();
    assert_eq!(store.graph().groups().unwrap().len(), 3);
    assert_eq!(store.fsck(&()).unwrap().damage, Vec::<String>::new());
}

#[test]
fn collection_never_takes_what_is_needed() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "mkdir d; echo 1 > d/f").node.node_id;
    let (done, checked, collected) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            // Another process would open the store anew.
            let store = Store::open(lab.store.directory()).unwrap();
            while !done.load(Ordering::Relaxed) {
                collected.fetch_add(store.gc(&meta("gc"), false).unwrap().carriers, Ordering::Relaxed);
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (store, checked) = (&lab.store, &checked);
                scope.spawn(move || rounds(store, start, thread, checked))
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        collector.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert_eq!(checked.into_inner(), THREADS * ROUNDS);
    lab.store.gc(&lab.meta(), false).unwrap();
    lab.store.stack().empty_trash();
    let kept = 1 + THREADS * ROUNDS;
    let carriers = std::fs::read_dir(lab.store.stack().carriers_directory()).unwrap().count() as u64;
    assert_eq!(carriers, kept, "one carrier for each node that was not pruned");
    assert!(collected.into_inner() > 0, "collection ran while others worked");
    let report = lab.store.fsck(&()).unwrap();
    assert_eq!((report.damage, report.roots), (Vec::new(), kept));
    support::check_ledger(lab.store.stack(), "at the end");
}
