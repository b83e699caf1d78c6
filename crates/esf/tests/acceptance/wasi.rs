//! WebAssembly guests through the command line: the same nodes as under the other executor, there and back
//! (S08), without privilege, with programs that are pinned, and with what cannot be done refused (P25).

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::needs_root;
use crate::support::*;

#[path = "../../../esf-wasi/tests/wasi/programs.rs"]
mod programs;

/// Somebody without any privilege, and with no processes of her own on a machine that runs tests.
pub(crate) const NOBODY: u32 = 65534;

/// A lab with a tree that has a bit of everything, and its node.
fn lab() -> (Lab, String) {
    let lab = Lab::new();
    let tree = lab.tree(
        "t",
        "echo one > a; mkdir -p d/e empty; echo two > d/b; ln d/b d/c; ln -s ../a d/link; ln -s /etc/passwd out;
         echo set > d/set; chmod 4755 d/set; chmod 700 d/e; chmod 444 a; printf x > d/e/x; mkfifo pipe; touch -d 2001-02-03 d/e/x",
    );
    programs::install(&tree);
    let node = lab.group("g", &tree);
    (lab, node)
}

const WASI: &[&str] = &["--executor", "wasi"];

/// A dump without times, which differ between two who do the same one after the other.
fn without_times(dump: &str) -> Vec<String> {
    const TIME: usize = 8;
    let kept = |line: &str| -> String {
        let fields = line.split(' ').enumerate().filter(|(field, _)| *field != TIME);
        fields.map(|(_, text)| format!("{text} ")).collect()
    };
    dump.lines().map(kept).collect()
}

#[test]
fn s08_a_node_goes_there_and_back_and_stays_what_it_is() {
    needs_root!();
    let (lab, first) = lab();
    let root = lab.root_of(&first);
    // Opened and sealed without a change it is the same root, under either.
    for options in [WASI, &[][..]] {
        let node = lab.suspend(&lab.activate_with(&first, options));
        assert_eq!((lab.root_of(&node), lab.dump(&node)), (root.clone(), lab.dump(&first)));
    }
    let mut node = first;
    for round in 0..4 {
        // The same work by guests and by native programs leaves the same tree.
        let text = format!("round-{round}");
        let by_guests = lab.activate_with(&node, WASI);
        lab.text(["exec", &by_guests, "--", "remove.wasm", "d/link"]);
        for path in ["d/b", "d/e/x", "d/link", "d/set", &format!("new-{round}")] {
            lab.text(["exec", &by_guests, "--", "write.wasm", path, &text]);
        }
        let by_guests = lab.suspend(&by_guests);
        let script = "rm d/link; for path in d/b d/e/x d/link d/set new-ROUND; do printf TEXT > $path; done";
        let by_shell = lab.step(&node, &script.replace("TEXT", &text).replace("ROUND", &round.to_string()));
        let dumps = [&by_guests, &by_shell].map(|node| lab.dump(node));
        assert_eq!(without_times(&dumps[0]), without_times(&dumps[1]), "round {round}");

        // What the one sealed the other opens, finds as it was, and seals unchanged.
        let shell = lab.activate(&by_guests);
        assert_eq!(lab.sh(&shell, "cat d/b d/e/x d/link a"), format!("{text}{text}{text}one\n"));
        assert_eq!(lab.dump(&lab.suspend(&shell)), dumps[0]);
        let guest = lab.activate_with(&by_shell, WASI);
        assert_eq!(lab.text(["cp", &format!("{guest}:/workspace/d/b"), "-"]), text);
        assert_eq!(lab.dump(&lab.suspend(&guest)), dumps[1]);

        // On from what either sealed.
        let next = if round % 2 == 0 { by_guests } else { by_shell };
        lab.json(["verify", &next]);
        node = lab.step(
            &next,
            "rm d/link; ln -s ../a d/link; mkdir -p more; echo ROUND >> more/log; chmod 6755 d/set",
        );
    }
}

