//! Same key, same body: one effect and one reply, for every request about runs that has a key (acceptance P28). And a
//! process that is killed in the middle of a run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;

use esf_core::id::RunId;
use esf_core::ops::rollout::{
    Ack, AddPrompts, Cancel, Consume, CreateRun, FinishSibling, PublishPolicy, RefillAgain, Reopen,
    StartSiblings, Target,
};
use esf_core::rollout::{CancelReason, Policy};
use serde::Serialize;

use super::{Running, prompt, scored};
use crate::tests::{code, keyed, meta};
use crate::{Error, Graph, Meta};

type Mutation = Box<dyn Fn(&Graph, &Meta, bool) -> Result<String, Error> + Send + Sync>;

fn text<T: Serialize>(reply: T) -> String {
    serde_json::to_string(&reply).expect("json")
}

/// A run with results, some of them delivered.
fn mutations(running: &Running) -> Vec<(&'static str, Mutation)> {
    let (run_id, root) = (running.run, running.root);
    let prompts = running.add(4, 2);
    for begun in running.next(6).begun {
        running.finish(&begun, scored(1.0)).expect("finish");
    }
    let batch = running.consume("trainer", 2);
    let name = |other: bool| if other { "other" } else { "one" }.to_owned();
    let policy = Policy { name: "p".to_owned(), version: 1, digest: None, adapter: None };
    let taking = running.taking("trainer", 1);
    let acking = running.acking(&batch, 1);
    let (complete, open) = (prompts[1].prompt_id, prompts[3].prompt_id);
    vec![
        (
            "create_run",
            Box::new(move |g, m, o| g.create_run(m, CreateRun::new(root, name(o), policy.clone())).map(text)),
        ),
        (
            "publish_policy",
            Box::new(move |g, m, o| {
                g.publish_policy(
                    m,
                    PublishPolicy { run_id, version: 7 + u64::from(o), digest: None, adapter: None },
                )
                .map(text)
            }),
        ),
        (
            "add_prompts",
            Box::new(move |g, m, o| {
                g.add_prompts(m, AddPrompts { run_id, prompts: vec![prompt(u64::from(o), 1)] }).map(text)
            }),
        ),
        (
            "start_siblings",
            Box::new(move |g, m, o| {
                let lease_ms = o.then_some(5);
                g.start_siblings(m, StartSiblings { run_id, siblings: Vec::new(), next: 1, lease_ms })
                    .map(text)
            }),
        ),
        (
            "consume",
            Box::new(move |g, m, o| {
                g.consume(m, Consume { max: 1 + u32::from(o), ..taking.clone() }).map(text)
            }),
        ),
        (
            "ack",
            Box::new(move |g, m, o| {
                g.ack(m, Ack { trainer_step: 1 + u64::from(o), ..acking.clone() }).map(text)
            }),
        ),
        (
            "refill",
            Box::new(move |g, m, o| {
                g.refill(m, RefillAgain { target: Target::Prompt(if o { open } else { complete }) }).map(text)
            }),
        ),
        (
            "reopen",
            Box::new(move |g, m, o| {
                g.reopen(m, Reopen { run_id, consumer: "trainer".to_owned(), after_step: u64::from(o) })
                    .map(text)
            }),
        ),
        (
            "cancel_rollouts",
            Box::new(move |g, m, o| {
                let reason = if o { CancelReason::Stale } else { CancelReason::User };
                g.cancel_rollouts(m, Cancel { target: Target::Prompt(open), reason }).map(text)
            }),
        ),
        (
            "cancel_rollouts",
            Box::new(move |g, m, o| {
                let reason = if o { CancelReason::Stale } else { CancelReason::User };
                g.cancel_rollouts(m, Cancel { target: Target::Run(run_id), reason }).map(text)
            }),
        ),
    ]
}

