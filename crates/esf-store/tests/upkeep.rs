//! Prune, collection, reasons, checks and recovery over real attempts (acceptance P39, S03, S06).

mod support;

use std::fs;

use esf_core::ops::Meta;
use esf_core::ops::fail_attempt::FailAttempt;
use esf_core::ops::promote::Promote;
use esf_core::policy::PolicyDocument;
use esf_core::record::PrivateDelta;
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_core::{FailureClass, Timestamp};
use esf_store::{Store, WorkerLock};
use support::{Lab, privileged};

fn lost(lab: &Lab, started: &esf_core::ops::start::Started) {
    let attempt = &started.attempt;
    let command = FailAttempt {
        attempt: attempt.attempt_id,
        epoch: Some(attempt.lease_epoch),
        class: FailureClass::InfraLost,
        stage: "exec".to_owned(),
        detail: "gone".to_owned(),
        delta_kept: true,
    };
    lab.store.graph().fail_attempt(&lab.meta(), command).unwrap();
}

fn check_accounts(lab: &Lab) {
    lab.store.stack().empty_trash();
    support::check_ledger(lab.store.stack(), "after the trash was emptied");
}

#[test]
fn unsealed_changes_are_given_up_only_when_that_is_said() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "echo 1 > f").node;
    let started = lab.start(start.node_id);
    lab.change(&started, "echo 2 > f; echo n > new");
    let (attempt, node) = (started.attempt.attempt_id, started.attempt.node_id);
    assert_eq!(lab.store.unsealed(attempt).unwrap(), 2);
    assert_eq!(lab.store.prune(&lab.meta(), node, false).unwrap_err().problem().code, "leased");
    lost(&lab, &started);
    let problem = lab.store.prune(&lab.meta(), node, false).unwrap_err().problem();
    assert_eq!((problem.code.as_str(), &problem.context["unsealed"]), ("unsealed_changes", &2.into()));
    // Collection keeps what may still be salvaged.
    lab.store.gc(&lab.meta(), false).unwrap();
    assert_eq!(lab.store.unsealed(attempt).unwrap(), 2);
    assert!(!lab.store.why(&attempt.to_string()).unwrap().is_empty());
    let reply = lab.store.prune(&lab.meta(), node, true).unwrap();
    assert_eq!((reply.pruned, reply.released), (vec![node], vec![attempt]));
    assert!(lab.store.stack().workspaces().unwrap().is_empty());
    assert!(lab.store.why(&attempt.to_string()).unwrap().is_empty());
    check_accounts(&lab);
}

#[test]
fn collection_takes_what_was_pruned_and_nothing_else() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "head -c 100000 /dev/zero > zeros; echo 1 > f").node;
    let kept = lab.work(start.node_id, "head -c 300000 /dev/urandom > big");
    let loser = lab.work(start.node_id, "head -c 500000 /dev/urandom > big");
    let below = lab.work(loser.node_id, "echo x > x");
    lab.store.promote(&lab.meta(), Promote { node: kept.node_id, expect: 0, replace: false }).unwrap();
    let nothing = lab.store.gc(&lab.meta(), true).unwrap();
    assert_eq!((nothing.carriers, nothing.logs), (0, 0), "{nothing:?}");
    let reply = lab.store.prune(&lab.meta(), loser.node_id, false).unwrap();
    assert_eq!(reply.pruned.len(), 2);
    let attempt = below.attempt_id.unwrap();
    for (attempt, name) in [(attempt, "gone"), (kept.attempt_id.unwrap(), "stays")] {
        let logs = lab.store.directory().join("logs").join(attempt.to_string());
        fs::create_dir_all(&logs).unwrap();
        fs::write(logs.join(name), b"output").unwrap();
    }
    let before = lab.store.stack().usage().unwrap();
    let plan = lab.store.gc(&lab.meta(), true).unwrap();
    assert_eq!((plan.carriers, plan.logs), (2, 1));
    assert!(plan.bytes >= 500_000, "{plan:?}");
    assert_eq!(lab.store.stack().usage().unwrap().hot, before.hot, "a plan deletes nothing");
    let done = lab.store.gc(&lab.meta(), false).unwrap();
    assert_eq!((done.carriers, done.bytes), (plan.carriers, plan.bytes));
    check_accounts(&lab);
    assert!(lab.store.stack().usage().unwrap().total + 500_000 <= before.total);
    for node in [&start, &kept] {
        let report = lab.store.stack().verify(&node.root().unwrap(), &()).unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
    }
    assert_eq!(lab.store.fsck(&()).unwrap().damage, Vec::<String>::new());
    let empty = lab.store.gc(&lab.meta(), false).unwrap();
    assert_eq!((empty.carriers, empty.workspaces, empty.logs), (0, 0, 0), "{empty:?}");
}

#[test]
fn reasons_name_each_keeper() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "echo 1 > f").node;
    let node = lab.work(start.node_id, "echo 2 > f");
    lab.store.graph().tag(&lab.meta(), node.node_id, "best").unwrap();
    let has = |text: &str, word: &str| {
        let reasons = lab.store.why(text).unwrap();
        assert!(reasons.iter().any(|reason| reason.contains(word)), "{text}: {word} in {reasons:?}");
    };
    has("g:@", "canonical");
    has("g:@", &node.node_id.to_string());
    has("g:best", "tagged");
    has(&node.root_id.unwrap().to_string(), &node.node_id.to_string());
    assert_eq!(lab.store.why("nod_ffffffff").unwrap_err().problem().code, "not_found");
}

