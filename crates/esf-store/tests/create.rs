//! Groups from sources: one import for a key, typed refusals, and what a second opening finds.

mod support;

use std::fs;

use esf_store::{ImportOptions, Source, Store, parse_source};
use support::{Lab, meta, request};

#[test]
fn one_key_imports_once_and_answers_the_same() {
    let lab = Lab::new();
    let source = lab.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), b"1").unwrap();
    let first = lab.store.create_group(&meta("k"), request("g", &source), &()).unwrap();
    // The source is gone: only the record can answer now.
    fs::remove_dir_all(&source).unwrap();
    let again = lab.store.create_group(&meta("k"), request("g", &source), &()).unwrap();
    assert_eq!((first.group.clone(), first.node), (again.group, again.node));
    let error = lab.store.create_group(&meta("k"), request("other", &source), &()).unwrap_err();
    assert_eq!(error.problem().code, "idempotency_conflict");
    let mut owners = request("g", &source);
    owners.import.preserve_owners = true;
    let error = lab.store.create_group(&meta("k"), owners, &()).unwrap_err();
    assert_eq!(error.problem().code, "idempotency_conflict");
    let elsewhere = request("g", &lab.path("other/source"));
    let error = lab.store.create_group(&meta("k"), elsewhere, &()).unwrap_err();
    assert_eq!(error.problem().code, "idempotency_conflict");
    let error = lab.store.create_group(&meta("l"), request("g", &source), &()).unwrap_err();
    assert_eq!(error.problem().code, "name_taken");
    let reopened = Store::open(lab.store.directory()).unwrap();
    assert_eq!(reopened.graph().groups().unwrap(), [first.group]);
}

#[test]
fn one_key_brings_one_root_in_whatever_became_of_the_source() {
    let lab = Lab::new();
    let source = lab.path("source");
    fs::create_dir(&source).unwrap();
    let (from, options) = (Source::Directory(source.clone()), ImportOptions::default());
    let first = lab.store.import_root(&meta("k"), &from, &options, &()).unwrap();
    fs::write(source.join("new"), b"since").unwrap();
    let again = lab.store.import_root(&meta("k"), &from, &options, &()).unwrap();
    assert_eq!(again.pin, first.pin);
    let owners = ImportOptions { preserve_owners: true, ..ImportOptions::default() };
    let error = lab.store.import_root(&meta("k"), &from, &owners, &()).unwrap_err();
    assert_eq!(error.problem().code, "idempotency_conflict");
    assert_ne!(lab.store.import_root(&meta("l"), &from, &options, &()).unwrap().pin, first.pin);
}

#[test]
fn a_group_begins_with_a_node_or_a_root_as_well() {
    let lab = Lab::new();
    let first = lab.group("one", "mkdir d; echo x > d/f");
    let pin = first.node.root().unwrap();
    for (name, text) in [
        ("by-node", first.node.node_id.to_string()),
        ("by-name", "one:@".to_owned()),
        ("by-root", pin.root.to_string()),
    ] {
        let source = parse_source(&text).unwrap();
        let mut command = request(name, &lab.path("unused"));
        command.source = source;
        let made = lab.store.create_group(&lab.meta(), command, &()).unwrap();
        assert_eq!(made.node.root(), Some(pin), "{name}");
    }
    let mut command = request("none", &lab.path("unused"));
    command.source = Source::Root(esf_core::RootId::new(esf_core::Digest::of(b"no root")));
    let error = lab.store.create_group(&lab.meta(), command, &()).unwrap_err();
    assert_eq!(error.problem().code, "source_missing");
}

#[test]
fn nothing_is_left_of_a_refused_import() {
    let lab = Lab::new();
    let source = lab.path("source");
    fs::create_dir(&source).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    assert!(lab.store.create_group(&lab.meta(), request("g", &source), &()).is_err());
    assert!(lab.store.create_group(&lab.meta(), request("g", &lab.path("absent")), &()).is_err());
    assert!(lab.store.graph().groups().unwrap().is_empty());
    assert_eq!(lab.store.stack().usage().unwrap().hot, 0);
    // A bad name is told before anything is read.
    let error = lab.store.create_group(&lab.meta(), request("a/b", &lab.path("absent")), &()).unwrap_err();
    assert_eq!(error.problem().code, "bad_name");
    let mut skipping = request("g", &source);
    skipping.import = ImportOptions { skip_special: true, ..ImportOptions::default() };
    let made = lab.store.create_group(&lab.meta(), skipping, &()).unwrap();
    assert_eq!(made.skipped.len(), 1);
}

