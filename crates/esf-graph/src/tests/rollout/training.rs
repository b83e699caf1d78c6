//! Runs as a whole: 200 seeds from one root with retries and a consumer that dies (acceptance R04), and many threads at
//! once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use esf_core::FailureClass;
use esf_core::ops::rollout::{Begun, Finished, NewStep, StartSibling, StartSiblings};
use esf_core::record::Evaluator;
use esf_core::rollout::{DeliveryKind, Outcome, Refill, RewardStats, SiblingStatus};

use super::{Running, failed, scored, sequences, step};
use crate::tests::{code, keyed, meta};

#[test]
fn two_hundred_seeds_a_fifth_of_them_retried_each_end_once() {
    let evaluator = Evaluator { name: "tests".to_owned(), version: "3".to_owned(), digest: None };
    let running = Running::new(|run| {
        run.evaluators = vec![evaluator.clone()];
        (run.refill, run.max_refills) = (Refill::Sibling, 8);
    });
    running.add(25, 8);
    let mut begun = running.next(200).begun;
    assert_eq!(begun.len(), 200);
    let mut rewards: BTreeMap<_, f64> = BTreeMap::new();
    for (number, sibling) in begun.iter_mut().enumerate() {
        let attempt = running.fixture.active(running.root).attempt.attempt_id;
        let with = StartSibling {
            attempt_id: Some(attempt),
            supersede: Some(sibling.trial),
            ..StartSibling::of(sibling.sibling_id)
        };
        if number % 10 == 0 {
            // Lost in the middle, and taken over by another attempt of the same revision.
            running.steps(sibling, vec![step(0)]).expect("step");
        }
        let command = StartSiblings { siblings: vec![with], ..running.ask(0) };
        *sibling = running.graph().start_siblings(&meta(), command).expect("attempt").begun.remove(0);
        running.steps(sibling, vec![NewStep { attempt_id: Some(attempt), ..step(0) }]).expect("step");
        if number % 10 == 5 {
            let end = running.finish(sibling, failed(FailureClass::InfraLost)).expect("lost");
            assert!(matches!(end, Finished::Counted { refilled: true, .. }));
            *sibling = running.next(1).begun.remove(0);
            running.steps(sibling, vec![step(0)]).expect("step");
        }
        let reward = (number % 7) as f64 / 7.0;
        rewards.insert(sibling.sibling_id, reward);
        running.finish(sibling, scored(reward)).expect("result");
    }
    let run = running.now();
    assert_eq!(
        (run.counts.results, run.counts.errors, run.counts.refills, run.counts.complete),
        (200, 20, 20, 25)
    );
    let log = running.graph().deliveries(running.run, 1, 1_000).expect("log");
    assert_eq!(log.len(), 245, "200 results, 20 errors, 25 groups");
    let ends: HashSet<_> =
        log.iter().filter(|e| e.kind == DeliveryKind::Sibling).map(|e| (e.sibling_id, e.revision)).collect();
    assert_eq!(ends.len(), 220);
    let mut seeds = HashSet::new();
    for prompt in running.graph().prompts(running.run, 0, 100).expect("prompts") {
        let siblings = running.graph().siblings(prompt.prompt_id).expect("siblings");
        for sibling in &siblings {
            assert_eq!(sibling.status, SiblingStatus::Result);
            assert!(sibling.trials.iter().any(|trial| trial.attempt_id.is_some()));
            assert!(seeds.insert(sibling.seed), "a seed of its own");
        }
        let exact = RewardStats::of(siblings.iter().map(|s| (true, Some(rewards[&s.sibling_id]))));
        assert_eq!((prompt.stats, prompt.stats.count), (exact, 8));
        assert_eq!(
            (prompt.node_id, prompt.root_id, prompt.policy_version),
            (running.root, running.graph().node(running.root).expect("node").root_id.expect("root"), Some(1))
        );
    }
    assert_eq!((run.evaluators, run.policy.version), (vec![evaluator], 1));
    // A consumer dies with a batch; another process of the same name goes on.
    let lost = running.consume("trainer", 64);
    let mut later = keyed("later");
    later.boot.boot_id = "boot-2".to_owned();
    later.boot.millis.0 = 0;
    let (mut seen, mut again) = (BTreeSet::new(), 0);
    let abandoned: BTreeSet<u64> = sequences(&lost).into_iter().collect();
    for number in 0.. {
        later.key = format!("later-{number}");
        let batch = running.graph().consume(&later, running.taking("trainer", 50)).expect("consume");
        if batch.batch.is_none() {
            break;
        }
        for sequence in sequences(&batch) {
            assert!(seen.insert(sequence), "entry {sequence} came twice");
            again += usize::from(abandoned.contains(&sequence));
        }
        running.graph().ack(&later, running.acking(&batch, number + 1)).expect("ack");
    }
    assert_eq!((again, seen.len()), (64, 200), "each of the lost ones again once, and nothing else twice");
    assert_eq!(running.now().counts.trained, 200);
    running.sound();
}

