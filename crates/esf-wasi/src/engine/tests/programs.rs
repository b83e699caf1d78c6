//! What a program gets and leaves: arguments, environment, streams, exit codes, traps.

use super::*;

/// Writes `length` bytes at `at` to a descriptor; the result is left on the stack.
fn write(descriptor: u32, at: u32, length: u32) -> String {
    format!(
        "(i32.store (i32.const 0) (i32.const {at})) (i32.store (i32.const 4) (i32.const {length}))
         (call $fd_write (i32.const {descriptor}) (i32.const 0) (i32.const 1) (i32.const 8))"
    )
}

#[test]
fn a_guest_says_hello_and_ends() {
    let text = module(r#"(data (i32.const 1024) "hello\n")"#, &format!("{} drop", write(1, 1024, 6)));
    let outcome = Bench::new().run(&text);
    assert_eq!(
        outcome,
        Outcome { exit: GuestExit::Code(0), stdout: b"hello\n".to_vec(), stderr: String::new() }
    );
}

#[test]
fn exit_codes_are_exact() {
    for code in [0, 1, 2, 7, 127, 255] {
        let outcome = Bench::new().run(&module("", &format!("(call $proc_exit (i32.const {code}))")));
        assert_eq!(outcome.exit, GuestExit::Code(code), "{code}");
        assert_eq!(outcome.stderr, "");
    }
    // As a native program's, only the low eight bits are seen.
    let outcome = Bench::new().run(&module("", "(call $proc_exit (i32.const 259))"));
    assert_eq!(outcome.exit, GuestExit::Code(3));
}

#[test]
fn a_trap_is_told_on_standard_error_after_what_the_guest_wrote() {
    for (body, reason) in [
        ("unreachable", "unreachable"),
        ("(drop (i32.load (i32.const -8)))", "out of bounds memory access"),
        ("(drop (i32.div_u (i32.const 1) (local.get $i)))", "integer divide by zero"),
    ] {
        let body = format!("{} drop {body}", write(2, 1024, 3));
        let outcome = Bench::new().run(&module(r#"(data (i32.const 1024) "me\n")"#, &body));
        let GuestExit::Trap(text) = &outcome.exit else { panic!("{outcome:?}") };
        assert!(text.contains(reason), "{text}");
        assert!(outcome.stderr.starts_with("me\nesf: trap: "), "{}", outcome.stderr);
    }
}

#[test]
fn arguments_and_environment_arrive() {
    // Prints the buffer of arguments, then that of the environment.
    let body = "
         (drop (call $args_sizes_get (i32.const 16) (i32.const 20)))
         (drop (call $args_get (i32.const 512) (i32.const 2048)))
         (i32.store (i32.const 0) (i32.const 2048))
         (i32.store (i32.const 4) (i32.load (i32.const 20)))
         (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
         (drop (call $environ_sizes_get (i32.const 16) (i32.const 20)))
         (drop (call $environ_get (i32.const 512) (i32.const 4096)))
         (i32.store (i32.const 0) (i32.const 4096))
         (i32.store (i32.const 4) (i32.load (i32.const 20)))
         (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))";
    let mut bench = Bench::new();
    bench.argv = ["tool", "", "zwei drei", "ü"].map(str::to_owned).to_vec();
    bench.env = vec![("A".to_owned(), "1=2".to_owned()), ("B".to_owned(), String::new())];
    let outcome = bench.run(&module("", body));
    let expected = "tool\0\0zwei drei\0ü\0A=1=2\0B=\0";
    assert_eq!(String::from_utf8(outcome.stdout).unwrap(), expected);
}

/// Copies standard input to standard output until its end.
const CAT: &str = "
    (loop $again
      (i32.store (i32.const 0) (i32.const 65536)) (i32.store (i32.const 4) (i32.const 65536))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
        (then (call $proc_exit (i32.const 99))))
      (local.set $i (i32.load (i32.const 8)))
      (if (local.get $i) (then
        (local.set $j (i32.const 65536))
        (loop $more
          (i32.store (i32.const 0) (local.get $j)) (i32.store (i32.const 4) (local.get $i))
          (if (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))
            (then (call $proc_exit (i32.const 98))))
          (local.set $j (i32.add (local.get $j) (i32.load (i32.const 8))))
          (local.set $i (i32.sub (local.get $i) (i32.load (i32.const 8))))
          (br_if $more (local.get $i)))
        (br $again))))
    (call $proc_exit (i32.const 7))";

#[test]
fn ten_megabytes_pass_through_unharmed() {
    let mut bench = Bench::new();
    bench.stdin = (0..10 << 20).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
    let outcome = bench.run(&module("", CAT));
    assert_eq!(outcome.exit, GuestExit::Code(7), "{}", outcome.stderr);
    assert!(outcome.stdout == bench.stdin, "{} bytes of {}", outcome.stdout.len(), bench.stdin.len());
}

#[test]
fn output_is_complete_though_the_reader_is_slow_and_the_guest_gone() {
    // Two writes that do not wait: the first fills the pipe, the second is still with us when the guest exits.
    let write = "(call $write (local.get $j) (i32.const 0) (i32.const 65536) (i32.const 8))";
    let body = format!("(local.set $j (call $stdout)) {write} {write} (call $exit (i32.const 3))");
    let (artefact, key) = artefact(super::limits::guest(&body), false);
    let bench = Bench::new();
    let (mut out, stdout) = pipe();
    let spec = bench.spec(artefact, key);
    let stdio = GuestStdio { stdin: null(), stdout: stdout.into(), stderr: null() };
    let guest = std::thread::spawn(move || ENGINES.run(spec, stdio, &Cancel::new()));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!guest.is_finished(), "an exit is not reported before the output is out");
    let mut all = Vec::new();
    out.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 2 * 65536);
    assert_eq!(guest.join().unwrap(), GuestExit::Code(3));
}

