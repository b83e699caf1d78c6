//! The plan: a flat, serialisable description of one jail.
//!
//! A planner elsewhere writes it, the interpreter (`slot`, `mounts`) carries it out in the order
//! written. Invariant: a plan names everything a jail may see or use; nothing is added for it but
//! `/proc` and `/dev`, which every jail has, and nothing is created through an overlay.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

/// Everything that makes one jail.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Plan {
    /// First user and group id of the jail's range, as the host numbers them; not 0. The caller
    /// holds the lock on the range.
    pub id_base: u32,
    /// Number of ids in the range; 65536 gives the jail the ids 0..=65535.
    pub id_count: u32,
    /// Host name seen inside, 1 to 64 bytes.
    pub hostname: String,
    /// What `/` is.
    pub root: Root,
    /// Mounts and skeleton entries, carried out in this order; targets are absolute inside paths.
    pub mounts: Vec<Mount>,
    /// Limits of the jail as a whole.
    pub cgroup: CgroupLimits,
    /// Capabilities that programs of uid 0 inside have; they reach the jail's own ids only, since
    /// its user namespace owns no other namespace.
    pub capabilities: Vec<Capability>,
    /// (resource, soft, hard) ceilings for every program. A ceiling above what the jail inherits
    /// changes nothing: limits are only ever lowered.
    pub rlimits: Vec<(Rlimit, u64, u64)>,
    /// The system call filter.
    pub seccomp: SeccompProfile,
    /// Whether Landlock is applied as far as the kernel has it.
    pub landlock: bool,
    /// The network.
    pub network: Network,
}

/// What `/` is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Root {
    /// The overlay is the whole filesystem. `/proc` and `/dev` must be directories in one of its
    /// layers: see [`crate::create_skeleton`].
    Overlay(Overlay),
    /// A small tmpfs that [`Plan::mounts`] fill; it is read-only once the jail runs.
    Host,
}

/// One overlay. Paths are relative to the zygote's layers directory, or absolute below it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Overlay {
    /// Lower directories, top first; 1 to 128.
    pub lowers: Vec<PathBuf>,
    /// Directory that receives the changes.
    pub upper: PathBuf,
    /// Empty directory on the same filesystem as `upper`, never used before.
    pub work: PathBuf,
}

/// One mount or one entry of a skeleton.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Mount {
    /// A writable overlay at `at`.
    Overlay {
        /// Target, a directory.
        at: PathBuf,
        /// The layers.
        overlay: Overlay,
    },
    /// A host path shown read-only, without what is mounted below it.
    BindReadOnly {
        /// Host path, absolute, not below `/dev`; a symlink is followed.
        source: PathBuf,
        /// Target of the same kind as the source.
        at: PathBuf,
        /// Shows host uid 0 as uid 0 inside, where the source's filesystem can; elsewhere the
        /// owner shows as nobody.
        idmapped: bool,
    },
    /// Binds a directory of a mounted overlay onto itself, so that it cannot be renamed or removed.
    Pin {
        /// The directory.
        at: PathBuf,
    },
    /// An empty tmpfs, owned by uid 0 inside.
    Tmpfs {
        /// Target, a directory.
        at: PathBuf,
        /// Most bytes it holds.
        size_bytes: u64,
        /// Permission bits of its top directory.
        mode: u32,
    },
    /// A regular file; only on a tmpfs of this plan.
    File {
        /// Path; missing parents are made.
        at: PathBuf,
        /// Content.
        #[serde(with = "crate::text_bytes")]
        content: Vec<u8>,
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link; only on a tmpfs of this plan.
    Symlink {
        /// Path; missing parents are made.
        at: PathBuf,
        /// What it points to, seen from inside.
        target: PathBuf,
    },
    /// A directory; only on a tmpfs of this plan.
    Directory {
        /// Path; missing parents are made.
        at: PathBuf,
        /// Permission bits.
        mode: u32,
    },
}

/// Limits of a jail; `None` is unlimited. One that the machine cannot enforce is refused.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct CgroupLimits {
    /// Most memory in bytes, tmpfs and page cache included.
    pub memory_bytes: Option<u64>,
    /// Most processes and threads, the jail's own init not counted.
    pub pids: Option<u64>,
    /// Most processor time in thousandths of one processor; at least 10.
    pub cpu_milli: Option<u64>,
}

