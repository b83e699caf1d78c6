//! An evaluator's additions: its files over the tree, hidden paths, the result channel.

use std::path::Path;

use esf_core::environment::{Base, Environment};
use esf_core::policy::OnExpiry;
use esf_core::state::AttemptStatus;
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest};

use crate::Test;
use crate::support::{Bench, request_meta, suspend};

pub(crate) const TESTS: &[Test] = &[
    ("evaluator::its_files_are_the_true_ones", its_files_are_the_true_ones),
    ("evaluator::the_channel_is_outside_the_tree", the_channel_is_outside_the_tree),
    ("evaluator::the_same_over_a_whole_root", over_a_whole_root),
    ("evaluator::its_command_leaves_nothing_running", its_command_leaves_nothing_running),
    (
        "evaluator::what_an_earlier_one_left_lies_below_its_files",
        what_an_earlier_one_left_lies_below_its_files,
    ),
];

fn tree(directory: &Path) {
    std::fs::create_dir(directory.join("tests")).expect("mkdir");
    std::fs::write(directory.join("tests/run.sh"), "echo planted\n").expect("writes");
    std::fs::write(directory.join("tests/other"), "the tree's\n").expect("writes");
    std::fs::write(directory.join("conftest.py"), "planted\n").expect("writes");
}

fn evaluate(bench: &Bench, environment: Environment) -> ActivateRequest {
    let files = bench.directory.path().join("evaluator");
    std::fs::create_dir_all(files.join("tests")).expect("mkdir");
    std::fs::write(files.join("tests/run.sh"), "echo true one\n").expect("writes");
    std::fs::write(files.join("new.txt"), "new\n").expect("writes");
    ActivateRequest {
        environment,
        purpose: ActivatePurpose::Evaluate,
        lifetime_ms: Some(60_000),
        on_expiry: Some(OnExpiry::Discard),
        extra: Extra {
            files: Some(files),
            hide: vec![b"conftest.py".to_vec()],
            result_channel: true,
            ..Extra::default()
        },
        ..bench.request(bench.root)
    }
}

fn its_files_are_the_true_ones() {
    let bench = Bench::new(tree);
    let attempt = bench.activate_with(evaluate(&bench, Environment::default()));
    let seen = bench.sh(&attempt, "sh tests/run.sh; cat new.txt tests/other; ls -A | tr '\\n' ' '").ok();
    assert_eq!(seen, "true one\nnew\nthe tree's\nnew.txt tests ");
    // Neither written, nor removed, nor moved aside.
    let attacks = [
        "echo x > tests/run.sh",
        "rm tests/run.sh",
        "mv tests elsewhere",
        "mv tests/run.sh tests/gone",
        "rm -r tests; mkdir tests",
        "umount tests/run.sh",
        "echo x > $ESF_FILES/tests/run.sh",
    ];
    for attack in attacks {
        bench.sh(&attempt, &format!("({attack}) 2>/dev/null"));
        assert_eq!(
            bench.sh(&attempt, "sh tests/run.sh; sh $ESF_FILES/tests/run.sh").ok(),
            "true one\ntrue one\n",
            "{attack}"
        );
    }
    let refused = bench.client().suspend(suspend(attempt.attempt_id)).expect_err("nothing of it is sealed");
    assert_eq!(refused.code, "no_draft");
    let released =
        bench.client().release(request_meta(), attempt.attempt_id, false).expect("no draft, no loss");
    assert_eq!(released.status, AttemptStatus::Released);
    assert_eq!(std::fs::read_dir(bench.path().join("attempts")).expect("lists").count(), 0);
}

fn the_channel_is_outside_the_tree() {
    let bench = Bench::new(tree);
    let attempt = bench.activate_with(evaluate(&bench, Environment::default()));
    bench.sh(&attempt, "mkdir -p /run/esf/d/e; echo planted > $ESF_RESULT; echo x > /run/esf/d/e/f").ok();
    let mut client = bench.client();
    assert_eq!(client.clear_result(attempt.attempt_id).expect("clears"), 4);
    assert_eq!(bench.sh(&attempt, "ls -A /run/esf; cat /run/esf/files/new.txt").ok(), "files\nnew\n");
    bench.sh(&attempt, "echo '{\"reward\":1}' > $ESF_RESULT").ok();
    let mut result = Vec::new();
    client.get_file(attempt.attempt_id, Path::new(Extra::RESULT), &mut result).expect("reads");
    assert_eq!(result, b"{\"reward\":1}\n");
}

fn its_command_leaves_nothing_running() {
    let bench = Bench::new(tree);
    let evaluating = bench.activate_with(evaluate(&bench, Environment::default()));
    let working = bench.activate_with(bench.request(bench.root));
    for (attempt, left) in [(&evaluating, "0"), (&working, "1")] {
        bench.sh(attempt, "(setsid sleep 98765 >/dev/null 2>&1 &)").ok();
        let seen = bench.sh(attempt, "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q '^sleep 9876[5] ' && echo found; done | wc -l");
        assert_eq!(seen.ok().trim(), left);
    }
}

fn what_an_earlier_one_left_lies_below_its_files() {
    let bench = Bench::new(tree);
    // Below the store, as a worker's other layers.
    let left = bench.path().join("left");
    std::fs::create_dir_all(left.join("tests")).expect("mkdir");
    std::fs::write(left.join("tests/run.sh"), "echo left by the tree\n").expect("writes");
    std::fs::write(left.join("tests/other"), "left\n").expect("writes");
    std::fs::write(left.join("report"), "left\n").expect("writes");
    let mut request = evaluate(&bench, Environment::default());
    request.extra.left = Some(left.clone());
    let attempt = bench.activate_with(request);
    let seen =
        bench.sh(&attempt, "sh tests/run.sh; cat tests/other report; echo more >> report; ls conftest.py");
    assert_eq!(seen.text(), "true one\nleft\nleft\n");
    assert_eq!(std::fs::read(left.join("report")).expect("reads"), b"left\n", "a layer is never changed");
}

fn over_a_whole_root() {
    let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists())
    else {
        println!("skipped: no static busybox here");
        return;
    };
    let bench = Bench::new(|directory| {
        tree(directory);
        std::fs::copy(busybox, directory.join("busybox")).expect("copies");
    });
    let environment = Environment { base: Base::Root, ..Environment::default() };
    let attempt = bench.activate_with(evaluate(&bench, environment));
    let script = "b=/busybox; $b sh /tests/run.sh; $b ls -A / | $b tr '\\n' ' '";
    let seen = bench.run(&attempt, &["/busybox", "sh", "-c", script]).ok();
    assert_eq!(seen, "true one\nbusybox dev new.txt proc run tests ");
}
