//! Work is never lost or bent, and history costs nothing while it sleeps (P01, P03, P04, S01).

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::needs_root;
use crate::support::*;

#[test]
fn p01_twenty_generations_each_keep_their_own_state() {
    needs_root!();
    let lab = Lab::new();
    let mut newest = lab.group("g", &lab.tree("t", ": > log.txt; mkdir empty"));
    let mut generations = vec![(newest.clone(), lab.dump(&newest), Vec::new())];
    for line in 1..=20 {
        let attempt = lab.activate(&newest);
        let before = line - 1;
        lab.sh(&attempt, &format!("echo line {line} >> log.txt; mkdir d{line}; echo {line} > d{line}/f; chmod 640 d{line}/f; rm -f d{before}/f"));
        newest = lab.suspend(&attempt);
        generations.push((newest.clone(), lab.dump(&newest), lab.cat(&newest, "log.txt")));
    }
    let expected: String = (1..=20).map(|line| format!("line {line}\n")).collect();
    assert_eq!(lab.cat(&newest, "log.txt"), expected.as_bytes());
    let exported = lab.path("out");
    lab.json([
        "export".as_ref(),
        newest.as_ref(),
        "--format".as_ref(),
        "dir".as_ref(),
        "--to".as_ref(),
        exported.as_os_str(),
    ]);
    let listed = |dir: &str| -> BTreeSet<_> {
        let entries = fs::read_dir(exported.join(dir)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for line in 1..20 {
        assert_eq!(listed(&format!("d{line}")), BTreeSet::new());
    }
    assert_eq!(listed("d20"), ["f".to_owned()].into());
    assert_eq!(listed("empty"), BTreeSet::new());
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(exported.join("d20/f")).unwrap());
    assert_eq!(mode & 0o7777, 0o640);
    lab.stop_worker();
    for (at, (node, dump, log)) in generations.iter().enumerate() {
        assert_eq!(lab.dump(node), *dump, "generation {at}");
        if at > 0 {
            assert_eq!(lab.cat(node, "log.txt"), *log, "generation {at}");
        }
    }
    lab.json(["verify", &newest]);
}

#[test]
fn p03_a_fork_of_what_is_not_sealed_names_what_is() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    let sealed = lab.step(&base, "echo b > b");
    let draft = lab.fork(&sealed);
    let attempt = lab.activate(&draft);
    lab.sh(&attempt, "echo unsealed > c");
    for unsealed in [&draft, &attempt] {
        let refused = lab.refused(["fork", unsealed]);
        assert_eq!((refused.exit, refused.code()), (4, "not_sealed"), "{refused:?}");
        assert!(refused.text().contains(&sealed), "{refused:?} names {sealed}");
    }
    assert_eq!(lab.cat(&lab.suspend(&attempt), "c"), b"unsealed\n");
}

/// Rounds of write and seal: a hundred unless `ESF_ROUNDS` says otherwise; CI's long lane says 1000.
#[test]
fn p03_every_seal_has_the_last_write() {
    needs_root!();
    let rounds = std::env::var("ESF_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    for round in 0..rounds {
        let script = format!("head -c 4096 /dev/zero | tr '\\0' x > f; exec printf %06d {round} >> f");
        let run = lab.json(["run", &base, "--", "sh", "-c", &script]);
        let bytes = lab.cat(&id(&run["node"], "node_id"), "f");
        assert_eq!((bytes.len(), &bytes[4096..]), (4102, format!("{round:06}").as_bytes()), "round {round}");
    }
}

#[test]
fn what_a_killed_worker_held_can_be_salvaged() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    let attempt = lab.activate(&base);
    lab.sh(&attempt, "echo kept > b");
    lab.kill_worker();
    let other = lab.step(&base, "echo next > c");
    assert_eq!(lab.cat(&other, "c"), b"next\n", "the next command just works");
    let record = lab.inspect(&attempt)["attempt"].clone();
    assert_eq!((&record["status"], &record["failure"]["class"]), (&"failed".into(), &"infra_lost".into()));
    assert_eq!(record["failure"]["reward_valid"], false, "{record}");
    let salvaged = lab.suspend(&attempt);
    assert_eq!(lab.cat(&salvaged, "b"), b"kept\n");
    lab.stop_worker();
    lab.json(["fsck"]);
}

/// Named so that it runs by itself: it counts mounts.
#[test]
fn alone_p04_a_hundred_forks_cost_no_process_and_no_mount() {
    needs_root!();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let live_with = |forks: &str| {
        let lab = Lab::new();
        let base = lab.group("g", &lab.tree("t", "echo a > a"));
        let first = lab.step(&base, "echo b > b");
        lab.stop_worker();
        let mounts_before = mounts();
        let forked = lab.json(["fork", &first, "-n", forks]);
        assert!(lab.processes().is_empty(), "a fork starts nothing");
        let attempt = lab.activate(&id(&forked["nodes"][0], "node_id"));
        assert_eq!(lab.sh(&attempt, "cat a b"), "a\nb\n");
        assert_eq!(mounts(), mounts_before, "mounts are the sandbox's own");
        let worker = lab.worker().expect("a worker runs");
        (lab.processes().len(), resident_kib(worker))
    };
    let (few, many) = (live_with("1"), live_with("100"));
    assert_eq!(few.0, many.0, "processes");
    assert!(many.1 < few.1 + 2048, "resident KiB: {} with one fork, {} with a hundred", few.1, many.1);
}

/// Named so that it runs by itself: it compares times.
#[test]
fn alone_s01_a_thousand_forks_of_any_root_are_flat_and_free() {
    needs_root!();
    let small = Lab::new();
    let large = Lab::new();
    let few = small.group("g", &small.tree("t", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > f$i; done"));
    let script = "head -c 524288000 /dev/urandom > big; for d in $(seq 100); do mkdir $d; (cd $d; seq 200 | split -l 1 -a 3 -); done";
    let many = large.group("g", &large.tree("t", script));
    let time = |lab: &Lab, node: &str| {
        let began = Instant::now();
        let forked = lab.json(["fork", node, "-n", "1000"]);
        assert_eq!(forked["nodes"].as_array().unwrap().len(), 1000);
        began.elapsed()
    };
    let before = large.json(["df"]);
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    const ROUNDS: u64 = 5;
    for _ in 0..ROUNDS {
        of_few.push(time(&small, &few));
        of_many.push(time(&large, &many));
    }
    let after = large.json(["df"]);
    for term in ["hot", "cold", "uppers", "staging"] {
        assert_eq!(before[term], after[term], "{term} payload does not grow");
    }
    let grown = after["metadata"].as_u64().unwrap() - before["metadata"].as_u64().unwrap();
    // A write-ahead log that waits for its checkpoint is the slack.
    let bound = ROUNDS * 1000 * 1024 + (4 << 20);
    assert!(grown <= bound, "{grown} bytes of metadata for {} forks", ROUNDS * 1000);
    let (few, many) = (median(of_few), median(of_many));
    assert!(many < few * 2, "a thousand forks: {few:?} of 10 files, {many:?} of 20 000 files and 500 MiB");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a live process has it");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
