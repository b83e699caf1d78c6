//! Rows of the graph: what a fork costs, and that it costs the same on any tree.

use std::fs;
use std::path::Path;

use esf_core::ops;
use esf_core::policy::PolicyDocument;
use esf_core::{NodeId, Problem};
use esf_store::{CreateGroup, ImportOptions, parse_source};

use super::{Lab, Row, failed, timed};

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    if lab.wants("fork_one") {
        fork_one(lab)?;
    }
    if lab.wants("fork_1000") {
        fork_many(lab)?;
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
