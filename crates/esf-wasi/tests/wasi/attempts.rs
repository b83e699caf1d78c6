//! Attempts under a real worker: how commands end and are told, what a pinned program is, and what is left
//! when the worker or a host is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use esf_core::environment::{Environment, Limits, PinnedModule, Preopen, Wasi};
use esf_core::record::{Attempt, PrivateDelta};
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_core::{FailureClass, NodeId};
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, ExecRequest, Stdin};

use crate::support::{Bench, Ran, exec, key, suspend};
use crate::{Test, environment, programs};

pub(crate) const TESTS: &[Test] = &[
    ("attempts::work_is_sealed_and_goes_on", work_is_sealed_and_goes_on),
    ("attempts::a_time_out_ends_that_command_and_no_other", a_time_out),
    ("attempts::ends_that_are_not_exits_are_told_for_what_they_are", ends_are_told),
    ("attempts::a_pinned_program_needs_no_tree", a_pinned_program),
    ("attempts::what_is_no_guest_is_told_precisely", what_is_no_guest),
    ("attempts::preopens_are_all_that_a_guest_is_given", preopens),
    ("attempts::what_is_hidden_is_not_there", what_is_hidden),
    ("attempts::output_and_input_are_whole_and_bounded", output_and_input),
    ("attempts::a_key_runs_once", a_key_runs_once),
    ("attempts::a_killed_worker_loses_nothing", a_killed_worker),
    ("attempts::a_killed_host_is_the_end_of_its_attempt_only", a_killed_host),
    ("attempts::a_stopped_host_dies_with_its_command", a_stopped_host),
    ("attempts::many_attempts_leave_nothing_behind", many_attempts),
    ("attempts::a_host_gave_up_what_it_does_not_need", a_host_is_jailed),
];

fn bench() -> Bench {
    Bench::new(|directory| {
        std::fs::write(directory.join("a"), "one\n").expect("writes");
        std::fs::create_dir(directory.join("d")).expect("mkdir");
        programs::install(directory);
    })
}

fn with(wasi: Wasi) -> Environment {
    Environment { wasi: Some(Wasi { engine: esf_wasi::engine_identity(), ..wasi }), ..environment() }
}

fn activate(bench: &Bench, node: NodeId, environment: Environment) -> Attempt {
    bench.activate_with(ActivateRequest { environment, ..bench.request(node) })
}

fn class(ran: &Ran) -> Option<FailureClass> {
    ran.result.failure.as_ref().map(|failure| failure.class)
}

/// Processes of this store that serve under a name of ours.
fn processes(bench: &Bench) -> Vec<u32> {
    let store = bench.path().canonicalize().expect("there");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("lists").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.starts_with("esf-wasi-") && line.contains(store.to_str().expect("text")) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    found
}

/// Those of them that have an attempt: they are jailed, and the one that waits for its attempt is not yet.
fn hosts(bench: &Bench) -> Vec<u32> {
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    processes(bench).into_iter().filter(|pid| status(pid).contains("Seccomp:\t2")).collect()
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    rustix::process::kill_process(pid, signal).expect("signals");
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "in vain waited until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn work_is_sealed_and_goes_on() {
    let bench = bench();
    let mut node = bench.root;
    for round in 0..3 {
        let attempt = activate(&bench, node, environment());
        assert_eq!(hosts(&bench).len(), 1);
        bench.run(&attempt, &["write.wasm", "made", &format!("in round {round}")]).ok();
        bench.run(&attempt, &["write.wasm", &format!("d/{round}"), "x"]).ok();
        if round == 1 {
            bench.run(&attempt, &["remove.wasm", "a"]).ok();
        }
        let sealed = bench.suspend(&attempt).node;
        assert_eq!(hosts(&bench), Vec::<u32>::new(), "nothing of it runs");
        assert_eq!(bench.file(&sealed, "made"), Some(format!("in round {round}").into_bytes()));
        assert_eq!(bench.file(&sealed, "a").is_some(), round == 0);
        let provenance = &sealed.provenance["wasi"];
        assert_eq!(provenance["engine"], esf_wasi::engine_identity());
        node = sealed.node_id;
    }
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
}

