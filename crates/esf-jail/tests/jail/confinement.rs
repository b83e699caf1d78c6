//! What a program inside can see and do to anything that is not its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use esf_jail::{ExecSpec, ExitStatus, Jail, Mount, Rlimit, Stdio};

use crate::support::*;

pub(crate) const TESTS: &[crate::Test] = &[
    ("confinement::namespaces_are_its_own", namespaces_are_its_own),
    ("confinement::system_calls_are_refused", system_calls_are_refused),
    ("confinement::foreign_architectures_die", foreign_architectures_die),
    ("confinement::terminals_cannot_be_fed", terminals_cannot_be_fed),
    ("confinement::what_is_bounded_for_a_user_is_not_shared", what_is_bounded_for_a_user_is_not_shared),
    ("confinement::files_of_the_host_cannot_be_leased", files_of_the_host_cannot_be_leased),
    ("confinement::proc_is_masked", proc_is_masked),
    ("confinement::init_is_out_of_reach", init_is_out_of_reach),
    ("confinement::privilege_cannot_be_gained", privilege_cannot_be_gained),
    ("confinement::siblings_share_nothing", siblings_share_nothing),
    ("confinement::no_network_but_loopback", no_network_but_loopback),
    ("confinement::resource_limits_hold", resource_limits_hold),
    ("confinement::capabilities_as_planned", capabilities_as_planned),
    ("confinement::landlock_is_applied", landlock_is_applied),
    ("confinement::streams_can_be_opened_anew", streams_can_be_opened_anew),
    ("confinement::ordinary_programs_work", ordinary_programs_work),
];

const EPERM: i32 = libc::EPERM;

fn probe(jail: &Jail, arguments: &[&str]) -> Outcome {
    run(jail, &spec(&[&["/probe", "--probe"], arguments].concat()))
}

fn namespaces_are_its_own() {
    let world = World::new();
    let jail = world.host_jail("a");
    let inside =
        script(&jail, "for n in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$n; done");
    let host: BTreeSet<String> = fs::read_dir("/proc/self/ns")
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
        .collect();
    let inside: BTreeSet<String> = inside.lines().map(String::from).collect();
    assert_eq!(inside.len(), 7);
    assert!(inside.is_disjoint(&host), "{inside:?} {host:?}");
    assert!(script(&jail, "echo $$").trim().parse::<u32>().unwrap() < 100);
    let groups = script(&jail, "cat /proc/self/cgroup");
    assert!(!groups.contains("jail-test"), "{groups}");
    let map = script(&jail, "cat /proc/self/uid_map");
    assert_eq!(map.split_whitespace().nth(2), Some("65536"));
}

