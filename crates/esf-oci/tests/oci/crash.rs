//! The worker killed at any moment: attempts end `infra_lost`, their deltas can be saved, nothing leaks.

use std::sync::Arc;
use std::time::Duration;

use esf_core::FailureClass;
use esf_core::record::{Attempt, PrivateDelta};
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_oci::OciExecutor;
use esf_worker::executor::Executor;
use esf_worker::logs::{Cursor, Stream};
use esf_worker::{Client, ExecRequest, RetryRequest};

use crate::Test;
use crate::lifecycle::wait_until;
use crate::support::{Bench, exec, key, request_meta, suspend};

pub(crate) const TESTS: &[Test] = &[
    ("crash::a_killed_worker_loses_nothing", a_killed_worker_loses_nothing),
    ("crash::a_client_is_told_and_a_key_is_not_run_again", a_client_is_told),
    ("crash::many_live_ones_leave_nothing_behind", many_live_ones),
    ("crash::recovery_needs_no_worker_and_is_done_once", recovery_without_a_worker),
    ("crash::a_killed_zygote_leaves_nothing_after_the_worker", a_killed_zygote),
    ("crash::two_commands_start_one_worker", two_commands_start_one_worker),
    ("crash::killed_at_any_moment_everything_settles", killed_at_any_moment),
];

fn bench() -> Bench {
    Bench::new(|directory| std::fs::write(directory.join("a"), "one\n").expect("writes"))
}

/// Kills the worker and waits until nobody holds its lock.
fn kill_worker(bench: &Bench) {
    kill(bench.client().worker_pid());
    wait_until(|| !esf_worker::lock::held(&bench.path()));
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kills");
}

/// What the control groups of this store's sandboxes are called.
fn home_name(bench: &Bench) -> String {
    let digest = esf_core::Digest::in_context(
        "esf cgroup home v1",
        std::os::unix::ffi::OsStrExt::as_bytes(bench.path().canonicalize().expect("there").as_os_str()),
    );
    let name: String = digest.as_bytes()[..10].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("esf-{name}")
}

/// Processes of sandboxes of this store: those whose control group bears its name.
fn leftovers(bench: &Bench) -> Vec<String> {
    let name = home_name(bench);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("lists").flatten() {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        // One that is dead waits for its parent, and is nothing of ours any more.
        if read("cgroup").contains(&name) && !read("status").contains("State:\tZ") {
            found.push(read("comm").trim().to_owned());
        }
    }
    found
}

fn a_killed_worker_loses_nothing() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    bench.sh(&attempt, "echo saved > b; rm a; mkdir d").ok();
    kill_worker(&bench);
    wait_until(|| leftovers(&bench).is_empty());
    // The next command starts a worker, which settles what the dead one left.
    let saved = bench.client().suspend(suspend(attempt.attempt_id)).unwrap_or_else(|p| panic!("{p:?}"));
    assert_eq!(saved.node.status, NodeStatus::Sealed);
    assert_eq!((saved.changed.added, saved.changed.deleted), (2, 1), "{:?}", saved.changed);
    assert_eq!(bench.file(&saved.node, "b").as_deref(), Some(&b"saved\n"[..]));
    let record = bench.attempt(&attempt);
    assert_eq!((record.status, record.private_delta), (AttemptStatus::Released, PrivateDelta::Sealed));
    assert_eq!(record.failure.map(|failure| failure.class), Some(FailureClass::InfraLost));
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
    let again = bench.client().suspend(suspend(attempt.attempt_id)).expect_err("saved already");
    assert_eq!(again.code, "not_active");
}

