//! A Linux jail of plain operations: namespaces, overlay mounts, cgroups, seccomp, Landlock, pid 1.
//!
//! An owner starts one [`Zygote`], which makes slots ahead; [`Zygote::launch`] carries a [`Plan`]
//! out in one of them and gives a [`Jail`], in which [`Jail::exec`] starts programs. The crate
//! knows nothing of what a jail is for. It is the one home of unsafe code: see `sys` and `spawn`.
#![allow(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("jails are made on Linux on x86-64 only: the system call table is of that machine");

mod builtin;
mod cgroup;
mod confine;
mod error;
mod exec_groups;
mod home;
mod init;
mod jail;
mod mounts;
mod owner;
mod plan;
mod process;
mod requirements;
mod seccomp;
mod seccomp_table;
mod slot;
mod spawn;
mod sys;
mod text_bytes;
mod unmount;
mod wire;
mod zygote;

pub use builtin::create_skeleton;
pub use cgroup::Stats;
pub use error::{Error, QuiesceError, SpawnError};
pub use home::{CgroupHome, Reaped, reap_leftovers};
pub use jail::{ExecSpec, Jail, Quiesced, Stdio};
pub use owner::{Zygote, ZygoteConfig};
pub use plan::{
    Capability, CgroupLimits, MAX_LOWERS, MIN_CPU_MILLI, Mount, Network, Overlay, Plan, Rlimit, Root,
    SeccompProfile,
};
pub use process::{ExitStatus, Process};
pub use requirements::{Requirement, rehearse, requirements};
pub use rustix::fs::{Mode, OFlags};
pub use seccomp::seccomp_digest_source;
pub use sys::close_inherited;
pub use unmount::upper_in_use;
pub use zygote::run_if_zygote;