fn a_time_out() {
    let bench = bench();
    let attempt = activate(&bench, bench.root, environment());
    std::thread::scope(|scope| {
        let sibling = scope.spawn(|| {
            let quick = ExecRequest { timeout_ms: Some(60_000), ..exec(attempt.attempt_id, &["sleep.wasm"]) };
            bench.run_with(quick, None)
        });
        for program in ["sleep.wasm", "spin.wasm"] {
            let begun = Instant::now();
            let limited = ExecRequest { timeout_ms: Some(300), ..exec(attempt.attempt_id, &[program]) };
            let ran = bench.run_with(limited, None).expect("a result");
            assert!(ran.result.timed_out && ran.result.shell_code() == 124, "{ran:?}");
            assert_eq!(class(&ran), Some(FailureClass::UserTimeout));
            assert!(begun.elapsed() < Duration::from_secs(3), "took {:?}", begun.elapsed());
        }
        assert!(!sibling.is_finished(), "the other sleeps on");
        let running = || bench.client().status().expect("a status").live[0].execs.len();
        wait_until("the others are off the table", || running() == 1);
        let reached = bench.client().kill(attempt.attempt_id, None, 9).expect("kills");
        assert_eq!(reached.len(), 1);
        let killed = sibling.join().expect("no panic").expect("a result");
        assert_eq!((killed.result.signal, class(&killed)), (Some(9), Some(FailureClass::Cancelled)));
    });
    let refused = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| bench.run(&attempt, &["sleep.wasm"]));
        wait_until("it runs", || bench.client().status().expect("a status").live[0].execs.len() == 1);
        let refused = bench.client().kill(attempt.attempt_id, None, 15).expect_err("no other signal");
        bench.client().kill(attempt.attempt_id, None, 9).expect("kills");
        sleeper.join().expect("no panic");
        refused
    });
    assert_eq!(refused.code, "not_supported");
}

fn ends_are_told() {
    let bench = bench();
    let attempt = activate(&bench, bench.root, environment());
    let trapped = bench.run(&attempt, &["trap.wasm"]);
    assert_eq!((trapped.result.signal, class(&trapped)), (Some(6), Some(FailureClass::UserExit)));
    assert!(String::from_utf8_lossy(&trapped.err).contains("esf: trap: "), "{trapped:?}");
    let exited = bench.run(&attempt, &["say.wasm", "x", "9"]);
    assert_eq!((exited.result.exit_code, class(&exited)), (Some(9), Some(FailureClass::UserExit)));

    let fuelled = activate(&bench, bench.root, with(Wasi { fuel: Some(10_000_000), ..Wasi::default() }));
    bench.run(&fuelled, &["say.wasm", "cheap", "0"]).ok();
    let spent = bench.run(&fuelled, &["spin.wasm"]);
    assert_eq!((spent.result.signal, class(&spent)), (Some(24), Some(FailureClass::UserTimeout)));
    assert!(!spent.result.timed_out, "it was not the clock");

    let limits = Limits { memory: Some(16 << 20), ..Limits::default() };
    let small = activate(&bench, bench.root, Environment { limits, ..environment() });
    let refused = bench.run(&small, &["take-memory.wasm", "67108864"]);
    assert_eq!((refused.result.exit_code, class(&refused)), (Some(4), Some(FailureClass::UserOom)));
    let fine = bench.run(&small, &["say.wasm", "x", "2"]);
    assert_eq!(class(&fine), Some(FailureClass::UserExit), "the next is not blamed for it");

    let limits = Limits { disk: Some(1 << 20), ..Limits::default() };
    let full = activate(&bench, bench.root, Environment { limits, ..environment() });
    assert_eq!(bench.run(&full, &["fill.wasm", "big", "4194304"]).result.exit_code, Some(3));
    let problem = bench.client().put_file(
        full.attempt_id,
        Path::new("/workspace/put"),
        0o644,
        &mut &vec![1; 4 << 20][..],
    );
    assert_eq!(problem.expect_err("no room").code, "storage_full");
}

