//! Rows of the graph: what a fork costs, and that it costs the same on any tree; what a rollout of a search costs
//! on a large tree, and that memory does not grow with it.

use std::fs;
use std::path::Path;

use esf_core::id::SearchId;
use esf_core::ops;
use esf_core::ops::search::{Complete, CreateSearch, Select};
use esf_core::policy::PolicyDocument;
use esf_core::record::Json;
use esf_core::search::{Candidate, Candidates, Config, Ticket};
use esf_core::{NodeId, Problem};
use esf_store::{CreateGroup, ImportOptions, parse_source};

use super::{Lab, Row, failed, merge, timed};

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    if lab.wants("fork_one") {
        fork_one(lab)?;
    }
    if lab.wants("fork_1000") {
        fork_many(lab)?;
    }
    if lab.wants("merge") {
        merge::rows(lab)?;
    }
    if lab.wants("search") {
        search(lab)?;
    }
    Ok(())
}

/// A tree of `files` small files, a hundred to a directory.
pub(super) fn make_tree(place: &Path, files: usize, bytes: usize) -> Result<(), Problem> {
    let make = || -> std::io::Result<()> {
        for number in 0..files {
            let directory = place.join(format!("d{:05}", number / 100));
            if number % 100 == 0 {
                fs::create_dir_all(&directory)?;
            }
            let mut content = format!("file {number}\n").into_bytes();
            content.resize(bytes, b'.');
            fs::write(directory.join(format!("f{number:07}")), content)?;
        }
        Ok(())
    };
    make().map_err(|error| failed("make a tree", error))
}

/// Imports a fresh tree as a group; gives its canonical node.
pub(super) fn group(lab: &Lab<'_>, name: &str, files: usize, bytes: usize) -> Result<NodeId, Problem> {
    let place = lab.place.join(name);
    make_tree(&place, files, bytes)?;
    let source = parse_source(&place.to_string_lossy()).map_err(|error| error.problem())?;
    let request = CreateGroup {
        name: name.to_owned(),
        source,
        import: ImportOptions::default(),
        policy: PolicyDocument::default(),
    };
    let created = lab.store.create_group(&lab.context.meta(name)?, request, &());
    created.map(|created| created.group.canonical_node_id).map_err(|error| error.problem())
}

/// Forks `count` drafts.
pub(super) fn fork(lab: &Lab<'_>, parent: NodeId, count: u32, key: &str) -> Result<NodeId, Problem> {
    let nodes = lab.store.graph().fork(&lab.context.meta(key)?, ops::fork::Fork { parent, count });
    nodes.map(|nodes| nodes[0].node_id).map_err(|error| error.problem())
}

fn fork_one(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let parent = group(lab, "fork-one", 10, 100)?;
    let sqlite = |error: rusqlite::Error| failed("sqlite", error);
    let floor = rusqlite::Connection::open(lab.place.join("floor.db")).map_err(sqlite)?;
    floor
        .execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(id BLOB PRIMARY KEY, body BLOB)")
        .map_err(sqlite)?;
    let (mut forks, mut commits) = (0_u64, 0_u64);
    let samples = lab.samples * 5;
    let (value, bare) = lab.pair(
        samples,
        || {
            forks += 1;
            timed(|| fork(lab, parent, 1, &format!("fork-one-{forks}")))
        },
        || {
            commits += 1;
            timed(|| {
                let row = rusqlite::params![commits.to_le_bytes(), [7_u8; 300]];
                floor.execute("INSERT INTO t VALUES (?1, ?2)", row).map_err(sqlite)
            })
        },
    )?;
    let floor = Some((bare, "one SQLite commit"));
    lab.add(Row { name: "fork_one", value, unit: "us", floor, must: Some(2.0), aim: Some(1.2), samples });
    Ok(())
}

fn fork_many(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let small = group(lab, "fork-small", 10, 100)?;
    let large = group(lab, "fork-large", 100_000, 16)?;
    let before = lab.store.stack().usage().map_err(|error| error.problem())?;
    let mut round = 0_u64;
    let mut next = || {
        round += 1;
        format!("fork-many-{round}")
    };
    let keys: Vec<(String, String)> = (0..200).map(|_| (next(), next())).collect();
    let (mut mine, mut theirs) = (keys.iter(), keys.iter());
    let samples = lab.samples.min(30);
    let (value, floor) = lab.pair(
        samples,
        || timed(|| fork(lab, large, 1000, &mine.next().expect("keys for every sample").0)),
        || timed(|| fork(lab, small, 1000, &theirs.next().expect("keys for every sample").1)),
    )?;
    let after = lab.store.stack().usage().map_err(|error| error.problem())?;
    let payload =
        (after.hot + after.cold + after.uppers).saturating_sub(before.hot + before.cold + before.uppers);
    let flat = Some((floor, "the same fork on a 10-file root"));
    lab.add(Row {
        name: "fork_1000_flat",
        value,
        unit: "us",
        floor: flat,
        must: Some(1.25),
        aim: Some(1.05),
        samples,
    });
    let each = Row {
        name: "fork_1000_each",
        value: value / 1000.0,
        unit: "us",
        floor: None,
        must: Some(50.0),
        aim: Some(25.0),
        samples,
    };
    lab.add(each);
    let bytes = Row {
        name: "fork_1000_payload",
        value: payload as f64,
        unit: "bytes",
        floor: None,
        must: Some(0.0),
        aim: Some(0.0),
        samples,
    };
    lab.add(bytes);
    Ok(())
}

