//! Commands: codes, output, time-outs, input, files.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use esf_core::FailureClass;
use esf_core::environment::{Environment, Limits};
use esf_worker::logs::{Cursor, Stream};
use esf_worker::{ActivateRequest, ExecRequest, Stdin};

use crate::Test;
use crate::lifecycle::wait_until;
use crate::support::{Bench, exec, key};

pub(crate) const TESTS: &[Test] = &[
    ("commands::codes_are_the_command's_own", codes),
    ("commands::problems_are_typed", problems),
    ("commands::a_time_out_kills_the_tree_and_keeps_the_output", time_out),
    ("commands::a_command_ends_with_its_direct_child", direct_child),
    ("commands::large_output_is_kept_at_both_ends", large_output),
    ("commands::output_is_followed_by_cursor", followed),
    ("commands::input_goes_through", input),
    ("commands::many_at_once_and_nothing_stays", many_at_once),
    ("commands::a_key_runs_once", a_key_runs_once),
    ("commands::cancel_kills_and_a_lost_client_does_not", cancel),
    ("commands::limits_are_reported", limits),
    ("commands::users_and_variables", users),
    ("commands::files_in_and_out", files),
];

fn bench() -> Bench {
    Bench::new(|directory| std::fs::write(directory.join("a"), "one\n").expect("writes"))
}

fn codes() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let code = |argv: &[&str]| {
        let result = bench.run(&attempt, argv).result;
        (result.shell_code(), result.failure.map(|failure| failure.class))
    };
    assert_eq!(code(&["true"]), (0, None));
    assert_eq!(code(&["sh", "-c", "exit 3"]), (3, Some(FailureClass::UserExit)));
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), (143, Some(FailureClass::UserExit)));
    assert_eq!(code(&["no-such-program"]), (127, Some(FailureClass::UserExit)));
    assert_eq!(code(&["/workspace/a"]), (126, Some(FailureClass::UserExit)));
    assert_eq!(code(&["/etc/passwd/x"]).0, 127);
    let ran = bench.sh(&attempt, "echo out; echo err >&2");
    assert_eq!((&ran.out[..], &ran.err[..]), (&b"out\n"[..], &b"err\n"[..]));
}

fn problems() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let plain = exec(attempt.attempt_id, &["true"]);
    let unknown = esf_core::AttemptId::from_bytes([9; 16]);
    let cases = [
        (ExecRequest { cwd: Some("/nowhere".into()), ..plain.clone() }, "bad_cwd"),
        (ExecRequest { cwd: Some("/proc/self/fd/7".into()), ..plain.clone() }, "bad_cwd"),
        (ExecRequest { user: Some("ghost".into()), ..plain.clone() }, "bad_user"),
        (ExecRequest { user: Some("70000".into()), ..plain.clone() }, "bad_user"),
        (ExecRequest { argv: vec![], ..plain.clone() }, "bad_arguments"),
        (ExecRequest { argv: vec![OsString::from("a\0b")], ..plain.clone() }, "bad_arguments"),
        (ExecRequest { attempt: unknown, ..plain }, "not_found"),
    ];
    for (request, code) in cases {
        let problem = bench.run_with(request, None).expect_err(code);
        assert_eq!(problem.code, code, "{problem:?}");
    }
    let mut client = bench.client();
    assert_eq!(client.kill(unknown, None, 9).expect_err("unknown").code, "not_found");
    let exec = esf_core::ExecId::from_bytes([9; 16]);
    assert_eq!(client.kill(attempt.attempt_id, Some(exec), 9).expect_err("unknown").code, "not_found");
    assert_eq!(client.kill(attempt.attempt_id, None, 9).expect("nothing runs"), []);
}

fn time_out() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let sibling = ExecRequest { detach: true, ..exec(attempt.attempt_id, &["sleep", "300"]) };
    let sibling = bench.run_with(sibling, None).expect("starts").result.exec_id;
    let script = "echo 1; echo 2; echo 3; setsid sh -c 'sleep 300; echo late > late' & (sleep 300 &) ; wait";
    let request = ExecRequest { timeout_ms: Some(1000), ..exec(attempt.attempt_id, &["sh", "-c", script]) };
    let start = Instant::now();
    let ran = bench.run_with(request, None).expect("a result");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!((ran.result.shell_code(), ran.result.timed_out), (124, true));
    assert_eq!(ran.result.failure.as_ref().map(|failure| failure.class), Some(FailureClass::UserTimeout));
    assert_eq!(ran.text(), "1\n2\n3\n");
    let alive = bench.sh(&attempt, "grep -l '^sleep' /proc/[0-9]*/cmdline | wc -l").ok();
    assert_eq!(alive.trim(), "1", "the sibling alone");
    assert_eq!(bench.client().kill(attempt.attempt_id, Some(sibling), 9).expect("kills"), [sibling]);
}

