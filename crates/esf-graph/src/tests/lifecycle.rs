//! From a root to a promoted node, and the ways in which an attempt ends.

use esf_core::failure::FailureClass;
use esf_core::ops::exec::{FinishExec, RecordExec};
use esf_core::ops::fail_attempt::FailAttempt;
use esf_core::ops::fork::Fork;
use esf_core::ops::lapse::Lapse;
use esf_core::ops::promote::Promote;
use esf_core::ops::release_attempt::ReleaseAttempt;
use esf_core::ops::start::Start;
use esf_core::record::{ExecOutcome, ExecStatus, LeaseStatus, LogicalState, PrivateDelta, Purpose};
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_core::time::BootMillis;
use serde_json::json;

use super::{Fixture, WORKER, code, meta, root, seal, work};

#[test]
fn a_root_becomes_a_group_a_fork_a_seal_and_a_promotion() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let (group, canonical) = (created.group, created.node);
    assert_eq!((group.generation, group.canonical_node_id), (0, canonical.node_id));
    assert_eq!(canonical.root(), Some(root("base")));

    let drafts = fixture.fork(canonical.node_id, 3);
    assert!(drafts.iter().all(|draft| draft.status == NodeStatus::Draft && draft.root_id.is_none()));
    assert_eq!(drafts[0].base_root(), canonical.root());

    let attempt = fixture.quiescing(drafts[0].node_id);
    assert_eq!(attempt.node_id, drafts[0].node_id);
    let mut command = seal(&attempt);
    command.state = Some(LogicalState::new(&json!({"step": 1})).expect("small"));
    command.message = Some("the right fix".to_owned());
    command.result = json!({"exit": 0});
    let sealed = fixture.graph.commit_seal_pin(&meta(), command, root("fixed")).expect("seal");
    assert_eq!(sealed.node.status, NodeStatus::Sealed);
    assert_eq!(sealed.node.root(), Some(root("fixed")));
    assert_eq!(sealed.node.attempt_id, Some(attempt.attempt_id));
    assert_eq!(sealed.attempt.private_delta, PrivateDelta::Sealed);
    assert_eq!(fixture.graph.node(drafts[0].node_id).expect("node"), sealed.node);
    assert_eq!(fixture.graph.attempt(attempt.attempt_id).expect("attempt"), sealed.attempt);
    assert_eq!(fixture.graph.seal_outcome(attempt.attempt_id).expect("outcome"), Some(sealed.node.node_id));
    let lease = fixture.graph.lease(attempt.lease_id.expect("leased")).expect("lease");
    assert_eq!(lease.status, LeaseStatus::Released);

    let promote = Promote { node: sealed.node.node_id, expect: 0, replace: false };
    let group = fixture.graph.promote(&meta(), promote).expect("promote");
    assert_eq!((group.generation, group.canonical_node_id), (1, sealed.node.node_id));
    assert_eq!(fixture.graph.group(group.group_id).expect("group"), group);

    let grandchild = &fixture.fork(sealed.node.node_id, 1)[0];
    assert_eq!(grandchild.logical_state.value(), json!({"step": 1}));
    assert_eq!(grandchild.depth, 2);
    let line = fixture.graph.ancestry(grandchild.node_id).expect("ancestry");
    let ids: Vec<_> = line.iter().map(|node| node.node_id).collect();
    assert_eq!(ids, [grandchild.node_id, sealed.node.node_id, canonical.node_id]);
}

#[test]
fn a_draft_cannot_be_forked_promoted_or_have_two_attempts() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let draft = fixture.fork(canonical, 1)[0].node_id;
    let error = fixture.graph.fork(&meta(), Fork { parent: draft, count: 1 }).expect_err("a draft");
    let problem = error.problem();
    assert_eq!(problem.code, "not_sealed");
    assert_eq!(problem.context["last_sealed"], json!(canonical));
    assert!(problem.remediation.expect("advice").contains(&canonical.to_string()));
    let promote = Promote { node: draft, expect: 0, replace: false };
    assert_eq!(code(&fixture.graph.promote(&meta(), promote).expect_err("a draft")), "not_sealed");

    let first = fixture.enqueue(draft);
    let error = fixture.graph.enqueue(&meta(), work(draft)).expect_err("one attempt only").problem();
    assert_eq!(error.code, "attempt_live");
    assert_eq!(error.context["attempt_id"], json!(first.attempt_id));
}

