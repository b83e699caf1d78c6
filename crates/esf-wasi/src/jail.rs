//! How a host process gives up what it does not need, before any guest runs in it.
//! Invariants: everything here only takes away; what this machine cannot take away is told, by name; it is
//! done while the process has one thread, so that it holds for all of them. A guest is held by the engine;
//! this is for the day on which the engine has a hole.

use std::io;
use std::os::fd::BorrowedFd;

/// What of the file system a host keeps.
pub(crate) struct Kept<'a> {
    /// Directories that it reads.
    pub(crate) read: Vec<BorrowedFd<'a>>,
    /// Directories in which it makes, changes and removes what it likes.
    pub(crate) write: Vec<BorrowedFd<'a>>,
    /// Whether it may open sockets to other machines, and read what name lookups need.
    pub(crate) network: bool,
}

/// Enters the jail for good; answers with a line for each part that this machine does not have.
///
/// # Errors
/// When a part that is there cannot be had.
#[cfg(target_os = "linux")]
pub(crate) fn enter(kept: &Kept<'_>) -> io::Result<Vec<String>> {
    linux::limits()?;
    rustix::thread::set_no_new_privs(true)?;
    linux::capabilities()?;
    let mut lacks = linux::landlock(kept)?;
    lacks.extend(linux::system_calls(kept.network)?);
    Ok(lacks)
}