fn a_client_is_told() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let keyed = ExecRequest {
        key: Some(key()),
        ..exec(attempt.attempt_id, &["sh", "-c", "echo x >> count; echo begun; sleep 300"])
    };
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| bench.run_with(keyed.clone(), None).expect_err("the worker is killed"));
        wait_until(|| bench.sh(&attempt, "cat count").result.exit_code == Some(0));
        let execs = esf_worker::logs::list(&bench.path(), attempt.attempt_id).expect("lists");
        kill_worker(&bench);
        assert_eq!(asked.join().expect("no panic").code, "infra_lost");
        // Its output up to then can be read, and its end is not made up.
        let lost = execs.iter().filter_map(|exec| {
            let cursor = Cursor { attempt: attempt.attempt_id, exec: *exec, stream: Stream::Stdout, from: 0 };
            let mut out = Vec::new();
            let end = esf_worker::logs::copy(&bench.path(), cursor, true, &|| false, &mut out);
            end.is_err().then(|| (end.expect_err("lost").code, out))
        });
        assert_eq!(lost.collect::<Vec<_>>(), [("infra_lost".to_owned(), b"begun\n".to_vec())]);
    });
    wait_until(|| leftovers(&bench).is_empty());
    let replayed = bench.run_with(keyed, None).expect("a result, and no second run");
    assert_eq!(replayed.result.failure.as_ref().map(|failure| failure.class), Some(FailureClass::InfraLost));
    assert_eq!(replayed.result.shell_code(), 125);
    let request = RetryRequest { meta: request_meta(), attempt: attempt.attempt_id, no_wait: false };
    let retried = bench.client().retry(request, &mut |_| {}).expect("retries");
    assert_eq!(retried.retry_of, Some(attempt.attempt_id));
    assert_eq!(bench.sh(&retried, "cat a").ok(), "one\n", "a fresh upper");
}

fn many_live_ones() {
    let bench = bench();
    let attempts: Vec<Attempt> = (0..8).map(|_| bench.activate(bench.root)).collect();
    for attempt in &attempts {
        let request = ExecRequest {
            detach: true,
            ..exec(attempt.attempt_id, &["sh", "-c", "setsid sleep 300 & sleep 300"])
        };
        bench.run_with(request, None).expect("starts");
    }
    assert!(!leftovers(&bench).is_empty());
    kill_worker(&bench);
    wait_until(|| leftovers(&bench).is_empty());
    drop(bench.client());
    for attempt in &attempts {
        let record = bench.attempt(attempt);
        assert_eq!(record.status, AttemptStatus::Failed, "{record:?}");
        assert_eq!(record.failure.map(|failure| failure.class), Some(FailureClass::InfraLost));
        bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
    }
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
}

fn recovery_without_a_worker() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    kill_worker(&bench);
    let executor: Arc<dyn Executor> = Arc::new(OciExecutor::new(&bench.path()).expect("an executor"));
    let executors = [executor];
    let first = esf_worker::recover(&bench.store, &executors).expect("recovers").expect("no worker lives");
    assert!(!first.is_empty());
    assert_eq!(bench.attempt(&attempt).status, AttemptStatus::Failed);
    let second = esf_worker::recover(&bench.store, &executors).expect("recovers").expect("no worker lives");
    assert!(second.is_empty(), "{second:?}");
    assert_eq!(leftovers(&bench), Vec::<String>::new());
    drop(bench.client());
    assert_eq!(esf_worker::recover(&bench.store, &executors).expect("asks"), None, "a worker lives");
}

fn a_killed_zygote() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let name = format!("esf-zygote --store {}", bench.path().canonicalize().expect("there").display());
    let named = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.strip_suffix(b"\0") == Some(name.as_bytes())
    };
    let pids = std::fs::read_dir("/proc").expect("lists").flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    kill(pids.find(named).expect("a zygote"));
    wait_until(|| bench.attempt(&attempt).status == AttemptStatus::Failed);
    let other = bench.activate(bench.root);
    assert_eq!(bench.sh(&other, "cat a").ok(), "one\n", "another zygote works");
    bench.client().release(request_meta(), other.attempt_id, true).expect("releases");
    bench.client().stop(false).expect("stops");
    let left: Vec<_> = groups(&bench);
    assert!(left.is_empty(), "{left:?}");
}