#[test]
fn a_sealed_node_forks_its_draft_with_the_attempt() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let (one, two) = (fixture.enqueue(canonical), fixture.enqueue(canonical));
    assert_ne!(one.node_id, two.node_id);
    assert_ne!(one.node_id, canonical);
    let queue: Vec<_> = fixture.graph.queued().expect("queue").iter().map(|a| a.attempt_id).collect();
    assert_eq!(queue, [one.attempt_id, two.attempt_id]);
    assert_eq!(fixture.graph.children(canonical).expect("children").len(), 2);
}

#[test]
fn the_queue_is_first_in_first_out_within_a_priority() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let with = |priority| {
        let command = esf_core::ops::enqueue::Enqueue { priority, ..work(canonical) };
        fixture.graph.enqueue(&meta(), command).expect("enqueue").attempt_id
    };
    let (low, high, second, last) = (with(0), with(5), with(5), with(-1));
    let queue: Vec<_> = fixture.graph.queued().expect("queue").iter().map(|a| a.attempt_id).collect();
    assert_eq!(queue, [high, second, low, last]);
}

#[test]
fn quotas_of_the_policy_hold() {
    let fixture = Fixture::new();
    let policy = "[quotas]\nmax_live_attempts = 1\nmax_queued_attempts = 2";
    let canonical = fixture.group_with("project", policy).node.node_id;
    let (one, two) = (fixture.enqueue(canonical), fixture.enqueue(canonical));
    let full = fixture.graph.enqueue(&meta(), work(canonical)).expect_err("queue full").problem();
    assert_eq!((full.code.as_str(), full.class), ("quota", esf_core::Class::Refused));
    let started = fixture.start(one.attempt_id);
    let command = Start { attempt: two.attempt_id, worker: WORKER, lease_ms: 1 };
    assert_eq!(code(&fixture.graph.start(&meta(), command).expect_err("quota")), "quota");
    let release = ReleaseAttempt {
        attempt: one.attempt_id,
        epoch: Some(started.lease.epoch),
        unsealed: 0,
        discard: false,
        reason: None,
    };
    fixture.graph.release_attempt(&meta(), release).expect("release");
    fixture.start(two.attempt_id);
    assert_eq!(fixture.graph.live_count().expect("count"), 1);
}

#[test]
fn release_refuses_to_lose_changes_and_says_how_many() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let started = fixture.active(canonical);
    let release = ReleaseAttempt {
        attempt: started.attempt.attempt_id,
        epoch: Some(started.lease.epoch),
        unsealed: 3,
        discard: false,
        reason: None,
    };
    let problem = fixture.graph.release_attempt(&meta(), release.clone()).expect_err("unsealed").problem();
    assert_eq!(problem.code, "unsealed_changes");
    assert_eq!(problem.context["unsealed"], json!(3));
    let discard = ReleaseAttempt { discard: true, ..release };
    let request = meta();
    let released = fixture.graph.release_attempt(&request, discard.clone()).expect("discard");
    let later = ReleaseAttempt { epoch: None, unsealed: 0, ..discard };
    assert_eq!(fixture.graph.release_attempt(&request, later).expect("the same was asked"), released);
    assert_eq!(released.status, AttemptStatus::Released);
    assert_eq!(released.private_delta, PrivateDelta::Discarded);
}

fn fail(attempt: esf_core::AttemptId, epoch: Option<u64>) -> FailAttempt {
    FailAttempt {
        attempt,
        epoch,
        class: FailureClass::InfraLost,
        stage: "exec".to_owned(),
        detail: "the sandbox died".to_owned(),
        delta_kept: true,
    }
}