#[test]
fn a_dead_worker_is_recovered_once() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "echo 1 > f").node;
    let [idle, prepared, committed] = [0, 1, 2].map(|_| lab.start(start.node_id));
    for started in [&idle, &prepared, &committed] {
        lab.change(started, "echo changed > f");
    }
    // Dropped without being settled, as by a worker that died there.
    drop(lab.prepare(&prepared));
    let seal = lab.prepare(&committed);
    let node = lab.commit(&committed, &seal);
    drop(seal);

    let worker = WorkerLock::try_acquire(lab.store.directory()).unwrap().unwrap();
    let elsewhere = Store::open(lab.store.directory()).unwrap();
    assert_eq!(elsewhere.recover_if_idle(&lab.meta()).unwrap(), None, "a worker lives");
    assert_eq!(elsewhere.graph().attempt(idle.attempt.attempt_id).unwrap().status, AttemptStatus::Active);
    drop(worker);

    let report = elsewhere.recover_if_idle(&lab.meta()).unwrap().unwrap();
    assert_eq!(report.seals_finished, [(committed.attempt.attempt_id, node.node_id)]);
    assert_eq!(report.seals_undone, [prepared.attempt.attempt_id]);
    let mut lost = report.attempts_lost.clone();
    lost.sort();
    let mut expected = [idle.attempt.attempt_id, prepared.attempt.attempt_id];
    expected.sort();
    assert_eq!(lost, expected);
    assert_eq!(report.lines().len(), 4);
    for attempt in expected {
        let attempt = elsewhere.graph().attempt(attempt).unwrap();
        assert_eq!((attempt.status, attempt.private_delta), (AttemptStatus::Failed, PrivateDelta::Kept));
        assert_eq!(attempt.failure.unwrap().class, FailureClass::InfraLost);
        assert_eq!(elsewhere.unsealed(attempt.attempt_id).unwrap(), 1, "the delta is kept");
        assert_eq!(elsewhere.graph().node(attempt.node_id).unwrap().status, NodeStatus::Draft);
    }
    assert!(elsewhere.recover_if_idle(&lab.meta()).unwrap().unwrap().is_empty());
    let lock = WorkerLock::try_acquire(elsewhere.directory()).unwrap().unwrap();
    assert!(elsewhere.recover(&lock, &lab.meta()).unwrap().is_empty(), "a second recovery has nothing to do");
    assert_eq!(lab.files(&node.root().unwrap())["f"], "changed\n");
    check_accounts(&lab);
}

#[test]
fn damage_in_either_plane_is_named() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let start = lab.group("g", "echo 1 > f; echo 2 > g").node;
    let node = lab.work(start.node_id, "echo three > h");
    let clean = lab.store.fsck(&()).unwrap();
    assert_eq!((clean.damage, clean.roots), (Vec::new(), 2));
    assert!(clean.objects > 0 && clean.bytes > 0);
    let carriers = lab.store.stack().carriers_directory();
    let damaged = fs::read_dir(&carriers)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("h"))
        .find(|path| path.exists())
        .unwrap();
    fs::write(damaged, b"3").unwrap();
    let report = lab.store.fsck(&()).unwrap();
    assert!(!report.damage.is_empty());
    let named = node.root_id.unwrap().to_string();
    assert!(report.damage.iter().any(|what| what.contains(&named)), "{report:?}");
    assert!(!report.damage.iter().any(|what| what.contains(&start.root_id.unwrap().to_string())));
}

#[test]
fn a_policy_says_how_long_failed_work_is_kept() {
    if !privileged() {
        return;
    }
    let lab = Lab::new();
    let source = lab.path("source");
    fs::create_dir(&source).unwrap();
    let mut request = support::request("g", &source);
    request.policy = PolicyDocument::parse("[retention]\nfailed_attempt_days = 2\nlog_days = 3").unwrap();
    let start = lab.store.create_group(&lab.meta(), request, &()).unwrap().node;
    let started = lab.start(start.node_id);
    lab.change(&started, "echo 2 > f");
    lost(&lab, &started);
    let attempt = started.attempt.attempt_id;
    let logs = lab.store.directory().join("logs").join(attempt.to_string());
    fs::create_dir_all(&logs).unwrap();
    let after = |hours: i64| {
        let meta = lab.meta();
        Meta { now: Timestamp(meta.now.0 + hours * 3_600_000), ..meta }
    };
    let gc = |hours, dry_run| {
        let report = lab.store.gc(&after(hours), dry_run).unwrap();
        (report.expired, report.workspaces, report.logs)
    };
    assert_eq!(gc(47, false), (0, 0, 0));
    assert_eq!(gc(48, true), (1, 1, 0));
    assert_eq!(lab.store.unsealed(attempt).unwrap(), 1, "a plan lets nothing go");
    assert_eq!(gc(48, false).0, 1);
    let released = lab.store.graph().attempt(attempt).unwrap();
    assert_eq!((released.status, released.private_delta), (AttemptStatus::Released, PrivateDelta::Discarded));
    assert!(lab.store.stack().workspaces().unwrap().is_empty());
    assert_eq!(gc(71, false), (0, 0, 0));
    assert_eq!(gc(72, false), (0, 0, 1));
    assert!(!logs.exists());
    check_accounts(&lab);
}
