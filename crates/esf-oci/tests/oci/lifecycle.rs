//! Attempts from activation to their end.

use std::time::{Duration, Instant};

use esf_core::environment::{Bind, Environment, Limits, Network};
use esf_core::policy::OnExpiry;
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_worker::{ActivateRequest, ExecRequest};

use crate::Test;
use crate::support::{Bench, exec, key, request_meta, suspend};

pub(crate) const TESTS: &[Test] = &[
    ("lifecycle::work_is_sealed_and_goes_on", work_is_sealed_and_goes_on),
    ("lifecycle::every_seal_has_the_last_write", every_seal_has_the_last_write),
    ("lifecycle::the_whole_root_may_be_one_binary", the_whole_root_may_be_one_binary),
    ("lifecycle::a_lifetime_seals_or_discards", a_lifetime_seals_or_discards),
    ("lifecycle::unsealed_changes_are_not_released", unsealed_changes_are_not_released),
    ("lifecycle::what_cannot_be_honoured_is_refused", what_cannot_be_honoured_is_refused),
    ("lifecycle::the_queue_is_bounded_and_fair", the_queue_is_bounded_and_fair),
    ("lifecycle::one_key_is_one_attempt_and_one_seal", one_key_is_one_attempt_and_one_seal),
    ("lifecycle::one_key_is_one_release", one_key_is_one_release),
    ("lifecycle::the_host_base_shows_its_list_only", the_host_base_shows_its_list_only),
];

fn hello(directory: &std::path::Path) {
    std::fs::write(directory.join("a"), "one\n").expect("writes");
}

fn work_is_sealed_and_goes_on() {
    let bench = Bench::new(hello);
    let first = bench.activate(bench.root);
    assert_eq!(first.status, AttemptStatus::Active);
    assert_eq!(
        bench.sh(&first, "cat a; echo two >> a; mkdir d; echo x > d/f; pwd; id -u").ok(),
        "one\n/workspace\n0\n"
    );
    let sealed = bench.suspend(&first);
    assert_eq!(sealed.node.status, NodeStatus::Sealed);
    assert_eq!((sealed.changed.added, sealed.changed.modified, sealed.changed.deleted), (2, 1, 0));
    assert_eq!(bench.file(&sealed.node, "a").as_deref(), Some(&b"one\ntwo\n"[..]));
    let second = bench.activate(sealed.node.node_id);
    assert_eq!(bench.sh(&second, "cat a d/f; rm -r d").ok(), "one\ntwo\nx\n");
    let again = bench.suspend(&second);
    assert_eq!(bench.file(&again.node, "d/f"), None);
    assert_eq!(bench.file(&sealed.node, "d/f").as_deref(), Some(&b"x\n"[..]));
    let refused = bench.run_with(exec(second.attempt_id, &["true"]), None).expect_err("it is over");
    assert_eq!(refused.code, "not_active");
}

fn every_seal_has_the_last_write() {
    let bench = Bench::new(hello);
    let mut node = bench.root;
    for round in 0..20 {
        let attempt = bench.activate(node);
        bench
            .sh(&attempt, &format!("head -c 4096 /dev/zero | tr '\\0' 'x' > last; echo {round} >> last"))
            .ok();
        let sealed = bench.suspend(&attempt).node;
        let last = bench.file(&sealed, "last").expect("there");
        assert!(last.ends_with(format!("x{round}\n").as_bytes()), "{round}");
        node = sealed.node_id;
    }
}

fn the_whole_root_may_be_one_binary() {
    let Some(busybox) =
        ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| std::path::Path::new(path).exists())
    else {
        println!("skipped: no static busybox here");
        return;
    };
    let bench = Bench::new(|directory| {
        std::fs::copy(busybox, directory.join("busybox")).expect("copies");
    });
    let attempt = bench.activate_root(bench.root);
    assert_eq!(bench.run(&attempt, &["/busybox", "ls", "/"]).ok(), "busybox\ndev\nproc\n");
    bench.run(&attempt, &["/busybox", "mkdir", "/made"]).ok();
    // Whatever the tree has for /etc/passwd: a number needs none, a name is refused, nothing waits.
    bench.run(&attempt, &["/busybox", "sh", "-c", "/busybox mkdir /etc; /busybox mkfifo /etc/passwd"]).ok();
    let as_user = |user: &str| {
        let user = Some(user.to_owned());
        let request = ExecRequest { user, ..exec(attempt.attempt_id, &["/busybox", "true"]) };
        bench.run_with(request, None).map(|ran| ran.ok()).map_err(|problem| problem.code)
    };
    assert_eq!(as_user("1000"), Ok(String::new()));
    assert_eq!(as_user("somebody"), Err("bad_user".to_owned()));
    bench.run(&attempt, &["/busybox", "rm", "-r", "/etc"]).ok();
    let mut bytes = Vec::new();
    bench.client().get_file(attempt.attempt_id, "/busybox".as_ref(), &mut bytes).expect("reads");
    assert_eq!(bytes, std::fs::read(busybox).expect("reads"));
    let sealed = bench.suspend(&attempt);
    assert_eq!((sealed.changed.added, sealed.changed.modified), (1, 0), "{:?}", sealed.changed);
}