#[test]
fn a_retry_leaves_the_failed_attempt_as_it_is_and_the_first_seal_wins() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let started = fixture.active(canonical);
    let old = started.attempt.attempt_id;
    let error = fixture.graph.retry(&meta(), old).expect_err("it is live");
    assert_eq!(code(&error), "not_retryable");
    let failed = fixture.graph.fail_attempt(&meta(), fail(old, Some(started.lease.epoch))).expect("fail");
    assert_eq!(failed.failure.as_ref().map(|f| (f.retryable, f.reward_valid)), Some((true, false)));
    assert_eq!(failed.private_delta, PrivateDelta::Kept);

    let again = fixture.graph.retry(&meta(), old).expect("retry");
    assert_eq!((again.retry_of, again.node_id), (Some(old), failed.node_id));
    assert_eq!(fixture.graph.attempt(old).expect("old"), failed);
    fixture.start(again.attempt_id);
    let attempt = fixture.graph.attempt(again.attempt_id).expect("attempt");
    let command = esf_core::ops::begin_quiesce::BeginQuiesce { attempt: again.attempt_id, epoch: 1 };
    fixture.graph.begin_quiesce(&meta(), command).expect("quiesce");
    fixture.graph.commit_seal_pin(&meta(), seal(&attempt), root("second")).expect("seal");
    assert_eq!(code(&fixture.graph.retry(&meta(), old).expect_err("sealed")), "stale");
}

#[test]
fn a_lapsed_lease_fences_its_holder_and_keeps_the_delta_for_a_salvage() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let attempt = fixture.quiescing(canonical);
    let exec = RecordExec {
        attempt: attempt.attempt_id,
        epoch: 1,
        argv: vec!["true".to_owned()],
        cwd: None,
        user: None,
        timeout_ms: None,
        fingerprint: None,
        outcome: None,
    };
    assert_eq!(code(&fixture.graph.record_exec(&meta(), exec).expect_err("quiescing")), "illegal_step");
    let lapse = Lapse { attempt: attempt.attempt_id, reason: "worker lock is free".to_owned() };
    let lapsed = fixture.graph.lapse(&meta(), lapse).expect("lapse");
    assert_eq!(lapsed.status, AttemptStatus::Failed);
    assert_eq!(lapsed.lease_epoch, attempt.lease_epoch + 1);
    assert_eq!(lapsed.failure.as_ref().map(|f| f.class), Some(FailureClass::InfraLost));

    // The zombie wakes: every write of it is refused.
    let graph = &fixture.graph;
    let fenced = [
        graph.commit_seal_pin(&meta(), seal(&attempt), root("late")).expect_err("seal"),
        graph.fail_attempt(&meta(), fail(attempt.attempt_id, Some(1))).expect_err("fail"),
        graph
            .begin_quiesce(
                &meta(),
                esf_core::ops::begin_quiesce::BeginQuiesce { attempt: attempt.attempt_id, epoch: 1 },
            )
            .expect_err("quiesce"),
    ];
    for error in fenced {
        assert_eq!(code(&error), "lease_fenced");
    }
    let lease = attempt.lease_id.expect("leased");
    let renewed = graph.renew(&meta(), WORKER, &[lease], 10).expect("renew");
    assert_eq!((renewed.held.len(), renewed.fenced), (0, vec![lease]));

    let salvage = esf_core::ops::enqueue::Enqueue {
        purpose: Purpose::Salvage { from: attempt.attempt_id },
        ..work(attempt.node_id)
    };
    let mut rebooted = meta();
    rebooted.boot.boot_id = "boot-2".to_owned();
    let error = graph.enqueue(&rebooted, salvage.clone()).expect_err("rebooted");
    assert_eq!(code(&error), "nothing_to_salvage");
    let salvaging = graph.enqueue(&meta(), salvage).expect("salvage");
    fixture.start(salvaging.attempt_id);
    let command = esf_core::ops::begin_quiesce::BeginQuiesce { attempt: salvaging.attempt_id, epoch: 1 };
    let quiescing = graph.begin_quiesce(&meta(), command).expect("quiesce");
    let reply = graph.commit_seal_pin(&meta(), seal(&quiescing), root("salvaged")).expect("seal");
    assert_eq!(reply.node.root(), Some(root("salvaged")));
    let outcome = |attempt| graph.seal_outcome(attempt).expect("outcome");
    assert_eq!(
        outcome(attempt.attempt_id),
        Some(attempt.node_id),
        "the delta of the failed attempt is in the node"
    );
    assert_eq!(outcome(salvaging.attempt_id), Some(attempt.node_id));
    let old = graph.attempt(attempt.attempt_id).expect("old");
    assert_eq!((old.status, old.private_delta), (AttemptStatus::Released, PrivateDelta::Sealed));
}

