//! Programs on the WASI executor: output, exit codes, input, what cannot start, preview 1 conformance, a
//! solver and an interpreter as published (P12-P14, P17).

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::guests::*;
use crate::needs_guests;
use crate::support::*;

/// A lab with a small tree and one live WASI attempt on it.
fn live(guests: &Guests, modules: &[&str], options: &[&str]) -> (Lab, String) {
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo hello > hello; mkdir d"));
    let attempt = guests.wasi(&lab, &node, modules, options);
    (lab, attempt)
}

/// The JSON of one command, whatever its exit code.
#[track_caller]
fn exec(lab: &Lab, attempt: &str, options: &[&str], command: &[&str]) -> serde_json::Value {
    let output =
        lab.output(["-o", "json", "exec", attempt].iter().chain(options).chain(&["--"]).chain(command));
    parsed(&output)
}

/// Debian's wasi-libc takes all memory that is there for its heap, the adapter's part too if it sees it.
#[test]
fn a_large_heap_and_the_adapter_leave_each_other_alone() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    for size in [1 << 10, 60_000, 1 << 17, 1_000_000, 64 << 20] {
        let told = lab.text(["exec", &attempt, "--", "basic", "heap", &size.to_string()]);
        assert_eq!(told, "call 0\ncall 1\ncall 2\n", "{size}");
        let written = lab.output(["cp", &format!("{attempt}:/workspace/heap"), "-"]);
        assert!(written.stdout.len() == size && written.stdout.iter().all(|byte| *byte == 7), "{size}");
    }
}

#[test]
fn a_program_gets_its_words_variables_and_streams() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
    assert_eq!(lab.text(["exec", &attempt, "--", "basic"]), "hello\n", "without the ending, too");
    for code in [0, 1, 7, 42, 125, 255] {
        let output = lab.output(["exec", &attempt, "--", "basic.wasm", "exit", &code.to_string()]);
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    }
    let words = lab.text([
        "exec",
        &attempt,
        "-e",
        "ONE=1",
        "-e",
        "TWO=zwei é",
        "--",
        "basic.wasm",
        "words",
        "a b",
        "",
        "é",
    ]);
    let given: Vec<&str> = words.lines().collect();
    assert_eq!(given[1..5], ["word words", "word a b", "word ", "word é"], "{words}");
    for variable in ["variable ONE=1", "variable TWO=zwei é"] {
        assert!(given.contains(&variable), "{words}");
    }
    let both = exec(&lab, &attempt, &[], &["basic.wasm", "both"]);
    assert_eq!(
        (&both["stdout"], &both["stderr"]),
        (&"to standard output\n".into(), &"to standard error\n".into())
    );
    let now: i64 = lab.text(["exec", &attempt, "--", "basic.wasm", "now"]).trim().parse().unwrap();
    let here = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
    assert!((now - here).abs() < 60, "{now} is not about {here}");
    assert_eq!(
        exec(&lab, &attempt, &[], &["basic.wasm", "sleep", "0.3"])["exit_code"],
        0,
        "slept as long as asked"
    );
}

#[test]
fn a_program_of_the_tree_runs_by_its_path() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let tree = lab.tree("t", "mkdir bin");
    fs::copy(guests.module("basic"), tree.join("bin/tool.wasm")).unwrap();
    let node = lab.group("g", &tree);
    let attempt = lab.activate_with(&node, &["--executor", "wasi"]);
    for (cwd, program) in [(None, "bin/tool.wasm"), (None, "./bin/tool.wasm"), (Some("bin"), "./tool.wasm")] {
        let mut words = vec!["exec", &attempt];
        words.extend(cwd.iter().flat_map(|cwd| ["-w", cwd]));
        words.extend(["--", program]);
        assert_eq!(lab.text(&words), "hello\n", "{words:?}");
    }
    let run = lab.json(["run", &node, "--executor", "wasi", "--discard", "--", "bin/tool.wasm"]);
    assert_eq!(run["exec"]["stdout"], "hello\n", "{run}");
}