/// Where there is no such jail, the engine alone holds the guests.
#[cfg(not(target_os = "linux"))]
pub(crate) fn enter(_: &Kept<'_>) -> io::Result<Vec<String>> {
    Ok(vec!["a jail of the operating system: the engine alone holds guests".to_owned()])
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::io;
    use std::path::Path;

    use landlock::{
        ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
        RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets};
    use seccompiler::{
        SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
        TargetArch,
    };

    use super::Kept;

    /// The newest of Landlock that is asked for; what is older gives what it has.
    const NEWEST: ABI = ABI::V6;
    /// Most open files of a host.
    const OPEN_FILES: u64 = 1 << 16;
    /// What name lookups read.
    const LOOKUP: &[&str] = &["/etc", "/usr/lib", "/lib", "/lib64", "/run/systemd/resolve"];

    /// Lowers limits; none is raised.
    pub(super) fn limits() -> io::Result<()> {
        let lower = |resource: Resource, most: u64| {
            let Rlimit { current, maximum } = getrlimit(resource);
            let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
            setrlimit(resource, Rlimit { current: least(current), maximum: least(maximum) })
        };
        lower(Resource::Core, 0)?;
        lower(Resource::Nofile, OPEN_FILES)?;
        lower(Resource::Memlock, 0)?;
        lower(Resource::Msgqueue, 0)?;
        Ok(lower(Resource::Rtprio, 0)?)
    }

    /// Keeps of root's privilege what the delta needs: owners, modes and names of its files.
    pub(super) fn capabilities() -> io::Result<()> {
        let kept = CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::FOWNER
            | CapabilitySet::FSETID
            | CapabilitySet::SETFCAP
            | CapabilitySet::MKNOD
            // Attributes of the kind `trusted` are the administrator's.
            | CapabilitySet::SYS_ADMIN;
        let had = rustix::thread::capabilities(None)?;
        let sets = CapabilitySets {
            effective: had.effective & kept,
            permitted: had.permitted & kept,
            inheritable: CapabilitySet::empty(),
        };
        Ok(rustix::thread::set_capabilities(None, sets)?)
    }

    /// Confines the file system to what is kept, and sockets and signals to this process.
    pub(super) fn landlock(kept: &Kept<'_>) -> io::Result<Vec<String>> {
        let failed = |error: &dyn std::fmt::Display| io::Error::other(format!("landlock: {error}"));
        let all = AccessFs::from_all(NEWEST);
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)
            .map_err(|error| failed(&error))?;
        if !kept.network {
            rules = rules.handle_access(AccessNet::from_all(NEWEST)).map_err(|error| failed(&error))?;
        }
        let mut rules = rules
            .scope(Scope::from_all(NEWEST))
            .map_err(|error| failed(&error))?
            .create()
            .map_err(|error| failed(&error))?;
        let write: BitFlags<AccessFs> = all & !BitFlags::from(AccessFs::Execute);
        let kept_read = kept.read.iter().map(|fd| (*fd, read));
        let kept_write = kept.write.iter().map(|fd| (*fd, write));
        for (fd, access) in kept_read.chain(kept_write) {
            rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(|error| failed(&error))?;
        }
        for path in LOOKUP.iter().filter(|path| kept.network && Path::new(path).exists()) {
            let fd = PathFd::new(path).map_err(|error| failed(&error))?;
            rules = rules.add_rule(PathBeneath::new(fd, read)).map_err(|error| failed(&error))?;
        }
        let status = rules.restrict_self().map_err(|error| failed(&error))?;
        Ok(match status.ruleset {
            RulesetStatus::FullyEnforced => Vec::new(),
            RulesetStatus::PartiallyEnforced => vec!["landlock: this kernel's is older".to_owned()],
            RulesetStatus::NotEnforced => vec!["landlock: this kernel has none".to_owned()],
        })
    }

    /// System calls that a host never makes: to start programs, to make processes, to reach into others, to
    /// change the machine.
    #[rustfmt::skip]
    const REFUSED: &[i64] = &[
        libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev, libc::SYS_process_madvise, libc::SYS_kill, libc::SYS_tkill, libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd, libc::SYS_pidfd_send_signal, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_kcmp, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot,
        libc::SYS_move_mount, libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount,
        libc::SYS_fspick, libc::SYS_mount_setattr, libc::SYS_unshare, libc::SYS_setns,
        libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at, libc::SYS_bpf, libc::SYS_perf_event_open,
        libc::SYS_userfaultfd, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
        libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl, libc::SYS_init_module,
        libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_kexec_load, libc::SYS_kexec_file_load,
        libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_acct, libc::SYS_quotactl,
        libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex,
        libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_personality, libc::SYS_syslog,
        libc::SYS_vhangup, libc::SYS_fanotify_init, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid,
        libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_setfsuid,
        libc::SYS_setfsgid, libc::SYS_shmget, libc::SYS_shmat, libc::SYS_msgget,
        libc::SYS_semget, libc::SYS_mq_open,
    ];

    /// Newer than the library's list of names: the same number everywhere.
    const OPEN_TREE_ATTR: i64 = 467;

    /// Calls of one architecture only.
    #[cfg(target_arch = "x86_64")]
    const REFUSED_HERE: &[i64] = &[
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_iopl,
        libc::SYS_mknod,
        libc::SYS_ioperm,
        libc::SYS_modify_ldt,
        libc::SYS_uselib,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const REFUSED_HERE: &[i64] = &[];

    /// Filters system calls. No new process can come of this one, so killing it ends all that it is.
    pub(super) fn system_calls(network: bool) -> io::Result<Vec<String>> {
        let failed = |error: &dyn std::fmt::Display| io::Error::other(format!("seccomp: {error}"));
        let Ok(here) = TargetArch::try_from(std::env::consts::ARCH) else {
            return Ok(vec!["a filter of system calls: there is none for this processor".to_owned()]);
        };
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> = REFUSED
            .iter()
            .chain(REFUSED_HERE)
            .chain(&[OPEN_TREE_ATTR])
            .map(|call| (*call, Vec::new()))
            .collect();
        let rule = |argument, operator, value| {
            let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
            SeccompRule::new(vec![condition.map_err(|error| failed(&error))?]).map_err(|error| failed(&error))
        };
        let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
        refused.insert(libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(thread), 0)?]);
        // The mark of a removed name is the only device there is to make.
        refused.insert(libc::SYS_mknodat, vec![rule(3, SeccompCmpOp::Ne, 0)?]);
        // Of itself only: its own limits, and the signal of its own abort.
        let own = u64::from(std::process::id());
        refused.insert(libc::SYS_prlimit64, vec![rule(0, SeccompCmpOp::Ne, 0)?]);
        refused.insert(libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Ne, own)?]);
        if network {
            let mut others = vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 2)];
            others.push(SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 10));
            let others: Result<Vec<_>, _> = others.into_iter().collect();
            let others = others.map_err(|error| failed(&error))?;
            refused.insert(libc::SYS_socket, vec![SeccompRule::new(others).map_err(|error| failed(&error))?]);
        } else {
            for call in [libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen] {
                refused.insert(call, Vec::new());
            }
        }
        // A library that finds this one missing uses `clone`, whose flags can be seen.
        let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        for (calls, errno) in [(missing, libc::ENOSYS), (refused, libc::EPERM)] {
            let errno = SeccompAction::Errno(errno.unsigned_abs());
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, errno, here)
                .map_err(|error| failed(&error))?;
            let program: seccompiler::BpfProgram =
                filter.try_into().map_err(|error: seccompiler::BackendError| failed(&error))?;
            seccompiler::apply_filter(&program).map_err(|error| failed(&error))?;
        }
        Ok(Vec::new())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::{self, File};
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// What is given up is given up by the thread that does it, so that the test's other threads go on.
    fn inside(network: bool, body: impl FnOnce(&std::path::Path) + Send) {
        let top = tempfile::tempdir().expect("tempdir");
        for name in ["lower", "upper", "work"] {
            fs::create_dir(top.path().join(name)).expect("mkdir");
        }
        fs::write(top.path().join("lower/file"), "lower").expect("writes");
        fs::write(top.path().join("beside"), "secret").expect("writes");
        symlink(top.path().join("beside"), top.path().join("upper/link")).expect("links");
        std::thread::scope(|scope| {
            let jailed = scope.spawn(|| {
                let open = |name: &str| File::open(top.path().join(name)).expect("opens");
                let (lower, upper, work) = (open("lower"), open("upper"), open("work"));
                let write = vec![upper.as_fd(), work.as_fd()];
                let kept = Kept { read: vec![lower.as_fd()], write, network };
                let lacks = enter(&kept).expect("enters");
                if lacks.iter().any(|lack| lack.starts_with("landlock")) {
                    eprintln!("skipped: {lacks:?}");
                    return;
                }
                body(top.path());
            });
            jailed.join().expect("no panic");
        });
    }

    fn kind<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn files_are_the_carriers_and_the_delta_and_no_others() {
        inside(false, |top| {
            let denied = Some(ErrorKind::PermissionDenied);
            assert_eq!(fs::read(top.join("lower/file")).expect("a carrier is read"), b"lower");
            assert_eq!(kind(fs::write(top.join("lower/file"), "x")), denied);
            assert_eq!(kind(fs::write(top.join("lower/new"), "x")), denied);
            assert_eq!(kind(fs::remove_file(top.join("lower/file"))), denied);
            fs::write(top.join("work/new"), "x").expect("the delta is written");
            fs::rename(top.join("work/new"), top.join("upper/new")).expect("and moved");
            let path = top.join("upper/whiteout");
            mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).expect("a whiteout is made");
            let device = rustix::fs::makedev(1, 1);
            let made = mknodat(CWD, top.join("upper/mem"), FileType::CharacterDevice, Mode::empty(), device);
            assert_eq!(made, Err(rustix::io::Errno::PERM), "and no other device");
            assert_eq!(kind(fs::read(top.join("upper/link"))), denied, "a link leads nowhere else");
            for path in ["/etc/passwd", "/proc/self/environ", "/dev/null"] {
                assert_eq!(kind(fs::read(path)), denied, "{path}");
            }
            assert!(fs::rename(top.join("upper/new"), top.join("new")).is_err());
            assert!(
                fs::hard_link(top.join("lower/file"), top.join("upper/same")).is_err(),
                "nor is a carrier linked"
            );
        });
    }

    #[test]
    fn no_programs_no_processes_no_signals_no_sockets() {
        inside(false, |_| {
            assert!(Command::new("/bin/true").status().is_err());
            assert_eq!(kill_process(getpid(), Signal::CHILD), Err(rustix::io::Errno::PERM));
            assert!(TcpListener::bind("127.0.0.1:0").is_err());
            assert!(
                rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)
                    .is_err()
            );
            std::thread::spawn(|| {}).join().expect("threads are what guests run on");
            std::os::unix::net::UnixStream::pair()
                .expect("and pairs of sockets what they are talked to over");
        });
    }

    #[test]
    fn with_a_network_there_are_sockets_of_the_internet_and_names() {
        inside(true, |_| {
            TcpListener::bind("127.0.0.1:0").expect("a socket");
            fs::read("/etc/hosts").expect("names");
            assert!(fs::write("/etc/hosts", "x").is_err());
            assert!(
                rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)
                    .is_err()
            );
            assert!(fs::read("/root/.profile").is_err_and(|error| error.kind() != ErrorKind::NotFound));
        });
    }
}
