//! Starting, waiting, killing, reaping.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use esf_jail::{Error, ExecSpec, ExitStatus, Jail, SpawnError, Stdio};

use crate::support::*;

pub(crate) const TESTS: &[crate::Test] = &[
    ("exec::codes_and_output", codes_and_output),
    ("exec::failures_are_typed", failures_are_typed),
    ("exec::cwd_is_inside", cwd_is_inside),
    ("exec::only_pipes_go_in", only_pipes_go_in),
    ("exec::environment_is_exact", environment_is_exact),
    ("exec::ten_megabytes_through_cat", ten_megabytes_through_cat),
    ("exec::long_arguments", long_arguments),
    ("exec::five_hundred_at_once", five_hundred_at_once),
    ("exec::background_lives_on", background_lives_on),
    ("exec::kill_tree_spares_siblings", kill_tree_spares_siblings),
    ("exec::programs_after_a_kill_live", programs_after_a_kill_live),
    ("exec::one_stuck_program_blocks_no_other", one_stuck_program_blocks_no_other),
    ("exec::ids_and_groups", ids_and_groups),
];

/// Processes seen inside, the one that looks not counted; init hides itself.
pub(crate) fn processes(jail: &Jail) -> usize {
    script(jail, "set -- /proc/[0-9]*; echo $#").trim().parse::<usize>().unwrap() - 1
}

fn codes_and_output() {
    let world = World::new();
    let jail = world.host_jail("a");
    let outcome = run(&jail, &sh("echo out; echo err >&2; exit 3"));
    assert_eq!(outcome.status, ExitStatus::Code(3));
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(run(&jail, &spec(&["true"])).status, ExitStatus::Code(0));
    assert_eq!(run(&jail, &sh("kill -TERM $$")).status, ExitStatus::Signal(libc::SIGTERM));
    assert_eq!(run(&jail, &sh("exit 255")).status, ExitStatus::Code(255));
    let process = start(&jail, &spec(&["sleep", "60"]));
    assert_eq!(process.wait(Some(Instant::now())).unwrap(), None);
    process.signal(libc::SIGINT).unwrap();
    assert_eq!(process.wait(None).unwrap(), Some(ExitStatus::Signal(libc::SIGINT)));
    assert_eq!(process.wait(None).unwrap(), Some(ExitStatus::Signal(libc::SIGINT)));
    process.signal(libc::SIGINT).unwrap();
}

fn failures_are_typed() {
    let world = World::new();
    let jail = world.host_jail("a");
    script(
        &jail,
        "printf '#!/no/such\\n' > bad; printf '#!/bin/sh\\necho ok' > good; \
         printf 'junk' > junk; touch plain; chmod 755 bad good junk; mkdir dir",
    );
    let attempt = |spec: &ExecSpec| jail.exec(spec, quiet()).map(drop).unwrap_err();
    for (program, code) in [
        ("no-such-program", 127),
        ("/no/such/program", 127),
        ("/workspace/good/x", 127),
        ("", 127),
        ("/workspace/plain", 126),
        ("/workspace/bad", 126),
        ("/workspace/junk", 126),
        ("/workspace/dir", 126),
    ] {
        let error = attempt(&spec(&[program]));
        assert_eq!(error.exit_code(), Some(code), "{program}: {error}");
    }
    let path = |path: &str| ExecSpec { env: vec![("PATH".into(), path.into())], ..spec(&["good"]) };
    assert_eq!(run(&jail, &path("/no/such:/workspace:/usr/bin")).stdout, "ok\n");
    assert!(matches!(attempt(&path("/usr/bin")), SpawnError::NotFound { .. }));
    let bad_user = ExecSpec { uid: 65536, ..spec(&["true"]) };
    assert!(matches!(attempt(&bad_user), SpawnError::BadUser { id: 65536, .. }));
    let bad_group = ExecSpec { groups: vec![1, u32::MAX], ..spec(&["true"]) };
    assert!(matches!(attempt(&bad_group), SpawnError::BadUser { .. }));
    for bad in [spec(&[]), spec(&["a\0b"])] {
        assert!(matches!(attempt(&bad), SpawnError::BadArgument { .. }));
    }
    // None of them left a process or a cgroup that cannot be used again.
    assert_eq!(processes(&jail), 0);
}

