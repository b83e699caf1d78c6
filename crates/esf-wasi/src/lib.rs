//! The WASI executor: WebAssembly guests over a copy-on-write union of carriers, without privilege and
//! without mounts (design section 5). `docs/executors.md` has what it can do and what guests see.
//!
//! The worker starts one host process for each attempt and talks to it ([`WasiExecutor`]); guests run in
//! that process, one thread each. Modules are compiled in processes of their own. All of them are this
//! program under another name, so that every `main` begins with [`run_if_child`].

mod capabilities;
mod child;
mod engine;
mod executor;
mod files;
mod host;
mod jail;
mod sandbox;
mod view;
mod wire;

pub use capabilities::{Metadata, capabilities, metadata, requirements};
pub use executor::WasiExecutor;

/// What compiles and runs guests: part of every environment that this executor gets.
pub fn engine_identity() -> String {
    engine::identity()
}

/// Serves as a host or a compiler, and never returns, if this process was started as one.
pub fn run_if_child() {
    let name = std::env::args_os().next().unwrap_or_default();
    if name == host::NAME {
        host::serve();
    }
    if name == engine::COMPILER {
        engine::compile_child();
    }
}