/// Control groups of this store, in any hierarchy.
fn groups(bench: &Bench) -> Vec<std::path::PathBuf> {
    let mut pending = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
                if entry.file_name().to_string_lossy() == home_name(bench) {
                    found.push(entry.path());
                }
            }
        }
    }
    found
}

/// Four clients work without pause while the worker is killed again and again; afterwards every attempt
/// is settled, what was told to be sealed is there, and nothing is left of the rest.
fn killed_at_any_moment() {
    let bench = bench();
    let done = std::sync::atomic::AtomicBool::new(false);
    let sealed = std::sync::Mutex::new(Vec::new());
    let own = bench.directory.path().to_str().expect("utf-8").to_owned();
    let mounts = || {
        let all = std::fs::read_to_string("/proc/mounts").expect("reads");
        all.lines().filter(|line| line.contains(&own)).count()
    };
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (bench, done, sealed) = (&bench, &done, &sealed);
            scope.spawn(move || {
                let exe = std::env::current_exe().expect("this program");
                for round in 0.. {
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let text = format!("{worker}-{round}");
                    // Whatever fails here fails because the worker was killed; only the end counts.
                    let _ = work_once(bench, &exe, &text)
                        .map(|node| sealed.lock().expect("lock").push((node, text)));
                }
            });
        }
        for round in 0..12 {
            std::thread::sleep(Duration::from_millis(150 + 67 * (round % 7)));
            if let Ok(Some(client)) = Client::connect(&bench.path()) {
                kill(client.worker_pid());
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.client().stop(true).expect("stops");
    let executor: Arc<dyn Executor> = Arc::new(OciExecutor::new(&bench.path()).expect("an executor"));
    esf_worker::recover(&bench.store, &[executor]).expect("recovers").expect("no worker lives");
    let attempts = bench.store.graph().attempts(None).expect("lists");
    let live: Vec<_> = attempts.iter().filter(|attempt| attempt.status.is_live()).collect();
    assert!(live.is_empty(), "{live:?}");
    let sealed = sealed.into_inner().expect("lock");
    for (node, text) in &sealed {
        let node = bench.store.graph().node(*node).expect("whoever was told finds it");
        assert_eq!(bench.file(&node, "own").as_deref(), Some(text.as_bytes()));
    }
    println!("{} attempts, {} sealed", attempts.len(), sealed.len());
    assert_eq!((leftovers(&bench), mounts()), (Vec::new(), 0));
    // Every delta that is kept can still be saved or given up.
    for attempt in attempts.iter().filter(|attempt| attempt.private_delta == PrivateDelta::Kept) {
        bench.client().release(request_meta(), attempt.attempt_id, true).unwrap_or_else(|p| panic!("{p:?}"));
    }
    let left = std::fs::read_dir(bench.path().join("attempts")).expect("lists").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let of = |name: &String| name.parse().ok().and_then(|id| bench.store.graph().attempt(id).ok());
    assert!(left.is_empty(), "{:?}", left.iter().map(of).collect::<Vec<_>>());
}

fn work_once(
    bench: &Bench,
    exe: &std::path::Path,
    text: &str,
) -> Result<esf_core::NodeId, esf_core::Problem> {
    let mut client = Client::connect_or_start(&bench.path(), exe)?;
    let attempt = client.activate(bench.request(bench.root), &mut |_| {})?;
    let request = exec(attempt.attempt_id, &["sh", "-c", &format!("printf %s {text} > own; sleep 0.02")]);
    client.exec(request, None, &mut std::io::sink(), &mut std::io::sink())?;
    Ok(client.suspend(suspend(attempt.attempt_id))?.node.node_id)
}

fn two_commands_start_one_worker() {
    let bench = bench();
    for _ in 0..3 {
        let pids: Vec<u32> = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..6).map(|_| scope.spawn(|| bench.client().worker_pid())).collect();
            asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
        });
        assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        let client = Client::connect(&bench.path()).expect("connects").expect("there");
        client.stop(false).expect("stops");
        std::thread::sleep(Duration::from_millis(1));
    }
}
