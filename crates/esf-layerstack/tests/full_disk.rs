//! A really full disk, on a small loop-mounted ext4: import and seal fail typed, keep what was there,
//! give space back, and the same request works once there is room (P07).

mod support;

use std::fs;
use std::path::Path;

use esf_core::AttemptId;
use esf_layerstack::{ImportOptions, LayerStack, Usage};
use support::{SmallDisk, privileged, request, shell};

fn total(stack: &LayerStack) -> Usage {
    assert_eq!(stack.empty_trash(), 0);
    support::check_ledger(stack, "on a small disk");
    stack.usage().expect("usage")
}

fn random_file(path: &Path, megabytes: u32) {
    shell(
        path.parent().expect("has one"),
        &format!("head -c {megabytes}M /dev/urandom > '{}'", path.display()),
    );
}

#[test]
fn an_import_that_does_not_fit_leaves_nothing() {
    if !privileged() {
        return;
    }
    let disk = SmallDisk::new(&[]);
    let stack = LayerStack::create(&disk.path().join("store")).expect("create");
    let source = disk.beside("source");
    fs::create_dir(&source).expect("mkdir");
    for n in 0..10 {
        random_file(&source.join(format!("f{n}")), 10);
    }
    let import = || stack.import_directory(&source, &ImportOptions::default(), &());
    let before = total(&stack);
    let problem = import().expect_err("too big").problem();
    assert_eq!((problem.code.as_str(), problem.retryable), ("storage_full", true), "{problem}");
    let after = total(&stack);
    assert_eq!((after.hot, after.staging), (before.hot, before.staging));
    shell(&source, "rm f3 f4 f5 f6 f7 f8 f9");
    let imported = import().expect("it fits now");
    assert_eq!(stack.verify(imported.sealed.pin(), &()).expect("verify").damaged, [""; 0]);
    drop(stack);
}

#[test]
fn inodes_run_out_like_blocks() {
    if !privileged() {
        return;
    }
    let disk = SmallDisk::new(&["-N", "200"]);
    let stack = LayerStack::create(&disk.path().join("store")).expect("create");
    let source = disk.beside("source");
    fs::create_dir(&source).expect("mkdir");
    shell(&source, "for i in $(seq 300); do : > f$i; done");
    let import = || stack.import_directory(&source, &ImportOptions::default(), &());
    assert_eq!(import().expect_err("too many").problem().code, "storage_full");
    shell(&source, "rm f*; : > f");
    import().expect("it fits now");
    drop(stack);
}

#[test]
fn a_seal_on_a_full_disk_keeps_the_delta_and_works_later() {
    if !privileged() {
        return;
    }
    let disk = SmallDisk::new(&[]);
    let stack = LayerStack::create(&disk.path().join("store")).expect("create");
    let source = disk.beside("source");
    fs::create_dir(&source).expect("mkdir");
    shell(&source, "mkdir d; echo x > d/x");
    let base = *stack.import_directory(&source, &ImportOptions::default(), &()).expect("import").sealed.pin();
    let attempt = AttemptId::from_bytes([1; 16]);
    let workspace = stack.open_workspace(&base, attempt).expect("open");
    for n in 0..400 {
        fs::write(workspace.upper.join(format!("{n}-{}", "n".repeat(200))), vec![n as u8; 2000])
            .expect("write");
    }
    let filler = disk.fill();
    let problem = stack.seal(&request(attempt, &base), &()).expect_err("full").problem();
    assert_eq!((problem.code.as_str(), problem.retryable), ("storage_full", true), "{problem}");
    assert!(workspace.upper.join(format!("7-{}", "n".repeat(200))).exists(), "the delta is kept");
    // Another process finds it in order as well.
    drop(stack);
    fs::remove_file(filler).expect("free space");
    let stack = LayerStack::open(&disk.path().join("store")).expect("open");
    let prepared = stack.seal(&request(attempt, &base), &()).expect("the same request");
    let pin = *prepared.sealed().pin();
    assert_eq!(prepared.changes().added, 400);
    stack.settle_seal(prepared, true).expect("settle");
    assert_eq!(stack.verify(&pin, &()).expect("verify").damaged, [""; 0]);
    total(&stack);
}