fn cwd_is_inside() {
    let world = World::new();
    let jail = world.host_jail("a");
    script(&jail, "mkdir -m 700 private; ln -s /workspace link; ln -s /proc/self/fd fds");
    let at = |cwd: &str| ExecSpec { cwd: cwd.into(), ..spec(&["/bin/pwd"]) };
    assert_eq!(run(&jail, &at("/workspace/link")).stdout, "/workspace\n");
    let mut bad: Vec<String> = (0..64).map(|fd| format!("/proc/self/fd/{fd}")).collect();
    bad.extend((0..16).map(|fd| format!("/workspace/fds/{fd}")));
    bad.extend((0..16).map(|fd| format!("/proc/1/fd/{fd}")));
    bad.extend(["/no/such", "/etc/passwd", "", "/proc/self/cwd", "/proc/self/root"].map(String::from));
    for cwd in bad {
        let error = jail.exec(&at(&cwd), quiet()).map(drop).unwrap_err();
        assert!(matches!(error, SpawnError::BadCwd { .. }), "{cwd}: {error}");
    }
    let user = ExecSpec { uid: 1000, gid: 1000, ..at("/workspace/private") };
    assert!(matches!(jail.exec(&user, quiet()), Err(SpawnError::BadCwd { .. })));
}

fn only_pipes_go_in() {
    let world = World::new();
    let jail = world.host_jail("a");
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let directory: OwnedFd = std::fs::File::open("/").unwrap().into();
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let zero: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let named = world.dir.path().join("named");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &named,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let named: OwnedFd = std::fs::OpenOptions::new().read(true).write(true).open(named).unwrap().into();
    for fd in [file, directory, socket.into(), zero, named] {
        let stdio = Stdio { stdin: fd, stdout: null(), stderr: null() };
        let error = jail.exec(&spec(&["true"]), stdio).map(drop).unwrap_err();
        assert!(matches!(error, SpawnError::Other(Error::Stdio { stream: "stdin", .. })));
    }
    // A program has its three streams and nothing else, and /dev/null is the jail's own.
    let listed = script(&jail, "exec 3</proc/self/fd; ls /proc/self/fd | tr '\\n' ' '");
    assert_eq!(listed, "0 1 2 3 4 ", "3 is the shell's, 4 that of ls");
    let spec = sh("stat -L -c '%d %i' /dev/null; stat -L -c '%d %i' /proc/self/fd/0");
    let (mut out, stdout) = std::io::pipe().unwrap();
    let stdio = Stdio { stdin: null(), stdout: stdout.into(), stderr: null() };
    jail.exec(&spec, stdio).unwrap();
    let text = std::io::read_to_string(&mut out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], lines[1], "{text}");
}

