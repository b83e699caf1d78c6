//! Privileged tests: real namespaces, mounts and cgroups. Without root they say so and pass.
//!
//! This program is also the zygote (a copy of it is) and the probe that runs inside jails, so it
//! has a `main` of its own.

mod confinement;
mod exec;
mod files;
mod lifecycle;
mod limits;
mod probe;
mod support;

use libtest_mimic::{Arguments, Failed, Trial};

/// Tests by name.
type Test = (&'static str, fn());

fn main() {
    esf_jail::run_if_zygote();
    let mut arguments = std::env::args();
    match arguments.nth(1).as_deref() {
        Some("--probe") => probe::run(arguments),
        Some("--owner") => {
            let (home, layers) = (arguments.next(), arguments.next());
            lifecycle::owner(&home.unwrap(), &layers.unwrap());
        }
        // By way of a script whose interpreter is this program.
        Some("/workspace/rewrite") => probe::rewrite(),
        _ => {}
    }
    let tests: Vec<Test> =
        [exec::TESTS, files::TESTS, confinement::TESTS, limits::TESTS, lifecycle::TESTS].concat();
    let trials = tests.into_iter().map(|(name, test)| Trial::test(name, move || privileged(test))).collect();
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