fn a_pinned_program() {
    let bench = Bench::new(|directory| std::fs::write(directory.join("a"), "one\n").expect("writes"));
    let blob = bench.store.stack().put_artifact(&programs::module("say")).expect("stores");
    let module = PinnedModule { name: "say.wasm".to_owned(), digest: *blob.digest() };
    let pinned = with(Wasi { modules: vec![module.clone()], ..Wasi::default() });
    let attempt = activate(&bench, bench.root, pinned);
    for name in ["say.wasm", "say"] {
        assert_eq!(bench.run(&attempt, &[name, "pinned", "0"]).ok(), "pinned\n");
    }
    for name in ["./say.wasm", "/workspace/say.wasm", "sa"] {
        assert_eq!(bench.run(&attempt, &[name]).result.exit_code, Some(127), "{name}");
    }
    let sealed = bench.suspend(&attempt).node;
    let told = &sealed.provenance["wasi"]["modules"][0];
    assert_eq!((&told["name"], &told["digest"]), (&"say.wasm".into(), &module.digest.to_string().into()));

    let recorded = bench.store.graph().attempts(None).expect("lists").len();
    let absent = PinnedModule { digest: esf_core::Digest::of(b"nobody stored this"), ..module.clone() };
    let refused = try_activate(&bench, with(Wasi { modules: vec![absent], ..Wasi::default() }));
    assert_eq!(refused.code, "bad_environment", "{refused:?}");
    let blob = bench.store.stack().put_artifact(b"not a module at all").expect("stores");
    let broken = PinnedModule { digest: *blob.digest(), ..module };
    let refused = try_activate(&bench, with(Wasi { modules: vec![broken], ..Wasi::default() }));
    assert!(refused.message.contains("expected a WebAssembly component or module"), "{refused:?}");
    assert_eq!(bench.store.graph().attempts(None).expect("lists").len(), recorded, "nothing is on record");
    assert_eq!(hosts(&bench), Vec::<u32>::new());
}

fn try_activate(bench: &Bench, environment: Environment) -> esf_core::Problem {
    let request = ActivateRequest { environment, ..bench.request(bench.root) };
    bench.client().activate(request, &mut |_| {}).expect_err("refused")
}

