//! Commands in a live sandbox: time-outs, what outlives a command, exit codes, input (P09-P11, P13, P17).

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::needs_root;
use crate::support::*;

/// A lab with a small tree and one live attempt on it.
fn live(options: &[&str]) -> (Lab, String) {
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo hello > hello"));
    let attempt = lab.activate_with(&node, options);
    (lab, attempt)
}

/// A sleep that no other test has, so that it can be found among all processes.
fn own_sleep(base: u32) -> String {
    format!("{}.{}", base, std::process::id())
}

#[test]
fn p09_a_time_out_ends_the_whole_tree_of_that_command_and_no_other() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    let (detached, background) = (own_sleep(301), own_sleep(302));
    let sibling = Running::start(lab.esf(["exec", &attempt, "--", "sh", "-c", "sleep 4; echo untouched"]));
    let script =
        format!("setsid sh -c 'sleep {detached}; echo late > late.txt' & (sleep {background} &) ; wait");
    let began = Instant::now();
    let args = ["-o", "json", "exec", &attempt, "--timeout", "2s", "--", "sh", "-c", &script];
    let stubborn = Running::start(lab.esf(args));
    wait_until("both sleeps run", || running(&["sleep", &detached]) + running(&["sleep", &background]) == 2);
    let output = stubborn.wait();
    assert!(began.elapsed() < Duration::from_secs(4), "took {:?}", began.elapsed());
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    assert_eq!(parsed(&output)["timed_out"], true);
    assert_eq!(running(&["sleep", &detached]) + running(&["sleep", &background]), 0);
    let sibling = sibling.wait();
    assert_eq!(
        (sibling.status.code(), &sibling.stdout[..]),
        (Some(0), &b"untouched\n"[..]),
        "{}",
        said(&sibling)
    );
    let node = lab.suspend(&attempt);
    assert!(!lab.dump(&node).contains("late.txt"));
}

#[test]
fn p09_a_killed_worker_is_infra_lost_and_takes_all_with_it() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    let sleep = own_sleep(303);
    let script = format!("setsid sleep {sleep} & (sleep {sleep} &) ; wait");
    let exec = Running::start(lab.esf(["-o", "json", "exec", &attempt, "--", "sh", "-c", &script]));
    wait_until("both sleeps run", || running(&["sleep", &sleep]) == 2);
    kill(lab.worker().expect("a worker runs"));
    let output = exec.wait();
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("infra_lost"), "{}", said(&output));
    assert!(holds_within(Duration::from_secs(3), || running(&["sleep", &sleep]) == 0), "sleeps live on");
    wait_until("zygote and sandboxes are gone", || lab.processes().is_empty());
    lab.json(["recover"]);
    let record = &lab.inspect(&attempt)["attempt"];
    assert_eq!(
        (&record["status"], &record["failure"]["class"]),
        (&"failed".into(), &"infra_lost".into()),
        "{record}"
    );
}

#[test]
fn p10_a_background_process_keeps_no_command_waiting() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    let sleep = own_sleep(60);
    let began = Instant::now();
    let output = lab.output(["exec", &attempt, "--", "sh", "-c", &format!("sleep {sleep} & echo STARTED")]);
    assert!(began.elapsed() < Duration::from_secs(10), "took {:?}", began.elapsed());
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"STARTED\n"[..]), "{}", said(&output));
    wait_until("the sleeper is under way", || running(&["sleep", &sleep]) == 1);
    assert_eq!(lab.sh(&attempt, "echo next"), "next\n");
    assert_eq!(running(&["sleep", &sleep]), 1, "it lives on until the attempt ends");
    lab.release(&attempt);
    wait_until("the sleeper ended with its attempt", || running(&["sleep", &sleep]) == 0);
}

#[test]
fn p11_five_hundred_commands_at_once() {
    needs_root!();
    let (lab, attempt) = live(&["--pids", "4096"]);
    let count = "set -- /proc/[0-9]*; echo $#";
    let before = lab.sh(&attempt, count);
    let commands: Vec<_> = (0..500)
        .map(|_| Running::start(lab.esf(["exec", &attempt, "--", "sh", "-c", "(sleep 0.01 &) ; exit 3"])))
        .collect();
    for command in commands {
        let output = command.wait();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    }
    wait_until("the sandbox has as many processes as before", || lab.sh(&attempt, count) == before);
    let zombies = lab.sh(&attempt, "cat /proc/[0-9]*/stat 2>/dev/null | awk '$3 == \"Z\"'");
    assert_eq!(zombies, "");
}

