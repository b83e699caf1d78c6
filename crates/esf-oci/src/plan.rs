//! The planner: a workspace and an environment become a jail's plan. Pure: it looks at nothing but its
//! arguments, so golden tests show every plan whole (design sections 5 and 9).
//! Invariants: limits are passed on exactly or refused, never clamped; nothing of this machine is bound
//! but what the `host` base lists and what the environment names; nothing is created in the tree.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use esf_core::AttemptId;
use esf_core::environment::{Base, Bind, Environment, Network};
use esf_jail::{Capability, CgroupLimits, Mount, Overlay, Plan, Rlimit, Root, SeccompProfile};
use esf_worker::executor::{ExecutorError, Extra};

use crate::host::{HostEntry, HostFacts, MADE};

/// Processes and threads of a sandbox whose environment does not say: enough for a large build, too few
/// to hurt the machine.
pub const DEFAULT_PIDS: u64 = 4096;
/// Bytes of the tmpfs at `/tmp` and `/root` of the `host` base; charged to the sandbox's memory.
pub const TMP_BYTES: u64 = 1 << 30;
/// Bytes of the evaluator's result channel.
pub const CHANNEL_BYTES: u64 = 16 << 20;
/// Most files an evaluator may lay over a tree; each is a mount.
pub const MAX_FILES: usize = 4096;

/// What the planner must know of the machine and of the attempt.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The attempt, for its name inside.
    pub attempt: AttemptId,
    /// The tree's layers, top first, relative to the layers directory or below it.
    pub lowers: &'a [PathBuf],
    /// Receives the changes.
    pub upper: &'a Path,
    /// Overlay's own directory.
    pub work: &'a Path,
    /// First id of the range that is locked for this sandbox.
    pub id_base: u32,
    /// The pinned environment.
    pub environment: &'a Environment,
    /// What an evaluator adds, laid out on disk.
    pub extra: &'a ExtraLayers,
    /// What this machine has of the `host` base's lists.
    pub host: &'a HostFacts,
    /// The environment's binds, each with what its source is.
    pub binds: &'a [(Bind, BindKind)],
    /// Directory with the mount points that the `root` base needs beneath the tree.
    pub skeleton: &'a Path,
}

/// What the source of a bind is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
}

/// An evaluator's additions as they lie on disk, below the layers directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraLayers {
    /// A layer with the evaluator's files.
    pub files: Option<FilesLayer>,
    /// A layer with whiteouts for what is hidden.
    pub hide: Option<PathBuf>,
    /// Whether there is a result channel.
    pub channel: bool,
}

/// A layer with an evaluator's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesLayer {
    /// The layer, absolute.
    pub layer: PathBuf,
    /// Its directories, relative, parents first.
    pub directories: Vec<PathBuf>,
    /// Its files, relative.
    pub files: Vec<PathBuf>,
}

/// Where the tree is inside: `/` for the `root` base.
pub fn workspace(environment: &Environment) -> &Path {
    match environment.base {
        Base::Root => Path::new("/"),
        Base::Host | Base::Image(_) => Path::new(&environment.workspace),
    }
}

