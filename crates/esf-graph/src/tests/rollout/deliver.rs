//! Delivery to consumers: leases, acknowledgements, drops, and going back.

use esf_core::ops::rollout::{Ack, Consume, HoldBatch, RefillAgain, Reopen, Target};
use esf_core::rollout::{Consumer, GenerationSource, Unit};

use super::{Running, scored, sequences};
use crate::tests::{code, keyed, meta};

/// A run of `count` prompts of one sibling each, all with a result.
fn finished(count: u64, change: impl FnOnce(&mut esf_core::ops::rollout::CreateRun)) -> Running {
    let running = Running::new(change);
    running.add(count, 1);
    for begun in running.next(u32::try_from(count).expect("few")).begun {
        running.finish(&begun, scored(1.0)).expect("finish");
    }
    running
}

fn consumer(running: &Running, name: &str) -> Consumer {
    let consumers = running.graph().consumers(running.run).expect("consumers");
    consumers.into_iter().find(|consumer| consumer.consumer == name).expect("known")
}

#[test]
fn each_entry_is_delivered_once_and_again_only_when_its_lease_ends() {
    let running = finished(5, |_| {});
    let first = running.graph().consume(&keyed("a"), running.taking("trainer", 3)).expect("first");
    assert_eq!(running.graph().consume(&keyed("a"), running.taking("trainer", 3)).expect("again"), first);
    let second = running.consume("trainer", 10);
    assert_eq!((sequences(&first), sequences(&second)), (vec![1, 3, 5], vec![7, 9]));
    assert!(running.consume("trainer", 10).batch.is_none());
    assert_eq!(sequences(&running.consume("other", 10)).len(), 5, "another consumer has its own");
    let mut later = keyed("b");
    later.boot.millis.0 += 10_000;
    running.graph().ack(&meta(), running.acking(&second, 1)).expect("ack");
    let again = running.graph().consume(&later, running.taking("trainer", 2)).expect("expired");
    assert_eq!(sequences(&again), [1, 3]);
    running
        .graph()
        .ack(&meta(), Ack { sequences: Some(vec![5]), ..running.acking(&first, 1) })
        .expect("not re-leased");
    let error = running.graph().ack(&meta(), running.acking(&first, 1)).expect_err("re-leased").problem();
    assert_eq!((error.code.as_str(), &error.context["current"]), ("lease_lost", &again.batch.into()));
    assert_eq!(running.graph().ack(&meta(), running.acking(&again, 1)).expect("ack").cursor, 9);
    running.sound();
}

#[test]
fn an_acknowledgement_counts_once_and_only_of_what_was_delivered() {
    let running = finished(3, |_| {});
    let batch = running.consume("trainer", 2);
    let ack = running.acking(&batch, 4);
    let refused = |ack| code(&running.graph().ack(&meta(), ack).expect_err("refused"));
    assert_eq!(refused(Ack { batch: 9, ..ack.clone() }), "never_leased");
    assert_eq!(refused(Ack { consumer: "nobody".to_owned(), ..ack.clone() }), "never_leased");
    assert_eq!(refused(Ack { sequences: Some(vec![1, 5]), ..ack.clone() }), "never_leased");
    assert_eq!(refused(Ack { sequences: Some(vec![1]), filtered: vec![1], ..ack.clone() }), "bad_argument");
    assert_eq!(refused(Ack { trainer_step: 0, ..ack.clone() }), "bad_argument");
    running.consume("other", 2);
    assert_eq!(refused(Ack { consumer: "other".to_owned(), ..ack.clone() }), "never_leased");
    assert_eq!(running.now().counts.trained, 0);
    let acked = running.graph().ack(&meta(), Ack { filtered: vec![3], ..ack.clone() }).expect("ack");
    assert_eq!((acked.trained, acked.filtered, acked.repeated, acked.cursor), (1, 1, 0, 3));
    let twice = running.graph().ack(&meta(), Ack { filtered: vec![3], ..ack.clone() }).expect("twice");
    assert_eq!((twice.trained, twice.filtered, twice.repeated), (0, 0, 2));
    assert_eq!(refused(Ack { trainer_step: 5, sequences: Some(vec![1]), ..ack.clone() }), "ack_differs");
    assert_eq!(refused(Ack { sequences: Some(vec![3]), ..ack }), "ack_differs");
    let run = running.now();
    assert_eq!((run.trainer_step, run.counts.accepted, run.counts.trained), (4, 2, 1));
    running.sound();
}

#[test]
fn what_is_too_old_is_dropped_at_delivery_and_what_is_frozen_never_is() {
    for (source, delivered) in [(GenerationSource::Live, 0), (GenerationSource::Frozen, 2)] {
        let running = finished(2, |run| (run.max_staleness, run.generation_source) = (Some(2), source));
        running.publish(3);
        assert_eq!(running.consume("early", 10).deliveries.len(), 2, "two behind is not too old");
        running.publish(4);
        let batch = running.consume("trainer", 10);
        assert_eq!(batch.deliveries.len(), delivered, "{source:?}");
        assert_eq!(consumer(&running, "trainer").stale, 2 - delivered as u64);
        assert_eq!(running.now().counts.accepted, delivered as u64);
        running.sound();
    }
}