#[test]
fn p13_a_time_out_keeps_what_was_printed() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    let script = "echo one; echo two; echo three; sleep 30";
    let output = lab.output(["-o", "json", "exec", &attempt, "--timeout", "1s", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    let result = parsed(&output);
    assert_eq!(result["stdout"], "one\ntwo\nthree\n", "{result}");
    assert_eq!(result["stdout_bytes"], 14);
    assert_eq!(result["timed_out"], true);
}

#[test]
fn p17_ten_megabytes_of_input_come_back() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    lab.ten_megabytes_come_back(&attempt, &["cat"]);
}

/// Input that has ended before the request is sent arrives in one piece with it.
#[test]
fn p17_input_that_ends_at_once_is_read() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    for size in [0, 3, 100_000, 3 << 20].into_iter().cycle().take(24) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![b'x'; size]).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let output = lab.esf(["exec", &attempt, "-i", "--", "wc", "-c"]).stdin(file).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), size.to_string());
    }
}

#[test]
fn p17_what_cannot_start_says_why() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    lab.sh(&attempt, "echo data > data; chmod 644 data; mkdir directory");
    for (program, exit) in
        [("no-such-program", 127), ("/no/such/program", 127), ("./data", 126), ("./directory", 126)]
    {
        let output = lab.output(["exec", &attempt, "--", program]);
        assert_eq!(output.status.code(), Some(exit), "{program}: {}", said(&output));
    }
    for directory in ["/no/such/directory", "/workspace/data"] {
        let refused = lab.refused(["exec", &attempt, "-w", directory, "--", "true"]);
        assert_eq!((refused.exit, refused.code()), (2, "bad_cwd"), "{directory}: {refused:?}");
        assert!(refused.text().contains(directory), "{refused:?}");
    }
    for (script, exit) in [("exit 200", 200), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        let output = lab.output(["exec", &attempt, "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(exit), "{script}: {}", said(&output));
    }
}

#[test]
fn p17_a_stuck_command_blocks_no_other() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    let sleep = own_sleep(304);
    let mut command = lab.esf(["exec", &attempt, "-i", "--", "sleep", &sleep]);
    command.stdin(Stdio::piped());
    let mut stuck = Running::start(command);
    let mut stdin = stuck.stdin();
    // It never reads; its input fills every buffer on the way.
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&vec![7; 64 << 20]).expect_err("nobody reads"));
        wait_until("it runs", || running(&["sleep", &sleep]) == 1);
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(lab.sh(&attempt, "echo free"), "free\n");
            assert!(began.elapsed() < Duration::from_secs(5), "took {:?}", began.elapsed());
        }
        lab.json(["kill", &attempt, "--signal", "KILL"]);
        drop(stuck);
    });
}

#[test]
fn files_go_in_and_out() {
    needs_root!();
    let (lab, attempt) = live(&[]);
    let local = lab.path("local");
    std::fs::write(&local, b"\0\xffcontent").unwrap();
    std::fs::set_permissions(&local, std::fs::Permissions::from_mode(0o640)).unwrap();
    let inside = format!("{attempt}:/workspace/in");
    lab.text(["cp".as_ref(), local.as_os_str(), inside.as_ref()]);
    let back = lab.path("back");
    lab.text(["cp".as_ref(), std::ffi::OsStr::new(&inside), back.as_os_str()]);
    assert_eq!(std::fs::read(&back).unwrap(), b"\0\xffcontent");
}

#[test]
fn a_worker_started_on_demand_holds_nothing_of_the_command_that_started_it() {
    needs_root!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo hello > hello"));
    let held = lab.path("held");
    // As a caller's lock or pipe would be, by a shell that leaves it open.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"exec 7> "$1"; exec "$0" --store "$2" -q activate "$3""#, env!("CARGO_BIN_EXE_esf")]);
    let output = shell.args([held.as_os_str(), lab.store().as_os_str(), node.as_ref()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let open = std::fs::read_dir(format!("/proc/{}/fd", lab.worker().expect("a worker runs"))).unwrap();
    let open: Vec<_> = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    assert!(!open.contains(&held), "{open:?}");
    lab.release(String::from_utf8_lossy(&output.stdout).trim());
}