fn a_lifetime_seals_or_discards() {
    let bench = Bench::new(hello);
    let mortal = |on_expiry| ActivateRequest {
        lifetime_ms: Some(700),
        on_expiry: Some(on_expiry),
        ..bench.request(bench.root)
    };
    let sealed = bench.activate_with(mortal(OnExpiry::Seal));
    let discarded = bench.activate_with(mortal(OnExpiry::Discard));
    for attempt in [&sealed, &discarded] {
        bench.sh(attempt, "echo kept > b").ok();
    }
    wait_until(|| bench.attempt(&sealed).status == AttemptStatus::Sealed);
    wait_until(|| bench.attempt(&discarded).status == AttemptStatus::Released);
    let node = bench.store.graph().node(sealed.node_id).expect("on record");
    assert_eq!(bench.file(&node, "b").as_deref(), Some(&b"kept\n"[..]));
    let events = bench.store.graph().events(0, 1000).expect("events");
    let reasons: Vec<_> = events.iter().filter(|event| event.detail["reason"] == "lease_expired").collect();
    assert_eq!(reasons.len(), 2, "{events:?}");
    assert!(reasons.iter().any(|event| event.detail["unsealed"] == 1), "{reasons:?}");
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(15), "it never came true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn unsealed_changes_are_not_released() {
    let bench = Bench::new(hello);
    let attempt = bench.activate(bench.root);
    bench.sh(&attempt, "echo x > b; rm a").ok();
    let mut client = bench.client();
    let refused = client.release(request_meta(), attempt.attempt_id, false).expect_err("refused");
    assert_eq!(refused.code, "unsealed_changes", "{refused:?}");
    assert!(refused.message.contains('2'), "{refused:?}");
    bench.sh(&attempt, "test -f b").ok();
    let released = client.release(request_meta(), attempt.attempt_id, true).expect("released");
    assert_eq!(released.status, AttemptStatus::Released);
    let clean = bench.activate(bench.root);
    assert_eq!(
        client.release(request_meta(), clean.attempt_id, false).expect("clean").status,
        AttemptStatus::Released
    );
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
}

fn what_cannot_be_honoured_is_refused() {
    let bench = Bench::new(hello);
    let plain = Environment::default;
    let limits = |limits| Environment { limits, ..plain() };
    let bind = |source: &str, at: &str| Environment {
        binds: vec![Bind { source: source.to_owned(), at: at.to_owned() }],
        ..plain()
    };
    let cases = [
        (Environment { network: Network::Host, ..plain() }, "not_supported"),
        (limits(Limits { disk: Some(1 << 20), ..Limits::default() }), "not_supported"),
        (limits(Limits { pids: Some(0), ..Limits::default() }), "bad_environment"),
        (Environment { workspace: "/usr/x".to_owned(), ..plain() }, "bad_environment"),
        (Environment { workspace: "/a/../b".to_owned(), ..plain() }, "bad_environment"),
        (bind("/proc/1", "/x"), "bad_environment"),
        (bind("/", "/x"), "bad_environment"),
        (bind("/nothing/here", "/x"), "bad_environment"),
        (bind("/opt", "/workspace/x"), "bad_environment"),
        (bind(bench.path().to_str().expect("utf-8"), "/x"), "bad_environment"),
        (Environment { executor: esf_core::environment::ExecutorKind::Wasi, ..plain() }, "not_supported"),
    ];
    for (environment, code) in cases {
        let request = ActivateRequest { environment: environment.clone(), ..bench.request(bench.root) };
        let problem = bench.client().activate(request, &mut |_| {}).expect_err("refused");
        assert_eq!(problem.code, code, "{environment:?}: {problem:?}");
    }
    assert!(bench.store.graph().attempts(None).expect("lists").is_empty(), "nothing was recorded");
}

