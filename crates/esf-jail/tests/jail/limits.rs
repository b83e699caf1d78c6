//! Memory, processes, processor time: reached inside, reported outside, felt by nobody else.

use std::time::{Duration, Instant};

use esf_jail::{ExecSpec, ExitStatus, SpawnError};

use crate::support::*;

pub(crate) const TESTS: &[crate::Test] = &[
    ("limits::memory_is_reported", memory_is_reported),
    ("limits::tmpfs_counts_as_memory", tmpfs_counts_as_memory),
    ("limits::processes_are_counted", processes_are_counted),
    ("limits::a_fork_bomb_is_contained", a_fork_bomb_is_contained),
    ("limits::processor_time_is_shared", processor_time_is_shared),
];

fn memory_is_reported() {
    let world = World::with_slots(2);
    let mut plan = world.host_plan("a");
    plan.cgroup.memory_bytes = Some(64 << 20);
    let jail = world.launch(&plan);
    assert_eq!(jail.stats().oom_kills, 0);
    let sibling = world.host_jail("b");
    let outcome = run(&jail, &spec(&["/probe", "--probe", "eat", "100000"]));
    assert_eq!(outcome.status, ExitStatus::Signal(libc::SIGKILL));
    assert!(jail.stats().oom_kills >= 1, "{:?}", jail.stats());
    assert!(jail.stats().memory_bytes <= 64 << 20);
    // The jail itself goes on.
    assert_eq!(run(&jail, &spec(&["/probe", "--probe", "eat", "10"])).stdout, "ate 10\n");
    assert_eq!(script(&sibling, "echo here"), "here\n");
    assert_eq!(sibling.stats().oom_kills, 0);
    assert_eq!(rest(jail).oom_kills, 1);
}

fn tmpfs_counts_as_memory() {
    let world = World::new();
    let mut plan = world.host_plan("a");
    plan.cgroup.memory_bytes = Some(32 << 20);
    let jail = world.launch(&plan);
    let outcome = run(&jail, &sh("exec head -c 60M /dev/zero > /tmp/big"));
    assert_ne!(outcome.status, ExitStatus::Code(0), "{outcome:?}");
    assert!(jail.stats().oom_kills >= 1);
    // Init, which uses little, is not the one that is killed; with the file gone all goes on.
    jail.unlink("/tmp/big".as_ref()).unwrap();
    assert_eq!(script(&jail, "echo on"), "on\n");
}

fn processes_are_counted() {
    let world = World::new();
    let mut plan = world.host_plan("a");
    plan.cgroup.pids = Some(20);
    let jail = world.launch(&plan);
    let (_reader, writer) = std::io::pipe().unwrap();
    let bomb = {
        let stdio = esf_jail::Stdio { stdin: null(), stdout: writer.into(), stderr: null() };
        jail.exec(&spec(&["/probe", "--probe", "fork", "1000"]), stdio).unwrap()
    };
    assert_eq!(bomb.wait(None).unwrap(), Some(ExitStatus::Code(0)));
    assert_eq!(jail.stats().pids, 20, "19 sleepers and init");
    assert!(jail.stats().pids_max_hits >= 1);
    // The program was one of the twenty: one place is free, and then none.
    let last = start(&jail, &spec(&["sleep", "60"]));
    let error = jail.exec(&spec(&["true"]), quiet()).map(drop).unwrap_err();
    assert!(matches!(error, SpawnError::PidsLimit), "{error}");
    bomb.kill_tree().unwrap();
    assert_eq!(run(&jail, &spec(&["true"])).status, ExitStatus::Code(0));
    last.kill_tree().unwrap();
}

fn a_fork_bomb_is_contained() {
    let world = World::with_slots(2);
    let mut plan = world.host_plan("a");
    plan.cgroup.pids = Some(200);
    plan.cgroup.cpu_milli = Some(500);
    let jail = world.launch(&plan);
    let sibling = world.host_jail("b");
    let bomb = start(&jail, &ExecSpec { uid: 1000, ..sh("b() { b | b & }; b; sleep 60") });
    eventually("the limit is hit", Duration::from_secs(20), || jail.stats().pids_max_hits > 0);
    let began = Instant::now();
    assert_eq!(script(&sibling, "echo calm"), "calm\n");
    assert!(began.elapsed() < Duration::from_secs(2));
    let began = Instant::now();
    bomb.kill_tree().unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    eventually("all of it is reaped", Duration::from_secs(5), || jail.stats().pids == 1);
    rest(jail);
}

fn processor_time_is_shared() {
    let world = World::new();
    let mut plan = world.host_plan("a");
    plan.cgroup.cpu_milli = Some(100);
    let jail = world.launch(&plan);
    let spinner = start(&jail, &sh("while :; do :; done"));
    std::thread::sleep(Duration::from_millis(300));
    let (before, began) = (jail.stats().cpu_us, Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let share = (jail.stats().cpu_us - before) as f64 / began.elapsed().as_micros() as f64;
    assert!((0.02..0.2).contains(&share), "a tenth of one processor, got {share}");
    spinner.kill_tree().unwrap();
}
