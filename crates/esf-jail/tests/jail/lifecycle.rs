//! Launch, rest, death: nothing is left, whoever dies.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as Std};
use std::time::{Duration, Instant};

use esf_jail::{
    CgroupHome, Error, Mode, Mount, OFlags, QuiesceError, SpawnError, Zygote, ZygoteConfig, reap_leftovers,
    upper_in_use,
};

use crate::support::*;

pub(crate) const TESTS: &[crate::Test] = &[
    ("lifecycle::quiesce_leaves_nothing", quiesce_leaves_nothing),
    ("lifecycle::a_leaked_file_is_busy", a_leaked_file_is_busy),
    ("lifecycle::the_probe_sees_a_living_overlay", the_probe_sees_a_living_overlay),
    ("lifecycle::an_overlay_elsewhere_is_busy", an_overlay_elsewhere_is_busy),
    ("lifecycle::a_slot_that_cannot_be_made_says_why", a_slot_that_cannot_be_made_says_why),
    ("lifecycle::what_cannot_be_killed_is_said", what_cannot_be_killed_is_said),
    ("lifecycle::quiesce_kills_everything", quiesce_kills_everything),
    ("lifecycle::a_dropped_jail_is_gone", a_dropped_jail_is_gone),
    ("lifecycle::a_failed_launch_is_gone", a_failed_launch_is_gone),
    ("lifecycle::the_owner_dies", the_owner_dies),
    ("lifecycle::the_zygote_dies", the_zygote_dies),
    ("lifecycle::owner_and_zygote_die", owner_and_zygote_die),
    ("lifecycle::init_dies", init_dies),
    ("lifecycle::a_silent_init_is_given_up", a_silent_init_is_given_up),
    ("lifecycle::the_machine_is_described_and_rehearsed", described_and_rehearsed),
    ("lifecycle::slots_on_demand_and_at_once", slots_on_demand_and_at_once),
    ("lifecycle::cycles_leak_nothing", cycles_leak_nothing),
    ("lifecycle::the_zygote_is_sealed_and_named", the_zygote_is_sealed_and_named),
];

fn overlay_of(plan: &esf_jail::Plan) -> (PathBuf, PathBuf) {
    let overlay = plan.overlays().next().unwrap();
    (overlay.upper.clone(), overlay.work.clone())
}

fn quiesce_leaves_nothing() {
    let world = World::with_slots(0);
    let plan = world.host_plan("a");
    let jail = world.launch(&plan);
    let process = start(&jail, &sh("echo x > kept; sleep 60"));
    eventually("the file is written", Duration::from_secs(5), || {
        plan.overlays().next().unwrap().upper.join("kept").exists()
    });
    assert_eq!(world.groups(), 1);
    let began = Instant::now();
    let stats = rest(jail);
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(stats.pids >= 2);
    assert_eq!(world.groups(), 0);
    match process.wait(None) {
        Ok(Some(status)) => assert_eq!(status, esf_jail::ExitStatus::Signal(libc::SIGKILL)),
        Err(SpawnError::Lost) => {}
        other => panic!("{other:?}"),
    }
    process.kill_tree().unwrap();
    let (upper, work) = overlay_of(&plan);
    assert!(!upper_in_use(&upper, &work).unwrap());
    let left: Vec<_> = fs::read_dir(&work).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["work"], "the probe left nothing");
    assert_eq!(fs::read(upper.join("kept")).unwrap(), b"x\n");
}

