//! The queue under load: quotas hold at every moment, order and cancellation, pressure, and a graph that is
//! large while what lives is small (P27, P32, P34, S07).

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::needs_root;
use crate::support::*;

/// A group whose policy lets `quota` attempts live; gives its canonical node.
fn bounded(lab: &Lab, name: &str, quota: u64) -> String {
    let policy = lab.path("policy.toml");
    fs::write(&policy, format!("[quotas]\nmax_live_attempts = {quota}\n")).unwrap();
    let tree = lab.tree(name, "echo a > a").display().to_string();
    let policy = policy.display().to_string();
    id(
        &lab.json(["group", "create", name, "--from", &tree, "--policy", &policy])["group"],
        "canonical_node_id",
    )
}

fn top(lab: &Lab) -> Value {
    lab.json(["top", "--once"])["top"].clone()
}

/// Attempts in the order in which an event of this kind was committed.
fn order(lab: &Lab, kind: &str) -> Vec<String> {
    let events = lab.text(["-o", "jsonl", "events"]);
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["kind"] == kind).map(|event| id(&event, "attempt_id")).collect()
}

/// The most that lived at one time, by the order in which transitions were committed.
fn most_live(lab: &Lab) -> usize {
    let (mut live, mut most) = (0_usize, 0);
    for line in lab.text(["-o", "jsonl", "events"]).lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        match event["kind"].as_str() {
            Some("attempt_active") => live += 1,
            Some("attempt_sealed" | "attempt_failed" | "attempt_released") => live = live.saturating_sub(1),
            _ => {}
        }
        most = most.max(live);
    }
    most
}

#[test]
fn p32_many_wait_at_a_quota_in_order_and_whoever_leaves_costs_nothing() {
    needs_root!();
    const QUOTA: u64 = 6;
    const COUNT: usize = 60;
    let lab = Lab::new();
    let base = bounded(&lab, "g", QUOTA);
    let held: Vec<String> = (0..QUOTA).map(|_| lab.activate(&base)).collect();
    let queued = |count: usize| {
        wait_until("all of them wait", || top(&lab)["queued"] == count);
    };
    // Each lives as long as its command, then goes; the order of those that wait is that of their arrival.
    let run = |options: &[&str]| {
        Running::start(lab.esf(["run", &base, "--discard"].iter().chain(options).chain(&["--", "true"])))
    };
    let mut waiting = Vec::new();
    for number in 0..COUNT {
        waiting.push(run(&[]));
        if number % 10 == 9 {
            queued(number + 1);
        }
    }
    let urgent = run(&["--priority", "5"]);
    queued(COUNT + 1);
    // A dozen leave: they never live.
    let left: Vec<u32> = waiting.drain(20..32).map(|gone| gone.pid()).collect();
    assert_eq!(left.len(), 12);
    queued(COUNT + 1 - 12);
    let sampling = AtomicBool::new(true);
    let most = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut most = 0;
            while sampling.load(Ordering::Relaxed) {
                most = most.max(top(&lab)["live"].as_u64().unwrap());
            }
            most
        });
        held.iter().for_each(|attempt| lab.release(attempt));
        for output in waiting.into_iter().chain([urgent]).map(Running::wait) {
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        }
        sampling.store(false, Ordering::Relaxed);
        sampler.join().unwrap()
    });
    assert!((1..=QUOTA).contains(&most), "{most} lived at one time");
    assert_eq!(most_live(&lab), QUOTA as usize, "by the log, which has every moment");
    let (queued, active) = (order(&lab, "attempt_queued"), order(&lab, "attempt_active"));
    assert_eq!(active.len(), QUOTA as usize + COUNT - 12 + 1);
    let place: HashMap<&String, usize> =
        active.iter().enumerate().map(|(at, attempt)| (attempt, at)).collect();
    let urgent = queued.last().unwrap();
    assert!(place[urgent] < 2 * QUOTA as usize, "the urgent one passed those that waited: {}", place[urgent]);
    let came: Vec<&String> =
        queued.iter().filter(|attempt| *attempt != urgent && place.contains_key(attempt)).collect();
    for (at, attempt) in came.iter().enumerate() {
        let started = place[attempt] - usize::from(place[attempt] > place[urgent]);
        // As many as may start at one time may pass each other's commits.
        assert!(started.abs_diff(at) < QUOTA as usize, "{at} started as {started}");
    }
}

#[test]
fn p27_a_nearly_full_disk_admits_nothing_new_and_what_lives_goes_on() {
    needs_root!();
    let mut lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    lab.step(&base, "echo b > b");
    lab.stop_worker();
    // A disk of any size has less than this: the guard without filling one.
    lab.set("ESF_WORKER_MIN_FREE", "900t");
    let refused = lab.refused(["activate", &base]);
    assert_eq!((refused.exit, refused.code()), (5, "storage_pressure"), "{refused:?}");
    assert_eq!(refused.error["retryable"], true);
    assert_eq!(top(&lab)["worker"]["storage_pressure"], true);
    lab.stop_worker();
    lab.unset("ESF_WORKER_MIN_FREE");
    let attempt = lab.activate(&base);
    assert_eq!(lab.sh(&attempt, "cat a"), "a\n");
}