/// Refuses what no plan of ours can honour, before anything is recorded.
///
/// # Errors
/// `Unsupported` or `Invalid`, naming the field.
pub fn check(environment: &Environment, extra: &Extra) -> Result<(), ExecutorError> {
    match &environment.base {
        Base::Host | Base::Root => {}
        Base::Image(_) => return unsupported("base image", "base host or root"),
    }
    match &environment.network {
        Network::None => {}
        Network::Host => return unsupported("network host", "network none"),
        Network::Allow { hosts } => {
            return unsupported(&format!("network allow:{}", hosts.join(",")), "network none");
        }
    }
    if environment.wasi.is_some() {
        return unsupported("modules, preopens and fuel", "the wasi executor for them");
    }
    if environment.secrets_policy != "none" {
        return unsupported(&format!("secrets policy {}", environment.secrets_policy), "secrets policy none");
    }
    let limits = &environment.limits;
    if limits.disk.is_some() {
        return unsupported("a disk limit", "no disk limit: this build has no quota it could enforce");
    }
    if limits.memory.is_some_and(|bytes| bytes < 1 << 20) {
        return invalid("memory limit below 1 MiB".to_owned(), "at least 1m");
    }
    if limits.pids.is_some_and(|pids| pids == 0) {
        return invalid("process limit of 0".to_owned(), "at least 1");
    }
    if limits.cpu_milli.is_some_and(|milli| milli < esf_jail::MIN_CPU_MILLI) {
        return invalid("processor limit below 0.01".to_owned(), "at least 0.01 processors");
    }
    if environment.base == Base::Host {
        check_target("workspace", &environment.workspace, &[])?;
    }
    if environment.base == Base::Root && !environment.binds.is_empty() {
        return unsupported("a bind on base root", "binds on base host: the tree is the whole of base root");
    }
    for bind in &environment.binds {
        check_bind(bind, &environment.workspace)?;
    }
    for hidden in &extra.hide {
        let plain = Path::new(std::ffi::OsStr::from_bytes(hidden))
            .components()
            .all(|c| matches!(c, Component::Normal(_)));
        if hidden.is_empty() || !plain {
            return invalid(
                format!("hidden path {:?}", String::from_utf8_lossy(hidden)),
                "a path of the tree without ..",
            );
        }
    }
    Ok(())
}

/// Places that are ours or the base's, where nothing else may be mounted, neither on nor below.
const TAKEN: [&str; 12] = [
    "/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc",
    "/run/esf",
];

fn check_target(what: &str, path: &str, also: &[&str]) -> Result<(), ExecutorError> {
    let target = Path::new(path);
    let plain = target.is_absolute()
        && !path.contains('\0')
        && target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let taken = TAKEN
        .iter()
        .chain(also)
        .find(|taken| target.starts_with(taken) || Path::new(taken).starts_with(target));
    match (plain, taken) {
        (true, None) => Ok(()),
        (false, _) => invalid(format!("{what} {path:?}"), "an absolute path without `.` and `..`"),
        (true, Some(taken)) => {
            invalid(format!("{what} {path:?}"), &format!("a place that is not in or above {taken}"))
        }
    }
}

/// Host paths that are never bound, whoever asks: they are the machine itself, or its live state.
const NEVER: [&str; 4] = ["/proc", "/sys", "/dev", "/run/esf"];

pub(crate) fn check_bind(bind: &Bind, workspace: &str) -> Result<(), ExecutorError> {
    let source = Path::new(&bind.source);
    let plain = source.is_absolute()
        && source.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let never = NEVER.iter().any(|never| source.starts_with(never) || Path::new(never).starts_with(source));
    if !plain || never {
        return invalid(
            format!("bind source {:?}", bind.source),
            "an absolute path below /, outside /proc, /sys, /dev and /run/esf",
        );
    }
    check_target("bind target", &bind.at, &[workspace])
}

/// Makes the plan.
///
/// # Errors
/// As `check`; and `Invalid` when an evaluator lays out too many files.
pub fn plan(inputs: &Inputs<'_>) -> Result<Plan, ExecutorError> {
    let environment = inputs.environment;
    let overlay = overlay(inputs);
    let mut mounts = Vec::new();
    let root = match environment.base {
        Base::Root => Root::Overlay(overlay),
        Base::Host | Base::Image(_) => {
            host_mounts(inputs, &mut mounts);
            let at = PathBuf::from(&environment.workspace);
            mounts.push(Mount::Directory { at: at.clone(), mode: 0o755 });
            mounts.push(Mount::Overlay { at, overlay });
            Root::Host
        }
    };
    extra_mounts(inputs, &mut mounts)?;
    let limits = &environment.limits;
    Ok(Plan {
        id_base: inputs.id_base,
        id_count: 65536,
        hostname: "sandbox".to_owned(),
        root,
        mounts,
        cgroup: CgroupLimits {
            memory_bytes: limits.memory,
            pids: Some(limits.pids.unwrap_or(DEFAULT_PIDS)),
            cpu_milli: limits.cpu_milli,
        },
        capabilities: Capability::DEFAULT.to_vec(),
        rlimits: RLIMITS.to_vec(),
        seccomp: SeccompProfile::Default,
        landlock: true,
        network: esf_jail::Network::None,
    })
}

