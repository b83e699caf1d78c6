//! Guests that ask for too much: each is refused or ended, the host stays small, and the next one runs.
//!
//! Most are written against 0.2 directly, where the interfaces can be misused in ways the preview 1 adapter
//! cannot.

use super::modules::component;
use super::*;

const WIT: &str = "
package test:guest;
world guest {
  import wasi:random/random@0.2.12;
  import wasi:io/poll@0.2.12;
  import wasi:clocks/monotonic-clock@0.2.12;
  import wasi:cli/stdout@0.2.12;
  import wasi:io/streams@0.2.12;
  import wasi:cli/exit@0.2.12;
  export wasi:cli/run@0.2.12;
}
package wasi:random@0.2.12 { interface random { get-random-bytes: func(len: u64) -> list<u8>; } }
package wasi:io@0.2.12 {
  interface error { resource error; }
  interface poll {
    resource pollable { ready: func() -> bool; block: func(); }
    poll: func(in: list<borrow<pollable>>) -> list<u32>;
  }
  interface streams {
    use error.{error};
    use poll.{pollable};
    variant stream-error { last-operation-failed(error), closed }
    resource input-stream;
    resource output-stream {
      check-write: func() -> result<u64, stream-error>;
      write: func(contents: list<u8>) -> result<_, stream-error>;
      blocking-flush: func() -> result<_, stream-error>;
    }
  }
}
package wasi:clocks@0.2.12 {
  interface monotonic-clock {
    use wasi:io/poll@0.2.12.{pollable};
    subscribe-duration: func(when: u64) -> pollable;
  }
}
package wasi:cli@0.2.12 {
  interface run { run: func() -> result; }
  interface exit { exit-with-code: func(status-code: u8); exit: func(status: result); }
  interface stdout { use wasi:io/streams@0.2.12.{output-stream}; get-stdout: func() -> output-stream; }
}";

/// A component whose `run` does `body` and succeeds. What it allocates begins at 1 MiB and is never freed.
pub(super) fn guest(body: &str) -> Vec<u8> {
    component(
        WIT,
        &format!(
            r#"(module
              (import "wasi:random/random@0.2.12" "get-random-bytes" (func $random (param i64 i32)))
              (import "wasi:io/poll@0.2.12" "poll" (func $poll (param i32 i32 i32)))
              (import "wasi:clocks/monotonic-clock@0.2.12" "subscribe-duration" (func $after (param i64) (result i32)))
              (import "wasi:cli/stdout@0.2.12" "get-stdout" (func $stdout (result i32)))
              (import "wasi:io/streams@0.2.12" "[method]output-stream.write" (func $write (param i32 i32 i32 i32)))
              (import "wasi:io/streams@0.2.12" "[method]output-stream.check-write" (func $check (param i32 i32)))
              (import "wasi:cli/exit@0.2.12" "exit-with-code" (func $exit (param i32)))
              (memory (export "memory") 32)
              (global $free (mut i32) (i32.const 1048576))
              (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
                (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                (global.set $free (i32.add (local.get $at) (local.get 3)))
                (block $fits
                  (br_if $fits (i32.le_u (global.get $free) (i32.mul (memory.size) (i32.const 65536))))
                  (drop (memory.grow (i32.add (i32.div_u (local.get 3) (i32.const 65536)) (i32.const 1)))))
                (local.get $at))
              (func $deep (param i32) (result i32)
                (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))
              (func (export "wasi:cli/run@0.2.12#run") (result i32) (local $i i32) (local $j i32)
                {body} i32.const 0))"#
        ),
    )
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = statm.split(' ').nth(1).expect("a second number").parse().expect("pages");
    pages * rustix::param::page_size() as u64
}