#[test]
fn s08_one_command_does_it_all() {
    let (lab, node) = lab();
    let ran = lab.json(["run", &node, "--executor", "wasi", "--", "write.wasm", "made", "by a guest"]);
    assert_eq!((&ran["exec"]["exit_code"], &ran["changed"]["added"]), (&Value::from(0), &Value::from(1)));
    let made = id(&ran["node"], "node_id");
    assert_eq!(lab.cat(&made, "made"), b"by a guest");
    let code = lab.output(["run", &node, "--executor", "wasi", "--discard", "--", "say.wasm", "hello", "42"]);
    assert_eq!((code.status.code(), &code.stdout[..]), (Some(42), &b"hello\n"[..]), "{}", said(&code));
    for (program, code) in [("absent.wasm", 127), ("a", 126), ("d", 126), ("/bin/sh", 127), ("out", 126)] {
        let output = lab.output(["run", &node, "--executor", "wasi", "--discard", "--", program]);
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    }
    let limited = ["run", &node, "--executor", "wasi", "--discard", "--timeout", "300ms", "--", "spin.wasm"];
    assert_eq!(lab.output(limited).status.code(), Some(124));
}

#[test]
fn a_module_is_pinned_and_on_record() {
    let (lab, node) = lab();
    let file = lab.path("tool.wasm");
    std::fs::write(&file, programs::module("say")).unwrap();
    let file = file.to_str().unwrap();
    let options = ["--executor", "wasi", "--module", file, "--module", "root:variable.wasm", "-e", "X=1"];
    let attempt = lab.activate_with(&node, &options);
    assert_eq!(lab.text(["exec", &attempt, "--", "tool", "pinned", "0"]), "pinned\n");
    assert_eq!(lab.text(["exec", &attempt, "--", "variable", "X"]), "1\n");
    // The artifact outlives a collection while somebody needs it.
    lab.json(["gc"]);
    std::fs::remove_file(file).unwrap();
    let sealed = lab.suspend(&attempt);
    let told = lab.json(["inspect", &sealed, "--provenance"]);
    let wasi = &told["provenance"]["wasi"];
    assert!(wasi["engine"].as_str().unwrap().starts_with("wasmtime "), "{wasi}");
    let digest = esf_core::Digest::of(&programs::module("say")).to_string();
    assert_eq!(
        (&wasi["modules"][0]["name"], &wasi["modules"][0]["digest"]),
        (&"tool.wasm".into(), &digest.into())
    );
    assert_eq!(wasi["modules"][1]["name"], "variable.wasm");
    let record = lab.inspect(&attempt);
    assert_eq!(record["attempt"]["environment"]["wasi"]["modules"], wasi["modules"]);
    let absent = lab.refused(["activate", &node, "--executor", "wasi", "--module", "no-such-file.wasm"]);
    assert_eq!(absent.exit, 3);
}

#[test]
fn what_guests_cannot_have_is_refused_before_anything_starts() {
    let (lab, node) = lab();
    let before = lab.events();
    for (options, code) in [
        (&["--base", "host"][..], "not_supported"),
        (&["--base", "image:x"], "not_supported"),
        (&["--user", "1000"], "not_supported"),
        (&["--cpus", "1"], "not_supported"),
        (&["--bind-ro", "/usr"], "not_supported"),
        (&["--network", "allow:example.org"], "not_supported"),
        (&["--preopen", "a:b:c:d"], "bad_option"),
        (&["--preopen", "../x"], "bad_environment"),
        (&["--memory", "1k"], "bad_environment"),
        (&["--fuel", "0"], "bad_environment"),
        (&["--workspace", "relative"], "bad_environment"),
    ] {
        let refused = lab.refused(["activate", &node, "--executor", "wasi"].iter().chain(options));
        assert_eq!(refused.code(), code, "{options:?}: {}", refused.text());
    }
    assert_eq!(lab.refused(["activate", &node, "--executor", "other"]).code(), "bad_option");
    assert_eq!(lab.refused(["activate", &node, "--fuel", "1"]).code(), "bad_option");
    assert_eq!(lab.events(), before, "nothing is on record");
    let attempt = lab.activate_with(&node, WASI);
    assert_eq!(lab.refused(["exec", "-t", &attempt, "--", "say.wasm", "x", "0"]).code(), "not_supported");
    assert_eq!(
        lab.refused(["exec", "-u", "0", &attempt, "--", "say.wasm", "x", "0"]).code(),
        "not_supported"
    );
    lab.release(&attempt);
}