fn a_leaked_file_is_busy() {
    let world = World::new();
    for (index, path) in ["/workspace/file", "/workspace", "/workspace/gone"].into_iter().enumerate() {
        let plan = world.host_plan(&format!("a{index}"));
        let jail = world.launch(&plan);
        script(&jail, "echo x > file; echo x > gone");
        let flags = if path == "/workspace" { OFlags::PATH } else { OFlags::RDWR };
        let leaked = jail.open(Path::new(path), flags, Mode::empty()).unwrap();
        script(&jail, "rm gone");
        match jail.quiesce() {
            Err(QuiesceError::Busy { mount }) => assert_eq!(mount, Path::new("/workspace")),
            other => panic!("{path}: {other:?}"),
        }
        // This is what the refusal is for: the file can still be written.
        let (upper, work) = overlay_of(&plan);
        assert!(upper_in_use(&upper, &work).unwrap());
        if path == "/workspace/file" {
            rustix::io::pwrite(&leaked, b"late", 0).unwrap();
            assert_eq!(fs::read(upper.join("file")).unwrap(), b"late");
        }
        drop(leaked);
        eventually("the overlay ends with its last file", Duration::from_secs(5), || {
            !upper_in_use(&upper, &work).unwrap()
        });
    }
    eventually("only the warm slot is left", Duration::from_secs(5), || world.groups() == 1);
}

fn the_probe_sees_a_living_overlay() {
    let world = World::new();
    let plan = world.host_plan("a");
    let (upper, work) = overlay_of(&plan);
    let names = |path: &Path| {
        let mut names = vec![0u8; 4096];
        let length = rustix::fs::listxattr(path, &mut names[..]).unwrap();
        names.truncate(length);
        names
    };
    for _ in 0..3 {
        assert!(!upper_in_use(&upper, &work).unwrap());
    }
    assert!(names(&upper).is_empty(), "a probe leaves no mark on the upper");
    let jail = world.launch(&plan);
    let before = names(&upper);
    for _ in 0..3 {
        assert!(upper_in_use(&upper, &work).unwrap());
    }
    assert_eq!(names(&upper), before);
    script(&jail, "echo still > works; cat works");
    rest(jail);
    assert!(!upper_in_use(&upper, &work).unwrap());
    assert!(matches!(upper_in_use(Path::new("/no/such"), &work), Err(Error::Kernel { .. })));
}

fn quiesce_kills_everything() {
    let world = World::new();
    let jail = world.host_jail("a");
    // Stopped, with its own session, orphaned, holding deleted files and directories.
    let _process = start(
        &jail,
        &sh("trap '' TERM; mkdir d; cd d; rmdir ../d; exec 5> ../f; rm ../f; \
             (setsid sh -c 'kill -STOP $$' &); (setsid sleep 1000 &); sleep 1000"),
    );
    eventually("they run", Duration::from_secs(5), || jail.stats().pids >= 4);
    rest(jail);
}

fn a_dropped_jail_is_gone() {
    let world = World::with_slots(0);
    let jail = world.host_jail("a");
    let process = start(&jail, &sh("sleep 1000"));
    drop(jail);
    assert_eq!(world.groups(), 0);
    assert!(matches!(process.wait(None), Ok(Some(_)) | Err(SpawnError::Lost)));
    let jail = world.host_jail("b");
    jail.destroy().unwrap();
    assert_eq!(world.groups(), 0);
}

fn a_failed_launch_is_gone() {
    let world = World::with_slots(0);
    let mut plan = world.host_plan("a");
    plan.mounts.push(Mount::BindReadOnly {
        source: "/no/such/path".into(),
        at: "/x".into(),
        idmapped: false,
    });
    let error = world.zygote.launch(&plan).map(drop).unwrap_err();
    assert!(error.to_string().contains("/no/such/path"), "{error}");
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(world.groups(), 0);
    let (upper, work) = overlay_of(&plan);
    eventually("the overlay is gone", Duration::from_secs(5), || !upper_in_use(&upper, &work).unwrap());
    rest(world.host_jail("b"));
}