/// A capability that may be kept inside a jail.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Capability {
    /// Change owners of files.
    Chown,
    /// Pass file permission checks.
    DacOverride,
    /// Act as the owner of any file.
    Fowner,
    /// Keep set-id bits.
    Fsetid,
    /// Signal any process of the jail.
    Kill,
    /// Change group ids.
    Setgid,
    /// Change user ids.
    Setuid,
    /// Bind ports below 1024.
    NetBindService,
}

impl Capability {
    /// The set that package managers and interpreters need, and no more.
    pub const DEFAULT: [Capability; 8] = [
        Capability::Chown,
        Capability::DacOverride,
        Capability::Fowner,
        Capability::Fsetid,
        Capability::Kill,
        Capability::Setgid,
        Capability::Setuid,
        Capability::NetBindService,
    ];
}

/// A resource with a ceiling for each process.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "snake_case")]
pub enum Rlimit {
    /// Bytes of address space.
    AddressSpace,
    /// Bytes of a core file.
    Core,
    /// Seconds of processor time.
    Cpu,
    /// Bytes of data segment.
    Data,
    /// Bytes of a written file.
    FileSize,
    /// Bytes of locked memory.
    LockedMemory,
    /// Bytes in POSIX message queues.
    MessageQueues,
    /// Open file descriptors.
    OpenFiles,
    /// Pending signals.
    PendingSignals,
    /// Processes of one user.
    Processes,
    /// Bytes of stack.
    Stack,
}

/// The system call filter.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum SeccompProfile {
    /// The profile that [`crate::seccomp_digest_source`] prints.
    #[default]
    Default,
}

/// The network of a jail.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A loopback interface of its own and nothing else.
    #[default]
    None,
}

/// Most lower directories of one overlay.
pub const MAX_LOWERS: usize = 128;
/// Smallest processor limit, the scheduler's own floor.
pub const MIN_CPU_MILLI: u64 = 10;

impl Plan {
    /// Checks what can be checked without the machine.
    ///
    /// # Errors
    /// [`Error::Plan`] names the first field that cannot be carried out.
    pub fn check(&self) -> Result<(), Error> {
        let last = self.id_base.checked_add(self.id_count.saturating_sub(1));
        if self.id_base == 0 || self.id_count == 0 || last.is_none_or(|id| id == u32::MAX) {
            let range = format!("{}+{}", self.id_base, self.id_count);
            return refuse("id_base, id_count", "a range above 0", &range);
        }
        let name = self.hostname.as_bytes();
        if name.is_empty() || name.len() > 64 || name.contains(&0) {
            return refuse("hostname", "1 to 64 bytes", &self.hostname);
        }
        if self.cgroup.memory_bytes == Some(0) || self.cgroup.pids == Some(0) {
            return refuse("cgroup", "limits above 0", "0");
        }
        if let Some(milli) = self.cgroup.cpu_milli.filter(|milli| *milli < MIN_CPU_MILLI) {
            return refuse("cgroup.cpu_milli", "at least 10", &milli.to_string());
        }
        for (resource, soft, hard) in &self.rlimits {
            if soft > hard {
                return refuse("rlimits", "soft <= hard", &format!("{resource:?} {soft} > {hard}"));
            }
        }
        for overlay in self.overlays() {
            overlay.check()?;
        }
        for mount in &self.mounts {
            inside_path(mount.at())?;
        }
        Ok(())
    }

    /// Every overlay of the plan, the root's first.
    pub fn overlays(&self) -> impl Iterator<Item = &Overlay> {
        let root = match &self.root {
            Root::Overlay(overlay) => Some(overlay),
            Root::Host => None,
        };
        root.into_iter().chain(self.mounts.iter().filter_map(|mount| match mount {
            Mount::Overlay { overlay, .. } => Some(overlay),
            Mount::BindReadOnly { .. }
            | Mount::Pin { .. }
            | Mount::Tmpfs { .. }
            | Mount::File { .. }
            | Mount::Symlink { .. }
            | Mount::Directory { .. } => None,
        }))
    }
}

