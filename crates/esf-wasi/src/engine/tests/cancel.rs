//! A guest is stopped wherever it is, soon, and leaves the process able to run others.

use std::time::{Duration, Instant};

use super::*;

/// Starts a guest that never ends by itself, cancels it, and holds what came of it against the clock.
fn stopped(body: &str, stdin: OwnedFd) {
    let (artefact, key) = artefact(wat::parse_str(module("", body)).unwrap(), false);
    let (bench, cancel) = (Bench::new(), Cancel::new());
    let guest = bench.start(artefact, key, stdin, &cancel);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!guest.is_finished(), "{body}");
    let asked = Instant::now();
    cancel.cancel();
    let outcome = guest.join().unwrap();
    assert_eq!(outcome.exit, GuestExit::Killed, "{body}");
    assert!(asked.elapsed() < Duration::from_millis(500), "{body}: {:?}", asked.elapsed());
    assert_eq!(bench.limits.taken(), 0, "what it took is given back");
}

#[test]
fn in_a_loop() {
    stopped("(loop $l (br $l))", null());
}

#[test]
fn in_a_loop_of_host_calls() {
    stopped("(loop $l (drop (call $fd_close (i32.const 77))) (br $l))", null());
}

/// One subscription to the monotonic clock, an hour from now.
const SLEEP: &str = "
    (i64.store (i32.const 0) (i64.const 1))
    (i32.store (i32.const 8) (i32.const 0))
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 3600000000000))
    (drop (call $poll_oneoff (i32.const 0) (i32.const 512) (i32.const 1) (i32.const 1000)))";

#[test]
fn asleep() {
    stopped(SLEEP, null());
}

const READ: &str = "
    (i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 100))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))";

#[test]
fn waiting_for_input() {
    let (stdin, _open) = pipe();
    stopped(READ, stdin.into());
}

#[test]
fn waiting_in_a_poll_for_input() {
    let (stdin, _open) = pipe();
    let body = "
        (i64.store (i32.const 0) (i64.const 1))
        (i32.store (i32.const 8) (i32.const 1))
        (i32.store (i32.const 16) (i32.const 0))
        (drop (call $poll_oneoff (i32.const 0) (i32.const 512) (i32.const 1) (i32.const 1000)))";
    stopped(body, stdin.into());
}

/// Cancelled while nobody reads what it writes: in the call, and after its exit.
#[test]
fn waiting_for_its_output_to_be_read() {
    let write = "(i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 65536))
                 (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))";
    for body in [format!("(loop $l {write} (br $l))"), format!("{write} {write}")] {
        let (artefact, key) = artefact(wat::parse_str(module("", &body)).unwrap(), false);
        let (bench, cancel) = (Bench::new(), Cancel::new());
        let (_unread, stdout) = pipe();
        let (spec, cancelled) = (bench.spec(artefact, key), cancel.clone());
        let guest = std::thread::spawn(move || {
            let stdio = GuestStdio { stdin: null(), stdout: stdout.into(), stderr: null() };
            ENGINES.run(spec, stdio, &cancelled)
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!guest.is_finished());
        cancel.cancel();
        assert_eq!(guest.join().unwrap(), GuestExit::Killed);
    }
}

#[test]
fn before_it_began() {
    let (artefact, key) = artefact(wat::parse_str(module("", "(loop $l (br $l))")).unwrap(), false);
    let (bench, cancel) = (Bench::new(), Cancel::new());
    cancel.cancel();
    cancel.cancel();
    let outcome = bench.start(artefact, key, null(), &cancel).join().unwrap();
    assert_eq!(outcome.exit, GuestExit::Killed);
}

#[test]
fn one_of_two() {
    let (artefact, key) = artefact(wat::parse_str(module("", READ)).unwrap(), false);
    let bench = Bench::new();
    let (one, _open) = pipe();
    let (two, mut to_two) = pipe();
    let cancel = Cancel::new();
    let first = bench.start(artefact.try_clone().unwrap(), key.clone(), one.into(), &cancel);
    let second = bench.start(artefact, key, two.into(), &Cancel::new());
    cancel.cancel();
    assert_eq!(first.join().unwrap().exit, GuestExit::Killed);
    assert!(!second.is_finished());
    to_two.write_all(b"go").unwrap();
    assert_eq!(second.join().unwrap().exit, GuestExit::Code(0));
}
