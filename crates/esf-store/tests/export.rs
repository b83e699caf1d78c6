//! Exports of real checkpoints: what leaves is what was sealed, the statement beside it can be checked
//! without the store, and nothing is ever replaced (acceptance M04, S09).

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use esf_core::NodeId;
use esf_exchange::identity;
use esf_store::{Export, Exported, Format, verify_export};
use serde_json::Value;
use support::{Lab, privileged, shell};

const BASE: &str = "mkdir -p d/deep .git; echo 1 > f; echo x > d/deep/x; ln -s f l; printf '\\000\\001' > b; echo s > su; \
                    chmod 4755 su; : > empty; echo c > .git/config; ln f hard";

fn request(node: NodeId, format: Format, to: &Path) -> Export {
    Export::new(node, format, to)
}

fn export(lab: &Lab, request: &Export) -> Exported {
    let exported = lab.store.export(&lab.meta(), request, &()).unwrap();
    let verified = verify_export(&request.to).unwrap();
    assert_eq!((verified.node_id, &verified.digest), (Some(exported.node_id), &exported.digest));
    exported
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_directory_is_restored_and_checked_without_the_store() {
    let lab = Lab::new();
    let node = lab.group("g", BASE).node;
    let to = lab.path("out");
    let exported = export(&lab, &request(node.node_id, Format::Dir, &to));
    assert_ne!(exported.digest, exported.root_id.to_string(), "the setuid bit stays behind");
    assert_eq!(fs::metadata(to.join("su")).unwrap().mode() & 0o7777, 0o755);
    let meta = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(meta("f"), meta("hard"));

    let kept = lab.path("kept");
    let exported =
        export(&lab, &Export { preserve_privilege: true, ..request(node.node_id, Format::Dir, &kept) });
    assert_eq!(exported.digest, exported.root_id.to_string());
    assert_eq!(identity::of_directory(&kept).unwrap(), exported.root_id);

    // The store is gone: the statement still tells.
    let path = lab.dir.path().join("out");
    drop(lab.store);
    fs::remove_dir_all(lab.dir.path().join("store")).unwrap();
    verify_export(&path).unwrap();
    fs::write(path.join("f"), b"2\n").unwrap();
    assert_eq!(verify_export(&path).unwrap_err().problem().code, "export_unverified");
}

#[test]
fn a_statement_refers_to_everything_it_should_and_to_no_place() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let node = lab.work(start.node_id, "echo 2 > f");
    let to = lab.path("out.tar");
    let exported = export(&lab, &request(node.node_id, Format::Tar, &to));
    let text = fs::read_to_string(&exported.provenance).unwrap();
    let statement: Value = serde_json::from_str(&text).unwrap();
    let predicate = &statement["predicate"];
    assert_eq!(statement["_type"], esf_store::STATEMENT_TYPE);
    assert_eq!(statement["subject"][0]["name"], "out.tar");
    assert_eq!(predicate["signed"], false);
    assert_eq!(predicate["node"]["node_id"], node.node_id.to_string());
    assert_eq!(predicate["parents"][0]["node_id"], start.node_id.to_string());
    assert_eq!(predicate["parents"][0]["root_id"], start.root_id.unwrap().to_string());
    assert_eq!(predicate["attempt"]["attempt_id"], node.attempt_id.unwrap().to_string());
    for place in [lab.dir.path().to_str().unwrap(), "carriers", "attempts/"] {
        assert!(!text.contains(place), "{place}");
    }
}

#[test]
fn equal_roots_export_equal_archives() {
    let lab = Lab::new();
    let node = lab.group("g", BASE).node;
    let (one, two) = (lab.path("one.tar"), lab.path("two.tar"));
    let digests = [&one, &two].map(|to| export(&lab, &request(node.node_id, Format::Tar, to)).digest);
    assert_eq!(digests[0], digests[1]);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
}