impl Mount {
    /// The target inside the jail.
    pub fn at(&self) -> &Path {
        match self {
            Mount::Overlay { at, .. }
            | Mount::BindReadOnly { at, .. }
            | Mount::Pin { at }
            | Mount::Tmpfs { at, .. }
            | Mount::File { at, .. }
            | Mount::Symlink { at, .. }
            | Mount::Directory { at, .. } => at,
        }
    }
}

impl Overlay {
    fn check(&self) -> Result<(), Error> {
        if self.lowers.is_empty() || self.lowers.len() > MAX_LOWERS {
            return refuse("overlay.lowers", "1 to 128", &self.lowers.len().to_string());
        }
        Ok(())
    }
}

/// Makes an absolute inside path relative to the root, refusing `..` and the root itself.
pub(crate) fn inside_path(path: &Path) -> Result<&Path, Error> {
    let Ok(relative) = path.strip_prefix("/") else {
        return refuse("at", "an absolute path", &path.to_string_lossy());
    };
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || relative.as_os_str().is_empty() {
        return refuse("at", "a path below / without ..", &path.to_string_lossy());
    }
    Ok(relative)
}

/// Makes a layer's path relative to the layers directory, refusing what lies outside it.
pub(crate) fn layer_path<'a>(layers: &Path, path: &'a Path) -> Result<&'a Path, Error> {
    let relative = if path.is_absolute() { path.strip_prefix(layers).ok() } else { Some(path) };
    match relative {
        Some(relative)
            if !relative.as_os_str().is_empty()
                && relative.components().all(|part| matches!(part, Component::Normal(_))) =>
        {
            Ok(relative)
        }
        _ => refuse("overlay", &format!("directories below {}", layers.display()), &path.to_string_lossy()),
    }
}

fn refuse<T>(field: &str, expected: &str, found: &str) -> Result<T, Error> {
    Err(Error::Plan { field: field.into(), expected: expected.into(), found: found.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            id_base: 1_000_000,
            id_count: 65536,
            hostname: "jail".into(),
            root: Root::Host,
            mounts: vec![Mount::File { at: "/etc/bytes".into(), content: vec![0xff, b'a'], mode: 0o644 }],
            cgroup: CgroupLimits::default(),
            capabilities: Capability::DEFAULT.to_vec(),
            rlimits: vec![(Rlimit::Core, 0, 0)],
            seccomp: SeccompProfile::Default,
            landlock: true,
            network: Network::None,
        }
    }

    #[test]
    fn a_plan_survives_json() {
        let text = serde_json::to_string(&plan()).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan());
    }

    #[test]
    fn impossible_plans_are_refused_by_field() {
        let overlay = |lowers| Overlay { lowers, upper: "u".into(), work: "w".into() };
        let cases: Vec<(&str, Plan)> = vec![
            ("id_base, id_count", Plan { id_base: 0, ..plan() }),
            ("id_base, id_count", Plan { id_base: u32::MAX - 10, ..plan() }),
            ("hostname", Plan { hostname: String::new(), ..plan() }),
            ("rlimits", Plan { rlimits: vec![(Rlimit::Core, 2, 1)], ..plan() }),
            ("overlay.lowers", Plan { root: Root::Overlay(overlay(vec![])), ..plan() }),
            ("at", Plan { mounts: vec![Mount::Pin { at: "/a/../b".into() }], ..plan() }),
            ("at", Plan { mounts: vec![Mount::Pin { at: "/".into() }], ..plan() }),
        ];
        plan().check().unwrap();
        for (expected, plan) in cases {
            match plan.check() {
                Err(Error::Plan { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn layers_outside_the_layers_directory_are_refused() {
        let layers = Path::new("/store");
        assert_eq!(layer_path(layers, Path::new("/store/a/b")).unwrap(), Path::new("a/b"));
        assert_eq!(layer_path(layers, Path::new("a")).unwrap(), Path::new("a"));
        for bad in ["/etc", "../x", "/store/../etc", "/store", "a/../../b"] {
            assert!(layer_path(layers, Path::new(bad)).is_err(), "{bad}");
        }
    }
}
