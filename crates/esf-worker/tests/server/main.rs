//! The worker over a fake executor: its queue, its ends, its own end. No privilege is needed.

#![allow(clippy::result_large_err)]

mod bounds;
#[path = "../contract/mod.rs"]
mod contract;
mod fake;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esf_core::environment::Environment;
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::{BootClock, Meta};
use esf_core::policy::PolicyDocument;
use esf_core::record::{Attempt, EventKind, PrivateDelta, Purpose};
use esf_core::state::AttemptStatus;
use esf_core::time::BootMillis;
use esf_core::{FailureClass, NodeId, Problem, Timestamp};
use esf_layerstack::ImportOptions;
use esf_store::Store;
use esf_worker::executor::Extra;
use esf_worker::{
    ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult, RequestMeta, SuspendRequest,
    WorkerConfig, serve,
};

struct Bench {
    _directory: tempfile::TempDir,
    path: PathBuf,
    store: Store,
    root: NodeId,
    worker: Option<JoinHandle<Result<bool, Problem>>>,
}

fn key() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn request_meta() -> RequestMeta {
    RequestMeta { actor: "test".to_owned(), key: key(), trace_id: String::new() }
}

fn meta() -> Meta {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    let boot = BootClock { boot_id: boot_id.trim().to_owned(), millis: BootMillis(1) };
    Meta { actor: "test".to_owned(), key: key(), now: Timestamp(1), boot, trace_id: String::new() }
}

fn quick() -> WorkerConfig {
    WorkerConfig { idle_exit: Duration::from_secs(60), ..WorkerConfig::default() }
}

impl Bench {
    fn new(config: WorkerConfig) -> Self {
        let mut bench = Self::without_worker();
        bench.start(config);
        bench
    }

    fn without_worker() -> Self {
        Self::with_policy(PolicyDocument::default())
    }

    fn with_policy(policy: PolicyDocument) -> Self {
        let directory = tempfile::tempdir().expect("tempdir");
        let source = directory.path().join("source");
        std::fs::create_dir(&source).expect("mkdir");
        std::fs::write(source.join("a"), "one\n").expect("writes");
        let path = directory.path().join("store");
        let store = Store::open_or_create(&path).expect("a store");
        let imported =
            store.stack().import_directory(&source, &ImportOptions::default(), &()).expect("imports");
        let command = CreateGroup {
            name: "g".to_owned(),
            root: store.graph().register_root(&meta(), &imported.sealed).expect("registers"),
            policy,
            source: "directory:source".to_owned(),
            default_environment: Environment::default(),
            provenance: serde_json::json!({}),
        };
        let root = store.graph().create_group(&meta(), command).expect("a group").canonical_node_id;
        Self { _directory: directory, path, store, root, worker: None }
    }

    fn start(&mut self, config: WorkerConfig) {
        let (path, (ready, is_ready)) = (self.path.clone(), std::sync::mpsc::channel());
        let worker =
            move || serve(&path, vec![Arc::new(fake::Fake)], config, |_| ready.send(()).expect("heard"));
        self.worker = Some(std::thread::spawn(worker));
        is_ready.recv().expect("it comes up");
    }

    fn client(&self) -> Client {
        Client::connect(&self.path).expect("connects").expect("a worker lives")
    }

    fn request(&self) -> ActivateRequest {
        ActivateRequest {
            meta: request_meta(),
            node: self.root,
            environment: Environment::default(),
            lifetime_ms: None,
            on_expiry: None,
            no_wait: false,
            priority: 0,
            purpose: ActivatePurpose::Work,
            extra: Extra::default(),
        }
    }

