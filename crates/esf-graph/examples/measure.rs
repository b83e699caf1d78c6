//! Measures what `performance.md` asks of the graph, each beside its floor in the same run: a fork
//! against one bare SQLite commit, forks of many in one call, and a large graph's size and reopening.
//! `cargo run -p esf-graph --example measure [NODES]`; build it optimised to compare with budgets.

use std::error::Error;
use std::time::{Duration, Instant};

use esf_core::Timestamp;
use esf_core::environment::Environment;
use esf_core::id::NodeId;
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::fork::Fork;
use esf_core::policy::PolicyDocument;
use esf_core::record::Json;
use esf_core::time::BootMillis;
use esf_graph::{BootClock, Graph, Meta};
use esf_layerstack::{ImportOptions, LayerStack};

fn meta(key: String) -> Meta {
    Meta {
        actor: "measure".to_owned(),
        key,
        now: Timestamp(1),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(1) },
        trace_id: "trace".to_owned(),
    }
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

fn main() -> Result<(), Box<dyn Error>> {
    let nodes: u32 = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let place = tempfile::tempdir()?;
    let source = place.path().join("source");
    std::fs::create_dir(&source)?;
    let stack = LayerStack::create(&place.path().join("store"))?;
    let root = stack.import_directory(&source, &ImportOptions::default(), &())?.sealed;
    let path = place.path().join("graph.db");
    let graph = Graph::create(&path, stack.store_id())?;
    let command = CreateGroup {
        name: "measure".to_owned(),
        root: *root.pin(),
        policy: PolicyDocument::default(),
        source: String::new(),
        default_environment: Environment::default(),
        provenance: Json::Null,
    };
    let parent = graph.create_group_with_node(&meta("group".to_owned()), command, Some(&root))?.node.node_id;

    one_fork_against_one_commit(&graph, parent, &place.path().join("floor.db"))?;
    for count in [100, 1_000, 10_000] {
        let started = Instant::now();
        graph.fork(&meta(format!("many {count}")), Fork { parent, count })?;
        let rate = f64::from(count) / started.elapsed().as_secs_f64();
        println!("fork of {count} in one call: {rate:.0} children/s");
    }
    let started = Instant::now();
    for batch in 0..nodes / 1_000 {
        graph.fork(&meta(format!("load {batch}")), Fork { parent, count: 1_000 })?;
    }
    println!("{nodes} nodes: {:.0}/s", f64::from(nodes) / started.elapsed().as_secs_f64());
    drop(graph);
    let started = Instant::now();
    let graph = Graph::open(&path)?;
    let group = graph.groups()?.remove(0);
    println!("reopened in {:?}: {}", started.elapsed(), group.name);
    let started = Instant::now();
    for _ in 0..1_000 {
        graph.node(parent)?;
    }
    println!("point read of a node: {:?}", started.elapsed() / 1_000);
    let bytes = std::fs::metadata(&path)?.len();
    println!("file: {} bytes a node; resident: {:?} KiB", bytes / u64::from(nodes.max(1)), resident_kib());
    Ok(())
}

fn one_fork_against_one_commit(
    graph: &Graph,
    parent: NodeId,
    floor: &std::path::Path,
) -> Result<(), Box<dyn Error>> {
    let db = rusqlite::Connection::open(floor)?;
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)")?;
    let (mut forks, mut commits, mut replays) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..500 {
        let started = Instant::now();
        db.execute("INSERT INTO t (b) VALUES ($1)", [[0_u8; 300]])?;
        commits.push(started.elapsed());
        let started = Instant::now();
        graph.fork(&meta(format!("one {index}")), Fork { parent, count: 1 })?;
        forks.push(started.elapsed());
        let started = Instant::now();
        graph.fork(&meta(format!("one {index}")), Fork { parent, count: 1 })?;
        replays.push(started.elapsed());
    }
    println!("a repeated fork, which commits nothing: {:?}", median(replays));
    let (fork, commit) = (median(forks), median(commits));
    let ratio = fork.as_secs_f64() / commit.as_secs_f64();
    println!("fork of one: {fork:?}; one SQLite commit: {commit:?}; ratio {ratio:.2}");
    Ok(())
}