fn what_is_no_guest() {
    let bench = Bench::new(|directory| {
        let write = |name: &str, bytes: &[u8]| std::fs::write(directory.join(name), bytes).expect("writes");
        programs::install(directory);
        write("script", b"#!/bin/sh\necho no\n");
        write("elf", b"\x7fELF\x02\x01\x01");
        write("empty", b"");
        write("garbage", &vec![0x5a; 1 << 20]);
        write("cut", &programs::module("say")[..40]);
        write("old", b"\0asm\x09\0\0\0");
        write("no-entry", &wat::parse_str("(module (memory (export \"memory\") 1))").expect("text"));
        let import = "(module (import \"env\" \"thing\" (func)) (memory (export \"memory\") 1)
                       (func (export \"_start\")))";
        write("unknown-import", &wat::parse_str(import).expect("text"));
        std::fs::create_dir(directory.join("d")).expect("mkdir");
        std::os::unix::fs::symlink("/bin/sh", directory.join("out")).expect("links");
    });
    let attempt = activate(&bench, bench.root, environment());
    let detail = |name: &str, code: i32| {
        let ran = bench.run(&attempt, &[name]);
        assert_eq!(ran.result.exit_code, Some(code), "{name}: {ran:?}");
        ran.result.failure.expect("a reason").detail
    };
    for (name, found) in [
        ("script", "a script"),
        ("elf", "a native program"),
        ("empty", "an empty file"),
        ("garbage", "something else"),
        ("cut", "expected a valid module"),
        ("old", "version 9"),
        ("no-entry", "_start"),
        ("unknown-import", "env"),
        ("d", "a directory"),
    ] {
        let said = detail(name, 126);
        assert!(said.contains(found), "{name}: {said}");
    }
    detail("out", 126);
    detail("/bin/sh", 127);
    detail("../../../bin/sh", 126);
    let bad = |argv: &[&str], change: &dyn Fn(&mut ExecRequest)| {
        let mut request = exec(attempt.attempt_id, argv);
        change(&mut request);
        bench.run_with(request, None).expect_err("refused").code
    };
    let bytes = |bytes: &[u8]| std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec());
    assert_eq!(bad(&["say.wasm"], &|request| request.argv.push(bytes(b"\xff"))), "bad_arguments");
    assert_eq!(bad(&["say.wasm"], &|request| request.cwd = Some("/elsewhere".into())), "bad_cwd");
    assert_eq!(bad(&["say.wasm"], &|request| request.cwd = Some("../..".into())), "bad_cwd");
    assert_eq!(bad(&["say.wasm"], &|request| request.user = Some("0".to_owned())), "not_supported");
    let long = "x".repeat(3 << 20);
    assert_eq!(bad(&["say.wasm", &long], &|_| {}), "bad_arguments");
    bench.run(&attempt, &["say.wasm", "alive", "0"]).ok();
}

fn preopens() {
    let bench = Bench::new(|directory| {
        programs::install(directory);
        for name in ["in", "out"] {
            std::fs::create_dir(directory.join(name)).expect("mkdir");
        }
    });
    let preopen = |path: &str, write| Preopen { path: path.to_owned(), at: format!("/{path}"), write };
    let some = with(Wasi { preopens: vec![preopen("in", false), preopen("out", true)], ..Wasi::default() });
    let attempt = activate(&bench, bench.root, some.clone());
    // The working directory follows the two as the third descriptor; the programs write through the second.
    let writes = |cwd: Option<&str>| {
        let argv = ["/workspace/write.wasm", "made", "x"];
        let request = ExecRequest { cwd: cwd.map(Into::into), ..exec(attempt.attempt_id, &argv) };
        bench.run_with(request, None)
    };
    assert_eq!(writes(None).expect("a result").result.exit_code, Some(0), "out is the second");
    assert_eq!(writes(Some("d")).expect_err("no such").code, "bad_cwd");
    assert_eq!(writes(Some("/workspace")).expect_err("in none of them").code, "bad_cwd");
    let sealed = bench.suspend(&attempt).node;
    assert!(bench.file(&sealed, "out/made").is_some());

    let read_only =
        with(Wasi { preopens: vec![preopen("out", true), preopen("in", false)], ..Wasi::default() });
    let attempt = activate(&bench, bench.root, read_only);
    let request = exec(attempt.attempt_id, &["/workspace/write.wasm", "made", "x"]);
    assert_eq!(bench.run_with(request, None).expect("a result").result.exit_code, Some(9), "not in `in`");
    let absent = with(Wasi { preopens: vec![preopen("absent", true)], ..Wasi::default() });
    assert_eq!(try_activate(&bench, absent).code, "bad_environment");
    let file = with(Wasi { preopens: vec![preopen("say.wasm", true)], ..Wasi::default() });
    assert_eq!(try_activate(&bench, file).code, "bad_environment");
}

fn what_is_hidden() {
    let bench = Bench::new(|directory| {
        programs::install(directory);
        std::fs::write(directory.join("a"), "one").expect("writes");
        std::fs::create_dir_all(directory.join("tests/deep/er")).expect("mkdir");
        std::fs::write(directory.join("tests/deep/er/expected"), "42").expect("writes");
    });
    let hide = ["a", "tests/deep", "tests/deep/er/expected", "absent/x"].map(|path| path.as_bytes().to_vec());
    let extra = Extra { hide: hide.to_vec(), ..Extra::default() };
    let purpose = ActivatePurpose::Evaluate;
    let request = ActivateRequest { environment: environment(), purpose, extra, ..bench.request(bench.root) };
    let attempt = bench.activate_with(request.clone());
    // The guest's own word for what is not there.
    assert_eq!(bench.run(&attempt, &["remove.wasm", "a"]).result.exit_code, Some(44));
    assert_eq!(bench.run(&attempt, &["remove.wasm", "tests/deep/er/expected"]).result.exit_code, Some(44));
    let list = |path: &str| {
        let mut names = Vec::new();
        let listed = bench
            .client()
            .list_files(attempt.attempt_id, Path::new(path), &mut |entry| names.push(entry.name));
        listed.map(|_| names)
    };
    assert_eq!(list("/workspace/tests").expect("lists"), Vec::<String>::new());
    assert_eq!(list("/workspace/tests/deep").expect_err("hidden").code, "not_found");
    for bad in ["../x", "/x", ""] {
        let extra = Extra { hide: vec![bad.as_bytes().to_vec()], ..Extra::default() };
        let meta = crate::support::request_meta();
        let refused =
            bench.client().activate(ActivateRequest { meta, extra, ..request.clone() }, &mut |_| {});
        assert_eq!(refused.expect_err("refused").code, "bad_environment", "{bad}");
    }
}

fn output_and_input() {
    let bench = bench();
    let attempt = activate(&bench, bench.root, environment());
    let flood = ExecRequest {
        max_output: Some(64 << 10),
        ..exec(attempt.attempt_id, &["flood.wasm", "50000000", "7"])
    };
    let ran = bench.run_with(flood, None).expect("a result");
    assert_eq!((ran.result.exit_code, ran.result.stdout_bytes), (Some(7), 50_000_000));
    // The two ends, and between them a line that says how much is left out.
    assert!(ran.result.truncated && ran.out.len() <= (64 << 10) + 200, "{}", ran.out.len());
    let mut input = tempfile::tempfile().expect("a file");
    let bytes: Vec<u8> = (0..10_000_000_u32).map(|at| (at % 251) as u8).collect();
    std::io::Write::write_all(&mut input, &bytes).expect("writes");
    std::io::Seek::rewind(&mut input).expect("rewinds");
    let copy = ExecRequest { stdin: true, ..exec(attempt.attempt_id, &["copy.wasm"]) };
    let ran = bench.run_with(copy, Some(Stdin::Fd(input.into()))).expect("a result");
    assert_eq!(ran.result.exit_code, Some(0));
    assert!(ran.out == bytes, "{} bytes came back", ran.out.len());
}

fn a_key_runs_once() {
    let bench = bench();
    let attempt = activate(&bench, bench.root, environment());
    let keyed = ExecRequest { key: Some(key()), ..exec(attempt.attempt_id, &["say.wasm", "once", "3"]) };
    let first = bench.run_with(keyed.clone(), None).expect("a result");
    let again = bench.run_with(keyed, None).expect("the same");
    assert_eq!((first.result, first.out), (again.result, again.out));
}

/// The delta of a lost attempt is there and can be sealed.
fn assert_salvaged(bench: &Bench, attempt: &Attempt) {
    let record = bench.attempt(attempt);
    assert_eq!((record.status, record.private_delta), (AttemptStatus::Failed, PrivateDelta::Kept));
    assert_eq!(record.failure.map(|failure| failure.class), Some(FailureClass::InfraLost));
    let saved = bench.client().suspend(suspend(attempt.attempt_id)).unwrap_or_else(|p| panic!("{p:?}"));
    assert_eq!(saved.node.status, NodeStatus::Sealed);
    assert_eq!(bench.file(&saved.node, "made").as_deref(), Some(&b"saved"[..]));
    assert!(bench.file(&saved.node, "busy").is_some_and(|bytes| bytes.starts_with(b"x\nx\n")));
}

/// A live attempt that has written something and goes on writing, detached.
fn busy(bench: &Bench) -> Attempt {
    let attempt = activate(bench, bench.root, environment());
    bench.run(&attempt, &["write.wasm", "made", "saved"]).ok();
    let writer = ExecRequest { detach: true, ..exec(attempt.attempt_id, &["keep-writing.wasm", "busy"]) };
    bench.run_with(writer, None).expect("starts");
    let upper = bench.path().join(format!("attempts/{}/upper/busy", attempt.attempt_id));
    wait_until("it writes", || std::fs::metadata(&upper).is_ok_and(|found| found.len() > 8));
    attempt
}

fn a_killed_worker() {
    let bench = bench();
    let attempts: Vec<Attempt> = (0..3).map(|_| busy(&bench)).collect();
    assert_eq!(hosts(&bench).len(), 3);
    signal(bench.client().worker_pid(), rustix::process::Signal::KILL);
    wait_until("its hosts are gone", || processes(&bench).is_empty());
    // The next command starts a worker, which settles what the dead one left.
    bench.client().status().expect("a status");
    for attempt in &attempts {
        assert_salvaged(&bench, attempt);
    }
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
}

fn a_killed_host() {
    let bench = bench();
    let attempt = busy(&bench);
    let [host] = hosts(&bench)[..] else { panic!("one host") };
    let other = activate(&bench, bench.root, environment());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| bench.run(&attempt, &["sleep.wasm"]));
        wait_until("it runs", || {
            bench.client().status().expect("a status").live.iter().any(|live| live.execs.len() == 2)
        });
        signal(host, rustix::process::Signal::KILL);
        let lost = waiting.join().expect("no panic");
        assert_eq!((class(&lost), lost.result.shell_code()), (Some(FailureClass::InfraLost), 125));
    });
    wait_until("it is on record", || bench.attempt(&attempt).status == AttemptStatus::Failed);
    assert_eq!(bench.run(&other, &["say.wasm", "alive", "0"]).ok(), "alive\n");
    assert_salvaged(&bench, &attempt);
}