    fn activate(&self) -> Attempt {
        self.client().activate(self.request(), &mut |_| {}).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    fn exec_request(&self, attempt: &Attempt, script: &str) -> ExecRequest {
        ExecRequest {
            actor: "test".to_owned(),
            attempt: attempt.attempt_id,
            argv: ["sh", "-c", script].map(OsString::from).to_vec(),
            env: Vec::new(),
            cwd: None,
            user: None,
            timeout_ms: None,
            detach: false,
            max_output: None,
            key: None,
            stdin: false,
            trace_id: String::new(),
        }
    }

    fn try_sh(&self, attempt: &Attempt, script: &str) -> Result<ExecResult, Problem> {
        let sink = &mut std::io::sink();
        self.client().exec(self.exec_request(attempt, script), None, sink, &mut std::io::sink())
    }

    fn sh(&self, attempt: &Attempt, script: &str) -> ExecResult {
        self.try_sh(attempt, script).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    fn record(&self, attempt: &Attempt) -> Attempt {
        self.store.graph().attempt(attempt.attempt_id).expect("on record")
    }

    fn upper(&self, attempt: &Attempt) -> PathBuf {
        self.path.join("attempts").join(attempt.attempt_id.to_string()).join("upper")
    }

    /// Ends the worker as it would end by itself; returns what `serve` said.
    fn stop(&mut self) -> Result<bool, Problem> {
        self.client().stop(true).expect("stops");
        self.worker.take().expect("started").join().expect("no panic")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.worker.is_some() && Client::connect(&self.path).is_ok_and(|client| client.is_some()) {
            self.stop().expect("it ends well");
        }
    }
}

fn suspend(attempt: &Attempt) -> SuspendRequest {
    let attempt = attempt.attempt_id;
    SuspendRequest {
        meta: request_meta(),
        attempt,
        terminal: false,
        state: None,
        message: None,
        keep: false,
        if_changed: false,
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never came true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_contract_holds_for_the_fake() {
    for (name, case) in contract::CASES {
        println!("{name}");
        let mut programs = contract::Programs { isolates: false, ..contract::shell_programs() };
        programs.environment.env.insert("FAKE".to_owned(), "copy".to_owned());
        case(&fake::Fake, &contract::Ground::new(programs));
    }
}

#[test]
fn many_wait_and_start_in_the_order_they_came() {
    let bench = Bench::new(WorkerConfig { max_live: 3, ..quick() });
    let held: Vec<Attempt> = (0..3).map(|_| bench.activate()).collect();
    let most = std::sync::Mutex::new(0);
    std::thread::scope(|scope| {
        for number in 0..40 {
            let (bench, most) = (&bench, &most);
            scope.spawn(move || {
                let attempt = bench.activate();
                let live = bench.store.graph().live_count().expect("counts");
                let mut most = most.lock().expect("lock");
                *most = live.max(*most);
                drop(most);
                bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
            });
            wait_until(|| bench.store.graph().queued().expect("queue").len() == number + 1);
        }
        for attempt in held {
            bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
        }
    });
    assert!(most.into_inner().expect("lock") <= 3);
    let order = |kind| {
        let events = bench.store.graph().events(0, 10_000).expect("events").into_iter();
        events.filter(|event| event.kind == kind).filter_map(|event| event.attempt_id).collect::<Vec<_>>()
    };
    // Three may start at one time, and their commits may pass each other, but no more than that.
    let (queued, active) = (order(EventKind::AttemptQueued), order(EventKind::AttemptActive));
    assert_eq!(active.len(), 43);
    for (place, attempt) in active.iter().enumerate() {
        let came = queued.iter().position(|other| other == attempt).expect("queued");
        assert!(place.abs_diff(came) <= 2, "{came} started as {place}");
    }
}

#[test]
fn an_idle_worker_ends_and_a_busy_one_does_not() {
    let mut bench = Bench::new(WorkerConfig { idle_exit: Duration::from_millis(300), ..quick() });
    let attempt = bench.activate();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(bench.sh(&attempt, "exit 3").exit_code, Some(3), "it is busy as long as something lives");
    bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
    let ended = bench.worker.take().expect("started").join().expect("no panic");
    assert_eq!(ended, Ok(true));
    assert!(Client::connect(&bench.path).expect("asks").is_none());
    assert!(!esf_worker::lock::held(&bench.path));
}

#[test]
fn a_second_worker_does_not_come_up() {
    let bench = Bench::new(quick());
    let second = serve(&bench.path, vec![Arc::new(fake::Fake)], quick(), |_| panic!("it must not"));
    assert_eq!(second, Ok(false));
    assert_eq!(bench.client().worker_pid(), std::process::id());
}

#[test]
fn a_queued_attempt_for_which_nobody_waits_is_given_up() {
    let mut bench = Bench::without_worker();
    let command = Enqueue {
        node: bench.root,
        environment: Environment::default(),
        purpose: Purpose::Work,
        lifetime_ms: None,
        on_expiry: None,
        priority: 0,
    };
    let orphan = bench.store.graph().enqueue(&meta(), command).expect("queued");
    bench.start(WorkerConfig { orphan_ms: 100, ..quick() });
    wait_until(|| bench.record(&orphan).status == AttemptStatus::Failed);
    assert_eq!(bench.record(&orphan).failure.map(|failure| failure.class), Some(FailureClass::Cancelled));
}

#[test]
fn nobody_who_asks_is_taken_for_an_orphan() {
    let bench = Bench::new(WorkerConfig { orphan_ms: 30, ..quick() });
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        let attempt = bench.activate();
        bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
    }
}

#[test]
fn a_failed_activation_gives_its_slot_back_and_leaves_nothing() {
    let bench = Bench::new(WorkerConfig { max_live: 1, ..quick() });
    let mut request = bench.request();
    request.environment.env.insert("FAKE".to_owned(), "full".to_owned());
    let problem = bench.client().activate(request, &mut |_| {}).expect_err("fails");
    assert_eq!(problem.code, "storage_full");
    let failed = &bench.store.graph().attempts(None).expect("lists")[0];
    assert_eq!(failed.failure.as_ref().map(|failure| failure.class), Some(FailureClass::InfraPrepare));
    assert_eq!(std::fs::read_dir(bench.path.join("attempts")).expect("lists").count(), 0);
    bench.activate();
}

#[test]
fn who_asks_again_while_it_starts_gets_it_when_it_lives() {
    let bench = Bench::new(quick());
    let mut request = bench.request();
    request.environment.env.insert("FAKE".to_owned(), "slow".to_owned());
    let (bench_ref, request_ref) = (&bench, &request);
    let asked = move |delay| {
        std::thread::sleep(Duration::from_millis(delay));
        let attempt = asked_again(bench_ref, request_ref.clone());
        assert_eq!(bench_ref.sh(&attempt, "exit 3").exit_code, Some(3), "it lives when its client is told");
        attempt
    };
    let attempts: Vec<Attempt> = std::thread::scope(|scope| {
        let all: Vec<_> =
            [0, 100, 200, 300].map(|delay| scope.spawn(move || asked(delay))).into_iter().collect();
        all.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    assert!(attempts.iter().all(|attempt| attempt == &attempts[0]));
    bench.client().release(request_meta(), attempts[0].attempt_id, true).expect("releases");
    assert_eq!(asked_again(&bench, request), attempts[0], "and the same afterwards, without a new life");
    assert!(bench.client().status().expect("status").live.is_empty());
}

fn asked_again(bench: &Bench, request: ActivateRequest) -> Attempt {
    bench.client().activate(request, &mut |_| {}).unwrap_or_else(|problem| panic!("{problem:?}"))
}

#[test]
fn a_stop_is_refused_while_something_lives_and_forced_keeps_deltas() {
    let mut bench = Bench::new(quick());
    let attempt = bench.activate();
    bench.sh(&attempt, "echo kept > b");
    assert_eq!(bench.client().stop(false).expect_err("busy").code, "worker_busy");
    assert_eq!(bench.stop(), Ok(true));
    let record = bench.record(&attempt);
    assert_eq!((record.status, record.private_delta), (AttemptStatus::Failed, PrivateDelta::Kept));
    bench.start(quick());
    let reply = bench.client().suspend(suspend(&attempt)).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!((reply.changed.added, reply.changed.bytes), (1, 5));
}

#[test]
fn a_forced_stop_ends_those_who_wait_too() {
    let mut bench = Bench::new(WorkerConfig { max_live: 1, ..quick() });
    let live = bench.activate();
    let (mut client, request) = (bench.client(), bench.request());
    let waiting =
        std::thread::spawn(move || client.activate(request, &mut |_| {}).expect_err("stopped").code);
    wait_until(|| bench.store.graph().queued().expect("queue").len() == 1);
    assert_eq!(bench.client().stop(false).expect_err("busy").code, "worker_busy");
    assert_eq!(bench.stop(), Ok(true));
    assert_eq!(waiting.join().expect("no panic"), "cancelled");
    assert_eq!(bench.record(&live).status, AttemptStatus::Failed);
    assert!(bench.store.graph().queued().expect("queue").is_empty());
}

#[test]
fn clients_that_leave_at_any_time_hold_no_slot() {
    let bench = Bench::new(WorkerConfig { max_live: 1, ..quick() });
    for round in 0..40 {
        let held = bench.activate();
        std::thread::scope(|scope| {
            let (mut client, request) = (bench.client(), bench.request());
            let (wait, cancel) = rustix::pipe::pipe().expect("pipe");
            client.set_cancel(wait);
            let waiting = scope.spawn(move || client.activate(request, &mut |_| {}));
            wait_until(|| bench.store.graph().queued().expect("queue").len() == 1);
            // The slot comes free and the client goes at about the same time, in either order.
            let freeing = scope.spawn(|| bench.client().release(request_meta(), held.attempt_id, true));
            std::thread::sleep(Duration::from_micros(round * 100));
            drop(cancel);
            freeing.join().expect("no panic").expect("releases");
            if let Ok(attempt) = waiting.join().expect("no panic") {
                bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
            }
        });
    }
    bench.activate();
}

#[test]
fn a_held_workspace_fails_the_seal_and_is_saved_later() {
    let bench = Bench::new(quick());
    let attempt = bench.activate();
    bench.sh(&attempt, "echo kept > b");
    let held = File::open(bench.upper(&attempt).join("b")).expect("opens");
    let request = suspend(&attempt);
    assert_eq!(bench.client().suspend(request.clone()).expect_err("busy").code, "workspace_busy");
    assert_eq!(bench.record(&attempt).private_delta, PrivateDelta::Kept);
    assert_eq!(bench.client().suspend(request.clone()).expect_err("still busy").code, "workspace_busy");
    drop(held);
    let reply = bench.client().suspend(request.clone()).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(reply.changed.added, 1);
    let again = bench.client().suspend(request).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(again.node, reply.node);
}

#[test]
fn what_cannot_be_sealed_stays_until_it_is_given_up() {
    let bench = Bench::new(quick());
    let attempt = bench.activate();
    let deep = "i=0; while [ $i -lt 300 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done";
    assert_eq!(bench.sh(&attempt, deep).exit_code, Some(0));
    let first = bench.client().suspend(suspend(&attempt)).expect_err("too deep");
    assert_eq!(first.code, "tree_too_deep", "{first:?}");
    assert_eq!(bench.record(&attempt).status, AttemptStatus::Quiescing);
    let second = bench.client().suspend(suspend(&attempt)).expect_err("another key, the same refusal");
    assert_eq!(second.code, "tree_too_deep", "{second:?}");
    let mut client = bench.client();
    assert!(client.release(request_meta(), attempt.attempt_id, false).is_err(), "nobody gave it up");
    let released = client.release(request_meta(), attempt.attempt_id, true).expect("given up");
    assert_eq!(released.status, AttemptStatus::Released);
}

#[test]
fn strangers_on_the_socket_cost_nothing() {
    let bench = Bench::new(quick());
    let attempt = bench.activate();
    let status = bench.client().status().expect("status");
    assert_eq!((status.live.len(), status.queued, status.pid), (1, 0, std::process::id()));
    let path = std::fs::read_dir("/run/esf").into_iter().flatten().flatten();
    let sockets = path.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "sock"));
    for socket in sockets {
        for bytes in [&[255_u8; 64][..], &[1, 0, 0, 0, 1], b"GET / HTTP/1.1\r\n\r\n"] {
            // Sockets of other stores' workers may be there, and may be gone: both are strangers to them.
            if let Ok(mut stream) = std::os::unix::net::UnixStream::connect(socket.path()) {
                let _ = stream.write_all(bytes);
            }
        }
    }
    assert_eq!(bench.sh(&attempt, "true").exit_code, Some(0));
}
