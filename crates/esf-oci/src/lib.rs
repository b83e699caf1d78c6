//! The Linux executor: plans a jail from a workspace and an environment, and supervises it.
//! Privilege and system calls are in `esf-jail`; here it is decided what a sandbox may see and use.
//! `docs/host-base.md` lists what the `host` base shows of a machine.

mod executor;
mod extras;
pub mod host;
pub mod idrange;
pub mod plan;
mod sandbox;
pub mod users;
pub mod variables;

pub use executor::OciExecutor;

use esf_worker::executor::{Capabilities, Requirement};

/// What this executor can do.
pub fn capabilities() -> Capabilities {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Capabilities {
        programs: words(&["native"]),
        privilege: "root".to_owned(),
        systems: words(&["linux"]),
        bases: words(&["host", "root"]),
        networks: words(&["none"]),
        limits: words(&["cpu", "memory", "pids"]),
        fuel: false,
        terminals: false,
        signals: words(&["all"]),
        users: true,
        processes: true,
        binds: true,
        preopens: false,
        evaluator: words(&["hide", "files", "result"]),
        names: "bytes".to_owned(),
    }
}

/// What this executor needs of the machine, met or not.
pub fn requirements() -> Vec<Requirement> {
    let row = |found: esf_jail::Requirement| Requirement {
        name: found.name.to_owned(),
        ok: found.ok,
        found: found.found,
        remedy: found.remedy,
    };
    esf_jail::requirements().into_iter().map(row).collect()
}

/// Makes a sandbox below `directory` and takes it down: the proof that the machine has what it needs.
pub fn rehearse(directory: &std::path::Path) -> Requirement {
    let found = esf_jail::rehearse(directory);
    Requirement { name: found.name.to_owned(), ok: found.ok, found: found.found, remedy: found.remedy }
}

/// Digest of the system call filter that every sandbox gets, for environments to pin.
pub fn seccomp_digest() -> esf_core::Digest {
    esf_core::Digest::in_context("esf seccomp profile v1", &esf_jail::seccomp_digest_source())
}