#[test]
fn p34_a_silent_command_is_work_and_an_unknown_one_is_not_found() {
    needs_root!();
    let mut lab = Lab::new();
    lab.set("ESF_WORKER_IDLE_EXIT", "300ms");
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    let attempt = lab.activate(&base);
    let silent = Running::start(lab.esf(["exec", &attempt, "--", "sleep", "2"]));
    wait_until("it runs", || running(&["sleep", "2"]) > 0);
    let worker = lab.worker().expect("it lives");
    std::thread::sleep(Duration::from_millis(1_000));
    assert_eq!(lab.worker(), Some(worker), "it is busy as long as something runs");
    let now = top(&lab);
    assert_eq!((&now["live"], &now["worker"]["execs"]), (&1.into(), &1.into()), "{now}");
    assert_eq!(silent.wait().status.code(), Some(0));
    let unknown = [
        ["kill", &attempt, "exe_00000000000000000000000000000001"].to_vec(),
        ["kill", "att_00000000000000000000000000000001"].to_vec(),
        ["release", "att_00000000000000000000000000000001"].to_vec(),
        ["cancel", "nobody"].to_vec(),
    ];
    for words in unknown {
        let refused = lab.refused(&words);
        assert_eq!((refused.exit, refused.code()), (3, "not_found"), "{words:?}: {refused:?}");
    }
}

#[test]
fn s07_a_large_graph_lives_on_four_places() {
    needs_root!();
    const QUOTA: u64 = 4;
    let lab = Lab::new();
    let base = bounded(&lab, "g", QUOTA);
    let grow = |nodes: usize| {
        for _ in 0..nodes / 1000 {
            lab.text(["-q", "fork", &base, "-n", "1000"]);
        }
    };
    grow(1_000);
    // Attempts that come and go, four at a time, from sixteen clients.
    let round = || {
        let all: Vec<Running> = (0..16)
            .map(|_| Running::start(lab.esf(["run", &base, "--discard", "--", "sh", "-c", "exit 0"])))
            .collect();
        for output in all.into_iter().map(Running::wait) {
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        }
        resident(lab.worker().expect("it lives"))
    };
    // What a worker needs once, for its first attempts, is no part of the comparison.
    round();
    let small = round();
    grow(99_000);
    let large = round();
    assert!(most_live(&lab) <= QUOTA as usize);
    assert_eq!(lab.json(["top", "--once"])["top"]["live"], 0);
    // Within the noise of an allocator: 16 MiB, which is 170 bytes for each node that was added.
    assert!(
        large < small + (16 << 10),
        "{small} KiB with a thousand nodes, {large} KiB with a hundred thousand"
    );
}

/// Kibibytes of memory a process has in use.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_group_is_cancelled_with_a_reason_with_or_without_a_worker() {
    needs_root!();
    let lab = Lab::new();
    let base = bounded(&lab, "g", 1);
    let other = lab.group("h", &lab.tree("t", "echo a > a"));
    let held = lab.activate(&base);
    let spared = lab.activate(&other);
    let waiting: Vec<Running> =
        (0..8).map(|_| Running::start(lab.esf(["-o", "json", "activate", &base]))).collect();
    wait_until("they wait", || top(&lab)["groups"][0]["waiting"] == 8);
    let group = &top(&lab)["groups"][0];
    assert_eq!((&group["name"], &group["reason"]), (&"g".into(), &"group_quota".into()), "{group}");
    let cancelled = lab.json(["cancel", "g", "--reason", "stale"]);
    assert_eq!(cancelled["cancelled"], serde_json::json!({"queued": 8, "live": 0}));
    for output in waiting.into_iter().map(Running::wait) {
        assert_eq!(refusal(&output).unwrap().code(), "stale", "{}", said(&output));
    }
    assert_eq!(lab.sh(&held, "cat a"), "a\n", "what lives goes on");
    let cancelled = lab.json(["cancel", "g", "--live"]);
    assert_eq!(cancelled["cancelled"], serde_json::json!({"queued": 0, "live": 1}));
    assert_eq!(lab.inspect(&held)["attempt"]["failure"]["class"], "cancelled");
    assert_eq!(lab.sh(&spared, "cat a"), "a\n", "and other groups");
    lab.stop_worker();
    let cancelled = lab.json(["cancel", "g"]);
    assert_eq!(cancelled["cancelled"], serde_json::json!({"queued": 0, "live": 0}));
    assert_eq!(top(&lab)["worker"], Value::Null);
}