fn system_calls_are_refused() {
    let world = World::new();
    let jail = world.host_jail("a");
    let refused = [
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_fsopen,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_mount_setattr,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_add_key,
        libc::SYS_keyctl,
        libc::SYS_request_key,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_open_by_handle_at,
        libc::SYS_name_to_handle_at,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_sethostname,
        libc::SYS_init_module,
        libc::SYS_reboot,
        libc::SYS_swapon,
        libc::SYS_iopl,
        libc::SYS_modify_ldt,
        libc::SYS_vmsplice,
        libc::SYS_quotactl,
        libc::SYS_syslog,
        libc::SYS_acct,
        libc::SYS_fanotify_init,
    ];
    let calls: Vec<String> = refused.iter().map(i64::to_string).collect();
    let mut arguments = vec!["calls"];
    arguments.extend(calls.iter().map(String::as_str));
    for line in probe(&jail, &arguments).stdout.lines() {
        assert!(line.ends_with(&format!("={EPERM}")), "{line}");
    }
    let with = |call: i64, arguments: &[u64]| {
        let words: Vec<String> = arguments.iter().map(u64::to_string).collect();
        format!("{call},{}", words.join(","))
    };
    let clone = |flag: i32| with(libc::SYS_clone, &[flag as u32 as u64 | libc::SIGCHLD as u64]);
    let cases = [
        (clone(libc::CLONE_NEWUSER), EPERM),
        (clone(libc::CLONE_NEWNS), EPERM),
        (clone(libc::CLONE_NEWNET), EPERM),
        (clone(libc::CLONE_NEWPID), EPERM),
        (libc::SYS_clone3.to_string(), libc::ENOSYS),
        (with(libc::SYS_clone3, &[0, 88, 1, 2, 3, 4]), libc::ENOSYS),
        (with(libc::SYS_personality, &[0x40000]), EPERM),
        (with(libc::SYS_socket, &[libc::AF_ALG as u64, 5]), libc::EAFNOSUPPORT),
        (with(libc::SYS_socket, &[libc::AF_VSOCK as u64, 1]), libc::EAFNOSUPPORT),
        (with(libc::SYS_socket, &[libc::AF_NETLINK as u64, 3, 9]), libc::EAFNOSUPPORT),
        (with(libc::SYS_mknod, &[0, libc::S_IFCHR.into(), 0x103]), EPERM),
        (with(libc::SYS_prlimit64, &[1, libc::RLIMIT_NOFILE.into(), 0, 0]), EPERM),
        (libc::SYS_io_setup.to_string(), libc::ENOSYS),
        // x32, and numbers that no kernel has yet.
        ((0x4000_0000 + libc::SYS_getpid).to_string(), libc::ENOSYS),
        ("1000".into(), libc::ENOSYS),
    ];
    for (call, errno) in cases {
        let answer = probe(&jail, &["calls", &call]).stdout;
        assert_eq!(answer, format!("{call}={errno}\n"));
    }
    // The same calls by uid 1000 inside.
    let user = ExecSpec { uid: 1000, ..spec(&["/probe", "--probe", "calls", &calls[0], &calls[2]]) };
    for line in run(&jail, &user).stdout.lines() {
        assert!(line.ends_with(&format!("={EPERM}")), "{line}");
    }
}

fn foreign_architectures_die() {
    let world = World::new();
    let jail = world.host_jail("a");
    assert_eq!(probe(&jail, &["int80"]).status, ExitStatus::Signal(libc::SIGSYS));
}

fn terminals_cannot_be_fed() {
    let world = World::new();
    let jail = world.host_jail("a");
    let outcome = probe(&jail, &["terminal"]);
    assert_eq!(outcome.stdout, format!("{EPERM}\n{EPERM}\n{EPERM}\n0\n"), "{outcome:?}");
}

/// One jail takes all it can get; a sibling and this process, which is root, still get some.
fn what_is_bounded_for_a_user_is_not_shared() {
    let world = World::new();
    let (greedy, sibling) = (world.host_jail("a"), world.host_jail("b"));
    for (what, most) in [("inotify", 100_000), ("timers", 1_000_000), ("terminals", 100_000)] {
        let (stdin, hold) = std::io::pipe().unwrap();
        let (out, stdout) = std::io::pipe().unwrap();
        let stdio = Stdio { stdin: stdin.into(), stdout: stdout.into(), stderr: null() };
        let taker = spec(&["/probe", "--probe", "take", what, &most.to_string()]);
        let taker = greedy.exec(&taker, stdio).unwrap();
        let mut got = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut got).unwrap();
        assert!(got.trim().parse::<usize>().unwrap() < most, "{what}: {got}");
        assert_eq!(probe(&sibling, &["take", what, "10"]).stdout, "10\n", "{what}");
        let own = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--probe", "take", what, "10"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&own.stdout), "10\n", "{what} of the host");
        drop(hold);
        taker.wait(None).unwrap();
    }
}

/// A lease makes whoever opens the file wait for its holder: the host's programs, and init.
fn files_of_the_host_cannot_be_leased() {
    let world = World::new();
    let jail = world.host_jail("a");
    script(&jail, "echo x > own");
    for path in ["/usr/bin/id", "/workspace/own"] {
        assert_eq!(probe(&jail, &["lease", path]).stdout, format!("{EPERM}\n"), "{path}");
    }
}