fn the_queue_is_bounded_and_fair() {
    let bench = Bench::with_policy("[quotas]\nmax_live_attempts = 2\n", hello);
    let (one, two) = (bench.activate(bench.root), bench.activate(bench.root));
    let request = ActivateRequest { no_wait: true, ..bench.request(bench.root) };
    let refused = bench.client().activate(request, &mut |_| {}).expect_err("no room");
    assert_eq!((refused.code.as_str(), refused.class), ("quota", esf_core::Class::Refused));
    assert_eq!(bench.store.graph().attempts(None).expect("lists").len(), 2, "nothing was recorded");
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (bench, order) = (&bench, &order);
            scope.spawn(move || {
                let attempt = bench.activate(bench.root);
                order.lock().expect("lock").push(number);
                bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
            });
            wait_until(|| bench.store.graph().queued().expect("queue").len() == number + 1);
        }
        // One that is cancelled costs nothing.
        let (mut client, request) = (bench.client(), bench.request(bench.root));
        let (wait, cancel) = rustix::pipe::pipe().expect("pipe");
        client.set_cancel(wait);
        let cancelled =
            scope.spawn(move || client.activate(request, &mut |_| {}).expect_err("cancelled").code);
        wait_until(|| bench.store.graph().queued().expect("queue").len() == 7);
        drop(cancel);
        assert_eq!(cancelled.join().expect("no panic"), "cancelled");
        assert_eq!(bench.store.graph().queued().expect("queue").len(), 6);
        for attempt in [&one, &two] {
            bench.client().release(request_meta(), attempt.attempt_id, true).expect("releases");
        }
    });
    assert_eq!(order.into_inner().expect("lock").len(), 6);
}

fn one_key_is_one_attempt_and_one_seal() {
    let bench = Bench::new(hello);
    let request = bench.request(bench.root);
    let attempts: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..5).map(|_| scope.spawn(|| bench.activate_with(request.clone()))).collect();
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    assert!(attempts.iter().all(|attempt| attempt == &attempts[0]), "{attempts:?}");
    bench.sh(&attempts[0], "echo x > b").ok();
    let seal = suspend(attempts[0].attempt_id);
    let sealed: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| bench.client().suspend(seal.clone()).unwrap_or_else(|p| panic!("{p:?}"))))
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    assert!(sealed.iter().all(|reply| reply.node == sealed[0].node));
    assert_eq!(bench.activate_with(request), attempts[0], "the same answer after its end");
    let body = esf_worker::SuspendRequest { message: Some("other".to_owned()), ..seal };
    assert_eq!(bench.client().suspend(body).expect_err("another body").code, "idempotency_conflict");
    let other = bench.try_suspend(&attempts[0]).expect_err("another key is another seal");
    assert_eq!(other.code, "not_active", "{} {other:?}", key());
}

fn the_host_base_shows_its_list_only() {
    let bench = Bench::new(hello);
    let attempt = bench.activate(bench.root);
    let script = "ls -d /*; cat /etc/passwd | wc -l; test ! -e /etc/shadow; test ! -e /root/.ssh; ls /home /root; \
                  touch /usr/x 2>/dev/null || echo read-only; echo t > /tmp/t; awk 'BEGIN{print \"awk\"}'";
    let seen = bench.sh(&attempt, script).ok();
    for line in ["/workspace", "read-only", "awk", "3"] {
        assert!(seen.lines().any(|found| found == line), "{line} in {seen}");
    }
    for hidden in ["/boot", "/mnt", "/opt", "/srv", "/sys", "/work", "/var/lib"] {
        assert!(!seen.lines().any(|found| found == hidden), "{hidden} in {seen}");
    }
}

fn one_key_is_one_release() {
    let bench = Bench::new(hello);
    let attempt = bench.activate(bench.root);
    bench.sh(&attempt, "echo x > b").ok();
    let meta = request_meta();
    let release = || bench.client().release(meta.clone(), attempt.attempt_id, true);
    let released: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..5).map(|_| scope.spawn(release)).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().expect("no panic").unwrap_or_else(|p| panic!("{p:?}")))
            .collect()
    });
    assert!(released.iter().all(|reply| reply == &released[0]), "{released:?}");
    assert_eq!(release().expect("again"), released[0]);
    let other = bench.client().release(meta.clone(), attempt.attempt_id, false);
    assert_eq!(other.expect_err("another body").code, "idempotency_conflict");
}
