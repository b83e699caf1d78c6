//! A process that is killed in the middle of a search: what it was told of is there, nothing is half there, and
//! the search goes on (acceptance R03, at the level of transactions). The child is this test binary again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use esf_core::id::SearchId;
use esf_core::ops::search::{Complete, Select};
use esf_core::search::{Config, RolloutStatus, Ticket};

use super::{Searching, actions, plain, valued};
use crate::Graph;
use crate::tests::keyed;

const FILE: &str = "ESF_TEST_SEARCH_FILE";
const SEARCH: &str = "ESF_TEST_SEARCH_ID";

fn outcome(ticket: &Ticket) -> Complete {
    let value = (ticket.rollout.ordinal * 37 % 101) as f64 / 100.0;
    Complete { candidates: Some(actions(&["a", "b", "c"])), ..valued(ticket.rollout.rollout_id, value) }
}

/// The child: four threads that select and complete, saying what was acknowledged, until it is killed.
#[test]
fn child_searches_until_it_is_killed() {
    let (Ok(file), Ok(search)) = (std::env::var(FILE), std::env::var(SEARCH)) else { return };
    let graph = Graph::open(Path::new(&file)).expect("graph");
    let search: SearchId = search.parse().expect("search");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let graph = &graph;
            scope.spawn(move || {
                for number in 0.. {
                    let key = format!("{}-{thread}-{number}", std::process::id());
                    let select = Select { search, count: 3, lease_ms: 1_000_000, at: None, edge: None };
                    let tickets = graph.select(&keyed(&key), select).expect("select").tickets;
                    let outcomes = tickets.iter().map(outcome).collect();
                    for answer in graph.complete_all(&keyed(&key), outcomes).expect("all") {
                        println!("ACK {}", answer.expect("accepted").rollout.rollout_id);
                    }
                }
            });
        }
    });
}

#[test]
fn a_killed_search_has_what_it_was_told_of_and_goes_on() {
    let mut searching = Searching::new(Config { virtual_loss: 0.1, ..plain() });
    let mut acknowledged = Vec::new();
    for round in 1..=8 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "tests::search::crash::child_searches_until_it_is_killed", "--nocapture"])
            .env(FILE, &searching.fixture.path)
            .env(SEARCH, searching.id().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("child");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        for line in output.lines() {
            let line = line.expect("line");
            let Some((_, rollout)) = line.split_once("ACK ") else { continue };
            acknowledged.push(rollout.parse().expect("rollout"));
            if acknowledged.len() >= round * 53 {
                child.kill().expect("kill");
                break;
            }
        }
        child.wait().expect("reaped");
        searching.fixture.reopen();
        searching.sound();
        let search = searching.now();
        let root = searching.graph().position(search.root).expect("root");
        assert_eq!(root.stats.visits, search.accepted, "the sum of visits is what was accepted");
        let held = searching.graph().tickets_in_flight(searching.id()).expect("tickets");
        assert_eq!(search.in_flight(), held.len() as u64);
        // Who comes next takes over what is held; of what was in doubt, each counts once.
        let outcomes: Vec<Complete> = held.iter().map(outcome).collect();
        for answer in searching.graph().complete_all(&keyed("again"), outcomes).expect("all") {
            assert_eq!(answer.expect("accepted").rollout.status, RolloutStatus::Accepted);
        }
    }
    for rollout in acknowledged {
        let rollout = searching.graph().rollout(rollout).expect("acknowledged");
        assert_eq!(rollout.status, RolloutStatus::Accepted);
    }
    assert_eq!(searching.now().in_flight(), 0);
    searching.sound();
}
