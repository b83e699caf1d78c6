//! `suspend --keep`: a turn costs one call. The node is sealed and the next attempt opened in one commit.

use serde_json::Value;

use crate::needs_root;
use crate::support::{Lab, id};

fn next(reply: &Value) -> String {
    assert_eq!(reply["attempt"]["status"], "active", "{reply}");
    id(&reply["attempt"], "attempt_id")
}

#[test]
fn turns_follow_each_other_in_one_call_each() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", ": > log"));
    let made = lab.json(["activate", &base, "--memory", "64m", "-e", "WHO=me", "--lifetime", "1h"]);
    let first = id(&made["attempt"], "attempt_id");
    let (mut attempt, mut nodes) = (first.clone(), vec![base.clone()]);
    for turn in 1..=5 {
        lab.sh(&attempt, &format!("echo $WHO {turn} >> log; (sleep 300 &)"));
        let reply = lab.json(["suspend", &attempt, "--keep", "-m", &format!("turn {turn}")]);
        let node = id(&reply["node"], "node_id");
        let expected: String = (1..=turn).map(|n| format!("me {n}\n")).collect();
        assert_eq!(lab.cat(&node, "log"), expected.as_bytes());
        let sealed = lab.inspect(&attempt)["attempt"].clone();
        assert_eq!(sealed["status"], "sealed");
        let kept = &reply["attempt"];
        for same in
            ["group_id", "executor", "environment_digest", "budget", "lifetime_ms", "on_expiry", "priority"]
        {
            assert_eq!(kept[same], sealed[same], "{same}");
        }
        attempt = next(&reply);
        nodes.push(node);
    }
    // Processes do not survive, the work does; the next node's parent is the last one.
    assert_eq!(
        lab.sh(&attempt, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 300' || true"),
        "0\n"
    );
    let draft = lab.inspect(&attempt)["attempt"]["node_id"].as_str().expect("a node").to_owned();
    assert_eq!(lab.inspect(&draft)["node"]["parents"][0].as_str(), nodes.last().map(String::as_str));
    let old = lab.refused(["exec", &first, "--", "true"]);
    assert_eq!(old.code(), "not_active", "{old:?}");
    lab.json(["release", &attempt]);
    lab.json(["fsck"]);
}

#[test]
fn an_unchanged_turn_stays_as_it_is_when_that_is_asked_for() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    let attempt = lab.activate(&base);
    lab.sh(&attempt, "(sleep 300 &)");
    let reply = lab.json(["suspend", &attempt, "--keep", "--if-changed"]);
    assert_eq!((next(&reply), id(&reply["node"], "node_id")), (attempt.clone(), base.clone()));
    assert_eq!(
        lab.sh(&attempt, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 300'"),
        "1\n",
        "its processes live on"
    );
    // Without it there is a node, and no carrier: the root is the same.
    let reply = lab.json(["suspend", &attempt, "--keep"]);
    let node = id(&reply["node"], "node_id");
    assert_ne!(node, base);
    assert_eq!(reply["node"]["root_id"], lab.inspect(&base)["node"]["root_id"]);
    let attempt = next(&reply);
    // A new state is a change, though no file is.
    let state = lab.path("state.json");
    std::fs::write(&state, "{\"turn\": 1}").expect("write");
    let reply =
        lab.json(["suspend", &attempt, "--keep", "--if-changed", "--state", state.to_str().expect("text")]);
    assert_eq!(reply["node"]["logical_state"]["turn"], 1);
    let attempt = next(&reply);
    lab.sh(&attempt, "echo b > b");
    let reply = lab.json(["suspend", &attempt, "--keep", "--if-changed"]);
    assert_eq!(reply["changed"]["added"], 1);
    lab.json(["release", &next(&reply)]);
}

#[test]
fn one_key_is_one_turn_and_a_full_quota_is_no_hindrance() {
    needs_root!();
    let lab = Lab::new();
    let policy = lab.path("policy.toml");
    std::fs::write(&policy, "[quotas]\nmax_live_attempts = 1\n").expect("write");
    let tree = lab.tree("t", "echo a > a");
    let made = lab.json([
        "group",
        "create",
        "g",
        "--from",
        tree.to_str().expect("text"),
        "--policy",
        policy.to_str().expect("text"),
    ]);
    let attempt = lab.activate(&id(&made["group"], "canonical_node_id"));
    lab.sh(&attempt, "echo b > b");
    let asked = ["suspend", &attempt, "--keep", "--idempotency-key", "turn"];
    let replies: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(|| lab.json(asked))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for reply in &replies {
        assert_eq!(
            (id(&reply["node"], "node_id"), next(reply)),
            (id(&replies[0]["node"], "node_id"), next(&replies[0]))
        );
    }
    let other = lab.refused(["suspend", &attempt, "--keep", "-m", "other", "--idempotency-key", "turn"]);
    assert_eq!(other.exit, 4, "{other:?}");
    let kept = next(&replies[0]);
    lab.sh(&kept, "cat b");
    // The worker dies between two turns: the node is there, the attempt is lost, and said to be.
    lab.kill_worker();
    let after = lab.json(asked);
    assert_eq!(id(&after["node"], "node_id"), id(&replies[0]["node"], "node_id"));
    assert_eq!(lab.inspect(&kept)["attempt"]["failure"]["class"], "infra_lost");
    let refused = lab.refused(["suspend", &kept, "--keep"]);
    assert_eq!(refused.code(), "not_active", "{refused:?}");
}
