//! Other processes: several at once, and one that is killed in a loop of commits: what it was told of is there, and nothing is half
//! there (acceptance P28, S10). A child is this test binary again, told by its environment.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use esf_core::id::NodeId;
use esf_core::ops::fork::Fork;

use super::{Fixture, keyed};
use crate::Graph;

const FILE: &str = "ESF_TEST_CRASH_FILE";
const PARENT: &str = "ESF_TEST_CRASH_PARENT";
const KEYS: &str = "ESF_TEST_CRASH_KEYS";

/// The child: forks with four threads, saying which keys were acknowledged, until it is killed; or,
/// when `KEYS` says so, under that many keys, which other children use as well.
#[test]
fn child_commits_until_it_is_killed() {
    let (Ok(file), Ok(parent)) = (std::env::var(FILE), std::env::var(PARENT)) else { return };
    let graph = Graph::open(Path::new(&file)).expect("graph");
    let parent: NodeId = parent.parse().expect("node");
    let keys: Option<u64> = std::env::var(KEYS).ok().map(|text| text.parse().expect("number"));
    let round = if keys.is_some() { "shared".to_owned() } else { std::process::id().to_string() };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (graph, round) = (&graph, &round);
            scope.spawn(move || {
                for number in 0..keys.unwrap_or(u64::MAX) {
                    let key = format!("{round}-{thread}-{number}");
                    let nodes = graph.fork(&keyed(&key), Fork { parent, count: 3 }).expect("fork");
                    println!("ACK {key} {}", nodes[2].node_id);
                }
            });
        }
    });
}

fn child(fixture: &Fixture, parent: NodeId) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "tests::crash::child_commits_until_it_is_killed", "--nocapture"])
        .env(FILE, &fixture.path)
        .env(PARENT, parent.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

#[test]
fn three_processes_with_the_same_keys_make_each_effect_once_and_say_the_same() {
    let fixture = Fixture::new();
    let parent = fixture.group("project").node.node_id;
    let children: Vec<_> =
        (0..3).map(|_| child(&fixture, parent).env(KEYS, "25").spawn().expect("child")).collect();
    let replies: Vec<Vec<String>> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().expect("child");
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).expect("utf-8");
            let mut lines: Vec<String> =
                text.lines().filter_map(|line| Some(line.split_once("ACK ")?.1.to_owned())).collect();
            lines.sort();
            lines
        })
        .collect();
    assert_eq!(replies[0].len(), 100);
    assert!(replies.iter().all(|reply| *reply == replies[0]));
    assert_eq!(fixture.graph.children(parent).expect("children").len(), 300);
    assert_eq!(fixture.graph.check().expect("check"), Vec::<String>::new());
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_nothing_is_half_there() {
    let mut fixture = Fixture::new();
    let parent = fixture.group("project").node.node_id;
    let mut acknowledged = Vec::new();
    for round in 1..=5 {
        let mut child = child(&fixture, parent).spawn().expect("child");
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

#[test]
fn a_handle_that_is_closed_leaves_a_short_log() {
    let fixture = Fixture::new();
    let parent = fixture.group("project").node.node_id;
    fixture.fork(parent, 20_000);
    let log = fixture.path.with_extension("db-wal");
    assert!(std::fs::metadata(&log).expect("log").len() > 1 << 20);
    let Fixture { graph, path, _directory } = fixture;
    drop(graph);
    assert_eq!(std::fs::metadata(&log).map_or(0, |log| log.len()), 0);
    let graph = Graph::open(&path).expect("reopen");
    assert_eq!(graph.children(parent).expect("children").len(), 20_000);
}

fn allow_pages(fixture: &Fixture, pages: i64) {
    let limit = move |transaction: &mut crate::writer::Transaction<'_>| {
        transaction.db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        Ok(())
    };
    fixture.graph.inner.writer.run(limit).expect("limit");
}

#[test]
fn a_full_disk_is_told_leaves_nothing_and_the_same_request_works_later() {
    let fixture = Fixture::new();
    let parent = fixture.group("project").node.node_id;
    let events = fixture.graph.last_event().expect("last");
    allow_pages(&fixture, 1);
    let fork = Fork { parent, count: 5_000 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let problem = fixture.graph.fork(&keyed("large"), fork).expect_err("full").problem();
                assert_eq!((problem.code.as_str(), problem.retryable), ("storage_full", true));
            });
        }
    });
    assert_eq!(fixture.graph.last_event().expect("last"), events);
    allow_pages(&fixture, i64::from(u32::MAX) - 1);
    assert_eq!(fixture.graph.fork(&keyed("large"), fork).expect("room").len(), 5_000);
    assert_eq!(fixture.graph.check().expect("check"), Vec::<String>::new());
}