#[test]
fn every_request_about_a_run_has_one_effect_for_one_key() {
    let running = Running::new(|run| run.max_refills = 3);
    let second = Graph::open(&running.fixture.path).expect("another handle");
    for (number, (name, mutation)) in mutations(&running).iter().enumerate() {
        let request = keyed(&format!("{name} {number}"));
        let barrier = Barrier::new(6);
        let replies: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|index| {
                    let graph = if index % 2 == 0 { running.graph() } else { &second };
                    let (barrier, request) = (&barrier, &request);
                    scope.spawn(move || {
                        barrier.wait();
                        mutation(graph, request, false).unwrap_or_else(|error| panic!("{name}: {error}"))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).collect()
        });
        assert!(replies.iter().all(|reply| *reply == replies[0]), "{name}: {replies:#?}");
        let reopened = Graph::open(&running.fixture.path).expect("reopened");
        assert_eq!(mutation(&reopened, &request, false).expect(name), replies[0], "{name} after a restart");
        let last = running.graph().last_event().expect("events");
        assert_eq!(code(&mutation(running.graph(), &request, true).expect_err(name)), "idempotency_conflict");
        assert_eq!(running.graph().last_event().expect("events"), last, "{name} left a trace");
    }
    running.sound();
}

const FILE: &str = "ESF_TEST_ROLLOUT_FILE";
const RUN: &str = "ESF_TEST_ROLLOUT_RUN";

/// The child: threads that begin, end and consume, saying what was acknowledged, until it is killed.
#[test]
fn child_runs_until_it_is_killed() {
    let (Ok(file), Ok(run)) = (std::env::var(FILE), std::env::var(RUN)) else { return };
    let graph = Graph::open(Path::new(&file)).expect("graph");
    let run_id: RunId = run.parse().expect("run");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let graph = &graph;
            scope.spawn(move || {
                for number in 0.. {
                    let meta = keyed(&format!("{}-{thread}-{number}", std::process::id()));
                    let start = StartSiblings { run_id, siblings: Vec::new(), next: 3, lease_ms: Some(0) };
                    let begun = graph.start_siblings(&meta, start).expect("start").begun;
                    let finish = |b: &esf_core::ops::rollout::Begun| FinishSibling {
                        sibling_id: b.sibling_id,
                        trial: b.trial,
                        outcome: scored(1.0),
                    };
                    let outcomes: Vec<_> = begun.iter().map(finish).collect();
                    for (answer, one) in
                        graph.finish_siblings(&meta, outcomes).expect("all").iter().zip(&begun)
                    {
                        // Another thread may have taken over what has no lease.
                        if let Ok(esf_core::ops::rollout::Finished::Counted { .. }) = answer {
                            println!("END {}", one.sibling_id);
                        }
                    }
                    let taking = Consume {
                        run_id,
                        consumer: "t".to_owned(),
                        unit: None,
                        usable_only: None,
                        max: 2,
                        lease_ms: 0,
                    };
                    graph.consume(&meta, taking).expect("consume");
                }
            });
        }
    });
}

#[test]
fn a_killed_run_has_what_it_was_told_of_and_nothing_half() {
    let running = Running::new(|_| {});
    running.add(500, 4);
    let mut told = Vec::new();
    for _ in 0..4 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "tests::rollout::once::child_runs_until_it_is_killed", "--nocapture"])
            .env(FILE, &running.fixture.path)
            .env(RUN, running.run.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("child");
        let lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
        let ends = lines.filter_map(|line| line.strip_prefix("END ").map(str::to_owned));
        told.extend(ends.take(60));
        child.kill().expect("kill");
        child.wait().expect("reaped");
        running.sound();
    }
    assert!(told.len() >= 200, "it did something: {}", told.len());
    for id in &told {
        let sibling = running.graph().sibling(id.parse().expect("id")).expect("sibling");
        assert!(sibling.sequence.is_some(), "{id} was told to have ended");
    }
    let request = meta();
    running.graph().finish_run(&request, running.run).expect_err("some wait");
}