/// Edges that the measured tree has, and how many come with each position.
const EDGES: u64 = 1_000_000;
const ACTIONS: u64 = 16;

/// Select and complete, durable, on a tree of a million edges. It is built by the search itself: each rollout
/// brings the actions of the position that it reaches, 2000 of them in a commit.
fn search(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let root = group(lab, "search", 10, 100)?;
    let command = CreateSearch { root, config: Config { virtual_loss: 0.1, ..Config::default() } };
    let search = lab.store.graph().create_search(&lab.context.meta("search")?, command);
    let search = search.map_err(|error| error.problem())?.search_id;
    let (mut round, mut small) = (0_u64, None);
    loop {
        let now = lab.store.graph().search(search).map_err(|error| error.problem())?;
        if small.is_none() && now.positions >= 1_000 {
            small = Some(resident_kib());
        }
        if now.edges >= EDGES {
            break;
        }
        round += 1;
        rollouts(lab, search, &format!("search-build-{round}"), 2_000)?;
    }
    let grown = resident_kib().saturating_sub(small.unwrap_or_default());
    let samples = lab.samples.min(30);
    let (mut each, mut number) = (Vec::new(), 0_u32);
    for _ in 0..samples {
        number += 1;
        each.push(timed(|| rollouts(lab, search, &format!("search-many-{number}"), 256))?);
    }
    let value = super::median_us(each) / 256.0;
    lab.add(plain("search_rollout_of_256", value, "us", 200.0, 100.0, samples));
    let clients: u32 = 8;
    let rounds = u32::try_from(lab.samples).unwrap_or(u32::MAX).clamp(1, 100);
    let spent = timed(|| one_by_one(lab, search, clients, rounds))?;
    let value = spent.as_secs_f64() * 1e6 / f64::from(clients * rounds);
    lab.add(plain("search_rollout_of_8_clients", value, "us", 1_000.0, 500.0, rounds as usize));
    lab.add(plain("search_memory_grown", grown as f64 / 1024.0, "MiB", 32.0, 24.0, 1));
    Ok(())
}

fn plain(name: &'static str, value: f64, unit: &'static str, must: f64, aim: f64, samples: usize) -> Row {
    Row { name, value, unit, floor: None, must: Some(must), aim: Some(aim), samples }
}

fn one_by_one(lab: &Lab<'_>, search: SearchId, clients: u32, rounds: u32) -> Result<(), Problem> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|client| {
                scope.spawn(move || {
                    (0..rounds).try_for_each(|round| {
                        rollouts(lab, search, &format!("search-one-{client}-{round}"), 1)
                    })
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })
}

/// Selects `count` rollouts in one commit and completes them in another.
fn rollouts(lab: &Lab<'_>, search: SearchId, key: &str, count: u32) -> Result<(), Problem> {
    let graph = lab.store.graph();
    let meta = lab.context.meta(key)?;
    let command = Select { search, count, lease_ms: 600_000, at: None, edge: None };
    let tickets = graph.select(&meta, command).map_err(|error| error.problem())?.tickets;
    let outcomes: Vec<Complete> = tickets.iter().map(outcome).collect();
    let answers = graph.complete_all(&meta, outcomes).map_err(|error| error.problem())?;
    answers.into_iter().try_for_each(|answer| answer.map(drop).map_err(|error| error.problem()))
}

/// A value that the rollout's ordinal decides, and the actions there.
fn outcome(ticket: &Ticket) -> Complete {
    let mixed = ticket.rollout.ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let of = |number: u64| Candidate {
        action: Json::from(format!("action {number}")),
        name: None,
        prior: 1.0 + ((mixed + number) % 7) as f64,
        key: None,
    };
    Complete {
        value: Some(vec![mixed as f64 / f64::from(1 << 24)]),
        candidates: Some(Candidates { actions: (0..ACTIONS).map(of).collect(), exhausted: true }),
        ..Complete::of(ticket.rollout.rollout_id)
    }
}

/// Memory of this process in KiB; 0 where the kernel does not say.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or_default()
}
