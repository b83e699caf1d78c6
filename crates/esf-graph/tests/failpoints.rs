//! A crash right before and right after the commit: nothing, or all of it. Needs the feature
//! `failpoints`; the panic ends the writing thread as a crash would end the process.
#![cfg(feature = "failpoints")]

use std::path::Path;

use esf_core::Timestamp;
use esf_core::environment::Environment;
use esf_core::ops::create_group::CreateGroup;
use esf_core::policy::PolicyDocument;
use esf_core::record::Json;
use esf_core::time::BootMillis;
use esf_graph::{BOUNDARIES, BootClock, Graph, Meta};
use esf_layerstack::{ImportOptions, LayerStack, SealedRoot};

fn create(graph: &Graph, root: &SealedRoot) -> Result<String, esf_graph::Error> {
    let meta = Meta {
        actor: "tester".to_owned(),
        key: "the key".to_owned(),
        now: Timestamp(1),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(1) },
        trace_id: "trace".to_owned(),
    };
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