/// A host that does not do as it is told: the command's time runs out, and the attempt is lost, in a bound.
fn a_stopped_host() {
    let bench = bench();
    let attempt = busy(&bench);
    let [host] = hosts(&bench)[..] else { panic!("one host") };
    std::thread::scope(|scope| {
        let limited = ExecRequest { timeout_ms: Some(500), ..exec(attempt.attempt_id, &["sleep.wasm"]) };
        let waiting = scope.spawn(|| bench.run_with(limited, None).expect("a result"));
        wait_until("it runs", || {
            bench.client().status().expect("a status").live.iter().any(|live| live.execs.len() == 2)
        });
        signal(host, rustix::process::Signal::STOP);
        let begun = Instant::now();
        let ran = waiting.join().expect("no panic");
        assert!(ran.result.timed_out, "{ran:?}");
        assert!(begun.elapsed() < Duration::from_secs(15), "took {:?}", begun.elapsed());
    });
    wait_until("it is on record", || bench.attempt(&attempt).status == AttemptStatus::Failed);
    assert_salvaged(&bench, &attempt);
}

fn a_host_is_jailed() {
    let bench = bench();
    let attempt = activate(&bench, bench.root, environment());
    let [host] = hosts(&bench)[..] else { panic!("one host") };
    let status = std::fs::read_to_string(format!("/proc/{host}/status")).expect("reads");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().nth(1).expect("a value").to_owned()
    };
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
    let kept = u64::from_str_radix(&field("CapEff:"), 16).expect("hexadecimal");
    // KILL, SETUID, SETGID, NET_ADMIN, SYS_MODULE, SYS_CHROOT, SYS_PTRACE, SYS_BOOT, SYS_TIME.
    for gone in [5, 6, 7, 12, 16, 18, 19, 22, 25] {
        assert_eq!(kept & 1 << gone, 0, "capability {gone}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{host}/limits")).expect("reads");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
    assert!(core.split_whitespace().nth(4) == Some("0"), "{core}");
    let environment = std::fs::read(format!("/proc/{host}/environ")).expect("reads");
    assert_eq!(environment, b"", "nothing of the worker's variables");
    bench.client().release(crate::support::request_meta(), attempt.attempt_id, true).expect("releases");
    wait_until("only the next one waits", || hosts(&bench).is_empty() && processes(&bench).len() == 1);
    bench.client().stop(false).expect("stops");
    wait_until("all are gone", || processes(&bench).is_empty());
}