#[test]
fn threads_that_begin_end_and_consume_at_once_lose_and_double_nothing() {
    let running = Running::new(|run| (run.refill, run.max_refills) = (Refill::Sibling, 100));
    running.add(40, 4);
    let (trained, ended) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let second = crate::Graph::open(&running.fixture.path).expect("another handle");
    std::thread::scope(|scope| {
        for runner in 0..4 {
            let (running, ended) = (&running, &ended);
            scope.spawn(move || {
                loop {
                    let begun = running.next(3).begun;
                    if begun.is_empty() && running.now().counts.complete == 40 {
                        break;
                    }
                    for one in begun {
                        end(running, &one, runner, ended);
                    }
                }
            });
        }
        for consumer in 0..3 {
            let graph = if consumer == 0 { &second } else { running.graph() };
            let (running, trained) = (&running, &trained);
            scope.spawn(move || {
                while trained.lock().expect("lock").len() < 160 {
                    let batch = graph.consume(&meta(), running.taking("trainer", 7)).expect("consume");
                    if batch.batch.is_some() {
                        graph.ack(&meta(), running.acking(&batch, 1)).expect("ack");
                        trained.lock().expect("lock").extend(batch.deliveries);
                    }
                }
            });
        }
    });
    let trained = trained.into_inner().expect("lock");
    let siblings: BTreeSet<_> = trained.iter().filter_map(|entry| entry.delivery.sibling_id).collect();
    assert_eq!((trained.len(), siblings.len()), (160, 160));
    let counts = running.now().counts;
    assert_eq!((counts.results, counts.trained, counts.complete), (160, 160, 40));
    assert_eq!(counts.errors, counts.refills);
    assert_eq!(ended.load(Ordering::Relaxed), counts.results + counts.errors);
    running.sound();
}

/// Ends a trial, three times over; now and then it is lost first.
fn end(running: &Running, begun: &Begun, runner: usize, ended: &AtomicU64) {
    running.steps(begun, vec![step(0), step(1)]).expect("steps");
    let lost = begun.revision == 0 && (begun.index as usize + runner).is_multiple_of(5);
    let outcome: Outcome = if lost { failed(FailureClass::InfraLost) } else { scored(1.0) };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let finish = || running.finish(begun, outcome.clone()).expect("the same");
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(finish)).collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    ended.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn of_racing_outcomes_one_counts_and_the_others_name_both() {
    let (running, begun) = Running::begun(1, |_| {});
    let answers: Vec<_> = std::thread::scope(|scope| {
        let finish = |n: usize| running.finish(&begun[0], scored(n as f64));
        let threads: Vec<_> = (0..16).map(|n| scope.spawn(move || finish(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
    });
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert!(
        answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .all(|error| code(error) == "already_finished")
    );
    assert_eq!(running.now().counts.results, 1);
    running.sound();
}