#[test]
fn p12_fifty_megabytes_then_a_code() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    let bytes = 50_000_000u64;
    exec(&lab, &attempt, &[], &["basic.wasm"]);
    let worker = lab.worker().expect("a worker runs");
    let before = peak_kib(worker);
    let result =
        exec(&lab, &attempt, &["--max-output", "64k"], &["basic.wasm", "lines", &bytes.to_string(), "7"]);
    let mut expected = String::with_capacity(51_000_000);
    for line in 1.. {
        expected.push_str(&format!("line {line}\n"));
        if expected.len() as u64 >= bytes {
            break;
        }
    }
    assert_eq!((&result["exit_code"], &result["truncated"]), (&7.into(), &true.into()), "{result}");
    assert_eq!(result["stdout_bytes"], expected.len());
    let kept = result["stdout"].as_str().unwrap();
    assert!(kept.starts_with("line 1\nline 2\n") && kept.ends_with(&expected[expected.len() - 1000..]));
    assert!(kept.len() < 80 << 10, "{} bytes in the reply", kept.len());
    let from = expected.len() - 5_000_000;
    let exec_id = id(&result, "exec_id");
    let log = lab.text(["logs", &attempt, &exec_id, "--from", &from.to_string()]);
    assert!(log == expected[from..], "{} bytes from {from}", log.len());
    let grown = peak_kib(worker).saturating_sub(before);
    assert!(grown < 16 << 10, "the worker grew by {grown} KiB");
}

/// The most that was resident, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a live process has it");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn p13_a_time_out_keeps_what_was_printed() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    let began = Instant::now();
    let result = exec(&lab, &attempt, &["--timeout", "1s"], &["basic.wasm", "three"]);
    assert!(began.elapsed() < Duration::from_secs(4), "took {:?}", began.elapsed());
    assert_eq!(result["stdout"], "one\ntwo\nthree\n", "{result}");
    assert_eq!((&result["stdout_bytes"], &result["timed_out"]), (&14.into(), &true.into()));
    let output = lab.output(["exec", &attempt, "--timeout", "500ms", "--", "basic.wasm", "three"]);
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n", "the attempt lives on");
}

#[test]
fn p14_bytes_come_as_they_are() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    for (size, piece) in [(256, 256), (100_000, 1000), (1000, 1)] {
        let output = lab.output([
            "exec",
            &attempt,
            "--",
            "basic.wasm",
            "bytes",
            &size.to_string(),
            &piece.to_string(),
        ]);
        let expected: Vec<u8> = (0..size).map(|at: u32| at as u8).collect();
        assert!(output.stdout == expected, "{size} in pieces of {piece}: {}", output.stdout.len());
    }
    assert_eq!(exec(&lab, &attempt, &[], &["basic.wasm", "split"])["stdout"], "\u{20ac}\u{1f388}\n");
    let binary = exec(&lab, &attempt, &[], &["basic.wasm", "bytes", "256", "256"]);
    assert!(binary["stdout_b64"].is_string() && binary["stdout_bytes"] == 256, "{binary}");
}

#[test]
fn p17_ten_megabytes_of_input_come_back() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    lab.ten_megabytes_come_back(&attempt, &["basic.wasm", "cat"]);
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm", "cat"]), "", "without -i there is none");
}