#[test]
fn a_reader_that_left_is_an_error_and_not_the_end_of_the_host() {
    let (artefact, key) =
        artefact(wat::parse_str(module("", &format!("{} call $proc_exit", write(1, 0, 10)))).unwrap(), false);
    let bench = Bench::new();
    let (out, stdout) = pipe();
    drop(out);
    let stdio = GuestStdio { stdin: null(), stdout: stdout.into(), stderr: null() };
    let exit = ENGINES.run(bench.spec(artefact, key), stdio, &Cancel::new());
    // The adapter's errno for a closed stream; what matters is that the guest was told.
    assert!(matches!(exit, GuestExit::Code(code) if code != 0), "{exit:?}");
}

#[test]
fn fuel_ends_a_guest_that_has_used_it() {
    let mut bench = Bench::new();
    bench.fuel = Some(100_000);
    let outcome = bench.run(&module("", "(loop $l (br $l))"));
    assert_eq!(outcome.exit, GuestExit::OutOfFuel);
    assert_eq!(outcome.stderr, "esf: out of fuel\n");
    assert_eq!(bench.run(&module("", "(call $proc_exit (i32.const 4))")).exit, GuestExit::Code(4));
}

#[test]
fn an_artefact_of_another_engine_does_not_load() {
    let bench = Bench::new();
    let (fuelled, key) = artefact(wat::parse_str(module("", "")).unwrap(), true);
    let stdio = GuestStdio { stdin: null(), stdout: null(), stderr: null() };
    let exit = ENGINES.run(bench.spec(fuelled, key), stdio, &Cancel::new());
    let GuestExit::Failed(reason) = exit else { panic!("{exit:?}") };
    assert!(reason.contains("fuel"), "{reason}");
}

/// A host process gives up its files before it has engines: neither they nor a guest open one by a path.
#[test]
#[cfg(target_os = "linux")]
fn engines_and_guests_need_no_file_of_the_host() {
    use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr};
    let name = "engine::tests::programs::engines_and_guests_need_no_file_of_the_host";
    if std::env::var_os("ESF_TEST_CONFINED").is_none() {
        let mut child = std::process::Command::new("/proc/self/exe");
        // What the child makes it cannot remove any more.
        let place = tempfile::tempdir().unwrap();
        child
            .args(["--exact", name, "--nocapture"])
            .env("ESF_TEST_CONFINED", "1")
            .env("TMPDIR", place.path());
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let bench = Bench::new();
    let data = r#"(data (i32.const 1024) "hello\n")"#;
    let text = module(data, &format!("{} drop (call $proc_exit (i32.const 5))", write(1, 1024, 6)));
    let (artefact, key) = artefact(wat::parse_str(text).unwrap(), false);
    let (stdin, _) = pipe();
    let ((mut out, stdout), (_err, stderr)) = (pipe(), pipe());
    let stdio = GuestStdio { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() };
    let spec = bench.spec(artefact, key);
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).unwrap().create().unwrap();
    ruleset.restrict_self().unwrap();
    assert!(File::open("/etc/passwd").is_err());
    let engines = Engines::new().unwrap();
    assert_eq!(engines.run(spec, stdio, &Cancel::new()), GuestExit::Code(5));
    let mut all = String::new();
    out.read_to_string(&mut all).unwrap();
    assert_eq!(all, "hello\n");
    std::process::exit(0);
}