/// Runs it, and holds what the host grew by while it ran against a bound in MiB.
#[track_caller]
fn within(mebibytes: u64, bench: &Bench, body: &str) -> Outcome {
    let module = guest(body);
    bench.run_bytes(guest(""));
    let before = resident();
    let peak = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (watching, seen) = (Arc::new(std::sync::atomic::AtomicBool::new(true)), Arc::clone(&peak));
    let watched = Arc::clone(&watching);
    let watcher = std::thread::spawn(move || {
        while watched.load(std::sync::atomic::Ordering::Relaxed) {
            seen.fetch_max(resident(), std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let outcome = bench.run_bytes(module);
    watching.store(false, std::sync::atomic::Ordering::Relaxed);
    watcher.join().unwrap();
    let grown = peak.load(std::sync::atomic::Ordering::Relaxed).saturating_sub(before) >> 20;
    assert!(grown <= mebibytes, "the host grew by {grown} MiB: {body}");
    assert_eq!(bench.limits.taken(), 0);
    assert_eq!(bench.run_bytes(guest("")).exit, GuestExit::Code(0), "the next guest runs");
    outcome
}

#[track_caller]
fn traps(outcome: &Outcome, reason: &str) {
    let GuestExit::Trap(text) = &outcome.exit else { panic!("{outcome:?}") };
    assert!(text.contains(reason), "{text}");
}

#[test]
fn random_bytes_are_bounded() {
    let bench = Bench::new();
    let asked = |bytes: u64| format!("(call $random (i64.const {bytes}) (i32.const 8))");
    traps(&within(64, &bench, &asked(4 << 30)), "len");
    traps(&within(64, &bench, &asked(u64::MAX)), "len");
    let some = format!(
        "{} (if (i32.ne (i32.load (i32.const 12)) (i32.const 65536)) (then unreachable))",
        asked(65536)
    );
    assert_eq!(within(64, &bench, &some).exit, GuestExit::Code(0));
}

/// A string or list that a call hands over is copied into the host: one gigabyte of it must not be.
#[test]
fn what_a_call_hands_over_is_bounded() {
    let mut bench = Bench::new();
    bench.limits = Arc::new(Limits::new(None));
    let body = "(drop (memory.grow (i32.const 16384)))
                (call $write (call $stdout) (i32.const 0) (i32.const 1073741824) (i32.const 8))";
    traps(&within(100, &bench, body), "fuel");
}

#[test]
fn a_stream_is_written_in_pieces_that_it_permits() {
    let body = "(call $write (call $stdout) (i32.const 0) (i32.const 1000000) (i32.const 8))";
    traps(&within(64, &Bench::new(), body), "check-write");
}

/// A million pollables: the table ends before the host's memory does.
#[test]
fn resources_are_bounded() {
    let body = "(loop $more
                  (drop (call $after (i64.const 1000000000)))
                  (local.set $i (i32.add (local.get $i) (i32.const 1)))
                  (br_if $more (i32.lt_u (local.get $i) (i32.const 1000000))))";
    traps(&within(32, &Bench::new(), body), "table");
}

/// One poll of a million handles of one pollable: the engine lends fewer than that.
#[test]
fn a_poll_of_a_million_subscriptions_is_refused() {
    let fill = "(drop (memory.grow (i32.const 128)))
                (loop $more
                  (i32.store (i32.add (i32.const 2097152) (i32.mul (local.get $i) (i32.const 4))) (local.get $j))
                  (local.set $i (i32.add (local.get $i) (i32.const 1)))
                  (br_if $more (i32.lt_u (local.get $i) (i32.const 1000000))))
                (global.set $free (i32.const 8388608))
                (call $poll (i32.const 2097152) (i32.const 1000000) (i32.const 8))";
    let body = format!("(local.set $j (call $after (i64.const 1000))) {fill}");
    traps(&within(100, &Bench::new(), &body), "handle limit");
    let fewer = body.replace("1000000", "30000");
    assert_eq!(within(100, &Bench::new(), &fewer).exit, GuestExit::Code(0));
}

#[test]
fn deep_recursion_traps() {
    traps(&within(64, &Bench::new(), "(drop (call $deep (i32.const 0)))"), "call stack exhausted");
}

#[test]
fn memory_is_a_budget_of_all_guests_together() {
    let mut bench = Bench::new();
    bench.limits = Arc::new(Limits::new(Some(64 << 20)));
    // To the maximum, page by page, touching each: refused where the budget ends, and then goes on.
    let body = "(loop $more
                  (local.set $j (memory.grow (i32.const 16)))
                  (if (i32.ne (local.get $j) (i32.const -1)) (then
                    (i32.store (i32.mul (local.get $j) (i32.const 65536)) (i32.const 1))
                    (br $more))))
                (call $exit (i32.div_u (memory.size) (i32.const 16)))";
    let outcome = within(100, &bench, body);
    assert!(matches!(outcome.exit, GuestExit::Code(60..=64)), "{outcome:?}");
    assert_eq!(bench.limits.refused(), 1);
    // One that does not survive the refusal ended for want of memory.
    let body = "(if (i32.eq (memory.grow (i32.const 2000)) (i32.const -1)) (then unreachable))";
    let outcome = within(64, &bench, body);
    assert_eq!(outcome.exit, GuestExit::Memory);
    assert!(outcome.stderr.starts_with("esf: out of memory"), "{}", outcome.stderr);
    // One whose first memory is more than all there is does not start.
    bench.limits = Arc::new(Limits::new(Some(1 << 20)));
    assert_eq!(bench.run_bytes(guest("")).exit, GuestExit::Memory);
    assert_eq!(bench.limits.taken(), 0);
}

#[test]
fn tables_are_bounded() {
    let text = r#"(module (memory (export "memory") 1) (table $t 1 funcref)
        (func (export "_start") (loop $more
          (br_if $more (i32.ne (i32.const -1) (table.grow $t (ref.null func) (i32.const 100000)))))))"#;
    let bench = Bench::new();
    assert_eq!(bench.run(text).exit, GuestExit::Code(0));
    assert_eq!(bench.limits.refused(), 1);
}

/// An endless stream: a guest that writes for ever holds a bounded part of it in the host.
#[test]
fn an_endless_stream_is_not_kept() {
    let bench = Bench::new();
    let (artefact, key) = artefact(
        guest(
            "(local.set $j (call $stdout))
               (loop $more
                 (call $check (local.get $j) (i32.const 8))
                 (if (i64.ne (i64.load (i32.const 16)) (i64.const 0))
                   (then (call $write (local.get $j) (i32.const 0) (i32.const 65536) (i32.const 8))))
                 (br $more))",
        ),
        false,
    );
    let before = resident();
    let (_unread, stdout) = pipe();
    let (spec, cancel) = (bench.spec(artefact, key), Cancel::new());
    let cancelled = cancel.clone();
    let guest = std::thread::spawn(move || {
        ENGINES.run(spec, GuestStdio { stdin: null(), stdout: stdout.into(), stderr: null() }, &cancelled)
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(resident().saturating_sub(before) < 64 << 20);
    cancel.cancel();
    assert_eq!(guest.join().unwrap(), GuestExit::Killed);
}

/// A fault of the host's in one guest's call ends that guest; another that runs meanwhile, and the next, do not notice.
#[test]
fn a_panic_of_the_host_ends_one_guest() {
    let wit = "package test:guest; world guest { import test:host/fault; export wasi:cli/run@0.2.12; }
               package test:host { interface fault { panic: func(); } }
               package wasi:cli@0.2.12 { interface run { run: func() -> result; } }";
    let core = r#"(module (import "test:host/fault" "panic" (func $panic))
        (func (export "wasi:cli/run@0.2.12#run") (result i32) call $panic i32.const 0))"#;
    let bench = Bench::new();
    let (waits, key) = artefact(guest("(loop $l (br $l))"), false);
    let cancel = Cancel::new();
    let other = bench.start(waits, key, null(), &cancel);
    for _ in 0..3 {
        let outcome = bench.run_bytes(component(wit, core));
        let GuestExit::Panicked(text) = &outcome.exit else { panic!("{outcome:?}") };
        assert_eq!(text, "a fault of the host, on purpose");
        assert!(outcome.stderr.contains("the host failed in a call of this guest"), "{}", outcome.stderr);
    }
    assert!(!other.is_finished());
    cancel.cancel();
    assert_eq!(other.join().unwrap().exit, GuestExit::Killed);
    assert_eq!(bench.run_bytes(guest("")).exit, GuestExit::Code(0));
    assert_eq!(bench.limits.taken(), 0);
}
