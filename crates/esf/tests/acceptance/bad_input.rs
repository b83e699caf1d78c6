//! What goes wrong is said, with what to do; nothing is left half done, and a rerun works.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::needs_root;
use crate::support::*;

fn create<'a>(name: &'a str, source: &'a Path) -> [&'a OsStr; 5] {
    ["group".as_ref(), "create".as_ref(), name.as_ref(), "--from".as_ref(), source.as_os_str()]
}

/// A refusal that helps: an exit code, a stable code, a sentence, and what to do.
#[track_caller]
fn helps(refused: &Refusal, exit: i32, code: &str) {
    assert_eq!((refused.exit, refused.code()), (exit, code), "{refused:?}");
    for field in ["message", "remediation"] {
        assert!(
            refused.error[field].as_str().is_some_and(|text| !text.is_empty()),
            "no {field}: {refused:?}"
        );
    }
}

#[test]
fn a_source_that_is_missing_or_unreadable() {
    let lab = Lab::new();
    let good = lab.tree("good", "echo a > a");
    lab.group("before", &good);
    let groups = || lab.json(["ls"])["groups"].as_array().unwrap().len();
    let missing = lab.path("missing");
    let refused = lab.refused(create("g", &missing));
    helps(&refused, 3, "source_missing");
    assert!(refused.text().contains(missing.to_str().unwrap()), "{refused:?}");
    let file = lab.path("file");
    fs::write(&file, "x").unwrap();
    let refused = lab.refused(create("g", &file));
    assert!([2, 3, 5].contains(&refused.exit), "{refused:?}");
    let special = lab.tree("special", "mkdir deep; mkfifo deep/fifo");
    std::os::unix::net::UnixListener::bind(special.join("deep/socket")).unwrap();
    let refused = lab.refused(create("g", &special));
    assert!(refused.text().contains("deep/socket"), "a socket is refused by name: {refused:?}");
    assert_eq!(groups(), 1, "nothing half done");
    assert_eq!(lab.json(["df"])["staging"], 0);
    lab.json(create("g", &special).into_iter().chain(["--skip-special".as_ref()]));
    assert_eq!(groups(), 2);
}