fn environment_is_exact() {
    let world = World::new();
    let jail = world.host_jail("a");
    let spec = ExecSpec {
        env: vec![("A".into(), "1 2".into()), ("B".into(), "".into())],
        ..spec(&["/usr/bin/env"])
    };
    assert_eq!(run(&jail, &spec).stdout, "A=1 2\nB=\n");
    assert_eq!(script(&jail, "umask; ulimit -c; cat /proc/sys/kernel/hostname"), "0022\n0\njail\n");
    let signals = script(&jail, "grep -E 'Sig(Blk|Ign)' /proc/self/status");
    assert_eq!(signals, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

fn ten_megabytes_through_cat() {
    let world = World::new();
    let jail = world.host_jail("a");
    let input: Vec<u8> = (0..10_000_000u32).map(|index| b'a' + (index % 23) as u8).collect();
    let outcome = run_with(&jail, &spec(&["cat"]), &input).unwrap();
    assert_eq!(outcome.status, ExitStatus::Code(0));
    assert!(outcome.stdout.as_bytes() == input);
}

fn long_arguments() {
    let world = World::new();
    let jail = world.host_jail("a");
    let long = "x".repeat(100_000);
    let mut spec = spec(&["/bin/sh", "-c", "echo ${#1} ${#E}", "-", &long]);
    spec.env.push(("E".into(), "y".repeat(120_000).into()));
    assert_eq!(run(&jail, &spec).stdout, "100000 120000\n");
    spec.argv.push("z".repeat(3_000_000).into());
    let error = jail.exec(&spec, quiet()).map(drop).unwrap_err();
    assert_eq!(error.exit_code(), Some(126), "{error}");
}

fn five_hundred_at_once() {
    raise_descriptor_limit();
    let world = World::new();
    let jail = world.host_jail("a");
    let spec = sh("(sleep 0.01 &) ; exit 3");
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..500).map(|_| scope.spawn(|| start(&jail, &spec).wait(None).unwrap())).collect();
        for run in runs {
            assert_eq!(run.join().unwrap(), Some(ExitStatus::Code(3)));
        }
    });
    eventually("no process is left, zombies included", Duration::from_secs(5), || processes(&jail) == 0);
    assert_eq!(jail.stats().pids, 1);
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn background_lives_on() {
    let world = World::new();
    let jail = world.host_jail("a");
    let began = Instant::now();
    let (mut out, stdout) = std::io::pipe().unwrap();
    let stdio = Stdio { stdin: null(), stdout: stdout.into(), stderr: null() };
    let process = jail.exec(&sh("sleep 60 >/dev/null & echo STARTED"), stdio).unwrap();
    assert_eq!(std::io::read_to_string(&mut out).unwrap(), "STARTED\n");
    assert_eq!(process.wait(None).unwrap(), Some(ExitStatus::Code(0)));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(process.alive());
    drop(process);
    assert_eq!(processes(&jail), 1);
}

/// A group that was killed once kills what is born into it later; none is handed out again.
fn programs_after_a_kill_live() {
    let world = World::new();
    let jail = world.host_jail("a");
    for _ in 0..3 {
        let process = start(&jail, &spec(&["sleep", "60"]));
        process.kill_tree().unwrap();
        drop(process);
        for _ in 0..3 {
            assert_eq!(run(&jail, &sh("exit 7")).status, ExitStatus::Code(7));
        }
    }
}

fn kill_tree_spares_siblings() {
    let world = World::new();
    let jail = world.host_jail("a");
    let sibling = start(&jail, &spec(&["sleep", "60"]));
    let hostile = start(
        &jail,
        &sh("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1; echo late > late' & \
             (setsid sleep 300 &) ; (setsid sh -c '(sleep 300 &)' &) ; wait; sleep 300"),
    );
    eventually("all have started", Duration::from_secs(5), || processes(&jail) >= 5);
    let began = Instant::now();
    hostile.kill_tree().unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(!hostile.alive());
    let nine = Some(ExitStatus::Signal(libc::SIGKILL));
    assert_eq!(hostile.wait(None).unwrap(), nine);
    assert!(sibling.alive());
    assert_eq!(processes(&jail), 1);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(script(&jail, "ls"), "");
    sibling.kill_tree().unwrap();
    assert_eq!(sibling.wait(None).unwrap(), nine);
    // Groups are used again after all that.
    assert_eq!(run(&jail, &spec(&["true"])).status, ExitStatus::Code(0));
}

fn one_stuck_program_blocks_no_other() {
    let world = World::new();
    let jail = world.host_jail("a");
    script(&jail, "mkfifo fifo");
    let stuck: Vec<_> = (0..8).map(|_| start(&jail, &sh("kill -STOP $$; cat < fifo"))).collect();
    for _ in 0..20 {
        assert_eq!(script(&jail, "echo hi"), "hi\n");
    }
    for process in stuck {
        process.kill_tree().unwrap();
    }
}

fn ids_and_groups() {
    let world = World::new();
    let jail = world.host_jail("a");
    assert_eq!(script(&jail, "id -u; id -g; id -G"), "0\n0\n0\n");
    let spec = ExecSpec { uid: 1000, gid: 100, groups: vec![7, 8], ..sh("id -u; id -g; id -G") };
    assert_eq!(run(&jail, &spec).stdout, "1000\n100\n100 7 8\n");
    let status = ExecSpec { uid: 1000, ..sh("grep ^Cap /proc/self/status") };
    for line in run(&jail, &status).stdout.lines().filter(|line| !line.starts_with("CapBnd")) {
        assert!(line.ends_with("\t0000000000000000"), "{line}");
    }
}
