//! A Linux jail of plain operations: namespaces, overlay mounts, cgroups, seccomp, Landlock, pid 1.
#![allow(unsafe_code)]

mod error;
mod plan;
mod text_bytes;

pub use error::{Error, QuiesceError, SpawnError};
pub use plan::{
    Capability, CgroupLimits, MAX_LOWERS, MIN_CPU_MILLI, Mount, Network, Overlay, Plan, Rlimit, Root,
    SeccompProfile,
};