#[test]
fn a_store_that_is_newer_damaged_or_not_one() {
    let lab = Lab::new();
    lab.group("g", &lab.tree("t", "echo a > a"));
    let header = lab.store().join("esf.store");
    let good = fs::read(&header).unwrap();
    for at in [0, good.len() / 2, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&header, &bytes).unwrap();
        let refused = lab.refused(["ls"]);
        assert_eq!(refused.exit, 6, "byte {at} flipped: {refused:?}");
        assert!(["store_damaged", "store_newer"].contains(&refused.code()), "{refused:?}");
    }
    fs::write(&header, &good[..good.len() / 2]).unwrap();
    helps(&lab.refused(["ls"]), 6, "store_damaged");
    fs::write(&header, &good).unwrap();
    assert_eq!(lab.json(["ls"])["groups"].as_array().unwrap().len(), 1, "nothing was touched");

    fs::set_permissions(lab.store(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let refused = lab.refused(["ls"]);
    assert!(refused.text().contains("700"), "{refused:?}");
    fs::set_permissions(lab.store(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();

    let other = Lab::with_store(lab.tree("no-store", "echo x > some-file"));
    let refused = other.refused(["group", "create", "g", "--from", "/etc/apt"]);
    helps(&refused, 2, "store_exists");
    assert!(!other.store().join("esf.store").exists(), "somebody's directory is not made a store");
}

#[test]
fn names_that_are_unknown_or_ambiguous() {
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo a > a"));
    // Of seventeen ids two begin with the same hexadecimal digit.
    let forked = lab.json(["fork", &node, "-n", "17"]);
    let ids: Vec<_> = forked["nodes"].as_array().unwrap().iter().map(|node| id(node, "node_id")).collect();
    let first = |id: &str| id[..5].to_owned();
    let twice = |id: &&String| ids.iter().filter(|other| first(other) == first(id)).count() > 1;
    let prefix = first(ids.iter().find(twice).expect("a drawer has two"));
    for unknown in ["nod_ffffffffffffffffffff", "g:no-such-tag", "no-such-group:@", "att_0000", "nonsense"] {
        let refused = lab.refused(["inspect", unknown]);
        helps(&refused, 3, "not_found");
        assert!(refused.text().contains(unknown), "{refused:?}");
    }
    let refused = lab.refused(["inspect", &prefix]);
    helps(&refused, 3, "ambiguous");
    assert!(refused.text().matches(&prefix).count() > 2, "candidates are listed: {refused:?}");
    for usage in [&["fork"][..], &["fork", &node, "-n", "many"], &["promote", &node], &["no-such-command"]] {
        assert_eq!(lab.output(usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn what_is_not_in_this_build_is_refused() {
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo a > a"));
    let to = lab.path("to").display().to_string();
    for args in [
        &["export", &node, "--format", "oci", "--to", &to][..],
        &["activate", &node, "--executor", "wasi", "--base", "host"],
        &["activate", &node, "--network", "host"],
        &["activate", &node, "--disk", "1g"],
        &["serve"],
    ] {
        let refused = lab.refused(args);
        assert_eq!((refused.exit, refused.code()), (5, "not_supported"), "{args:?}: {refused:?}");
    }
}

#[test]
fn over_quota_without_waiting() {
    needs_root!();
    let lab = Lab::new();
    let policy = lab.path("policy.toml");
    fs::write(&policy, "[quotas]\nmax_live_attempts = 1\n").unwrap();
    let tree = lab.tree("t", "echo a > a");
    let made = lab.json(create("g", &tree).into_iter().chain(["--policy".as_ref(), policy.as_os_str()]));
    let node = id(&made["group"], "canonical_node_id");
    let live = lab.activate(&node);
    let refused = lab.refused(["activate", &node, "--no-wait"]);
    assert_eq!(refused.exit, 5, "{refused:?}");
    assert!(refused.error["remediation"].is_string(), "{refused:?}");
    let mut waiting = Running::start(lab.esf(["-o", "json", "activate", &node]));
    let queued = || {
        lab.json(["ps"])["attempts"].as_array().unwrap().iter().any(|attempt| attempt["status"] == "queued")
    };
    wait_until("the second waits as queued", queued);
    assert!(!waiting.is_over());
    lab.release(&live);
    let output = waiting.wait();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(parsed(&output)["attempt"]["status"], "active");
}

#[test]
fn a_policy_or_evaluator_that_is_wrong_is_named() {
    let lab = Lab::new();
    let tree = lab.tree("t", "echo a > a");
    let policy = lab.path("policy.toml");
    fs::write(&policy, "[quotas]\nmax_life_attempts = 1\n").unwrap();
    let refused =
        lab.refused(create("g", &tree).into_iter().chain(["--policy".as_ref(), policy.as_os_str()]));
    assert_eq!(refused.exit, 2, "{refused:?}");
    assert!(refused.text().contains("max_life_attempts"), "{refused:?}");
    let node = lab.group("g", &tree);
    let evaluator = lab.path("evaluator.toml");
    fs::write(&evaluator, "name = \"n\"\nversion = \"1\"\n").unwrap();
    let refused =
        lab.refused(["evaluate".as_ref(), node.as_ref(), "--evaluator".as_ref(), evaluator.as_os_str()]);
    assert_eq!(refused.exit, 2, "{refused:?}");
    assert!(refused.text().contains("command"), "{refused:?}");
    let nan = lab.refused(["evaluate", &node, "--version", "1", "--verdict", "pass", "--reward", "NaN"]);
    assert_eq!(nan.exit, 2, "{nan:?}");
}

#[test]
fn a_full_disk_during_import() {
    needs_root!();
    let lab = Lab::new();
    let disk = SmallDisk::new(&lab, 48);
    let small = Lab::with_store(disk.mount.join("s"));
    let big = lab.tree("big", "head -c 67108864 /dev/urandom > big");
    let refused = small.refused(create("g", &big));
    helps(&refused, 125, "storage_full");
    assert_eq!(refused.error["retryable"], true);
    assert_eq!(small.json(["df"])["staging"], 0, "nothing half done");
    lab.tree("fits", "echo a > a");
    small.group("g", &lab.path("fits"));
    small.json(["fsck"]);
}

#[test]
fn a_full_disk_during_a_seal() {
    needs_root!();
    let lab = Lab::new();
    let disk = SmallDisk::new(&lab, 48);
    let small = Lab::with_store(disk.mount.join("s"));
    let node = small.group("g", &lab.tree("t", "echo a > a"));
    let attempt = small.activate(&node);
    small.sh(&attempt, "for i in $(seq 2000); do echo $i > f$i; done");
    let filler = disk.mount.join("filler");
    // Every block goes; dd ends with an error when the disk is full, which is the purpose.
    let _ =
        Command::new("sh").arg("-c").arg(format!("cat /dev/zero > '{}'", filler.display())).output().unwrap();
    let suspend = ["-o", "json", "--idempotency-key", "k", "suspend", &attempt];
    let refused = refusal(&small.output(suspend)).unwrap();
    helps(&refused, 125, "storage_full");
    fs::remove_file(&filler).unwrap();
    let output = small.output(suspend);
    assert_eq!(output.status.code(), Some(0), "the same request works once there is room: {}", said(&output));
    let sealed = id(&parsed(&output)["node"], "node_id");
    assert_eq!(small.cat(&sealed, "f2000"), b"2000\n");
    assert_eq!(small.dump(&sealed).lines().count(), small.dump(&node).lines().count() + 2000);
    small.json(["fsck"]);
}

/// A filesystem of a few MiB in a file; unmounted and removed when dropped.
struct SmallDisk {
    mount: PathBuf,
}

impl SmallDisk {
    fn new(lab: &Lab, mib: u32) -> Self {
        let mount = lab.path("disk");
        let image = lab.path("image");
        let make = "truncate -s \"$1\"M \"$2\" && mkfs.ext4 -q -m 0 \"$2\" && mkdir \"$3\" && mount -o loop \"$2\" \"$3\"";
        let output = Command::new("sh")
            .args(["-c", make, "sh", &mib.to_string()])
            .args([&image, &mount])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        Self { mount }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted =
            || Command::new("umount").arg(&self.mount).status().is_ok_and(|status| status.success());
        let gone = holds_within(Duration::from_secs(10), unmounted);
        assert!(gone || std::thread::panicking(), "the small disk stays mounted");
    }
}

#[test]
fn interrupted_anywhere_quickstart_leaves_nothing_half_done() {
    needs_root!();
    let lab = Lab::new();
    let whole = std::time::Instant::now();
    lab.text(["quickstart"]);
    let whole = whole.elapsed();
    let mut interrupted = 0;
    for part in 0..8 {
        let tour = Running::start(lab.esf(["quickstart"]));
        std::thread::sleep(whole * part / 12);
        let pid = rustix::process::Pid::from_raw(tour.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = tour.wait();
        // One that ended before the interrupt came was faster than the first.
        interrupted += u32::from(output.status.code() != Some(0));
        let live = lab.json(["ps"])["attempts"].as_array().unwrap().len();
        assert_eq!(live, 0, "after {part}/12: {} {}", lab.json(["ps"]), said(&output));
        assert_eq!(lab.json(["df"])["staging"], 0, "after {part}/12");
    }
    assert!(interrupted >= 5, "{interrupted} of 8 were interrupted");
    lab.text(["quickstart"]);
    lab.json(["fsck"]);
}