fn direct_child() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let start = Instant::now();
    let ran = bench.sh(&attempt, "(sleep 1; echo LATER; sleep 60) & echo STARTED");
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    let exec = ran.result.exec_id;
    assert_eq!(ran.ok(), "STARTED\n");
    let alive = || bench.sh(&attempt, "grep -l '^sleep' /proc/[0-9]*/cmdline | wc -l").ok();
    wait_until(|| alive().trim() == "1");
    // What it writes later is kept in the log, and belongs to no result.
    wait_until(|| {
        let file = bench.path().join(format!("logs/{}/{exec}.out", attempt.attempt_id));
        std::fs::read_to_string(file).expect("reads") == "STARTED\nLATER\n"
    });
    assert_eq!(alive().trim(), "1", "it lives on");
}

fn large_output() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let script = "i=0; awk 'BEGIN{for(i=0;i<5000000;i++) printf \"%09d\\n\", i}'; exit 7";
    let request =
        ExecRequest { max_output: Some(1 << 20), ..exec(attempt.attempt_id, &["sh", "-c", script]) };
    let ran = bench.run_with(request, None).expect("a result");
    assert_eq!(
        (ran.result.exit_code, ran.result.stdout_bytes, ran.result.truncated),
        (Some(7), 50_000_000, true)
    );
    assert!(ran.out.starts_with(b"000000000\n") && ran.out.ends_with(b"004999999\n"));
    assert!(ran.out.len() < (1 << 20) + 200, "{}", ran.out.len());
    let cursor =
        |from| Cursor { attempt: attempt.attempt_id, exec: ran.result.exec_id, stream: Stream::Stdout, from };
    let mut part = Vec::new();
    assert_eq!(bench.client().logs(cursor(49_999_980), false, &mut part).expect("reads"), 50_000_000);
    assert_eq!(part, b"004999998\n004999999\n");
    let pid = bench.client().worker_pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("has one");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 100_000, "the worker took {peak} kB");
}

fn followed() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let script =
        "awk 'BEGIN{for(i=0;i<20000;i++) {printf \"%09d\\n\", i; if (i%5000==0) system(\"sleep 0.1\")}}'";
    let request = ExecRequest { detach: true, ..exec(attempt.attempt_id, &["sh", "-c", script]) };
    let exec = bench.run_with(request, None).expect("starts").result.exec_id;
    /// Takes so many bytes, then fails, as a connection that is cut does.
    struct Cut(Vec<u8>, usize);
    impl std::io::Write for Cut {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(self.1 - self.0.len());
            self.0.extend(&bytes[..taken]);
            if taken == 0 { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut all = Vec::new();
    for cut in 0.. {
        let from = all.len() as u64;
        let cursor = Cursor { attempt: attempt.attempt_id, exec, stream: Stream::Stdout, from };
        let mut sink = Cut(Vec::new(), if cut < 20 { 7001 } else { usize::MAX });
        let done = bench.client().logs(cursor, true, &mut sink);
        all.extend(sink.0);
        if done.is_ok() {
            break;
        }
    }
    let expected: String = (0..20000).map(|line| format!("{line:09}\n")).collect();
    assert!(all == expected.as_bytes(), "each line exactly once");
}

fn input() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let bytes: Vec<u8> = (0..10_000_000_u32).map(|n| (n % 251) as u8).collect();
    let ran =
        bench.run_with(exec(attempt.attempt_id, &["cat"]), Some(Stdin::Bytes(bytes.clone()))).expect("runs");
    assert!(ran.out == bytes, "{} bytes came back", ran.out.len());
    // One that reads nothing and one that ends early.
    for argv in [&["true"][..], &["head", "-c", "1"]] {
        let ran =
            bench.run_with(exec(attempt.attempt_id, argv), Some(Stdin::Bytes(bytes.clone()))).expect("runs");
        assert_eq!(ran.result.exit_code, Some(0));
    }
    let (read, write): (OwnedFd, OwnedFd) = rustix::pipe::pipe().expect("pipe");
    let writer = std::thread::spawn(move || {
        for _ in 0..3 {
            rustix::io::write(&write, b"line\n").expect("writes");
            std::thread::sleep(Duration::from_millis(30));
        }
    });
    let ran = bench.run_with(exec(attempt.attempt_id, &["cat"]), Some(Stdin::Fd(read))).expect("runs");
    writer.join().expect("no panic");
    assert_eq!(ran.ok(), "line\nline\nline\n");
}

