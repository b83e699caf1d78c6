//! Measures the search: rollouts selected and completed per second, durable, on a large tree; grouped, and one by
//! one from 8 clients; and whether memory grows with the tree.
//! `cargo run --release -p esf-graph --example search [EDGES] [ACTIONS]`. The tree is built by the search itself,
//! with ACTIONS actions for each new position, in commits of 2000. Then both are measured with such outcomes, and
//! with outcomes that end there.

use std::error::Error;
use std::time::Instant;

use esf_core::Timestamp;
use esf_core::environment::Environment;
use esf_core::id::SearchId;
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::search::{Complete, CreateSearch, Select};
use esf_core::policy::PolicyDocument;
use esf_core::record::Json;
use esf_core::search::{Candidate, Candidates, Config, Ticket};
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

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or_default()
}

/// Processor time of this process so far, in seconds.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// A value that the rollout's number decides.
fn outcome(ticket: &Ticket, actions: usize) -> Complete {
    let mixed = ticket.rollout.ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let of = |number: usize| Candidate {
        action: Json::from(format!("action {number}")),
        name: None,
        prior: 1.0 + (mixed as usize + number) as f64 % 7.0,
        key: None,
    };
    Complete {
        value: Some(vec![mixed as f64 / f64::from(1 << 24)]),
        terminal: actions == 0,
        candidates: (actions > 0)
            .then(|| Candidates { actions: (0..actions).map(of).collect(), exhausted: true }),
        ..Complete::of(ticket.rollout.rollout_id)
    }
}

fn grouped(
    graph: &Graph,
    search: SearchId,
    keys: &str,
    count: u32,
    rounds: u32,
    actions: usize,
) -> Result<u64, Box<dyn Error>> {
    let mut done = 0;
    for round in 0..rounds {
        let command = Select { search, count, lease_ms: 60_000, at: None, edge: None };
        let tickets = graph.select(&meta(format!("{keys}-{round}")), command)?.tickets;
        let outcomes = tickets.iter().map(|ticket| outcome(ticket, actions)).collect();
        for completed in graph.complete_all(&meta("complete".to_owned()), outcomes)? {
            completed?;
            done += 1;
        }
    }
    Ok(done)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let edges = arguments.next().transpose()?.unwrap_or(1_000_000);
    let actions = arguments.next().transpose()?.unwrap_or(16) as usize;
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
    let node = graph.create_group_with_node(&meta("group".to_owned()), command, Some(&root))?.node.node_id;
    let command = CreateSearch { root: node, config: Config { virtual_loss: 0.1, ..Config::default() } };
    let search = graph.create_search(&meta("search".to_owned()), command)?.search_id;

    let mut round = 0;
    let mut small = 0;
    let started = Instant::now();
    while graph.search(search)?.edges < edges {
        round += 1;
        grouped(&graph, search, &format!("build-{round}"), 2_000, 1, actions)?;
        if small == 0 && graph.search(search)?.positions >= 1_000 {
            small = resident_kib();
        }
    }
    let built = graph.search(search)?;
    let rate = built.accepted as f64 / started.elapsed().as_secs_f64();
    println!(
        "{} positions, {} edges, built in {:?}: {rate:.0} rollouts/s",
        built.positions,
        built.edges,
        started.elapsed()
    );
    println!("resident: {small} KiB at 1000 positions, {} KiB now", resident_kib());
    println!("file: {} MiB", std::fs::metadata(&path)?.len() >> 20);
    let held = graph.select(
        &meta("depth".to_owned()),
        Select { search, count: 100, lease_ms: 0, at: None, edge: None },
    )?;
    let depth: usize = held.tickets.iter().map(|ticket| ticket.rollout.path.len()).sum();
    println!("mean depth {:.1}", depth as f64 / held.tickets.len() as f64);

    for (what, actions) in [("with actions", actions), ("without", 0)] {
        let (started, before) = (Instant::now(), processor());
        let done = grouped(&graph, search, &format!("grouped-{actions}"), 256, 80, actions)? as f64;
        let (rate, each) = (done / started.elapsed().as_secs_f64(), (processor() - before) / done * 1e6);
        println!("grouped by 256, {what}: {rate:.0} rollouts/s, {each:.0} us of a processor each");
        let (started, before) = (Instant::now(), processor());
        let done: u64 = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|client| {
                    let (graph, keys) = (&graph, format!("client-{client}-{actions}"));
                    scope.spawn(move || grouped(graph, search, &keys, 1, 500, actions).expect("rollouts"))
                })
                .collect();
            clients.into_iter().map(|client| client.join().expect("client")).sum()
        });
        let done = done as f64;
        let (rate, each) = (done / started.elapsed().as_secs_f64(), (processor() - before) / done * 1e6);
        println!("one by one from 8 clients, {what}: {rate:.0} rollouts/s, {each:.0} us of a processor each");
    }
    println!("resident: {} KiB", resident_kib());
    let started = Instant::now();
    let findings = graph.check_search(search)?;
    println!("checked in {:?}: {findings:?}; resident: {} KiB", started.elapsed(), resident_kib());
    Ok(())
}
