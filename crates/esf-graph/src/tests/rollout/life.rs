//! From a prompt to its group event: what begins, what is recorded, how it ends, and what is refused on the way.

use esf_core::failure::FailureClass;
use esf_core::ops::rollout::{
    Cancel, Finished, ForkFrom, Late, NewStep, RefillAgain, StartSibling, StartSiblings, Target,
};
use esf_core::rollout::rules::Wait;
use esf_core::rollout::{
    Array, CancelReason, Content, Dtype, Outcome, PromptStatus, Refill, SiblingStatus, TrialStatus,
};
use esf_core::{BlobId, Digest};
use serde_json::json;

use super::{Running, failed, scored, step};
use crate::tests::{code, keyed, meta};

#[test]
fn a_prompt_ends_once_with_the_statistics_of_its_usable_members() {
    let (running, begun) = Running::begun(4, |_| {});
    let prompt = running.graph().prompt(begun[0].prompt_id).expect("prompt");
    assert_eq!((prompt.policy_version, prompt.status), (Some(1), PromptStatus::Open));
    let lost = running.finish(&begun[0], failed(FailureClass::InfraLost)).expect("lost");
    assert!(matches!(lost, Finished::Counted { sequence: 1, group_sequence: None, refilled: false, .. }));
    running.finish(&begun[1], scored(1.0)).expect("one");
    running.finish(&begun[2], Outcome { usable: Some(false), ..scored(50.0) }).expect("unusable");
    let last = running.finish(&begun[3], scored(3.0)).expect("last");
    assert!(matches!(last, Finished::Counted { sequence: 4, group_sequence: Some(5), .. }));
    let prompt = running.graph().prompt(begun[0].prompt_id).expect("prompt");
    assert_eq!((prompt.status, prompt.sequence), (PromptStatus::Complete, Some(5)));
    assert_eq!((prompt.stats.count, prompt.stats.mean), (2, Some(2.0)));
    let log = running.graph().deliveries(running.run, 1, 100).expect("log");
    assert_eq!(log.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(log[4].members, [1, 2, 3, 4]);
    assert_eq!(log[4].stats, Some(prompt.stats));
    assert_eq!(log[0].outcome.as_ref().and_then(|outcome| outcome.reward), None);
    let counts = running.now().counts;
    assert_eq!((counts.results, counts.errors, counts.accepted, counts.complete), (3, 1, 2, 1));
    running.sound();
}

#[test]
fn the_same_outcome_again_is_the_same_answer_and_another_names_both() {
    let (running, begun) = Running::begun(2, |_| {});
    let first = running.finish(&begun[0], scored(1.0)).expect("first");
    assert_eq!(running.finish(&begun[0], scored(1.0)).expect("again"), first);
    let error = running.finish(&begun[0], scored(2.0)).expect_err("another").problem();
    assert_eq!(error.code, "already_finished");
    assert_eq!(error.expected, Some(scored(1.0).digest().to_string()));
    assert_eq!(error.found, Some(scored(2.0).digest().to_string()));
    let last = running.finish(&begun[1], scored(1.0)).expect("last");
    assert_eq!(running.finish(&begun[1], scored(1.0)).expect("again"), last);
    assert_eq!(running.graph().deliveries(running.run, 1, 100).expect("log").len(), 3);
    running.sound();
}

#[test]
fn what_comes_of_a_trial_that_was_replaced_or_given_up_is_kept_and_counts_nowhere() {
    let (running, begun) = Running::begun(2, |_| {});
    let again = StartSibling { supersede: Some(0), ..StartSibling::of(begun[0].sibling_id) };
    let command = StartSiblings { siblings: vec![again.clone()], ..running.ask(0) };
    let second = running.graph().start_siblings(&meta(), command.clone()).expect("retry").begun.remove(0);
    assert_eq!((second.trial, second.revision, second.seed), (1, 0, begun[0].seed));
    assert_eq!(code(&running.graph().start_siblings(&meta(), command).expect_err("old")), "trial_over");
    let late = running.finish(&begun[0], scored(9.0)).expect("late");
    assert!(matches!(late, Finished::Late { trial: 0, because: Late::Superseded, .. }));
    assert_eq!(running.finish(&begun[0], scored(9.0)).expect("again"), late);
    assert_eq!(code(&running.finish(&begun[0], scored(8.0)).expect_err("other")), "already_finished");
    assert_eq!(code(&running.steps(&begun[0], vec![step(0)]).expect_err("step")), "trial_over");
    let cancel = Cancel { target: Target::Sibling(begun[1].sibling_id), reason: CancelReason::Overload };
    assert_eq!(running.graph().cancel_rollouts(&meta(), cancel).expect("cancel").siblings, 1);
    assert_eq!(running.graph().cancel_rollouts(&meta(), cancel).expect("again").siblings, 0);
    let late = running.finish(&begun[1], scored(9.0)).expect("late");
    assert!(matches!(late, Finished::Late { because: Late::Cancelled, .. }));
    running.finish(&second, scored(1.0)).expect("counts");
    let sibling = running.graph().sibling(begun[0].sibling_id).expect("sibling");
    assert_eq!(
        sibling.trials.iter().map(|t| t.status).collect::<Vec<_>>(),
        [TrialStatus::Superseded, TrialStatus::Counted]
    );
    assert_eq!(sibling.trials[0].late.as_ref().and_then(|late| late.reward), Some(9.0));
    let prompt = running.graph().prompt(begun[0].prompt_id).expect("prompt");
    assert_eq!((prompt.stats.count, prompt.stats.mean), (1, Some(1.0)));
    assert_eq!(running.now().counts.late, 2);
    running.sound();
}

#[test]
fn steps_are_dense_follow_each_other_and_end_with_their_trial() {
    let (running, begun) = Running::begun(1, |_| {});
    let one = &begun[0];
    let made = running.fixture.sealed(running.root, "changed").node.node_id;
    let first = NewStep {
        node_after: Some(made),
        action: Some(Content::Inline(json!({"command": "touch a"}))),
        policy_version: Some(1),
        ..step(0)
    };
    let recorded = running.steps(one, vec![first.clone(), step(1)]).expect("two");
    assert_eq!((recorded.next, recorded.fresh, recorded.node_id), (2, 2, made));
    assert_eq!(running.steps(one, vec![first.clone(), step(1)]).expect("again").fresh, 0);
    assert_eq!(running.steps(one, vec![step(1), step(2)]).expect("overlap").fresh, 1);
    let refused = |steps| code(&running.steps(one, steps).expect_err("refused"));
    assert_eq!(refused(vec![step(4)]), "step_not_next");
    assert_eq!(refused(vec![NewStep { elapsed_ms: 7, ..step(1) }]), "step_differs");
    assert_eq!(refused(vec![NewStep { node_before: Some(running.root), ..step(3) }]), "node_mismatch");
    let draft = running.fixture.fork(running.root, 1)[0].node_id;
    assert_eq!(refused(vec![NewStep { node_after: Some(draft), ..step(3) }]), "node_mismatch");
    let other = running.fixture.group("other").node.node_id;
    assert_eq!(refused(vec![NewStep { node_after: Some(other), ..step(3) }]), "other_group");
    assert_eq!(refused(vec![NewStep { policy_version: Some(2), ..step(3) }]), "unknown_policy_version");
    assert_eq!(
        refused(vec![NewStep { policy_version: Some(u64::MAX), ..step(3) }]),
        "unknown_policy_version"
    );
    assert_eq!(refused(vec![NewStep { reward: Some(f64::NAN), ..step(3) }]), "bad_argument");
    let large = Content::Inline(json!("x".repeat(5000)));
    assert_eq!(refused(vec![NewStep { action: Some(large), ..step(3) }]), "bad_argument");
    let array = |length| Array {
        dtype: Dtype::I32,
        length,
        digest: BlobId::new(Digest::of(b"a")),
        size: 4 * length,
        aligned_with: None,
    };
    let arrays = [("completion_token_ids".to_owned(), array(3)), ("logprobs".to_owned(), array(2))];
    let uneven = NewStep { arrays: arrays.into(), ..step(3) };
    assert_eq!(refused(vec![step(3), NewStep { index: 4, ..uneven }]), "bad_array");
    assert_eq!(running.steps(one, Vec::new()).expect("nothing was half recorded").next, 3);
    running.finish(one, scored(1.0)).expect("finish");
    assert_eq!(running.steps(one, vec![step(2)]).expect("again, after the end").next, 3);
    assert_eq!(refused(vec![step(3)]), "trial_over");
    let steps = running.graph().steps(one.sibling_id, None, 0, 10).expect("steps");
    assert_eq!(steps.len(), 3);
    assert_eq!((steps[0].node_before, steps[0].node_after, steps[1].node_before), (running.root, made, made));
    let sibling = running.graph().sibling(one.sibling_id).expect("sibling");
    assert_eq!(sibling.outcome.and_then(|outcome| outcome.node_id), Some(made));
    running.sound();
}

#[test]
fn one_item_that_is_refused_disturbs_no_other_of_its_batch() {
    let (running, begun) = Running::begun(3, |_| {});
    let item = |n: usize, index| esf_core::ops::rollout::RecordSteps {
        sibling_id: begun[n].sibling_id,
        trial: 0,
        lease_ms: None,
        steps: vec![step(0), step(index)],
    };
    let answers =
        running.graph().record_steps(&meta(), vec![item(0, 1), item(1, 5), item(2, 1)]).expect("batch");
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(answers[1].as_ref().expect_err("refused").to_string().contains(&begun[1].sibling_id.to_string()));
    assert_eq!(running.graph().steps(begun[1].sibling_id, None, 0, 10).expect("steps"), []);
}

#[test]
fn a_span_of_versions_is_recorded_and_an_unknown_version_refused() {
    let (running, begun) = Running::begun(3, |_| {});
    running.publish(4);
    running.publish(9);
    running.steps(&begun[0], vec![NewStep { policy_version: Some(4), ..step(0) }]).expect("step");
    running.finish(&begun[0], scored(1.0)).expect("finish");
    let log = running.graph().deliveries(running.run, 1, 1).expect("log");
    assert_eq!((log[0].policy_version_start, log[0].policy_version_end), (Some(1), Some(4)));
    let spanning = |start, end| Outcome {
        policy_version_start: Some(start),
        policy_version_end: Some(end),
        ..scored(1.0)
    };
    assert_eq!(
        code(&running.finish(&begun[1], spanning(4, 5)).expect_err("unknown")),
        "unknown_policy_version"
    );
    assert_eq!(code(&running.finish(&begun[1], spanning(9, 4)).expect_err("reversed")), "bad_span");
    running.finish(&begun[1], spanning(4, 9)).expect("span");
    let command = |version, digest| esf_core::ops::rollout::PublishPolicy {
        run_id: running.run,
        version,
        digest,
        adapter: None,
    };
    let publish = |version, digest| running.graph().publish_policy(&meta(), command(version, digest));
    assert_eq!(publish(9, None).expect("again").policy.version, 9);
    assert_eq!(
        code(&publish(9, Some(Digest::of(b"w"))).expect_err("other weights")),
        "version_not_ascending"
    );
    assert_eq!(code(&publish(8, None).expect_err("back")), "version_not_ascending");
    running.sound();
}

#[test]
fn an_error_that_may_pass_is_done_again_as_often_as_may_be() {
    let (running, begun) = Running::begun(2, |run| (run.refill, run.max_refills) = (Refill::Sibling, 2));
    running.finish(&begun[1], scored(1.0)).expect("one");
    let mut trial = begun[0].clone();
    for revision in 0..2 {
        let answer = running.finish(&trial, failed(FailureClass::InfraLost)).expect("lost");
        assert!(matches!(answer, Finished::Counted { group_sequence: None, refilled: true, .. }));
        trial = running.next(5).begun.remove(0);
        assert_eq!((trial.sibling_id, trial.revision), (begun[0].sibling_id, revision + 1));
        assert_ne!(trial.seed, begun[0].seed);
    }
    let answer = running.finish(&trial, failed(FailureClass::InfraLost)).expect("lost");
    assert!(matches!(
        answer,
        Finished::Counted { revision: 2, group_sequence: Some(_), refilled: false, .. }
    ));
    let batch = running.consume("trainer", 10);
    let ends: Vec<_> =
        batch.deliveries.iter().map(|e| (e.delivery.sibling_index, e.delivery.revision)).collect();
    assert_eq!(ends, [(Some(1), 0), (Some(0), 2)], "what was replaced is not delivered");
    assert_eq!((batch.dropped, running.graph().deliveries(running.run, 1, 99).expect("log").len()), (2, 5));
    let refill = RefillAgain { target: Target::Sibling(begun[0].sibling_id) };
    assert_eq!(code(&running.graph().refill(&meta(), refill).expect_err("bound")), "no_refill");
    running.sound();
}

#[test]
fn a_whole_prompt_is_done_again_once_all_of_it_has_ended() {
    let (running, begun) = Running::begun(2, |run| (run.refill, run.max_refills) = (Refill::Group, 1));
    running.finish(&begun[0], failed(FailureClass::InfraLost)).expect("lost");
    assert_eq!(running.now().counts.waiting, 0, "not before the others have ended");
    let answer = running.finish(&begun[1], scored(5.0)).expect("good");
    assert!(matches!(answer, Finished::Counted { group_sequence: None, refilled: true, .. }));
    assert_eq!((running.now().counts.waiting, running.now().counts.accepted), (2, 0));
    let again = running.next(5).begun;
    assert_eq!(again.iter().map(|b| b.revision).collect::<Vec<_>>(), [1, 1]);
    running.finish(&again[0], scored(1.0)).expect("one");
    let end = running.finish(&again[1], failed(FailureClass::InfraLost)).expect("two");
    assert!(matches!(end, Finished::Counted { group_sequence: Some(5), .. }));
    let prompt = running.graph().prompt(begun[0].prompt_id).expect("prompt");
    assert_eq!((prompt.revision, prompt.refills, prompt.stats.mean), (1, 1, Some(1.0)));
    running.sound();
}

#[test]
fn nothing_begins_that_would_be_too_old_or_that_nobody_has_asked_for_yet() {
    let running =
        Running::new(|run| (run.max_staleness, run.batch, run.max_ready) = (Some(1), Some(2), Some(3)));
    running.add(10, 1);
    let first = running.next(10);
    assert_eq!((first.begun.len(), first.wait), (4, Some(Wait::Staleness { committed: 4, most: 4 })));
    for begun in &first.begun[..3] {
        running.finish(begun, scored(1.0)).expect("finish");
    }
    assert_eq!(running.next(1).wait, Some(Wait::Ready { ready: 3, most: 3 }));
    let batch = running.consume("trainer", 2);
    running.graph().ack(&meta(), running.acking(&batch, 1)).expect("ack");
    let more = running.next(10);
    assert_eq!((more.begun.len(), more.wait), (2, Some(Wait::Staleness { committed: 6, most: 6 })));
    let named = StartSibling { supersede: Some(0), ..StartSibling::of(more.begun[0].sibling_id) };
    let command = StartSiblings { siblings: vec![named], ..running.ask(0) };
    assert_eq!(
        running.graph().start_siblings(&meta(), command).expect("a retry needs no room").begun.len(),
        1
    );
    running.sound();
}

#[test]
fn the_holder_of_a_lease_that_ran_out_is_replaced() {
    let running = Running::new(|_| {});
    running.add(1, 1);
    let ask = StartSiblings { lease_ms: Some(100), ..running.ask(1) };
    let first = running.graph().start_siblings(&keyed("one"), ask.clone()).expect("start");
    assert_eq!(running.graph().start_siblings(&keyed("one"), ask.clone()).expect("again"), first);
    assert!(running.graph().start_siblings(&keyed("two"), ask.clone()).expect("held").begun.is_empty());
    let mut later = keyed("three");
    later.boot.millis.0 += 100;
    let taken = running.graph().start_siblings(&later, ask).expect("taken over").begun.remove(0);
    assert_eq!((taken.sibling_id, taken.trial), (first.begun[0].sibling_id, 1));
    running.sound();
}

#[test]
fn a_branch_begins_where_its_parent_was_and_owns_what_follows() {
    let running = Running::new(|_| {});
    running.add(1, 3);
    let parent = running.next(1).begun.remove(0);
    let made = running.fixture.sealed(running.root, "one").node.node_id;
    running.steps(&parent, vec![NewStep { node_after: Some(made), ..step(0) }, step(1)]).expect("steps");
    let siblings = running.graph().siblings(parent.prompt_id).expect("siblings");
    let start = |index: usize, fork| {
        let sibling = StartSibling { fork: Some(fork), ..StartSibling::of(siblings[index].sibling_id) };
        let command = StartSiblings { siblings: vec![sibling], ..running.ask(0) };
        running.graph().start_siblings(&meta(), command)
    };
    let fork = |step, owned_from| ForkFrom { sibling_id: parent.sibling_id, step, owned_from };
    for bad in
        [fork(3, None), fork(1, Some(0)), ForkFrom { sibling_id: siblings[1].sibling_id, ..fork(0, None) }]
    {
        assert_eq!(code(&start(1, bad).expect_err("refused")), "bad_fork", "{bad:?}");
    }
    let branch = start(1, fork(1, None)).expect("branch").begun.remove(0);
    assert_eq!((branch.first_step, branch.node_id), (1, made));
    assert_eq!(code(&running.steps(&branch, vec![step(0)]).expect_err("a shared step")), "step_not_next");
    running.steps(&branch, vec![step(1)]).expect("its own");
    let trial = running.graph().sibling(branch.sibling_id).expect("sibling").trials.remove(0);
    assert_eq!(
        (trial.parent_sibling, trial.parent_trial, trial.fork_step, trial.owned_from_step, trial.steps),
        (Some(parent.sibling_id), Some(0), Some(1), Some(1), 1)
    );
    assert_eq!(start(2, fork(0, None)).expect("from the beginning").begun[0].node_id, running.root);
    running.sound();
}

#[test]
fn a_run_that_is_given_up_ends_all_of_it_and_takes_nothing_more() {
    let (running, begun) = Running::begun(3, |_| {});
    running.add(2, 2);
    running.finish(&begun[0], scored(1.0)).expect("one");
    assert_eq!(code(&running.graph().finish_run(&meta(), running.run).expect_err("open")), "not_ended");
    let cancel = Cancel { target: Target::Run(running.run), reason: CancelReason::User };
    let reply = running.graph().cancel_rollouts(&meta(), cancel).expect("cancel");
    assert_eq!((reply.siblings, reply.prompts), (6, 3));
    let counts = running.now().counts;
    assert_eq!((counts.waiting, counts.running, counts.cancelled_siblings, counts.sequence), (0, 0, 6, 10));
    assert_eq!(code(&running.graph().start_siblings(&meta(), running.ask(1)).expect_err("over")), "run_over");
    let prompts = running.graph().prompts(running.run, 0, 10).expect("prompts");
    let statuses: Vec<_> = prompts.iter().map(|prompt| prompt.status).collect();
    assert_eq!(statuses, [PromptStatus::Complete, PromptStatus::Cancelled, PromptStatus::Cancelled]);
    let sibling = running.graph().sibling(begun[1].sibling_id).expect("sibling");
    assert_eq!((sibling.status, sibling.cancelled), (SiblingStatus::Cancelled, Some(CancelReason::User)));
    running.sound();
}