#[test]
fn a_patch_brings_the_base_to_the_node() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    // Written anew: an overlay breaks a link that is written through, a plain directory does not.
    let script = "rm f; echo 2 > f; rm b; printf 'no newline' > d/new; chmod 755 d/deep/x; ln -sfn d l; printf '\\000\\377' > bin; \
                  echo changed > .git/config; mkdir hollow; mkfifo pipe; mkdir 'sp ace'; echo é > 'sp ace/ü'";
    let node = lab.work(start.node_id, script);
    let to = lab.path("change.patch");
    let exported = export(&lab, &request(node.node_id, Format::Patch, &to));
    assert_eq!(exported.from_node_id, Some(start.node_id));
    let left_out: Vec<_> = exported.left_out.iter().map(|item| item.path.as_str()).collect();
    assert_eq!(left_out, [".git", "hollow", "pipe"]);
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: git is not installed");
        return;
    }
    let work = lab.path("work");
    fs::create_dir(&work).unwrap();
    shell(
        &work,
        &format!("{BASE}; rm -r .git; git init -q .; git apply --check {0}; git apply {0}", to.display()),
    );
    let expected = lab.path("expected");
    fs::create_dir(&expected).unwrap();
    shell(&expected, &format!("{BASE}; {script}; rm -r .git hollow pipe"));
    shell(&work, "rm -rf .git");
    // Git knows neither hard links nor setuid bits; contents, links and execute bits must agree.
    let listing = "find . -printf '%y %p %l\\n' | sort; find . -type f -executable | sort; find . -type f -exec sha256sum {} + | sort";
    let list =
        |dir: &Path| Command::new("sh").args(["-c", listing]).current_dir(dir).output().unwrap().stdout;
    assert_eq!(String::from_utf8(list(&work)).unwrap(), String::from_utf8(list(&expected)).unwrap());
}

#[test]
fn nothing_is_replaced_and_nothing_is_left_of_a_refusal() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", BASE).node;
    let out = lab.path("exports");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("taken"), b"mine").unwrap();
    let code = |request: &Export| lab.store.export(&lab.meta(), request, &()).unwrap_err().problem().code;
    assert_eq!(code(&request(start.node_id, Format::Tar, &out.join("taken"))), "target_exists");
    assert_eq!(fs::read(out.join("taken")).unwrap(), b"mine");
    assert_eq!(code(&request(start.node_id, Format::Patch, &out.join("p"))), "bad_request");
    let from = Export { from: Some(start.node_id), ..request(start.node_id, Format::Tar, &out.join("p")) };
    assert_eq!(code(&from), "bad_request");
    let draft = lab.start(start.node_id).attempt.node_id;
    assert_eq!(code(&request(draft, Format::Dir, &out.join("p"))), "not_sealed");
    assert_eq!(code(&request(start.node_id, Format::Dir, Path::new("/nonexistent/esf/out"))), "not_found");
    assert_eq!(names(&out), ["taken"]);
    for (text, code) in [("oci", "not_supported"), ("bundle", "not_supported"), ("zip", "bad_request")] {
        assert_eq!(Format::parse(text).unwrap_err().problem().code, code);
    }
}

#[test]
fn damaged_contents_fail_an_export_that_leaves_nothing() {
    let lab = Lab::new();
    let node = lab.group("g", "echo original > f").node;
    let carriers = lab.store.stack().carriers_directory();
    let file = fs::read_dir(&carriers).unwrap().next().unwrap().unwrap().path().join("f");
    fs::write(&file, b"tampered\n").unwrap();
    let out = lab.path("exports");
    fs::create_dir(&out).unwrap();
    for (format, name) in [(Format::Dir, "dir"), (Format::Tar, "tar")] {
        let error =
            lab.store.export(&lab.meta(), &request(node.node_id, format, &out.join(name)), &()).unwrap_err();
        assert_eq!(error.problem().class, esf_core::Class::Damaged, "{error}");
    }
    assert!(names(&out).is_empty());
    assert_ne!(lab.store.fsck(&()).unwrap().damage, Vec::<String>::new());
}