#[test]
fn an_imported_root_is_known_by_its_id() {
    let lab = Lab::new();
    let source = lab.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), b"1").unwrap();
    let directory = Source::Directory(source);
    let options = ImportOptions::default();
    let one = lab.store.import_root(&lab.meta(), &directory, &options, &()).unwrap();
    let two = lab.store.import_root(&lab.meta(), &directory, &options, &()).unwrap();
    assert_eq!(one.pin, two.pin);
    assert_eq!(lab.store.graph().roots().unwrap().len(), 1);
    assert_eq!(lab.store.graph().live_roots().unwrap(), [one.pin]);
}

#[test]
fn a_store_without_its_graph_is_damaged_unless_it_is_new() {
    let lab = Lab::new();
    let dir = lab.path("other");
    Store::open_or_create(&dir).unwrap();
    fs::remove_file(dir.join("graph.db")).unwrap();
    // Nothing was in it: as if the creation had been interrupted.
    Store::open(&dir).unwrap();
    lab.group("g", "echo 1 > a");
    let dir = lab.store.directory().to_owned();
    drop(lab.store);
    for name in ["graph.db", "graph.db-wal", "graph.db-shm"] {
        let _ = fs::remove_file(dir.join(name));
    }
    assert_eq!(Store::open(&dir).unwrap_err().problem().code, "store_damaged");
}

#[test]
fn many_may_create_one_store_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let at = dir.path().join(round.to_string());
        let ids: Vec<_> = std::thread::scope(|scope| {
            let open = || Store::open_or_create(&at).unwrap().graph().store_id();
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }
}

#[test]
fn a_graph_whose_creation_was_interrupted_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    drop(Store::open_or_create(&at).unwrap());
    for name in ["graph.db-wal", "graph.db-shm"] {
        let _ = fs::remove_file(at.join(name));
    }
    fs::write(at.join("graph.db"), b"").unwrap();
    Store::open(&at).unwrap();
}

#[test]
fn an_archive_becomes_a_root_and_a_hostile_one_leaves_nothing() {
    let lab = Lab::new();
    let source = lab.path("source");
    fs::create_dir(&source).unwrap();
    support::shell(&source, "mkdir d; echo 1 > d/f; ln d/f d/g; ln -s d/f l; chmod 4755 d/f; chmod 0755 .");
    let from_directory = lab.store.create_group(&lab.meta(), request("directory", &source), &()).unwrap();
    let out = lab.path("out.tar");
    let export = esf_store::Export {
        preserve_privilege: true,
        ..esf_store::Export::new(from_directory.node.node_id, esf_store::Format::Tar, &out)
    };
    lab.store.export(&lab.meta(), &export, &()).unwrap();
    let mut command = request("archive", &out);
    command.source = parse_source(out.to_str().unwrap()).unwrap();
    let from_archive = lab.store.create_group(&lab.meta(), command, &()).unwrap();
    assert_eq!(from_archive.node.root_id, from_directory.node.root_id);
    if rustix::process::geteuid().is_root() {
        assert_eq!(from_archive.node.attrs_id, from_directory.node.attrs_id, "times and links as well");
    }
    let root = esf_core::environment::Base::Root;
    assert_eq!(from_archive.group.default_environment.base, root);
    let mut command = request("again", &out);
    command.source = parse_source("archive:@").unwrap();
    let again = lab.store.create_group(&lab.meta(), command, &()).unwrap();
    assert_eq!(again.group.default_environment.base, root);
    fs::write(&out, [0x55; 2048]).unwrap();
    let mut command = request("hostile", &out);
    command.source = Source::Tar(out);
    let error = lab.store.create_group(&lab.meta(), command, &()).unwrap_err();
    assert_eq!(error.problem().code, "archive_refused");
    lab.store.stack().empty_trash();
    assert_eq!(fs::read_dir(lab.store.directory().join("staging")).unwrap().count(), 0);
}