#[test]
fn a_trainer_that_went_back_gets_again_what_it_trained_on_later() {
    let running = finished(4, |_| {});
    let batches: Vec<_> = (0..4).map(|_| running.consume("trainer", 1)).collect();
    for (step, batch) in (1..).zip(&batches) {
        let filtered = if step == 4 { sequences(batch) } else { Vec::new() };
        running.graph().ack(&meta(), Ack { filtered, ..running.acking(batch, step) }).expect("ack");
    }
    assert_eq!(consumer(&running, "trainer").cursor, 7);
    let reopen = Reopen { run_id: running.run, consumer: "trainer".to_owned(), after_step: 1 };
    let reply = running.graph().reopen(&keyed("back"), reopen.clone()).expect("back");
    assert_eq!((reply.reopened, reply.cursor), (2, 2));
    assert_eq!(running.graph().reopen(&keyed("back"), reopen).expect("same request"), reply);
    assert_eq!((running.now().trainer_step, running.now().counts.trained), (1, 1));
    let late = running.graph().ack(&meta(), running.acking(&batches[1], 2)).expect_err("of before");
    assert_eq!(code(&late), "ack_differs");
    let again = running.consume("trainer", 10);
    assert_eq!(sequences(&again), [3, 5], "what was filtered stays so");
    running.graph().ack(&meta(), running.acking(&again, 2)).expect("ack");
    assert_eq!(consumer(&running, "trainer").cursor, 7);
    running.sound();
}

#[test]
fn whole_prompts_are_delivered_with_their_members() {
    let running = Running::new(|_| {});
    running.add(2, 2);
    let begun = running.next(4).begun;
    let take = |max| Consume { unit: Some(Unit::Group), ..running.taking("groups", max) };
    running.finish(&begun[0], scored(1.0)).expect("one");
    assert!(running.graph().consume(&meta(), take(5)).expect("none yet").batch.is_none());
    for begun in &begun[1..] {
        running.finish(begun, scored(3.0)).expect("rest");
    }
    let batch = running.graph().consume(&meta(), take(5)).expect("both");
    assert_eq!(sequences(&batch), [3, 6]);
    let rewards = |n: usize| {
        batch.deliveries[n]
            .siblings
            .iter()
            .map(|s| s.outcome.as_ref().and_then(|o| o.reward))
            .collect::<Vec<_>>()
    };
    assert_eq!((rewards(0), rewards(1)), (vec![Some(1.0), Some(3.0)], vec![Some(3.0), Some(3.0)]));
    let other = Consume { unit: Some(Unit::Sibling), ..take(1) };
    assert_eq!(code(&running.graph().consume(&meta(), other).expect_err("other unit")), "consumer_differs");
    let ack = Ack { filtered: vec![6], ..running.acking(&batch, 1) };
    running.graph().ack(&meta(), ack).expect("ack");
    assert_eq!((running.now().counts.accepted, running.now().counts.trained), (2, 2));
    for begun in [&begun[0], &begun[2]] {
        let refill = RefillAgain { target: Target::Prompt(begun.prompt_id) };
        let error = running.graph().refill(&meta(), refill).expect_err("bounded");
        assert_eq!(code(&error), "no_refill");
    }
    running.sound();
}

#[test]
fn what_was_used_or_filtered_is_not_done_again_and_what_was_dropped_as_old_is() {
    let running = finished(3, |run| (run.max_refills, run.max_staleness) = (5, Some(0)));
    let prompts = running.graph().prompts(running.run, 0, 10).expect("prompts");
    let batch = running.consume("trainer", 2);
    running.graph().ack(&meta(), Ack { filtered: vec![3], ..running.acking(&batch, 1) }).expect("ack");
    running.publish(2);
    assert_eq!(running.consume("trainer", 5).dropped, 1);
    let refill = |n: usize| {
        running.graph().refill(&meta(), RefillAgain { target: Target::Prompt(prompts[n].prompt_id) })
    };
    assert_eq!(code(&refill(0).expect_err("trained")), "already_used");
    assert_eq!(code(&refill(1).expect_err("filtered")), "already_used");
    assert_eq!(refill(2).expect("stale").siblings.len(), 1);
    let again = running.next(5).begun.remove(0);
    assert_eq!((again.revision, again.policy_version), (1, 2));
    running.finish(&again, scored(2.0)).expect("again");
    assert_eq!(running.consume("trainer", 5).deliveries.len(), 1);
    running.sound();
}

#[test]
fn a_consumer_may_want_usable_entries_alone_and_hold_or_give_back_what_it_has() {
    let (running, begun) = Running::begun(3, |_| {});
    running.finish(&begun[0], super::failed(esf_core::FailureClass::InfraLost)).expect("lost");
    running.finish(&begun[1], scored(1.0)).expect("one");
    running.finish(&begun[2], scored(1.0)).expect("two");
    let command = Consume { usable_only: Some(true), ..running.taking("trainer", 1) };
    let batch = running.graph().consume(&meta(), command.clone()).expect("consume");
    assert_eq!((sequences(&batch), batch.dropped), (vec![2], 1));
    let hold = |lease_ms| HoldBatch {
        run_id: running.run,
        consumer: "trainer".to_owned(),
        batch: batch.batch.expect("batch"),
        lease_ms,
    };
    assert_eq!(running.graph().hold_batch(&meta(), hold(50_000)).expect("hold"), 1);
    let mut later = meta();
    later.boot.millis.0 += 20_000;
    let rest = running.graph().consume(&later, Consume { max: 9, ..command.clone() }).expect("rest");
    assert_eq!(sequences(&rest), [3]);
    assert_eq!(running.graph().hold_batch(&meta(), hold(0)).expect("back"), 1);
    assert_eq!(sequences(&running.graph().consume(&meta(), command).expect("again")), [2]);
    assert_eq!(running.graph().hold_batch(&meta(), hold(9)).expect("another has it"), 0);
    running.sound();
}
