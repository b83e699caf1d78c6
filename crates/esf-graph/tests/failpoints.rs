//! A crash right before and right after the commit: nothing, or all of it. Needs the feature
//! `failpoints`; the panic ends the writing thread as a crash would end the process.
#![cfg(feature = "failpoints")]

use std::path::Path;

use esf_core::Timestamp;
use esf_core::environment::Environment;
use esf_core::id::SearchId;
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::search::{Complete, CreateSearch, Expand, Select, VoidRollout};
use esf_core::policy::PolicyDocument;
use esf_core::record::Json;
use esf_core::search::config::Solve;
use esf_core::search::{Candidate, Candidates, Config, Rollout, Stage, Ticket};
use esf_core::time::BootMillis;
use esf_core::{FailureClass, NodeId};
use esf_graph::{BOUNDARIES, BootClock, Error, Graph, Meta};
use esf_layerstack::{ImportOptions, LayerStack, SealedRoot};

fn keyed(key: &str) -> Meta {
    Meta {
        actor: "tester".to_owned(),
        key: key.to_owned(),
        now: Timestamp(1),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(1) },
        trace_id: "trace".to_owned(),
    }
}

fn create(graph: &Graph, root: &SealedRoot) -> Result<String, Error> {
    let meta = keyed("the key");
    let command = CreateGroup {
        name: "group".to_owned(),
        root: *root.pin(),
        policy: PolicyDocument::default(),
        source: String::new(),
        default_environment: Environment::default(),
        provenance: Json::Null,
    };
    graph
        .create_group_with_node(&meta, command, Some(root))
        .map(|created| serde_json::to_string(&created).expect("json"))
}

fn import(place: &Path) -> (LayerStack, SealedRoot) {
    let source = place.join("source");
    std::fs::create_dir(&source).expect("source");
    let stack = LayerStack::create(&place.join("store")).expect("stack");
    let root = stack.import_directory(&source, &ImportOptions::default(), &()).expect("import").sealed;
    (stack, root)
}

#[test]
fn a_crash_at_each_boundary_leaves_nothing_or_all() {
    let place = tempfile::tempdir().expect("directory");
    let (stack, root) = import(place.path());
    for boundary in BOUNDARIES {
        let path = place.path().join(format!("{boundary}.db"));
        let graph = Graph::create(&path, stack.store_id()).expect("graph");
        fail::cfg(*boundary, "panic").expect("failpoint");
        assert_eq!(create(&graph, &root).expect_err("crash").problem().code, "graph_closed", "{boundary}");
        fail::remove(boundary);
        assert_eq!(create(&graph, &root).expect_err("its writer is gone").problem().code, "graph_closed");
        drop(graph);
        let graph = Graph::open(&path).expect("reopened");
        let found = graph.groups().expect("groups").len();
        assert_eq!(found, usize::from(*boundary == "graph.after_commit"), "{boundary}");
        assert_eq!(graph.roots().expect("roots").len(), found);
        let reply = create(&graph, &root).expect("the same request again");
        assert_eq!(create(&graph, &root).expect("and again"), reply);
        assert_eq!(graph.groups().expect("groups").len(), 1);
        assert_eq!(graph.check().expect("check"), Vec::<String>::new());
    }
}

/// Everything there is to say of a search.
fn dump(graph: &Graph, search: SearchId) -> String {
    let mut text = format!("{:#?}\n", graph.search(search).expect("search"));
    text += &format!("{:#?}\n", graph.rollouts(search, 0, 1_000).expect("rollouts"));
    let walked = graph.walk_search(search, |position, edges| {
        text += &format!("{position:#?}\n{edges:#?}\n");
        Ok(())
    });
    walked.expect("walk");
    text
}

/// One step of a search, under the key `key`: what is held is expanded, completed, or now and then given up;
/// when nothing is, two rollouts are selected.
fn step(graph: &Graph, search: SearchId, key: &str, held: &[Ticket]) -> Result<(), Error> {
    let Some(Ticket { rollout: Rollout { rollout_id: rollout, ordinal, stage, .. }, .. }) = held.last()
    else {
        let select = Select { search, count: 2, lease_ms: 1_000_000, at: None, edge: None };
        return graph.select(&keyed(key), select).map(drop);
    };
    let (rollout, ordinal) = (*rollout, *ordinal);
    let of = |name: &str| Candidate { action: Json::from(name), name: None, prior: 1.0, key: None };
    if *stage == Stage::Expand {
        let candidates = Candidates { actions: vec![of("a"), of("b")], exhausted: true };
        return graph.expand(&keyed(key), Expand { rollout, candidates, to_move: None }).map(drop);
    }
    if ordinal % 5 == 4 {
        let void =
            VoidRollout { rollout, class: Some(FailureClass::UserExit), reason: "no".to_owned(), node: None };
        return graph.void_rollout(&keyed(key), void).map(drop);
    }
    let value = Some(vec![ordinal as f64 / 7.0]);
    graph
        .complete(&keyed(key), Complete { value, terminal: ordinal % 4 == 3, ..Complete::of(rollout) })
        .map(drop)
}

const STEPS: usize = 24;

/// A whole search; it crashes in step `at` at `boundary`.
fn search(path: &Path, stack: &LayerStack, root: &SealedRoot, crash: Option<(usize, &str)>) -> String {
    let mut graph = Graph::create(path, stack.store_id()).expect("graph");
    let group: serde_json::Value = serde_json::from_str(&create(&graph, root).expect("group")).expect("json");
    let root: NodeId = group["node"]["node_id"].as_str().expect("text").parse().expect("node");
    let config = Config { solve: Solve::Full, ..Config::default() };
    let search = graph.create_search(&keyed("search"), CreateSearch { root, config }).expect("search");
    let search = search.search_id;
    for number in 0..STEPS {
        let held = graph.tickets_in_flight(search).expect("tickets");
        let key = format!("step-{number}");
        if let Some((_, boundary)) = crash.filter(|(at, _)| *at == number) {
            fail::cfg(boundary, "panic").expect("failpoint");
            let error = step(&graph, search, &key, &held).expect_err("crash");
            assert_eq!(error.problem().code, "graph_closed");
            fail::remove(boundary);
            drop(graph);
            graph = Graph::open(path).expect("reopened");
            assert_eq!(graph.check().expect("check"), Vec::<String>::new(), "step {number}, {boundary}");
        }
        // After a crash the same is asked again, of what was held before it.
        step(&graph, search, &key, &held).expect("step");
    }
    assert_eq!(graph.check().expect("check"), Vec::<String>::new());
    dump(&graph, search)
}

#[test]
fn a_search_that_crashes_anywhere_comes_out_as_one_that_never_did() {
    let place = tempfile::tempdir().expect("directory");
    let (stack, root) = import(place.path());
    let expected = search(&place.path().join("never.db"), &stack, &root, None);
    assert!(expected.contains("Accepted") && expected.contains("Void") && expected.contains("Closed"));
    for boundary in BOUNDARIES {
        for at in 0..STEPS {
            let path = place.path().join(format!("{boundary}-{at}.db"));
            let found = search(&path, &stack, &root, Some((at, boundary)));
            assert!(found == expected, "step {at}, {boundary}");
            std::fs::remove_file(&path).expect("remove");
        }
    }
}
