//! The worker's bounds: what is refused at the door, what waits, what is cancelled.

use std::sync::atomic::{AtomicU64, Ordering};

use esf_core::environment::Limits;
use esf_core::ops::cancel::CancelReason;
use esf_core::record::Purpose;
use esf_worker::CancelRequest;

use super::*;

#[test]
fn what_the_machine_could_never_hold_is_refused_before_anything_is_recorded() {
    let bench = Bench::new(WorkerConfig { memory: Some(1 << 30), ..quick() });
    let mut request = bench.request();
    request.environment.env.insert("FAKE".to_owned(), "bounded".to_owned());
    request.environment.limits = Limits { memory: Some(2 << 30), ..Limits::default() };
    let problem = bench.client().activate(request, &mut |_| {}).expect_err("too much");
    assert_eq!(problem.code, "over_capacity", "{problem:?}");
    assert!(problem.expected.is_some() && problem.found.is_some());
    assert!(bench.store.graph().attempts(None).expect("lists").is_empty());
}

#[test]
fn memory_is_promised_once() {
    let bench = Bench::new(WorkerConfig { memory: Some(40 << 20), ..quick() });
    let first = bench.activate();
    let mut request = ActivateRequest { no_wait: true, ..bench.request() };
    let problem = bench.client().activate(request.clone(), &mut |_| {}).expect_err("no room");
    assert_eq!(problem.code, "quota", "{problem:?}");
    assert!(problem.message.contains("memory"), "{problem:?}");
    request.no_wait = false;
    let heard = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            bench
                .client()
                .activate(request, &mut |news| heard.lock().expect("lock").push(news.reason.clone()))
        });
        wait_until(|| !heard.lock().expect("lock").is_empty());
        bench.client().release(request_meta(), first.attempt_id, true).expect("releases");
        waiting.join().expect("no panic").expect("its turn");
    });
    assert_eq!(heard.into_inner().expect("lock")[0], "memory");
}

#[test]
fn a_disk_that_is_nearly_full_admits_nothing_new() {
    let mut bench = Bench::without_worker();
    bench.start(WorkerConfig { min_free: Some(u64::MAX), ..quick() });
    let problem = bench.client().activate(bench.request(), &mut |_| {}).expect_err("pressure");
    assert_eq!((problem.code.as_str(), problem.retryable), ("storage_pressure", true), "{problem:?}");
    assert!(bench.store.graph().attempts(None).expect("lists").is_empty(), "nothing was recorded");
    assert!(bench.client().top().expect("gauges").storage_pressure);
}

#[test]
fn a_sandbox_that_is_not_ready_in_time_fails_and_gives_its_place_back() {
    let policy = PolicyDocument::parse("[budgets]\nprepare = \"100ms\"").expect("a policy");
    let mut bench = Bench::with_policy(policy);
    bench.start(WorkerConfig { max_live: 1, ..quick() });
    let mut request = bench.request();
    request.environment.env.insert("FAKE".to_owned(), "slow".to_owned());
    let problem = bench.client().activate(request, &mut |_| {}).expect_err("too slow");
    assert_eq!((problem.code.as_str(), problem.retryable), ("prepare_timeout", true), "{problem:?}");
    let failed = &bench.store.graph().attempts(None).expect("lists")[0];
    assert_eq!(failed.failure.as_ref().map(|failure| failure.class), Some(FailureClass::InfraPrepare));
    assert_eq!(failed.lifetime_ms, Some(100 + 1_800_000 + 30_000 + 600_000 + 300_000), "the budgets' sum");
    // Its place is taken until the late sandbox is gone; then the next one has it, and nothing is left.
    let attempt = bench.activate();
    assert_eq!(std::fs::read_dir(bench.path.join("attempts")).expect("lists").count(), 1);
    assert_eq!(bench.sh(&attempt, "exit 3").exit_code, Some(3));
}