/// Ceilings of every process; limits are only ever lowered.
const RLIMITS: [(Rlimit, u64, u64); 4] = [
    (Rlimit::Core, 0, 0),
    (Rlimit::OpenFiles, 65536, 1 << 20),
    (Rlimit::LockedMemory, 8 << 20, 8 << 20),
    (Rlimit::MessageQueues, 819_200, 819_200),
];

fn overlay(inputs: &Inputs<'_>) -> Overlay {
    let extra = inputs.extra;
    let mut lowers: Vec<PathBuf> = extra.files.iter().map(|files| files.layer.clone()).collect();
    lowers.extend(extra.hide.clone());
    lowers.extend(inputs.lowers.iter().cloned());
    if inputs.environment.base == Base::Root {
        lowers.push(inputs.skeleton.to_owned());
    }
    Overlay { lowers, upper: inputs.upper.to_owned(), work: inputs.work.to_owned() }
}

/// The whole of the `host` base: system directories read-only, a made `/etc`, writable places in memory.
fn host_mounts(inputs: &Inputs<'_>, mounts: &mut Vec<Mount>) {
    let directory = |at: &str, mode| Mount::Directory { at: at.into(), mode };
    let tmpfs = |at: &str, mode| Mount::Tmpfs { at: at.into(), size_bytes: TMP_BYTES, mode };
    mounts.extend(["/etc", "/var", "/run", "/home"].map(|at| directory(at, 0o755)));
    for (at, mode) in [("/tmp", 0o1777), ("/root", 0o700)] {
        mounts.push(directory(at, mode));
        mounts.push(tmpfs(at, mode));
    }
    mounts.push(Mount::Symlink { at: "/var/tmp".into(), target: "/tmp".into() });
    for (at, content) in MADE {
        mounts.push(Mount::File { at: at.into(), content: content.into(), mode: 0o644 });
    }
    for entry in &inputs.host.entries {
        match entry {
            HostEntry::Symlink(at, target) => {
                mounts.push(Mount::Symlink { at: at.clone(), target: target.clone() });
            }
            HostEntry::Directory(path) => bind(mounts, path, path, BindKind::Directory),
            HostEntry::File(path) => bind(mounts, path, path, BindKind::File),
        }
    }
    for (wanted, kind) in inputs.binds {
        bind(mounts, Path::new(&wanted.source), Path::new(&wanted.at), *kind);
    }
}

fn bind(mounts: &mut Vec<Mount>, source: &Path, at: &Path, kind: BindKind) {
    mounts.push(match kind {
        BindKind::Directory => Mount::Directory { at: at.to_owned(), mode: 0o755 },
        BindKind::File => Mount::File { at: at.to_owned(), content: Vec::new(), mode: 0o644 },
    });
    mounts.push(Mount::BindReadOnly { source: source.to_owned(), at: at.to_owned(), idmapped: true });
}

/// The result channel, and the evaluator's files read-only over the tree: their directories are pinned,
/// so that code of the tree can neither write them nor move them aside.
fn extra_mounts(inputs: &Inputs<'_>, mounts: &mut Vec<Mount>) -> Result<(), ExecutorError> {
    let extra = inputs.extra;
    if extra.channel || extra.files.is_some() {
        // In the skeleton beneath the root base, made here on the host base.
        if inputs.environment.base == Base::Host {
            mounts.push(Mount::Directory { at: Extra::CHANNEL.into(), mode: 0o755 });
        }
        mounts.push(Mount::Tmpfs { at: Extra::CHANNEL.into(), size_bytes: CHANNEL_BYTES, mode: 0o755 });
    }
    let Some(files) = &extra.files else { return Ok(()) };
    if files.files.len() + files.directories.len() > MAX_FILES {
        let what = format!(
            "an evaluator with {} files and directories",
            files.files.len() + files.directories.len()
        );
        return invalid(what, &format!("at most {MAX_FILES}; pack the rest into one file"));
    }
    mounts.push(Mount::Directory { at: Extra::FILES.into(), mode: 0o755 });
    mounts.push(Mount::BindReadOnly { source: files.layer.clone(), at: Extra::FILES.into(), idmapped: true });
    let top = workspace(inputs.environment);
    mounts.extend(files.directories.iter().map(|path| Mount::Pin { at: top.join(path) }));
    mounts.extend(files.files.iter().map(|path| Mount::BindReadOnly {
        source: files.layer.join(path),
        at: top.join(path),
        idmapped: true,
    }));
    Ok(())
}