#[test]
fn p17_what_cannot_start_says_why() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let tree = lab
        .tree("t", "echo data > data; mkdir directory; head -c 104857600 /dev/urandom > garbage; : > empty");
    let wasm = fs::read(guests.module("basic")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(tree.join(name), bytes).unwrap();
    write("cut.wasm", &wasm[..wasm.len() / 2]);
    write("other-version.wasm", b"\0asm\x02\0\0\0");
    write("other-layer.wasm", b"\0asm\x0d\0\x02\0");
    write("no-start.wasm", b"\0asm\x01\0\0\0");
    // An import of a module nobody has: (import "nobody" "nothing" (func)).
    write("unknown.wasm", b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x02\x12\x01\x06nobody\x07nothing\0\0");
    write("component.wasm", b"\0asm\x0d\0\x01\0");
    let node = lab.group("g", &tree);
    let attempt = guests.wasi(&lab, &node, &["basic"], &[]);
    for program in ["no-such-program", "no-such-program.wasm", "./no-such", "/no/such/program"] {
        let output = lab.output(["exec", &attempt, "--", program]);
        assert_eq!(output.status.code(), Some(127), "{program}: {}", said(&output));
    }
    for program in [
        "./data",
        "./directory",
        "./garbage",
        "./empty",
        "./cut.wasm",
        "./other-version.wasm",
        "./other-layer.wasm",
        "./no-start.wasm",
        "./unknown.wasm",
        "./component.wasm",
    ] {
        let began = Instant::now();
        let output = lab.output(["exec", &attempt, "--", program]);
        assert_eq!(output.status.code(), Some(126), "{program}: {}", said(&output));
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.lines().any(|line| line.len() > 20), "{program} says why: {why}");
        assert!(began.elapsed() < Duration::from_secs(10), "{program} took {:?}", began.elapsed());
    }
    let says = |program: &str| {
        String::from_utf8_lossy(&lab.output(["exec", &attempt, "--", program]).stderr).into_owned()
    };
    assert!(says("./unknown.wasm").contains("nobody"), "{}", says("./unknown.wasm"));
    assert!(says("./no-start.wasm").contains("_start"), "{}", says("./no-start.wasm"));
    assert!(says("./component.wasm").contains("wasi:cli/run"), "{}", says("./component.wasm"));
    for directory in ["/no/such/directory", "data"] {
        let refused = lab.refused(["exec", &attempt, "-w", directory, "--", "basic.wasm"]);
        assert_eq!((refused.exit, refused.code()), (2, "bad_cwd"), "{directory}: {refused:?}");
    }
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n", "the attempt lives on");
}

#[test]
fn p17_a_stuck_command_blocks_no_other() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    let mut command = lab.esf(["exec", &attempt, "-i", "--", "basic.wasm", "three"]);
    command.stdin(Stdio::piped());
    let mut stuck = Running::start(command);
    let mut stdin = stuck.stdin();
    // It never reads; its input fills every buffer on the way.
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&vec![7; 64 << 20]).expect_err("nobody reads"));
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
            assert!(began.elapsed() < Duration::from_secs(5), "took {:?}", began.elapsed());
        }
        lab.json(["kill", &attempt, "--signal", "KILL"]);
        drop(stuck);
    });
}

#[test]
fn p11_a_hundred_commands_at_once() {
    let guests = needs_guests!();
    let (lab, attempt) = live(&guests, &["basic"], &[]);
    let start = |at: usize| {
        let code = (at % 200).to_string();
        Running::start(lab.esf(["exec", &attempt, "--", "basic.wasm", "exit", &code]))
    };
    let commands: Vec<_> = (0..100).map(start).collect();
    for (at, command) in commands.into_iter().enumerate() {
        let output = command.wait();
        assert_eq!(output.status.code(), Some(at as i32 % 200), "{}", said(&output));
    }
}

