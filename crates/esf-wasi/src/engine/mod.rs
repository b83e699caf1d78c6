//! The WebAssembly engine: what a module is, how it becomes an artefact, and how a guest runs.
//!
//! Three processes use it and each only its part: the worker ([`Cache`]) starts compilers and keeps what they
//! make; a compiler ([`compile_child`]) reads one module and nothing else; an attempt's host ([`Engines`])
//! runs guests from artefacts. `docs/executors.md` says what a guest sees.

mod artefact;
mod cache;
mod cancel;
mod compile;
mod config;
mod filesystem;
mod heap;
mod io;
mod limits;
mod module;
mod preview1;
mod run;
mod state;
mod stdio;
#[cfg(test)]
mod tests;
mod ticker;

pub(crate) use cache::{Artefact, Cache};
pub(crate) use cancel::Cancel;
pub(crate) use compile::{COMPILER, Compiler, Error, compile_child};
pub(crate) use config::identity;
pub(crate) use filesystem::Preopen;
pub(crate) use limits::Limits;
#[cfg(test)]
use module::ModuleError;
pub(crate) use run::{Engines, GuestExit, GuestSpec};
pub(crate) use stdio::GuestStdio;
