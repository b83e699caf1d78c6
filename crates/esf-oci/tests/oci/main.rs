//! Privileged tests: real jails under a real worker, in a process of its own. Without root they say so
//! and pass. This program is also the zygote (a copy of it is) and the worker that tests start and kill,
//! so it has a `main` of its own.

#![allow(clippy::result_large_err)]

mod commands;
#[path = "../../../esf-worker/tests/contract/mod.rs"]
mod contract;
mod crash;
mod evaluator;
mod lifecycle;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esf_oci::OciExecutor;
use esf_worker::executor::Executor;
use esf_worker::{WorkerConfig, serve};
use libtest_mimic::{Arguments, Failed, Trial};

/// Tests by name.
type Test = (&'static str, fn());

fn main() {
    esf_jail::run_if_zygote();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, worker, _, store] = &arguments[..]
        && worker == "worker"
    {
        return run_worker(Path::new(store));
    }
    let tests: Vec<Test> = [lifecycle::TESTS, commands::TESTS, evaluator::TESTS, crash::TESTS].concat();
    let mut trials: Vec<Trial> =
        tests.into_iter().map(|(name, test)| Trial::test(name, move || privileged(test))).collect();
    trials.extend(contract::CASES.iter().map(|(name, case)| {
        Trial::test(format!("contract::{name}"), move || {
            if !rustix::process::geteuid().is_root() {
                eprintln!("skipped: making namespaces and mounts needs root");
                return Ok(());
            }
            let ground = contract::Ground::new(contract::shell_programs());
            let executor = OciExecutor::new(ground.store()).expect("an executor");
            case(&executor, &ground);
            executor.shut_down();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn privileged(test: fn()) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: making namespaces and mounts needs root");
        return Ok(());
    }
    test();
    Ok(())
}

/// The worker, as the command line runs it.
fn run_worker(store: &Path) {
    let config = WorkerConfig { idle_exit: Duration::from_secs(20), ..WorkerConfig::default() };
    let executor = OciExecutor::new(store).expect("an executor");
    if let Err(problem) = serve(store, vec![Arc::new(executor)], config, |_| {}) {
        eprintln!("{problem:?}");
        std::process::exit(1);
    }
}
