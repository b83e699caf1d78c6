//! A zygote, layers and jails for one test, and a shorthand to run programs in them.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use esf_jail::{
    Capability, CgroupHome, CgroupLimits, ExecSpec, ExitStatus, Jail, Mount, Network, Overlay, Plan, Process,
    Rlimit, Root, SeccompProfile, SpawnError, Stats, Stdio, Zygote, ZygoteConfig,
};

/// Numbers that no other test of this machine uses at the same time.
fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (std::process::id() % 4096) * 8 + NEXT.fetch_add(1, Ordering::Relaxed) % 8
}

pub(crate) struct World {
    pub(crate) dir: Layers,
    pub(crate) home: CgroupHome,
    pub(crate) zygote: Zygote,
}

/// The layers directory; removed at the end if it is this test's own.
pub(crate) enum Layers {
    Own(tempfile::TempDir),
    Given(PathBuf),
}

impl Layers {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Layers::Own(dir) => dir.path(),
            Layers::Given(path) => path,
        }
    }
}

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> World {
        World::with_slots(1)
    }

    pub(crate) fn with_slots(warm_slots: usize) -> World {
        let dir = tempfile::tempdir().unwrap();
        let home = CgroupHome::discover(&format!("jail-test-{}-{}", std::process::id(), unique()));
        let home = home.unwrap();
        let zygote = Zygote::start(&ZygoteConfig {
            name: format!("jail-zygote of test {}", std::process::id()),
            cgroup_home: home.clone(),
            warm_slots,
            layers_dir: dir.path().into(),
        });
        World { dir: Layers::Own(dir), home, zygote: zygote.unwrap() }
    }

    /// A world that somebody else made and will remove.
    pub(crate) fn around(layers: PathBuf, zygote: Zygote, home: CgroupHome) -> World {
        World { dir: Layers::Given(layers), home, zygote }
    }

    /// A directory of the layers, made empty.
    pub(crate) fn layer(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// An overlay of the given lowers with a new upper and work directory.
    pub(crate) fn overlay(&self, name: &str, lowers: &[&Path]) -> Overlay {
        Overlay {
            lowers: lowers.iter().map(PathBuf::from).collect(),
            upper: self.layer(&format!("{name}.upper")),
            work: self.layer(&format!("{name}.work")),
        }
    }

    /// This machine's programs, this program as `/probe`, and a writable `/workspace`.
    pub(crate) fn host_plan(&self, name: &str) -> Plan {
        let lower = self.layer("empty");
        let overlay = self.overlay(name, &[&lower]);
        let bind = |source: &str, at: &str| Mount::BindReadOnly {
            source: source.into(),
            at: at.into(),
            idmapped: true,
        };
        let link = |at: &str, target: &str| Mount::Symlink { at: at.into(), target: target.into() };
        let exe = std::env::current_exe().unwrap();
        let mut plan = plan(Root::Host);
        plan.mounts = vec![
            bind("/usr", "/usr"),
            link("/bin", "usr/bin"),
            link("/sbin", "usr/sbin"),
            link("/lib", "usr/lib"),
            link("/lib64", "usr/lib64"),
            bind(exe.to_str().unwrap(), "/probe"),
            Mount::File {
                at: "/etc/passwd".into(),
                content: b"root:x:0:0::/:/bin/sh\n".to_vec(),
                mode: 0o644,
            },
            Mount::Tmpfs { at: "/tmp".into(), size_bytes: 64 << 20, mode: 0o1777 },
            Mount::Overlay { at: "/workspace".into(), overlay },
        ];
        plan
    }

    pub(crate) fn launch(&self, plan: &Plan) -> Jail {
        self.zygote.launch(plan).unwrap_or_else(|error| panic!("launch: {error}"))
    }

    /// A jail of [`World::host_plan`].
    pub(crate) fn host_jail(&self, name: &str) -> Jail {
        self.launch(&self.host_plan(name))
    }

    /// Jails and slots of this world, each of which has a group in every hierarchy.
    pub(crate) fn groups(&self) -> usize {
        let count = |path: &Path| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"j-")).count()
        };
        let all: usize = self.home.paths().map(count).sum();
        all.div_ceil(self.home.paths().count())
    }
}

/// A plan with nothing mounted.
pub(crate) fn plan(root: Root) -> Plan {
    Plan {
        id_base: 1_000_000_000 + unique() * 65536 / 8 * 8,
        id_count: 65536,
        hostname: "jail".into(),
        root,
        mounts: Vec::new(),
        cgroup: CgroupLimits::default(),
        capabilities: Capability::DEFAULT.to_vec(),
        rlimits: vec![(Rlimit::Core, 0, 0)],
        seccomp: SeccompProfile::Default,
        landlock: true,
        network: Network::None,
    }
}

pub(crate) fn spec(argv: &[&str]) -> ExecSpec {
    ExecSpec {
        argv: argv.iter().map(Into::into).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin:/usr/sbin:/sbin".into())],
        cwd: "/".into(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    }
}

pub(crate) fn sh(script: &str) -> ExecSpec {
    ExecSpec { cwd: "/workspace".into(), ..spec(&["/bin/sh", "-c", script]) }
}

pub(crate) fn null() -> OwnedFd {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap().into()
}

pub(crate) fn quiet() -> Stdio {
    Stdio { stdin: null(), stdout: null(), stderr: null() }
}

/// Starts a program whose output nobody reads.
pub(crate) fn start(jail: &Jail, spec: &ExecSpec) -> Process {
    jail.exec(spec, quiet()).unwrap_or_else(|error| panic!("{:?}: {error}", spec.argv))
}

/// Runs a program to its end, at most 60 s, and collects its output.
pub(crate) fn run_with(jail: &Jail, spec: &ExecSpec, input: &[u8]) -> Result<Outcome, SpawnError> {
    let (stdin, mut feed) = std::io::pipe().unwrap();
    let (mut out, stdout) = std::io::pipe().unwrap();
    let (mut err, stderr) = std::io::pipe().unwrap();
    let stdio = Stdio { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() };
    let process = jail.exec(spec, stdio)?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || feed.write_all(&input));
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        err.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut bytes = Vec::new();
    out.read_to_end(&mut bytes).unwrap();
    let status = process.wait(Some(Instant::now() + Duration::from_secs(60)))?;
    // A program need not read its input.
    let _ = writer.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Outcome {
        status: status.expect("the program ends within a minute"),
        stdout: text(bytes),
        stderr: text(errors.join().unwrap()),
    })
}

pub(crate) fn run(jail: &Jail, spec: &ExecSpec) -> Outcome {
    run_with(jail, spec, b"").unwrap_or_else(|error| panic!("{:?}: {error}", spec.argv))
}

/// Runs a script that must succeed; returns what it printed.
pub(crate) fn script(jail: &Jail, text: &str) -> String {
    let outcome = run(jail, &sh(text));
    assert_eq!(outcome.status, ExitStatus::Code(0), "{text}: {outcome:?}");
    outcome.stdout
}

/// Waits up to a time for something to become true.
pub(crate) fn eventually(what: &str, patience: Duration, mut test: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !test() {
        assert!(Instant::now() < deadline, "{what} within {patience:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Brings a jail to rest, which must succeed.
pub(crate) fn rest(jail: Jail) -> Stats {
    jail.quiesce().unwrap_or_else(|error| panic!("quiesce: {error}")).stats()
}
