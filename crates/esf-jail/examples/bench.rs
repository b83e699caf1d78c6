//! Prints what a jail costs on this machine, each figure beside its floor measured in the same run.
//!
//! Run as root: `cargo run --release -p esf-jail --example bench`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use esf_jail::{
    Capability, CgroupHome, CgroupLimits, ExecSpec, Jail, Mount, Network, Overlay, Plan, Root,
    SeccompProfile, Stdio, Zygote, ZygoteConfig, run_if_zygote,
};

const ROUNDS: usize = 300;

fn main() {
    run_if_zygote();
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let home = CgroupHome::discover(&format!("jail-bench-{}", std::process::id())).expect("cgroups");
    let zygote = Zygote::start(&ZygoteConfig {
        name: "jail-zygote of a benchmark".into(),
        cgroup_home: home,
        warm_slots: 2,
        layers_dir: dir.path().into(),
    })
    .expect("the zygote starts");
    exec_rows(&zygote, dir.path());
    launch_rows(&zygote, dir.path());
}

/// exec of `true` in a live jail against posix_spawn of the same program, interleaved.
fn exec_rows(zygote: &Zygote, dir: &Path) {
    let jail = zygote.launch(&plan(dir, "exec", &[])).expect("a jail is launched");
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        outside.push(time(|| {
            Command::new("/usr/bin/true").env_clear().status().expect("true runs");
        }));
        inside.push(time(|| run_true(&jail)));
    }
    let ratio = median(&mut inside) / median(&mut outside);
    show("exec true inside", &mut inside);
    show("posix_spawn outside", &mut outside);
    println!("ratio of the medians     {ratio:.2}");
    println!(
        "idle init             {} KiB private, {} KiB shared",
        rss(&jail, "Private"),
        rss(&jail, "Shared")
    );
}

fn launch_rows(zygote: &Zygote, dir: &Path) {
    let (mut launch, mut quiesce, mut destroy, mut shot) = (vec![], vec![], vec![], vec![]);
    let limits = [Some(256 << 20), Some(64)];
    for round in 0..ROUNDS / 3 {
        // Slots are made ahead: give the zygote the time to do so.
        std::thread::sleep(std::time::Duration::from_millis(8));
        let first = plan(dir, &format!("a{round}"), &limits);
        let began = Instant::now();
        let jail = zygote.launch(&first).expect("a jail is launched");
        launch.push(micros(began));
        run_true(&jail);
        std::thread::sleep(std::time::Duration::from_millis(8));
        let began = Instant::now();
        let _rested = jail.quiesce().expect("it comes to rest");
        quiesce.push(micros(began));
        std::thread::sleep(std::time::Duration::from_millis(8));
        let second = plan(dir, &format!("b{round}"), &limits);
        let began = Instant::now();
        let jail = zygote.launch(&second).expect("a jail is launched");
        run_true(&jail);
        let killing = Instant::now();
        jail.destroy().expect("it is removed");
        destroy.push(micros(killing));
        shot.push(micros(began));
    }
    show("launch, warm slot", &mut launch);
    show("quiesce, proven", &mut quiesce);
    show("destroy", &mut destroy);
    show("launch+true+destroy", &mut shot);
}

fn plan(dir: &Path, name: &str, limits: &[Option<u64>]) -> Plan {
    let make = |suffix: &str| {
        let path = dir.join(format!("{name}.{suffix}"));
        std::fs::create_dir_all(&path).expect("a layer can be made");
        path
    };
    let overlay = Overlay { lowers: vec![make("lower")], upper: make("upper"), work: make("work") };
    let link = |at: &str, target: &str| Mount::Symlink { at: at.into(), target: target.into() };
    Plan {
        id_base: 1_900_000_000,
        id_count: 65536,
        hostname: "bench".into(),
        root: Root::Host,
        mounts: vec![
            Mount::BindReadOnly { source: "/usr".into(), at: "/usr".into(), idmapped: true },
            link("/bin", "usr/bin"),
            link("/lib", "usr/lib"),
            link("/lib64", "usr/lib64"),
            Mount::Overlay { at: "/workspace".into(), overlay },
        ],
        cgroup: CgroupLimits {
            memory_bytes: limits.first().copied().flatten(),
            pids: limits.get(1).copied().flatten(),
            cpu_milli: None,
        },
        capabilities: Capability::DEFAULT.to_vec(),
        rlimits: Vec::new(),
        seccomp: SeccompProfile::Default,
        landlock: true,
        network: Network::None,
    }
}

fn run_true(jail: &Jail) {
    let spec = ExecSpec {
        argv: vec!["/usr/bin/true".into()],
        env: Vec::new(),
        cwd: "/".into(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };
    let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").expect("null"));
    let stdio = Stdio { stdin: null(), stdout: null(), stderr: null() };
    let process = jail.exec(&spec, stdio).expect("true starts");
    process.wait(None).expect("the jail lives");
}

fn time(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    micros(began)
}

fn micros(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Median, and the best tenth, which a busy machine disturbs least.
fn show(name: &str, samples: &mut [f64]) {
    let middle = median(samples);
    println!("{name:22} {middle:8.0} us, best tenth {:8.0} us", samples[samples.len() / 10]);
}

/// Kibibytes of the jail's init by smaps_rollup, found by its pidfd.
fn rss(jail: &Jail, kind: &str) -> u64 {
    use std::os::fd::AsRawFd;
    let info = format!("/proc/self/fdinfo/{}", jail.pid1_exit().as_raw_fd());
    let info = std::fs::read_to_string(info).unwrap_or_default();
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap_or("self").trim();
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let sizes = rollup.lines().filter(|line| line.starts_with(kind));
    sizes.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