#[test]
fn leases_expire_on_the_boot_clock_only() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let started = fixture.active(canonical);
    let at = |millis, now| {
        let mut meta = meta();
        meta.boot.millis = BootMillis(millis);
        meta.now.0 += now;
        meta
    };
    let a_day = 86_400_000;
    assert!(fixture.graph.expire_leases(&at(10_999, a_day)).expect("early").is_empty());
    let lease = started.lease.lease_id;
    fixture.graph.renew(&at(10_999, -a_day), WORKER, &[lease], 10_000).expect("renew");
    assert!(fixture.graph.expire_leases(&at(20_998, 0)).expect("renewed").is_empty());
    let lapsed = fixture.graph.expire_leases(&at(20_999, 0)).expect("over");
    assert_eq!(lapsed.len(), 1);
    assert_eq!(fixture.graph.lease(lease).expect("lease").status, LeaseStatus::Lapsed);
    assert!(fixture.graph.expire_leases(&at(20_999, 0)).expect("again").is_empty());
}

#[test]
fn an_exec_with_a_key_is_recorded_once_and_lost_with_its_worker() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let started = fixture.active(canonical);
    let record = RecordExec {
        attempt: started.attempt.attempt_id,
        epoch: 1,
        argv: vec!["make".to_owned(), "-j2".to_owned()],
        cwd: Some("/workspace".to_owned()),
        user: None,
        timeout_ms: Some(1_000),
        fingerprint: None,
        outcome: None,
    };
    let request = meta();
    let first = fixture.graph.record_exec(&request, record.clone()).expect("record");
    assert!(first.fresh);
    let outcome = ExecOutcome { exit_code: Some(2), stdout_bytes: 7, ..ExecOutcome::default() };
    let finish = FinishExec { exec: first.exec.exec_id, epoch: 1, outcome };
    fixture.graph.finish_exec(&meta(), finish.clone()).expect("finish");
    let again = fixture.graph.record_exec(&request, record.clone()).expect("replay");
    assert!(!again.fresh);
    assert_eq!(again.exec.status, ExecStatus::Finished);
    assert_eq!(code(&fixture.graph.finish_exec(&meta(), finish).expect_err("ended")), "exec_ended");

    let running = fixture.graph.record_exec(&meta(), record).expect("record").exec;
    let lapse = Lapse { attempt: started.attempt.attempt_id, reason: "gone".to_owned() };
    fixture.graph.lapse(&meta(), lapse).expect("lapse");
    let lost = fixture.graph.exec(running.exec_id).expect("exec");
    assert_eq!(lost.status, ExecStatus::Lost);
    let class = lost.outcome.and_then(|outcome| outcome.failure).map(|failure| failure.class);
    assert_eq!(class, Some(FailureClass::InfraLost));
}

#[test]
fn a_terminal_node_ends_its_line() {
    let fixture = Fixture::new();
    let canonical = fixture.group("project").node.node_id;
    let attempt = fixture.quiescing(canonical);
    let mut command = seal(&attempt);
    command.terminal = true;
    let node = fixture.graph.commit_seal_pin(&meta(), command, root("end")).expect("seal").node;
    assert_eq!(node.status, NodeStatus::Terminal);
    let fork = Fork { parent: node.node_id, count: 1 };
    assert_eq!(code(&fixture.graph.fork(&meta(), fork).expect_err("terminal")), "terminal");
    assert_eq!(code(&fixture.graph.enqueue(&meta(), work(node.node_id)).expect_err("terminal")), "terminal");
    let evaluate = esf_core::ops::enqueue::Enqueue { purpose: Purpose::Evaluate, ..work(node.node_id) };
    let run = fixture.graph.enqueue(&meta(), evaluate).expect("evaluable");
    assert_eq!(run.node_id, node.node_id);
}
