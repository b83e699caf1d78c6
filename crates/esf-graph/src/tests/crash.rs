//! A process that is killed in a loop of commits: what it was told of is there, and nothing is half
//! there (acceptance P28, S10). The child is this test binary again, told by its environment.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use esf_core::id::NodeId;
use esf_core::ops::fork::Fork;

use super::{Fixture, keyed};
use crate::Graph;

const FILE: &str = "ESF_TEST_CRASH_FILE";
const PARENT: &str = "ESF_TEST_CRASH_PARENT";

/// The child: forks with four threads, saying which keys were acknowledged, until it is killed.
#[test]
fn child_commits_until_it_is_killed() {
    let (Ok(file), Ok(parent)) = (std::env::var(FILE), std::env::var(PARENT)) else { return };
    let graph = Graph::open(Path::new(&file)).expect("graph");
    let parent: NodeId = parent.parse().expect("node");
    let round = std::process::id();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let graph = &graph;
            scope.spawn(move || {
                for number in 0_u64.. {
                    let key = format!("{round}-{thread}-{number}");
                    let nodes = graph.fork(&keyed(&key), Fork { parent, count: 3 }).expect("fork");
                    println!("ACK {key} {}", nodes[2].node_id);
                }
            });
        }
    });
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_nothing_is_half_there() {
    let mut fixture = Fixture::new();
    let parent = fixture.group("project").node.node_id;
    let mut acknowledged = Vec::new();
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "tests::crash::child_commits_until_it_is_killed", "--nocapture"])
            .env(FILE, &fixture.path)
            .env(PARENT, parent.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("child");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        // The kill comes in the middle of what the child is doing, after a number of replies that differs.
        for line in output.lines() {
            let line = line.expect("line");
            let Some((_, words)) = line.split_once("ACK ") else { continue };
            let (key, node) = words.split_once(' ').expect("key and node");
            acknowledged.push((key.to_owned(), node.parse::<NodeId>().expect("node")));
            if acknowledged.len() >= round * 37 {
                child.kill().expect("kill");
                break;
            }
        }
        child.wait().expect("reaped");
        fixture.reopen();
        assert_eq!(fixture.graph.check().expect("check"), Vec::<String>::new());
        let children = fixture.graph.children(parent).expect("children").len();
        assert_eq!(children % 3, 0, "a fork of three is there in full or not at all");
        let events = fixture.graph.events(1, u64::MAX).expect("events");
        assert_eq!(events.len() as u64, fixture.graph.last_event().expect("last"));
    }
    let before = fixture.graph.last_event().expect("last");
    for (key, node) in &acknowledged {
        let again = fixture.graph.fork(&keyed(key), Fork { parent, count: 3 }).expect("replay");
        assert_eq!(again[2].node_id, *node, "{key}");
        fixture.graph.node(*node).expect("acknowledged");
    }
    assert_eq!(fixture.graph.last_event().expect("last"), before, "a replay has no effect");
}
