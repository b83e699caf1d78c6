//! The graph takes a root only with its proof: here that of a real import. Without it there is no way
//! in, which the last test holds the public surface to.

use std::fs;

use esf_core::Timestamp;
use esf_core::environment::Environment;
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::ops::fork::Fork;
use esf_core::policy::PolicyDocument;
use esf_core::record::{Evaluation, Evaluator, Json, Verdict};
use esf_core::time::BootMillis;
use esf_graph::{BootClock, Graph, Meta};
use esf_layerstack::{ImportOptions, LayerStack, SealedRoot};

fn meta(key: &str) -> Meta {
    Meta {
        actor: "tester".to_owned(),
        key: key.to_owned(),
        now: Timestamp(1),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(1) },
        trace_id: "trace".to_owned(),
    }
}

fn command(name: &str, root: &SealedRoot) -> CreateGroup {
    CreateGroup {
        name: name.to_owned(),
        root: *root.pin(),
        policy: PolicyDocument::default(),
        source: "directory:example".to_owned(),
        default_environment: Environment::default(),
        provenance: Json::Null,
    }
}

#[test]
fn an_imported_root_becomes_a_group_and_is_registered_with_it() {
    let place = tempfile::tempdir().expect("directory");
    let source = place.path().join("source");
    fs::create_dir(&source).expect("source");
    fs::write(source.join("a.txt"), "a\n").expect("file");
    let stack = LayerStack::create(&place.path().join("store")).expect("stack");
    let imported = stack.import_directory(&source, &ImportOptions::default(), &()).expect("import");
    fs::write(source.join("a.txt"), "b\n").expect("file");
    let other = stack.import_directory(&source, &ImportOptions::default(), &()).expect("import");
    let graph = Graph::create(&place.path().join("graph.db"), stack.store_id()).expect("graph");

    let unknown =
        graph.create_group(&meta("1"), command("one", &imported.sealed)).expect_err("not registered");
    assert_eq!(unknown.problem().code, "not_found");
    let wrong =
        graph.create_group_with_node(&meta("2"), command("one", &imported.sealed), Some(&other.sealed));
    assert_eq!(wrong.expect_err("the proof of another root").problem().code, "bad_argument");
    assert!(graph.roots().expect("roots").is_empty(), "a refused group registers nothing");

    let created = graph
        .create_group_with_node(&meta("3"), command("one", &imported.sealed), Some(&imported.sealed))
        .expect("group");
    assert_eq!(created.node.root(), Some(*imported.sealed.pin()));
    assert_eq!(graph.live_roots().expect("roots"), [*imported.sealed.pin()]);
    let drafts = graph.fork(&meta("4"), Fork { parent: created.node.node_id, count: 2 }).expect("fork");
    assert_eq!(drafts[1].base_root(), Some(*imported.sealed.pin()));

    graph.register_root(&meta("5"), &other.sealed).expect("register");
    graph
        .create_group(&meta("6"), command("two", &other.sealed))
        .expect("a registered root needs no proof again");
    assert_eq!(graph.check().expect("check"), Vec::<String>::new());
}

#[test]
fn what_was_asked_makes_a_request_the_same_whatever_was_found() {
    let place = tempfile::tempdir().expect("directory");
    let source = place.path().join("source");
    fs::create_dir(&source).expect("source");
    let stack = LayerStack::create(&place.path().join("store")).expect("stack");
    let root = stack.import_directory(&source, &ImportOptions::default(), &()).expect("import").sealed;
    let graph = Graph::create(&place.path().join("graph.db"), stack.store_id()).expect("graph");
    let created =
        graph.create_group_with_node(&meta("1"), command("one", &root), Some(&root)).expect("group");
    let found = |reward| NewEvaluation {
        node: created.node.node_id,
        evaluator: Evaluator { name: "tests".to_owned(), version: "1".to_owned(), digest: None },
        verdict: Verdict::pass(),
        reward: Some(reward),
        metrics: Json::Null,
        evidence: Vec::new(),
        attempt: None,
        run_attempt: None,
        epoch: None,
        failure: None,
    };
    let recorded = |asked| graph.recorded_asked::<Evaluation, _>(&meta("e"), "evaluate", asked);
    assert_eq!(recorded(&"the file").expect("nothing yet"), None);
    let first = graph.evaluate_asked(&meta("e"), &"the file", found(0.5)).expect("first");
    let second = graph.evaluate_asked(&meta("e"), &"the file", found(0.7)).expect("the same was asked");
    assert_eq!(second, first);
    assert_eq!(recorded(&"the file").expect("recorded"), Some(first));
    let conflicts = [
        graph.evaluate_asked(&meta("e"), &"another file", found(0.5)).expect_err("another"),
        recorded(&"another file").expect_err("another"),
    ];
    for error in conflicts {
        assert_eq!(error.problem().code, "idempotency_conflict");
    }
}

#[test]
fn no_public_method_takes_a_seal_without_its_proof() {
    let public = ["nodes.rs", "attempts.rs"].map(|file| {
        let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(path).expect("source")
    });
    for text in public {
        for line in text.lines().filter(|line| line.trim_start().starts_with("pub fn")) {
            assert!(!line.contains("RootPin,") && !line.contains(": RootPin"), "{line}");
        }
    }
}