#[test]
fn p25_no_path_leads_out() {
    let (lab, node) = lab();
    let secret = lab.path("secret");
    std::fs::write(&secret, "secret").unwrap();
    let attempt = lab.activate_with(&node, WASI);
    let outside = format!("../../../../../../../..{}", secret.display());
    for path in ["out", &outside, "d/../../../../etc/passwd"] {
        let inside = format!("{attempt}:/workspace/{path}");
        assert_eq!(lab.refused(["cp", &inside, "-"]).code(), "path_escape", "{path}");
        let ran = lab.output(["exec", &attempt, "--", "write.wasm", path, "changed"]);
        assert_ne!(ran.status.code(), Some(0), "{path}: {}", said(&ran));
    }
    let put = lab.refused(["cp", secret.to_str().unwrap(), &format!("{attempt}:/workspace/{outside}")]);
    assert!(["path_escape", "not_found"].contains(&put.code()), "{}", put.text());
    assert_eq!(lab.refused(["cp", &format!("{attempt}:/etc/passwd"), "-"]).code(), "not_found");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    let listed = lab.json(["files", "ls", &format!("{attempt}:/workspace/d")]);
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names.len(), 5, "{listed}");
    lab.release(&attempt);
}

#[test]
fn p33_a_killed_worker_leaves_no_host_and_every_delta() {
    let (lab, node) = lab();
    let attempts: Vec<String> = (0..12).map(|_| lab.activate_with(&node, WASI)).collect();
    for attempt in &attempts {
        lab.text(["exec", attempt, "--", "write.wasm", "made", "saved"]);
        lab.json(["exec", "--detach", attempt, "--", "spin.wasm"]);
    }
    lab.kill_worker();
    for attempt in &attempts {
        let node = lab.suspend(attempt);
        assert_eq!(lab.cat(&node, "made"), b"saved");
        let record = lab.inspect(attempt);
        assert_eq!(record["attempt"]["failure"]["class"], "infra_lost", "{record}");
    }
}

#[test]
fn a_group_may_say_wasi_and_its_evaluators_judge_by_exit_codes() {
    let lab = Lab::new();
    let tree = lab.tree("t", "echo one > a");
    programs::install(&tree);
    let policy = lab.path("policy.toml");
    std::fs::write(&policy, "[environment]\nexecutor = \"wasi\"\n[environment.limits]\nmemory = 33554432\n")
        .unwrap();
    let made = lab.json([
        "group",
        "create",
        "g",
        "--from",
        tree.to_str().unwrap(),
        "--policy",
        policy.to_str().unwrap(),
    ]);
    let node = id(&made["group"], "canonical_node_id");
    let attempt = lab.activate(&node);
    let record = lab.inspect(&attempt);
    assert_eq!(record["attempt"]["executor"], "wasi");
    assert_eq!(lab.text(["exec", &attempt, "--", "variable.wasm", "ESF_MEMORY_BYTES"]), "33554432\n");
    lab.release(&attempt);
    for (code, verdict) in [(0, "pass"), (1, "fail")] {
        let file = lab.path(&format!("evaluator-{code}.toml"));
        let text = format!(
            "name = \"e\"\nversion = \"{code}\"\ntimeout = \"20s\"\ncommand = [\"say.wasm\", \"x\", \"{code}\"]\n"
        );
        std::fs::write(&file, text).unwrap();
        let told = lab.json(["evaluate", &node, "--evaluator", file.to_str().unwrap()]);
        assert_eq!(told["evaluation"]["verdict"], verdict, "{told}");
    }
    for (version, hide, verdict) in [("shown", "", "pass"), ("hidden", "hide = [\"a\"]\n", "fail")] {
        let file = lab.path(&format!("evaluator-{version}.toml"));
        let text = format!(
            "name = \"e\"\nversion = \"{version}\"\ntimeout = \"20s\"\ncommand = [\"remove.wasm\", \"a\"]\n{hide}"
        );
        std::fs::write(&file, text).unwrap();
        let told = lab.json(["evaluate", &node, "--evaluator", file.to_str().unwrap()]);
        assert_eq!(told["evaluation"]["verdict"], verdict, "{told}");
    }
    let file = lab.path("evaluator-report.toml");
    let text = "name = \"e\"\nversion = \"8\"\ntimeout = \"20s\"\nreport = { format = \"tap\" }\n\
        command = [\"say.wasm\", \"1..2\\nok 1\\nnot ok 2\", \"0\"]\n";
    std::fs::write(&file, text).unwrap();
    let told = lab.json(["evaluate", &node, "--evaluator", file.to_str().unwrap()]);
    assert_eq!(told["evaluation"]["reward"], 0.5, "{told}");
    let file = lab.path("evaluator-own.toml");
    std::fs::create_dir(lab.path("own")).unwrap();
    let text = "name = \"e\"\nversion = \"9\"\ntimeout = \"20s\"\ncommand = [\"say.wasm\", \"x\", \"0\"]\nfiles = \"own\"\n";
    std::fs::write(&file, text).unwrap();
    assert_eq!(
        lab.refused(["evaluate", &node, "--evaluator", file.to_str().unwrap()]).code(),
        "not_supported"
    );
}