fn proc_is_masked() {
    let world = World::new();
    let jail = world.host_jail("a");
    for name in ["kcore", "keys", "timer_list", "kmsg", "interrupts", "sched_debug", "key-users"] {
        let seen = script(&jail, &format!("cat /proc/{name} 2>/dev/null | wc -c"));
        assert_eq!(seen.trim(), "0", "{name}");
    }
    for name in ["acpi", "scsi", "driver", "asound"] {
        let seen = script(&jail, &format!("ls /proc/{name} 2>/dev/null | wc -l"));
        assert_eq!(seen.trim(), "0", "{name}");
    }
    for name in [
        "sysrq-trigger",
        "sys/kernel/core_pattern",
        "sys/kernel/hostname",
        "sys/vm/swappiness",
        "irq/default_smp_affinity",
        "sys/net/ipv4/ip_forward",
    ] {
        let outcome = run(&jail, &sh(&format!("echo h > /proc/{name}")));
        assert_ne!(outcome.status, ExitStatus::Code(0), "{name}");
    }
    assert!(!run(&jail, &sh("ls /sys")).stderr.is_empty(), "there is no /sys");
    // Two walls: the files belong to nobody inside, and the mounts are read-only.
    let mounts = script(&jail, "cat /proc/self/mountinfo");
    for name in ["/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"] {
        let line = mounts.lines().find(|line| line.contains(&format!(" {name} ")));
        if std::path::Path::new(name).exists() {
            assert!(line.is_some_and(|line| line.contains(&format!(" {name} ro,"))), "{name}: {mounts}");
        }
    }
    // What programs need is there.
    script(
        &jail,
        "grep -q MemTotal /proc/meminfo; grep -q processor /proc/cpuinfo; cat /proc/uptime /proc/loadavg /proc/stat /proc/sys/kernel/pid_max > /dev/null",
    );
}

fn init_is_out_of_reach() {
    let world = World::new();
    let jail = world.host_jail("a");
    let outcome = probe(&jail, &["self"]);
    for line in outcome.stdout.lines() {
        assert!(line.contains("Err("), "{line}");
    }
    assert_eq!(outcome.stdout.lines().count(), 5);
    let pid_one = script(&jail, "cat /proc/1/cmdline /proc/1/environ /proc/1/comm 2>/dev/null | wc -c");
    assert_eq!(pid_one.trim(), "0");
    // Signals from inside do not end init.
    run(&jail, &sh("kill -KILL 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1; kill -KILL -1"));
    assert_eq!(script(&jail, "echo alive"), "alive\n");
    // A script whose interpreter is init's own program gets a copy that nobody can write.
    script(&jail, "printf '#!/proc/self/exe\\n' > rewrite; chmod 755 rewrite");
    let outcome = run(&jail, &spec(&["/workspace/rewrite"]));
    assert!(outcome.stdout.starts_with("Err("), "{outcome:?}");
}