fn many_at_once() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let pids = || bench.sh(&attempt, "ls -d /proc/[0-9]* | wc -l").ok();
    let before = pids();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut client = bench.client();
                for _ in 0..5 {
                    let request = exec(attempt.attempt_id, &["sh", "-c", "(sleep 0.01 &) ; exit 3"]);
                    let result = client.exec(request, None, &mut std::io::sink(), &mut std::io::sink());
                    assert_eq!(result.expect("a result").exit_code, Some(3));
                }
            });
        }
    });
    wait_until(|| pids() == before);
    wait_until(|| bench.store.graph().execs(attempt.attempt_id).expect("lists").len() >= 100);
}

fn a_key_runs_once() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let request = |key: &str| ExecRequest {
        key: Some(key.to_owned()),
        ..exec(
            attempt.attempt_id,
            &["sh", "-c", "echo x >> count; echo out; echo err >&2; sleep 0.2; exit 4"],
        )
    };
    let key = key();
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let ran = bench.run_with(request(&key), None).expect("a result");
                assert_eq!(
                    (ran.result.exit_code, &ran.out[..], &ran.err[..]),
                    (Some(4), &b"out\n"[..], &b"err\n"[..])
                );
            });
        }
    });
    assert_eq!(bench.sh(&attempt, "cat count").ok(), "x\n");
    let other = ExecRequest { argv: vec!["true".into()], ..request(&key) };
    assert_eq!(bench.run_with(other.clone(), None).expect_err("another body").code, "idempotency_conflict");
    bench.suspend(&attempt);
    let problem = bench.run_with(other, None).expect_err("another body, after the end");
    assert_eq!(problem.code, "idempotency_conflict");
    let replayed = bench.run_with(request(&key), None).expect("replayed after the end");
    assert_eq!((replayed.result.exit_code, &replayed.out[..]), (Some(4), &b"out\n"[..]));
}

fn cancel() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let running = || bench.client().status().expect("status").live[0].execs.len();
    let mut client = bench.client();
    let (wait, cancel) = rustix::pipe::pipe().expect("pipe");
    client.set_cancel(wait);
    std::thread::scope(|scope| {
        let ran = scope.spawn(move || {
            let request = exec(attempt.attempt_id, &["sleep", "300"]);
            client.exec(request, None, &mut std::io::sink(), &mut std::io::sink()).expect("a result")
        });
        wait_until(|| running() == 1);
        drop(cancel);
        let result = ran.join().expect("no panic");
        assert_eq!((result.signal, result.shell_code()), (Some(9), 137));
        assert_eq!(result.failure.map(|failure| failure.class), Some(FailureClass::Cancelled));
    });
    // A client that is simply gone: the command goes on to its end.
    let attempt = bench.activate(bench.root);
    let request = exec(attempt.attempt_id, &["sh", "-c", "sleep 0.5; echo done > done"]);
    let mut lost = LostSink;
    let problem = bench.client().exec(request, None, &mut lost, &mut std::io::sink());
    assert!(problem.is_ok(), "it printed nothing");
    let request = exec(attempt.attempt_id, &["sh", "-c", "echo x; sleep 0.5; echo again > again"]);
    bench.client().exec(request, None, &mut lost, &mut std::io::sink()).expect_err("the sink is lost");
    wait_until(|| bench.sh(&attempt, "cat again").result.exit_code == Some(0));
}

/// A sink that fails at the first byte: its client goes away.
struct LostSink;

