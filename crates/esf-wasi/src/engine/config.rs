//! How the engine is set up, in one place, and by which name results remember it.
//!
//! Two forms of one configuration: with the compiler (the compiler's process) and without (where guests run,
//! which then holds no compiler in memory). Artefacts of the one load in the other, because everything that
//! shapes code is said here for both. A change of anything below is a change of [`identity`], so old
//! artefacts are not found again.

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::OnceLock;

use wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER as ADAPTER;
use wasmtime::{Config, Engine, WasmFeatures};

use super::artefact;

/// The engine and its line, as pinned in the workspace's manifest.
const ENGINE: &str = "wasmtime 48.0.8";

/// Stack that a guest's own calls may take. Interpreters written for WASI ask for this much.
const WASM_STACK: usize = 8 << 20;

/// What is left on the same stack for the host function that a guest calls.
const HOST_STACK: usize = 1 << 20;

/// Frames that a trap's message names.
const TRAP_FRAMES: usize = 16;

/// How a preview 1 module is adapted ([`super::preview1`]); counted up when that changes.
const ADAPTATION: &str = "proc-exit-1 own-heap-1";

/// The settings below in words: a part of [`identity`]. Written by hand, beside what it describes.
const SETTINGS: &str = "stack=8388608 simd relaxed-simd-deterministic bulk-memory reference-types multi-value \
                        tail-call extended-const; no threads memory64 multi-memory gc exceptions; epoch";

/// What the process that builds an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Compiles and never runs a guest.
    Compile,
    /// Runs what was compiled elsewhere.
    Run,
}

/// Builds an engine; with `fuel`, guests pay for each instruction.
///
/// # Errors
///
/// When the settings contradict each other or the machine lacks what they need.
pub(super) fn engine(role: Role, fuel: bool) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .wasm_simd(true)
        .wasm_relaxed_simd(true)
        .relaxed_simd_deterministic(true)
        .wasm_bulk_memory(true)
        .wasm_features(WasmFeatures::REFERENCE_TYPES, true)
        .wasm_multi_value(true)
        .wasm_tail_call(true)
        .wasm_extended_const(true)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .concurrency_support(false)
        .epoch_interruption(true)
        .consume_fuel(fuel)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(WASM_STACK + HOST_STACK)
        .wasm_backtrace_max_frames(NonZeroUsize::new(TRAP_FRAMES))
        .generate_address_map(false);
    if role == Role::Run {
        config.enable_compiler(false);
        artefact::configure(&mut config);
    }
    Engine::new(&config)
}

/// The engine's name for an environment: its version and a digest of what a guest could tell apart. The same
/// on every machine; what the machine's processor adds to compiled code is in [`artefact_identity`].
pub(crate) fn identity() -> String {
    let digest = blake3::Hasher::new_derive_key("ESF WASI engine settings")
        .update(SETTINGS.as_bytes())
        .update(ADAPTATION.as_bytes())
        .update(ADAPTER)
        .finalize();
    format!("{ENGINE} {}", &digest.to_hex()[..32])
}

/// What compiled code depends on beyond the module: the settings and this machine's processor. Hex.
///
/// # Errors
///
/// When no engine can be built on this machine.
pub(super) fn artefact_identity() -> wasmtime::Result<String> {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    if let Some(known) = IDENTITY.get() {
        return Ok(known.clone());
    }
    let mut digest = Digesting(blake3::Hasher::new_derive_key("ESF WASI artefact"));
    identity().hash(&mut digest);
    for fuel in [false, true] {
        engine(Role::Compile, fuel)?.precompile_compatibility_hash().hash(&mut digest);
    }
    Ok(IDENTITY.get_or_init(|| digest.0.finalize().to_hex().to_string()).clone())
}

/// Lets what can only be hashed by `std` be hashed well.
struct Digesting(blake3::Hasher);

impl Hasher for Digesting {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.finalize();
        u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("a digest has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_stable_and_names_the_engine() {
        assert_eq!(identity(), identity());
        assert!(identity().starts_with("wasmtime 48.0.8 "), "{}", identity());
        assert_eq!(artefact_identity().unwrap(), artefact_identity().unwrap());
        assert_eq!(artefact_identity().unwrap().len(), 64);
    }

    #[test]
    fn the_version_is_the_one_that_is_linked() {
        let lock = include_str!("../../../../Cargo.lock");
        let version = ENGINE.strip_prefix("wasmtime ").unwrap();
        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{version}\"\n")), "{ENGINE}");
    }
}