fn privilege_cannot_be_gained() {
    let world = World::new();
    let lower = world.layer("lower");
    fs::copy("/usr/bin/id", lower.join("id")).unwrap();
    fs::set_permissions(lower.join("id"), fs::Permissions::from_mode(0o6755)).unwrap();
    let exe = std::env::current_exe().unwrap();
    fs::copy(exe, lower.join("capable")).unwrap();
    // A version 2 capability with everything permitted and effective.
    let everything = [[1, 0, 0, 2], [0xff; 4], [0; 4], [0xff, 0xff, 0xff, 0], [0; 4]].concat();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(lower.join("capable"), "security.capability", &everything, flags).unwrap();
    let mut plan = world.host_plan("b");
    *plan.mounts.last_mut().unwrap() =
        Mount::Overlay { at: "/workspace".into(), overlay: world.overlay("a", &[&lower]) };
    let jail = world.launch(&plan);
    let user = |spec: ExecSpec| ExecSpec { uid: 1000, gid: 1000, ..spec };
    assert_eq!(run(&jail, &user(sh("./id -u; ./id -g"))).stdout, "1000\n1000\n");
    let status = "grep -E 'NoNewPrivs|Seccomp:|CapInh|CapAmb' /proc/self/status";
    for spec in [sh(status), user(sh(status))] {
        assert_eq!(
            run(&jail, &spec).stdout,
            "CapInh:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
        );
    }
    let cap_eff = user(sh("./capable --probe calls 165; cp /bin/grep . ; grep CapEff /proc/self/status"));
    assert!(run(&jail, &cap_eff).stdout.contains("CapEff:\t0000000000000000"));
    for text in [
        "su -c true",
        "nice -n -5 true 2>&1 | grep .",
        "unshare -Ur true",
        "mount -t tmpfs none /tmp",
        "mount -t cgroup -o memory none /tmp",
        "chroot / true",
    ] {
        let outcome = run(&jail, &sh(&format!("{{ {text}; }} && ! echo {text} | grep -q nice")));
        assert_ne!(outcome.status, ExitStatus::Code(0), "{text}: {outcome:?}");
    }
}

fn siblings_share_nothing() {
    let world = World::new();
    let (one, two) = (world.host_jail("a"), world.host_jail("b"));
    for jail in [&one, &two] {
        assert_eq!(probe(jail, &["shm"]).stdout, "new\n");
        script(
            jail,
            "test ! -e /workspace/x; echo x > /workspace/x; \
            test ! -e /tmp/x; echo x > /tmp/x; test ! -e /dev/shm/x; echo x > /dev/shm/x",
        );
    }
    assert_eq!(probe(&one, &["shm"]).stdout, format!("errno {}\n", libc::EEXIST));
    let sleeper = start(&two, &spec(&["sleep", "60"]));
    assert_eq!(crate::exec::processes(&one), 0);
    run(&one, &sh("kill -KILL -1"));
    assert!(sleeper.alive());
    // An abstract socket of the host is not there.
    let name = format!("jail-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
    let answer = probe(&one, &["abstract", &name]).stdout;
    assert!(answer.starts_with("Err("), "{answer}");
}

fn no_network_but_loopback() {
    let world = World::new();
    let jail = world.host_jail("a");
    let listed = script(&jail, "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '");
    let interfaces: Vec<&str> = listed.lines().collect();
    assert!(interfaces.contains(&"lo"), "{interfaces:?}");
    assert!(!interfaces.iter().any(|name| name.starts_with("eth")), "{interfaces:?}");
    assert_eq!(script(&jail, "tail -n +2 /proc/net/route"), "");
    let python = run(&jail, &sh("command -v perl"));
    if python.status == ExitStatus::Code(0) {
        let text = "use IO::Socket::INET; \
            my $s = IO::Socket::INET->new(LocalAddr=>'127.0.0.1:80', Listen=>1) or die \"listen $!\"; \
            my $c = IO::Socket::INET->new('127.0.0.1:80') or die \"connect $!\"; \
            IO::Socket::INET->new(PeerAddr=>'192.0.2.1:80', Timeout=>5) and die 'reached'; \
            print 'loopback only'";
        let spec = spec(&["perl", "-e", text]);
        let outcome = run(&jail, &spec);
        assert_eq!(outcome.stdout, "loopback only", "{outcome:?}");
    }
}

fn resource_limits_hold() {
    let world = World::new();
    let mut plan = world.host_plan("a");
    plan.rlimits = vec![(Rlimit::OpenFiles, 64, 128), (Rlimit::FileSize, 4096, 8192), (Rlimit::Core, 0, 0)];
    let jail = world.launch(&plan);
    let outcome = probe(&jail, &["raise"]);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let eperm = EPERM.to_string();
    assert_eq!(lines, ["64 128", &eperm, "4096 8192", &eperm, "0 0", &eperm]);
    let outcome = run(&jail, &sh("head -c 10000 /dev/zero > big; stat -c %s big"));
    assert_eq!(outcome.stdout, "4096\n");
    // A ceiling above the machine's own changes nothing and fails nothing.
    plan = world.host_plan("b");
    plan.rlimits = vec![(Rlimit::OpenFiles, u64::MAX, u64::MAX)];
    let jail = world.launch(&plan);
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap();
    assert_eq!(script(&jail, "ulimit -Hn").trim(), hard.to_string());
}

fn capabilities_as_planned() {
    let world = World::new();
    let sets = |jail: &Jail| script(jail, "grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2");
    let default = "00000000000004fb\n".repeat(3);
    let jail = world.host_jail("a");
    assert_eq!(sets(&jail), default, "chown dac_override fowner fsetid kill setgid setuid bind");
    let mut plan = world.host_plan("b");
    plan.capabilities = Vec::new();
    let jail = world.launch(&plan);
    assert_eq!(sets(&jail), "0000000000000000\n".repeat(3));
    script(&jail, "touch f; ! chown 5 f 2>/dev/null");
    // Init still changes ids for programs.
    let user = ExecSpec { uid: 7, gid: 8, ..sh("id -u") };
    assert_eq!(run(&jail, &user).stdout, "7\n");
}

fn streams_can_be_opened_anew() {
    let world = World::new();
    let jail = world.host_jail("a");
    let text = "cat < /dev/stdin > /dev/stdout; echo err > /dev/stderr";
    for (uid, gid) in [(0, 0), (1000, 1001)] {
        let outcome = run_with(&jail, &ExecSpec { uid, gid, ..sh(text) }, b"in\n").unwrap();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("in\n", "err\n"));
    }
}