/// Every case of the preview 1 programs, each on a fresh view of the tree.
#[test]
fn preview1_programs_find_what_they_expect() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", ": > present"));
    let programs = ["p1-files", "p1-paths", "p1-rest"];
    let (mut ran, mut wrong) = (0, String::new());
    for program in programs {
        let name = format!("{program}.wasm");
        let listing = guests.wasi(&lab, &node, &[program], &[]);
        let cases = lab.text(["exec", &listing, "--", &name]);
        lab.release(&listing);
        for case in cases.lines() {
            let attempt = guests.wasi(&lab, &node, &[program], &[]);
            let output = lab.output(["exec", &attempt, "--timeout", "30s", "--", &name, case]);
            if output.status.code() != Some(0) {
                wrong.push_str(&format!("{program} {case}: {}\n", said(&output)));
            }
            lab.release(&attempt);
            ran += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(ran >= 30, "{ran} cases ran");
}

#[test]
fn a_solver_as_published_solves() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let tree = lab.tree("t", "mkdir problems");
    let problem = |x: u32| {
        format!(
            "(set-logic QF_BV)\n(declare-fun x () (_ BitVec 32))\n(declare-fun y () (_ BitVec 32))\n\
             (assert (= (bvmul x y) #x{x:08x}))\n(assert (= (bvurem x #x00000002) #x00000000))\n(check-sat)\n"
        )
    };
    fs::write(tree.join("problems/even.smt2"), problem(1_000_000)).unwrap();
    fs::write(tree.join("problems/odd.smt2"), problem(1_000_001)).unwrap();
    let node = lab.group("g", &tree);
    let attempt = guests.wasi(&lab, &node, &["boolector"], &[]);
    let solve = |args: &[&str]| {
        lab.output(["exec", &attempt, "--timeout", "60s", "--", "boolector.wasm"].iter().chain(args))
    };
    for (file, code, answer) in [("problems/even.smt2", 10, "sat\n"), ("problems/odd.smt2", 20, "unsat\n")] {
        let output = solve(&[file]);
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(code), answer.as_bytes()),
            "{}",
            said(&output)
        );
    }
    let output = solve(&["problems/odd.smt2", "-o", "answer"]);
    assert_eq!(output.status.code(), Some(20), "{}", said(&output));
    assert_eq!(lab.cat(&lab.suspend(&attempt), "answer"), b"unsat\n");
}

#[test]
fn an_interpreter_runs_a_package_with_its_tests() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let tree = lab.tree("t", "mkdir pkg out");
    let write = |name: &str, text: &str| fs::write(tree.join(name), text).unwrap();
    write("pkg/__init__.py", "def double(x):\n    return x + x\n");
    write(
        "tests.py",
        "import unittest, pkg\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(pkg.double(4), 8)\n\
         unittest.main(argv=['tests'])\n",
    );
    write(
        "work.py",
        "import os, pathlib, shutil, sys, json, random\n\
         for i in range(300):\n    pathlib.Path(f'out/{i:03}').write_text(str(i) * i)\n\
         os.rename('out', 'moved'); os.symlink('001', 'moved/link'); shutil.copytree('moved', 'copy', symlinks=True)\n\
         shutil.rmtree('moved'); found = sorted(os.listdir('copy'))\n\
         print(json.dumps([len(found), found[-1], os.readlink('copy/link'), sys.argv[1:], os.environ.get('WHO')]))\n\
         assert random.SystemRandom().random() != random.SystemRandom().random()\n\
         try:\n    open('/etc/passwd')\nexcept OSError as error:\n    print('refused')\n",
    );
    let node = lab.group("g", &tree);
    let attempt = guests.wasi(&lab, &node, &["python"], &[]);
    let python = |args: &[&str]| {
        lab.output(["exec", &attempt, "-e", "WHO=me", "--", "python.wasm"].iter().chain(args))
    };
    let output = python(&["tests.py"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Ran 1 test"), "{}", said(&output));
    let output = python(&["work.py", "a", "b c"]);
    let expected = "[301, \"link\", \"001\", [\"a\", \"b c\"], \"me\"]\nrefused\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", said(&output));
    for (text, code) in [("print(1)", 0), ("import sys; sys.exit(3)", 1), ("raise ValueError", 1)] {
        let output = python(&["-c", text]);
        assert_eq!(output.status.code(), Some(code), "{text}: {}", said(&output));
    }
    let sealed = lab.suspend(&attempt);
    assert_eq!(lab.cat(&sealed, "copy/007"), b"7777777");
    assert!(!lab.dump(&sealed).contains("/moved"));
}