#[test]
fn doctor_describes_both_executors() {
    let lab = Lab::new();
    let output = lab.esf(["-o", "json", "doctor"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let executors = told["executors"].as_array().unwrap();
    let names: Vec<_> = executors.iter().map(|executor| executor["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["oci", "wasi"]);
    assert_eq!((&executors[1]["ready"], &told["ready"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(executors[1]["capabilities"]["privilege"], "none");
    assert!(lab.text(["doctor"]).contains("executor wasi"));
}

/// The same command as somebody without privilege.
pub(crate) fn as_nobody(mut command: Command) -> Command {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent").current_dir("/");
    command
}

/// The unprivileged user's sockets, which no lab removes.
struct Sockets(std::path::PathBuf);

impl Drop for Sockets {
    fn drop(&mut self) {
        // Another test, or a user of that number, may have something there: then it stays.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn no_privilege_is_needed() {
    let lab = Lab::new();
    let tree = lab.tree("t", "echo one > a; mkdir d; echo two > d/b; ln -s ../a d/link; chmod 755 a");
    programs::install(&tree);
    let (user, store) = if rustix::process::geteuid().is_root() {
        for path in [tree.parent().unwrap(), &tree] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        (NOBODY, lab.store().to_owned())
    } else {
        (rustix::process::geteuid().as_raw(), lab.store().to_owned())
    };
    let _sockets = Sockets(format!("/tmp/esf-{user}").into());
    let run =
        |args: &[&str]| -> Output { as_nobody(lab.esf(["-o", "json"].iter().chain(args))).output().unwrap() };
    let json = |args: &[&str]| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
        parsed(&output)
    };
    let made = json(&["group", "create", "g", "--from", tree.to_str().unwrap()]);
    let mut node = id(&made["group"], "canonical_node_id");
    for round in 0..3 {
        let text = format!("round {round}");
        let ran = json(&["run", &node, "--executor", "wasi", "--", "write.wasm", "made", &text]);
        node = id(&ran["node"], "node_id");
    }
    let attempt = id(&json(&["activate", &node, "--executor", "wasi"])["attempt"], "attempt_id");
    let output = run(&["exec", &attempt, "--", "remove.wasm", "a"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let hosts = lab.processes();
    assert!(hosts.iter().any(|process| process.arguments.starts_with("esf-wasi-host")), "{hosts:?}");
    node = id(&json(&["suspend", &attempt])["node"], "node_id");
    let refused = refusal(&run(&["activate", &node, "--executor", "oci"])).unwrap();
    assert!(refused.text().contains("oci executor cannot run here"), "{}", refused.text());
    let told = run(&["doctor"]);
    assert_eq!(told.status.code(), Some(0), "one executor is ready: {}", said(&told));
    let dump = as_nobody(lab.esf(["dump", &node])).output().unwrap();
    assert!(!String::from_utf8_lossy(&dump.stdout).contains(" a "), "it was removed");
    as_nobody(lab.esf(["worker", "stop", "--force"])).output().unwrap();
    wait_until("its worker is gone", || lab.processes().is_empty());
    assert!(store.exists());
    if rustix::process::geteuid().is_root() && std::path::Path::new("/proc/self/ns").exists() {
        // Root takes the store over and opens the same node with the other executor.
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        take_over(&store);
        assert_eq!(lab.dump(&node), dump);
        let attempt = lab.activate(&node);
        assert_eq!(lab.sh(&attempt, "cat made d/b"), "round 2two\n");
        let sealed = lab.suspend(&attempt);
        assert_eq!(lab.root_of(&sealed), lab.root_of(&node));
    }
}

/// Gives a user's store to root, as `chown -R` does.
pub(crate) fn take_over(store: &std::path::Path) {
    let done = Command::new("chown").args(["-R", "-h", "0:0"]).arg(store).status().unwrap();
    assert!(done.success());
}