impl std::io::Write for LostSink {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn limits() {
    let bench = bench();
    let limits = Limits { memory: Some(64 << 20), pids: Some(40), ..Limits::default() };
    let environment = Environment { limits, ..Environment::default() };
    let attempt = bench.activate_with(ActivateRequest { environment, ..bench.request(bench.root) });
    let failure = |script: &str| {
        let ran = bench.sh(&attempt, script);
        ran.result.failure.map(|failure| (failure.class, failure.detail))
    };
    let oom = failure("head -c 500000000 /dev/zero | tail").expect("fails");
    assert_eq!(oom.0, FailureClass::UserOom, "{oom:?}");
    let pids =
        failure("i=0; while [ $i -lt 100 ]; do sleep 2 & i=$((i+1)); done; wait; exit 1").expect("fails");
    assert_eq!(pids.0, FailureClass::Quota, "{pids:?}");
    assert_eq!(bench.sh(&attempt, "echo $ESF_PIDS $ESF_MEMORY_BYTES").ok(), "40 67108864\n");
    assert_eq!(failure("exit 2").expect("fails").0, FailureClass::UserExit);
}

fn users() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let run = |user: &str, script: &str| {
        let request = ExecRequest {
            user: Some(user.to_owned()),
            env: vec![("OWN".into(), "1".into())],
            cwd: Some("/tmp".into()),
            ..exec(attempt.attempt_id, &["sh", "-c", script])
        };
        bench.run_with(request, None).expect("runs").ok()
    };
    assert_eq!(run("user", "id -u; id -g; echo $HOME $USER $OWN; pwd"), "1000\n1000\n/tmp user 1\n/tmp\n");
    assert_eq!(run("1234:5", "id -u; id -g"), "1234\n5\n");
    assert_eq!(run("0", "echo $ESF_ATTEMPT"), format!("{}\n", attempt.attempt_id));
    let all = bench.sh(&attempt, "env | cut -d= -f1 | sort | tr '\\n' ' '").ok();
    let expected = "ESF_ATTEMPT ESF_WORKSPACE GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0 HOME LANG PATH PWD TZ USER ";
    assert_eq!(all, expected, "nothing of the worker's");
}

fn files() {
    let bench = bench();
    let attempt = bench.activate(bench.root);
    let id = attempt.attempt_id;
    let mut client = bench.client();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 253) as u8).collect();
    let put = client.put_file(id, Path::new("/workspace/up"), 0o4755, &mut &bytes[..]).expect("puts");
    assert_eq!(put, bytes.len() as u64);
    let mut back = Vec::new();
    assert_eq!(client.get_file(id, Path::new("/workspace/up"), &mut back).expect("gets"), 0o4755);
    assert!(back == bytes);
    assert_eq!(
        bench.sh(&attempt, "stat -c '%a %u %s' up; ls -A | tr '\\n' ' '").ok(),
        "4755 0 3000000\na up "
    );
    client.put_file(id, Path::new("/workspace/up"), 0o600, &mut &b"small"[..]).expect("overwrites");
    assert_eq!(bench.sh(&attempt, "cat up").ok(), "small");
    // Links and `..` stay inside, whatever they point to.
    bench.sh(&attempt, "ln -s /etc/passwd link; ln -s ../../../../etc up2; mkfifo pipe; mkdir dir").ok();
    back.clear();
    client.get_file(id, Path::new("/workspace/link"), &mut back).expect("follows inside");
    assert!(
        String::from_utf8_lossy(&back).starts_with("root:x:0:0:root:/root:/bin/sh\nuser:"),
        "the sandbox's own"
    );
    let code = |result: Result<u32, esf_core::Problem>| result.expect_err("refused").code;
    let sink = &mut std::io::sink();
    assert_eq!(code(client.get_file(id, Path::new("/workspace/missing"), sink)), "not_found");
    assert_eq!(code(client.get_file(id, Path::new("/workspace/dir"), sink)), "not_a_file");
    assert!(client.get_file(id, Path::new("/workspace/pipe"), sink).is_err(), "and no hang");
    assert!(client.put_file(id, Path::new("/usr/x"), 0o644, &mut &b"x"[..]).is_err(), "read-only");
    let mut names = Vec::new();
    assert_eq!(
        client.list_files(id, Path::new("/workspace"), &mut |entry| names.push(entry)).expect("lists"),
        6
    );
    let kinds: Vec<String> = {
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.iter().map(|entry| format!("{} {}", entry.name, entry.kind)).collect()
    };
    let expected = ["a file", "dir directory", "link symlink", "pipe fifo", "up file", "up2 symlink"];
    assert_eq!(kinds, expected);
    bench.suspend(&attempt);
}