/// Descriptors and threads of the worker, by number.
fn held(worker: u32) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{worker}/{what}")).expect("lists").count();
    (count("fd"), count("task"))
}

fn many_attempts() {
    let bench = bench();
    let round = |number: u32| {
        let begun = Instant::now();
        let attempt = activate(&bench, bench.root, environment());
        let activated = begun.elapsed();
        bench.run(&attempt, &["write.wasm", "made", &number.to_string()]).ok();
        let ran = begun.elapsed() - activated;
        if number.is_multiple_of(5) {
            signal(hosts(&bench)[0], rustix::process::Signal::KILL);
            wait_until("it is lost", || bench.attempt(&attempt).status == AttemptStatus::Failed);
        }
        let releasing = Instant::now();
        bench.client().release(crate::support::request_meta(), attempt.attempt_id, true).expect("releases");
        (activated, ran, releasing.elapsed())
    };
    round(1);
    let worker = bench.client().worker_pid();
    wait_until("the next host waits", || processes(&bench).len() == 1);
    let before = held(worker);
    let mut times: Vec<_> = (2..40).map(round).collect();
    wait_until("only the next host is left", || processes(&bench).len() == 1);
    // A few are made on demand, and stay: connections to the databases.
    const SLACK: usize = 6;
    wait_until("the worker holds what it held", || {
        let now = held(worker);
        now.0 <= before.0 + SLACK && now.1 <= before.1
    });
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
    times.sort_unstable();
    eprintln!("median of activation, of a first command, of its release: {:?}", times[times.len() / 2]);
}