#[test]
fn commands_over_the_bound_wait_and_all_of_them_run() {
    let bench = Bench::new(WorkerConfig { max_execs: 3, ..quick() });
    let attempt = bench.activate();
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(bench.sh(&attempt, "sleep 0.05; exit 4").exit_code, Some(4)));
        }
        for _ in 0..20 {
            let top = bench.client().top().expect("gauges");
            most.fetch_max(top.execs, Ordering::Relaxed);
            assert!(top.execs <= 3, "{top:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(most.into_inner(), 3, "as many as may");
    wait_until(|| bench.client().top().expect("gauges").execs == 0);
    let top = bench.client().top().expect("gauges");
    assert_eq!((top.execs_waiting, top.errors["user_exit"]), (0, 20));
}

#[test]
fn a_command_that_waits_ends_with_its_attempt_or_its_client() {
    let bench = Bench::new(WorkerConfig { max_execs: 1, ..quick() });
    let (first, second) = (bench.activate(), bench.activate());
    std::thread::scope(|scope| {
        scope.spawn(|| bench.sh(&first, "sleep 20"));
        wait_until(|| bench.client().top().expect("gauges").execs == 1);
        let waiting = scope.spawn(|| bench.try_sh(&second, "exit 0"));
        let (mut client, request) = (bench.client(), bench.exec_request(&second, "exit 0"));
        // Not for the children of this process, which stand for sandboxes here.
        let (wait, cancel) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
        client.set_cancel(wait);
        let cancelled =
            scope.spawn(move || client.exec(request, None, &mut std::io::sink(), &mut std::io::sink()));
        wait_until(|| bench.client().top().expect("gauges").execs_waiting == 2);
        drop(cancel);
        assert_eq!(cancelled.join().expect("no panic").expect_err("cancelled").code, "cancelled");
        bench.client().release(request_meta(), second.attempt_id, true).expect("releases");
        assert_eq!(waiting.join().expect("no panic").expect_err("over").code, "not_active");
        bench.client().release(request_meta(), first.attempt_id, true).expect("releases");
    });
    let third = bench.activate();
    assert_eq!(bench.sh(&third, "exit 5").exit_code, Some(5), "no permit was lost");
}

#[test]
fn a_higher_priority_passes_those_that_wait() {
    let bench = Bench::new(WorkerConfig { max_live: 1, ..quick() });
    let held = bench.activate();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (number, priority) in [0, 0, -1, 7].into_iter().enumerate() {
            let (bench, order) = (&bench, &order);
            scope.spawn(move || {
                let request = ActivateRequest { priority, ..bench.request() };
                let attempt = bench.client().activate(request, &mut |_| {}).expect("its turn");
                order.lock().expect("lock").push(number);
                bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
            });
            wait_until(|| bench.store.graph().queued().expect("queue").len() == number + 1);
        }
        bench.client().release(request_meta(), held.attempt_id, true).expect("releases");
    });
    assert_eq!(order.into_inner().expect("lock"), [3, 0, 1, 2]);
}

#[test]
fn a_group_is_cancelled_in_one_step() {
    let bench = Bench::new(WorkerConfig { max_live: 1, ..quick() });
    let held = bench.activate();
    let group = held.group_id;
    let request = |live| CancelRequest { meta: request_meta(), group, reason: CancelReason::Stale, live };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| bench.client().activate(bench.request(), &mut |_| {}).expect_err("cancelled"))
            })
            .collect();
        wait_until(|| bench.client().top().expect("gauges").queued == 10);
        let asked = request(false);
        let cancelled = bench.client().cancel(asked.clone()).expect("cancels");
        assert_eq!((cancelled.queued, cancelled.live), (10, 0));
        assert!(all.into_iter().all(|one| one.join().expect("no panic").code == "stale"));
        assert_eq!(bench.client().cancel(asked).expect("again").queued, 10, "the same answer");
    });
    assert_eq!(bench.sh(&held, "echo kept > b").exit_code, Some(0), "what lives goes on");
    let cancelled = bench.client().cancel(request(true)).expect("cancels");
    assert_eq!((cancelled.queued, cancelled.live), (0, 1));
    let record = bench.record(&held);
    assert_eq!(record.failure.map(|failure| failure.class), Some(FailureClass::Stale));
    assert_eq!(record.private_delta, PrivateDelta::Kept);
    assert_eq!(bench.client().top().expect("gauges").live, 0);
}

#[test]
fn more_than_may_wait_are_refused_the_youngest_group_first() {
    let bench = Bench::new(WorkerConfig { max_live: 1, max_waiting: 2, ..quick() });
    let held = bench.activate();
    std::thread::scope(|scope| {
        let wait = || {
            let attempt = bench.client().activate(bench.request(), &mut |_| {}).expect("its turn");
            bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
        };
        (0..2).for_each(|_| drop(scope.spawn(wait)));
        wait_until(|| bench.client().top().expect("gauges").queued == 2);
        let problem = bench.client().activate(bench.request(), &mut |_| {}).expect_err("full");
        assert_eq!((problem.code.as_str(), problem.retryable), ("queue_full", true), "{problem:?}");
        bench.client().release(request_meta(), held.attempt_id, true).expect("releases");
    });
    let purposes = bench.store.graph().attempts(None).expect("lists").into_iter().map(|it| it.purpose);
    assert_eq!(purposes.filter(|purpose| *purpose == Purpose::Work).count(), 4);
}