fn unsupported<T>(what: &str, expected: &str) -> Result<T, ExecutorError> {
    Err(ExecutorError::Unsupported { what: what.to_owned(), expected: expected.to_owned() })
}

fn invalid<T>(what: String, expected: &str) -> Result<T, ExecutorError> {
    Err(ExecutorError::Invalid { what, expected: expected.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use esf_core::environment::Limits;

    fn facts() -> HostFacts {
        HostFacts {
            entries: vec![
                HostEntry::Directory("/usr".into()),
                HostEntry::Symlink("/bin".into(), "usr/bin".into()),
                HostEntry::Directory("/etc/alternatives".into()),
                HostEntry::File("/etc/ld.so.cache".into()),
            ],
        }
    }

    fn plan_of(environment: &Environment, extra: &ExtraLayers) -> Plan {
        let kinds = environment.binds.iter().map(|bind| (bind.clone(), BindKind::Directory));
        plan(&Inputs {
            attempt: AttemptId::from_bytes([1; 16]),
            lowers: &["carriers/b".into(), "carriers/a".into()],
            upper: Path::new("attempts/x/upper"),
            work: Path::new("attempts/x/work"),
            id_base: 0x7000_0000,
            environment,
            extra,
            host: &facts(),
            binds: &kinds.collect::<Vec<_>>(),
            skeleton: Path::new("skeleton/plain"),
        })
        .expect("a plan")
    }

    /// Compares with `tests/golden/NAME.json`; `ESF_BLESS=1` writes it anew, to be reviewed as a diff.
    fn golden(name: &str, plan: &Plan) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(plan).expect("json") + "\n";
        if std::env::var_os("ESF_BLESS").is_some() {
            std::fs::write(&path, &text).expect("writes");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == expected, "{name} differs; ESF_BLESS=1 writes it anew:\n{text}");
        plan.check().expect("the jail accepts it");
    }

    #[test]
    fn the_host_base() {
        let limits = Limits { cpu_milli: Some(1500), memory: Some(1 << 30), pids: Some(100), disk: None };
        let binds = vec![Bind { source: "/opt/tools".to_owned(), at: "/tools".to_owned() }];
        golden(
            "host",
            &plan_of(&Environment { limits, binds, ..Environment::default() }, &ExtraLayers::default()),
        );
    }

    #[test]
    fn the_root_base() {
        golden(
            "root",
            &plan_of(&Environment { base: Base::Root, ..Environment::default() }, &ExtraLayers::default()),
        );
    }

    #[test]
    fn an_evaluator_over_both() {
        let files = FilesLayer {
            layer: "/store/attempts/x/extra/files".into(),
            directories: vec!["tests".into(), "tests/sub".into()],
            files: vec!["run.sh".into(), "tests/sub/a.sh".into()],
        };
        let extra = ExtraLayers {
            files: Some(files),
            hide: Some("/store/attempts/x/extra/hide".into()),
            channel: true,
        };
        golden("evaluator", &plan_of(&Environment::default(), &extra));
        golden(
            "evaluator-root",
            &plan_of(&Environment { base: Base::Root, ..Environment::default() }, &extra),
        );
    }

    #[test]
    fn limits_are_passed_on_exactly_or_refused() {
        let with = |limits| Environment { limits, ..Environment::default() };
        for pids in [1, 7, u64::MAX] {
            let limits = Limits { pids: Some(pids), ..Limits::default() };
            assert_eq!(plan_of(&with(limits), &ExtraLayers::default()).cgroup.pids, Some(pids));
        }
        let refused = [
            Limits { pids: Some(0), ..Limits::default() },
            Limits { memory: Some(4096), ..Limits::default() },
            Limits { cpu_milli: Some(1), ..Limits::default() },
            Limits { disk: Some(1 << 40), ..Limits::default() },
        ];
        for limits in refused {
            assert!(check(&with(limits), &Extra::default()).is_err(), "{limits:?}");
        }
    }
}