fn ordinary_programs_work() {
    let world = World::new();
    let jail = world.host_jail("a");
    script(
        &jail,
        "mkdir -p a/b; mv a/b c; cp -a /etc/passwd c/; ln c/passwd hard; tar cf t.tar c; tar tf t.tar; \
        sort /etc/passwd | uniq -c | awk '{print $1}'; find / -xdev -maxdepth 2 > list; \
        sh -c 'exit 0'; (sleep 0.01; true) & wait; date; sync; env -i true",
    );
    for (program, text) in [
        (
            "python3",
            "import subprocess,threading,tempfile; \
            t=threading.Thread(target=lambda: None); t.start(); t.join(); \
            print(subprocess.check_output(['echo','sub']).decode().strip())",
        ),
        ("perl", "print `echo sub`"),
    ] {
        // Threads and child processes work although clone3 is not there.
        let found = run(&jail, &sh(&format!("test -x /usr/bin/{program}")));
        if found.status == ExitStatus::Code(0) {
            let flag = if program == "perl" { "-e" } else { "-c" };
            let outcome = run(&jail, &spec(&[program, flag, text]));
            assert_eq!(outcome.stdout, "sub\n", "{outcome:?}");
        }
    }
    // The whole test program starts, uses threads and ends inside.
    let outcome = run(&jail, &spec(&["/probe", "--list", "--format", "terse"]));
    assert!(outcome.stdout.contains("confinement::ordinary_programs_work"), "{outcome:?}");
}

fn landlock_is_applied() {
    let world = World::new();
    let jail = world.host_jail("a");
    let mut plan = world.host_plan("b");
    plan.landlock = false;
    let without = world.launch(&plan);
    let [with, without] = [&jail, &without].map(|jail| probe(jail, &["landlock"]).stdout);
    if !without.starts_with("no landlock") {
        // The kernel stacks sixteen; one of them is the jail's own.
        let full = libc::E2BIG;
        assert_eq!((with, without), (format!("15 {full}\n"), format!("16 {full}\n")));
    }
}
