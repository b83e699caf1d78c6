//! Real guests under a real executor and a real worker. No privilege is needed. This program is also the
//! host and the compiler of its guests, and the worker that tests start and kill, so it has a `main` of its own.

#![allow(clippy::result_large_err)]

mod attempts;
#[path = "../../../esf-worker/tests/contract/mod.rs"]
mod contract;
mod programs;
#[allow(dead_code)]
#[path = "../../../esf-oci/tests/oci/support.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esf_core::environment::{Base, Environment, ExecutorKind, Wasi};
use esf_wasi::WasiExecutor;
use esf_worker::executor::Executor;
use esf_worker::{WorkerConfig, serve};
use libtest_mimic::{Arguments, Trial};

/// Tests by name.
type Test = (&'static str, fn());

fn main() {
    esf_wasi::run_if_child();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, worker, _, store] = &arguments[..]
        && worker == "worker"
    {
        return run_worker(Path::new(store));
    }
    let mut trials: Vec<Trial> = attempts::TESTS
        .iter()
        .map(|(name, test)| {
            Trial::test(*name, move || {
                test();
                Ok(())
            })
        })
        .collect();
    trials.extend(contract::CASES.iter().map(|(name, case)| {
        Trial::test(format!("contract::{name}"), move || {
            let ground = contract::Ground::new(guests());
            let executor = WasiExecutor::new(ground.store()).expect("an executor");
            case(&executor, &ground);
            executor.shut_down();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// What every guest of these tests is given, but for what a test changes.
fn environment() -> Environment {
    let wasi = Some(Wasi { engine: esf_wasi::engine_identity(), ..Wasi::default() });
    Environment { executor: ExecutorKind::Wasi, base: Base::Root, wasi, ..Environment::default() }
}

/// The suite's programs as guests.
fn guests() -> contract::Programs {
    fn argv(name: &str, arguments: &[&str]) -> contract::Argv {
        let name = format!("{name}.wasm");
        std::iter::once(name.as_str()).chain(arguments.iter().copied()).map(str::to_owned).collect()
    }
    contract::Programs {
        environment: environment(),
        workspace: "/workspace",
        install: programs::install,
        say: |text, code| argv("say", &[text, &code.to_string()]),
        variable: |name| argv("variable", &[name]),
        sleep: || argv("sleep", &[]),
        spin: || argv("spin", &[]),
        write: |path, text| argv("write", &[path, text]),
        keep_writing: |path| argv("keep-writing", &[path]),
        copy: || argv("copy", &[]),
        flood: |bytes, code| argv("flood", &[&bytes.to_string(), &code.to_string()]),
        take_memory: |bytes| argv("take-memory", &[&bytes.to_string()]),
        fill: |path, bytes| argv("fill", &[path, &bytes.to_string()]),
        no_program: "a",
        isolates: true,
    }
}

/// The worker, as the command line runs it.
fn run_worker(store: &Path) {
    let config = WorkerConfig { idle_exit: Duration::from_secs(20), ..WorkerConfig::default() };
    let executor = WasiExecutor::new(store).expect("an executor");
    if let Err(problem) = serve(store, vec![Arc::new(executor)], config, |_| {}) {
        eprintln!("{problem:?}");
        std::process::exit(1);
    }
}