/// Another owner, which can be killed: makes a jail with a sleeper and then waits.
pub(crate) fn owner(home: &str, layers: &str) -> ! {
    let home = CgroupHome::discover(home).unwrap();
    let zygote = Zygote::start(&ZygoteConfig {
        name: "jail-zygote of a victim".into(),
        cgroup_home: home.clone(),
        warm_slots: 1,
        layers_dir: layers.into(),
    });
    let world = World::around(layers.into(), zygote.unwrap(), home);
    let jail = world.host_jail("victim");
    let _process = start(&jail, &sh("setsid sleep 1000 & sleep 1000"));
    println!("{}", world.zygote.pid());
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

struct Victim {
    owner: std::process::Child,
    zygote: i32,
    home: CgroupHome,
    _dir: tempfile::TempDir,
}

impl Victim {
    fn start() -> Victim {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("jail-test-victim-{}", std::process::id());
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--owner", &name, dir.path().to_str().unwrap()])
            .stdout(Std::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let zygote = line.trim().parse().unwrap();
        let home = CgroupHome::discover(&name).unwrap();
        eventually("init, two sleepers, a shell and a slot", Duration::from_secs(5), || {
            processes(&home) >= 5
        });
        Victim { owner, zygote, home, _dir: dir }
    }

    fn kill_owner(&mut self) {
        self.owner.kill().unwrap();
        self.owner.wait().unwrap();
    }

    fn kill_zygote(&self) {
        let pid = rustix::process::Pid::from_raw(self.zygote).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    fn zygote_alive(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.zygote));
        status.is_ok_and(|status| !status.contains(") Z "))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Also after a failed test; one that is dead already is fine.
        let _ = self.owner.kill();
        let _ = self.owner.wait();
    }
}

/// Processes in the groups of a home, warm slots included.
fn processes(home: &CgroupHome) -> usize {
    fn walk(path: &Path) -> usize {
        let own = fs::read_to_string(path.join("cgroup.procs")).map_or(0, |t| t.lines().count());
        let below = fs::read_dir(path).into_iter().flatten().flatten();
        own + below.filter(|e| e.path().is_dir()).map(|e| walk(&e.path())).sum::<usize>()
    }
    walk(home.paths().last().unwrap())
}

fn the_owner_dies() {
    let mut victim = Victim::start();
    victim.kill_owner();
    let second = Duration::from_secs(1);
    eventually("every process is gone", second, || processes(&victim.home) == 0);
    eventually("the zygote is gone", second, || !victim.zygote_alive());
    eventually("no cgroup is left", second, || victim.home.paths().all(|path| !path.exists()));
    assert_eq!(reap_leftovers(&victim.home).unwrap(), esf_jail::Reaped::default());
}

fn the_zygote_dies() {
    let world = World::new();
    let jail = world.host_jail("a");
    let process = start(&jail, &sh("setsid sleep 1000 & sleep 1000"));
    let pid = rustix::process::Pid::from_raw(world.zygote.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let second = Duration::from_secs(1);
    eventually("every process is gone", second, || processes(&world.home) == 0);
    assert!(matches!(process.wait(None), Ok(Some(_)) | Err(SpawnError::Lost)));
    assert!(matches!(jail.exec(&spec(&["true"]), quiet()), Err(SpawnError::Lost)));
    // A slot may have been announced before; the second launch finds nobody.
    for name in ["b", "c"] {
        let lost = world.zygote.launch(&world.host_plan(name)).map(drop);
        assert!(lost.is_err());
    }
    match jail.quiesce() {
        Err(QuiesceError::Other(Error::Lost { .. })) => {}
        other => panic!("without a zygote nothing is proven: {other:?}"),
    }
    reap_leftovers(&world.home).unwrap();
    assert_eq!(world.groups(), 0);
}

fn owner_and_zygote_die() {
    let mut victim = Victim::start();
    victim.kill_zygote();
    victim.kill_owner();
    let second = Duration::from_secs(1);
    eventually("every process is gone", second, || processes(&victim.home) == 0);
    let reaped = reap_leftovers(&victim.home).unwrap();
    assert!(reaped.groups >= 3 * victim.home.paths().count(), "{reaped:?}");
    assert!(victim.home.paths().all(|path| !path.exists()));
    assert_eq!(reap_leftovers(&victim.home).unwrap(), esf_jail::Reaped::default());
    // Processes that somehow live on are killed by the reaping alone.
    let mut victim = Victim::start();
    let reaped = reap_leftovers(&victim.home).unwrap();
    assert!(reaped.processes >= 5, "{reaped:?}");
    assert_eq!(processes(&victim.home), 0);
    victim.kill_owner();
    eventually("the zygote is gone", second, || !victim.zygote_alive());
    reap_leftovers(&victim.home).unwrap();
}

fn init_dies() {
    let world = World::new();
    let jail = world.host_jail("a");
    let process = start(&jail, &spec(&["sleep", "1000"]));
    let kill = rustix::process::Signal::KILL;
    rustix::process::pidfd_send_signal(jail.pid1_exit(), kill).unwrap();
    let exit = jail.pid1_exit();
    let mut fds = [rustix::event::PollFd::new(&exit, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&patience)).unwrap(), 1);
    assert!(matches!(process.wait(None), Err(SpawnError::Lost)));
    assert!(matches!(jail.exec(&spec(&["true"]), quiet()), Err(SpawnError::Lost)));
    assert!(jail.open(Path::new("/"), OFlags::RDONLY, Mode::empty()).is_err());
    // What it wrote can still be brought to rest.
    rest(jail);
}

fn slots_on_demand_and_at_once() {
    for slots in [0, 1, 3] {
        let world = World::with_slots(slots);
        let plans: Vec<_> = (0..8).map(|index| world.host_plan(&format!("p{index}"))).collect();
        std::thread::scope(|scope| {
            for plan in &plans {
                scope.spawn(|| {
                    let jail = world.launch(plan);
                    assert_eq!(script(&jail, "echo x > x; cat x"), "x\n");
                    rest(jail);
                });
            }
        });
        eventually("only warm slots are left", Duration::from_secs(5), || world.groups() == slots);
    }
}

fn the_zygote_is_sealed_and_named() {
    let world = World::new();
    let pid = world.zygote.pid();
    let expected = format!("jail-zygote of test {}\0", std::process::id());
    eventually("its command line is its name", Duration::from_secs(5), || {
        fs::read(format!("/proc/{pid}/cmdline")).unwrap() == expected.as_bytes()
    });
    let exe = fs::OpenOptions::new().append(true).open(format!("/proc/{pid}/exe"));
    assert!(exe.is_err(), "the running copy cannot be written");
    let copy = fs::File::open(format!("/proc/{pid}/exe")).unwrap();
    let seals = rustix::fs::fcntl_get_seals(copy.as_fd()).unwrap();
    assert!(seals.contains(rustix::fs::SealFlags::WRITE | rustix::fs::SealFlags::SEAL));
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    assert_eq!(threads, 1);
}

fn cycles_leak_nothing() {
    let world = World::new();
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    let ledger = || {
        let zygote = world.zygote.pid();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
        let inner = fs::read_to_string(format!("/proc/{zygote}/mountinfo")).unwrap().lines().count();
        let files = (count("/proc/self/fd"), count(&format!("/proc/{zygote}/fd")));
        let children = fs::read_to_string(format!("/proc/{zygote}/task/{zygote}/children")).unwrap();
        [mounts, inner, files.0, files.1, children.split_whitespace().count(), world.groups()]
    };
    let mut before = [0; 6];
    for index in 0..60 {
        let jail = world.host_jail(&format!("c{index}"));
        script(&jail, "echo x > x");
        match index % 3 {
            0 => {
                rest(jail);
            }
            1 => jail.destroy().unwrap(),
            _ => drop(jail),
        }
        if index == 5 {
            eventually("one warm slot", Duration::from_secs(5), || ledger()[5] == 1);
            before = ledger();
        }
    }
    // What is still being let go of at the first count is gone at the last.
    eventually("nothing is more than before", Duration::from_secs(5), || {
        ledger().iter().zip(before).all(|(now, before)| *now <= before)
    });
}

/// A program inside could stop the child that init waits for; here init itself is stopped.
fn a_silent_init_is_given_up() {
    let world = World::new();
    let jail = world.host_jail("a");
    let stop = rustix::process::Signal::STOP;
    rustix::process::pidfd_send_signal(jail.pid1_exit(), stop).unwrap();
    let began = Instant::now();
    assert!(matches!(jail.exec(&spec(&["true"]), quiet()), Err(SpawnError::Lost)));
    assert!(began.elapsed() < Duration::from_secs(45));
    let gone = Duration::from_secs(1);
    eventually("what is given up is dead", gone, || jail.stats().pids == 0);
    rest(jail);
}

fn described_and_rehearsed() {
    for row in esf_jail::requirements() {
        assert!(row.ok, "{row:?}");
        assert!(!row.found.is_empty() && !row.remedy.is_empty(), "{row:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let row = esf_jail::rehearse(dir.path());
    assert!(row.ok, "{row:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let row = esf_jail::rehearse(Path::new("/proc"));
    assert!(!row.ok && row.found.contains("/proc"), "{row:?}");
}

/// An overlay that no mount of the jail shows: only the probe sees it.
fn an_overlay_elsewhere_is_busy() {
    let world = World::new();
    let plan = world.host_plan("a");
    let (upper, work) = overlay_of(&plan);
    let other_work = world.layer("other.work");
    let context = rustix::mount::fsopen(c"overlay", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    let lower = world.layer("empty");
    for (key, path) in [("lowerdir", &lower), ("upperdir", &upper), ("workdir", &other_work)] {
        rustix::mount::fsconfig_set_string(&context, key, path.to_str().unwrap()).unwrap();
    }
    rustix::mount::fsconfig_create(&context).unwrap();
    let jail = world.launch(&plan);
    match jail.quiesce() {
        Err(QuiesceError::Busy { mount }) => assert_eq!(mount, upper),
        other => panic!("{other:?}"),
    }
    drop(context);
    assert!(!upper_in_use(&upper, &work).unwrap());
}

fn a_slot_that_cannot_be_made_says_why() {
    let world = World::with_slots(0);
    let plan = world.host_plan("a");
    fs::remove_dir_all(world.dir.path()).unwrap();
    let error = world.zygote.launch(&plan).map(drop).unwrap_err();
    assert!(error.to_string().contains("clone the mount of"), "{error}");
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    fs::create_dir_all(world.dir.path()).unwrap();
    assert_eq!(world.groups(), 0);
}

/// A process in a frozen v1 group cannot die; the owner is told and goes on.
fn what_cannot_be_killed_is_said() {
    let freezer = Path::new("/sys/fs/cgroup/freezer");
    if !freezer.join("cgroup.procs").exists() {
        eprintln!("skipped: there is no v1 freezer to stand in for a process stuck in the kernel");
        return;
    }
    let world = World::new();
    let jail = world.host_jail("a");
    let process = start(&jail, &spec(&["sleep", "1000"]));
    let frozen = freezer.join(format!("jail-test-{}", std::process::id()));
    fs::create_dir(&frozen).unwrap();
    let info = {
        use std::os::fd::AsRawFd;
        fs::read_to_string(format!("/proc/self/fdinfo/{}", process.pidfd().as_raw_fd())).unwrap()
    };
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim();
    fs::write(frozen.join("cgroup.procs"), pid).unwrap();
    fs::write(frozen.join("freezer.state"), "FROZEN").unwrap();
    let began = Instant::now();
    let result = jail.destroy();
    fs::write(frozen.join("freezer.state"), "THAWED").unwrap();
    assert!(matches!(result, Err(Error::Unkillable { .. })), "{result:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
    eventually("it dies once it can", Duration::from_secs(5), || fs::remove_dir(&frozen).is_ok());
    drop(world.zygote);
    reap_leftovers(&world.home).unwrap();
}
