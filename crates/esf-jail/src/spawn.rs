//! Starts one program from pid 1, by a clone that shares memory until the exec takes hold.
//!
//! The child is born in the cgroup of its exec, so no descendant can ever be outside it. Invariant:
//! between clone and exec the child only makes system calls on data prepared before; it allocates
//! nothing, returns to nothing and leaves its one finding in `Child::failure`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::Error;
use crate::error::Step;
use crate::plan::{Plan, Rlimit};
use crate::seccomp::Clone3Key;
use crate::sys::{CLONE_INTO_CGROUP, CloneArgs};
use crate::wire::{Reader, invalid};

/// Where a start failed; the number travels to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stage {
    Message = 1,
    Clone = 2,
    Cwd = 3,
    User = 4,
    NotFound = 5,
    NotExecutable = 6,
    Prepare = 7,
}

impl Stage {
    pub(crate) fn from_number(number: u32) -> Option<Stage> {
        [
            Stage::Message,
            Stage::Clone,
            Stage::Cwd,
            Stage::User,
            Stage::NotFound,
            Stage::NotExecutable,
            Stage::Prepare,
        ]
        .into_iter()
        .find(|stage| *stage as u32 == number)
    }
}

/// A start that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
}

/// Which of stdin, stdout and stderr are the jail's own `/dev/null`; the others come as
/// descriptors, in order.
pub(crate) struct Request {
    pub(crate) null: [bool; 3],
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: Vec<u8>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

const STACK: usize = 64 * 1024;
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes programs the kernel's choice before init when memory runs out.
///
/// A child inherits the preference that init has at the clone; the file is opened while init may
/// still write it.
pub(crate) struct OomPreference {
    file: OwnedFd,
    own: String,
    victim: String,
}

impl OomPreference {
    pub(crate) fn open() -> Result<OomPreference, Error> {
        let path = "/proc/self/oom_score_adj";
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .step(|| format!("open {path}"))?;
        let mut text = [0; 16];
        let length = rustix::io::read(&file, &mut text).step(|| format!("read {path}"))?;
        let own = String::from_utf8_lossy(&text[..length]).trim().to_string();
        let victim = (own.parse::<i32>().unwrap_or(0) + 500).min(1000).to_string();
        Ok(OomPreference { file, own, victim })
    }

    fn set(&self, value: &str) {
        // Without it init may be chosen; the jail then ends, which its owner sees.
        let _ = rustix::io::pwrite(&self.file, value.as_bytes(), 0);
    }
}

/// What every start of a jail has in common.
pub(crate) struct Spawner {
    /// Of u128, so that its top is aligned as the ABI wants.
    stack: Vec<u128>,
    rlimits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    key: Clone3Key,
    victims: OomPreference,
}

/// All the child reads; raw, since it lives in memory shared with its parent.
struct Child<'a> {
    stdio: [i32; 3],
    rlimits: &'a [(libc::__rlimit_resource_t, libc::rlimit)],
    groups: &'a [u32],
    uid: u32,
    gid: u32,
    cwd: i32,
    candidates: &'a [CString],
    argv: &'a [*const libc::c_char],
    env: &'a [*const libc::c_char],
    failure: Option<Failure>,
}

impl Spawner {
    pub(crate) fn new(plan: &Plan, key: Clone3Key, victims: OomPreference, soft_files: u64) -> Spawner {
        let mut rlimits: Vec<_> =
            plan.rlimits.iter().map(|(kind, soft, hard)| lowered(*kind, *soft, *hard)).collect();
        if !plan.rlimits.iter().any(|(kind, ..)| *kind == Rlimit::OpenFiles) {
            rlimits.push(lowered(Rlimit::OpenFiles, soft_files, u64::MAX));
        }
        Spawner { stack: vec![0; STACK / size_of::<u128>()], rlimits, key, victims }
    }

    /// Starts a program; `fds` are its cgroup and then its stdio.
    pub(crate) fn spawn(&mut self, body: &[u8], mut fds: Vec<OwnedFd>) -> Result<(Pid, OwnedFd), Failure> {
        let message = |_| Failure { stage: Stage::Message, errno: Errno::INVAL };
        let request = Request::parse(body).map_err(message)?;
        let wanted = request.null.iter().filter(|null| !**null).count() + 1;
        if fds.len() != wanted || request.argv.is_empty() {
            return Err(Failure { stage: Stage::Message, errno: Errno::INVAL });
        }
        let cgroup = fds.remove(0);
        let cwd = open_cwd(&request.cwd).map_err(|errno| Failure { stage: Stage::Cwd, errno })?;
        let mut given = fds.iter().map(AsRawFd::as_raw_fd);
        // Init's own 0, 1 and 2 are the jail's /dev/null.
        let stdio = request.null.map(|null| if null { 0 } else { given.next().unwrap_or(0) });
        let candidates = request.candidates();
        let (argv, env) = (pointers(&request.argv), pointers(&request.env));
        let mut child = Child {
            stdio,
            rlimits: &self.rlimits,
            groups: &request.groups,
            uid: request.uid,
            gid: request.gid,
            cwd: cwd.as_raw_fd(),
            candidates: &candidates,
            argv: &argv,
            env: &env,
            failure: None,
        };
        let mut pidfd: i32 = -1;
        let mut args = CloneArgs {
            flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64 | CLONE_INTO_CGROUP,
            pidfd: &raw mut pidfd as u64,
            exit_signal: libc::SIGCHLD as u64,
            stack: self.stack.as_mut_ptr() as u64,
            stack_size: STACK as u64,
            cgroup: cgroup.as_raw_fd() as u64,
            ..CloneArgs::default()
        };
        self.victims.set(&self.victims.victim);
        // SAFETY: `args`, `child` and the stack live until the call returns, which CLONE_VFORK
        // delays until the child has left this memory; `child_main` keeps the promise of the
        // module's head.
        let answer = unsafe { clone3(&raw mut args, &raw mut child, self.key) };
        self.victims.set(&self.victims.own);
        if answer < 0 {
            let errno = Errno::from_raw_os_error(-answer as i32);
            return Err(Failure { stage: Stage::Clone, errno });
        }
        // SAFETY: with CLONE_PIDFD the kernel stored a new descriptor that nobody else owns.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        // SAFETY: the child wrote through a pointer to `child`; the optimiser must read it again.
        match unsafe { ptr::read_volatile(&raw const child.failure) } {
            // The failed child is reaped with all others.
            Some(failure) => Err(failure),
            None => Ok((Pid::from_raw(answer as i32).expect("a pid is above 0"), pidfd)),
        }
    }
}

impl Request {
    pub(crate) fn parse(body: &[u8]) -> io::Result<Request> {
        let mut body = Reader(body);
        let mask = body.number()?;
        let strings = |body: &mut Reader<'_>| {
            let count = body.number()?;
            (0..count)
                .map(|_| CString::new(body.bytes()?).map_err(|_| invalid("a NUL in a string")))
                .collect::<io::Result<Vec<_>>>()
        };
        let argv = strings(&mut body)?;
        let env = strings(&mut body)?;
        let cwd = body.bytes()?.to_vec();
        let (uid, gid) = (body.number()?, body.number()?);
        let count = body.number()?;
        let groups = (0..count).map(|_| body.number()).collect::<io::Result<Vec<_>>>()?;
        let null = [0, 1, 2].map(|index| mask & (1 << index) != 0);
        Ok(Request { null, argv, env, cwd, uid, gid, groups })
    }

    /// The paths to try, in order: `argv[0]` itself if it has a slash, else along PATH.
    fn candidates(&self) -> Vec<CString> {
        let program = self.argv[0].as_bytes();
        if program.contains(&b'/') {
            return vec![self.argv[0].clone()];
        }
        if program.is_empty() {
            return Vec::new();
        }
        let path = self.env.iter().find_map(|pair| pair.as_bytes().strip_prefix(b"PATH="));
        path.unwrap_or(DEFAULT_PATH)
            .split(|byte| *byte == b':')
            .map(|directory| {
                let directory: &[u8] = if directory.is_empty() { b"." } else { directory };
                let whole = [directory, b"/", program].concat();
                CString::new(whole).expect("parts of C strings hold no NUL")
            })
            .collect()
    }
}

/// Opens a working directory beneath the root, never through a descriptor of some process.
fn open_cwd(cwd: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let path = Path::new(std::ffi::OsStr::from_bytes(cwd));
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// A limit that is at most what init has itself, so that setting it needs no privilege.
fn lowered(kind: Rlimit, soft: u64, hard: u64) -> (libc::__rlimit_resource_t, libc::rlimit) {
    let resource = match kind {
        Rlimit::AddressSpace => libc::RLIMIT_AS,
        Rlimit::Core => libc::RLIMIT_CORE,
        Rlimit::Cpu => libc::RLIMIT_CPU,
        Rlimit::Data => libc::RLIMIT_DATA,
        Rlimit::FileSize => libc::RLIMIT_FSIZE,
        Rlimit::LockedMemory => libc::RLIMIT_MEMLOCK,
        Rlimit::MessageQueues => libc::RLIMIT_MSGQUEUE,
        Rlimit::OpenFiles => libc::RLIMIT_NOFILE,
        Rlimit::PendingSignals => libc::RLIMIT_SIGPENDING,
        Rlimit::Processes => libc::RLIMIT_NPROC,
        Rlimit::Stack => libc::RLIMIT_STACK,
    };
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is a valid rlimit that outlives the call.
    if unsafe { libc::getrlimit(resource, &raw mut now) } != 0 {
        now.rlim_max = u64::MAX;
    }
    let hard = hard.min(now.rlim_max);
    (resource, libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard })
}

/// clone3(2) with a stack for the child, which runs `child_main` on it and never returns.
///
/// The key rides in the third and fourth argument, which the kernel ignores and the filter wants.
///
/// # Safety
/// `args` must ask for CLONE_VM and CLONE_VFORK and name a stack of its own; `child` must be valid
/// until the call returns.
unsafe fn clone3(args: *mut CloneArgs, child: *mut Child<'_>, key: Clone3Key) -> i64 {
    let answer: i64;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11. The parent goes on after the
    // block; the child, on its own empty stack, calls `child_main` and never comes back.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") args,
            in("rsi") size_of::<CloneArgs>(),
            in("rdx") key.0,
            in("r10") key.1,
            in("r12") child_main as extern "C" fn(*mut Child<'_>) -> !,
            in("r13") child,
            out("rcx") _,
            out("r11") _,
        );
    }
    answer
}

/// The child between clone and exec.
extern "C" fn child_main(child: *mut Child<'_>) -> ! {
    // SAFETY: the parent, which owns the value, is suspended until this process execs or ends.
    let child = unsafe { &mut *child };
    let failure = match prepare(child) {
        Ok(()) => execute(child),
        Err(failure) => failure,
    };
    child.failure = Some(failure);
    crate::sys::exit_now(127)
}

fn prepare(child: &Child<'_>) -> Result<(), Failure> {
    let fail = |stage| move |errno| Failure { stage, errno };
    // SAFETY: plain system calls on numbers and on memory that outlives them; credentials are set
    // by raw calls, so only this process changes and not the parent that shares its memory.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::umask(0o022);
        libc::setsid();
        for (standard, from) in (0..).zip(child.stdio) {
            check(libc::dup2(from, standard).into()).map_err(fail(Stage::Prepare))?;
        }
        for (resource, limit) in child.rlimits {
            check(libc::setrlimit(*resource, limit).into()).map_err(fail(Stage::Prepare))?;
        }
        let groups = child.groups;
        let set = |number, id: u32| check(libc::syscall(number, id, id, id));
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))
            .and_then(|()| set(libc::SYS_setresgid, child.gid))
            .and_then(|()| set(libc::SYS_setresuid, child.uid))
            .map_err(fail(Stage::User))?;
        check(libc::fchdir(child.cwd).into()).map_err(fail(Stage::Cwd))
    }
}

/// Tries the candidates as execvp(3) does; returns only if none could be executed.
fn execute(child: &Child<'_>) -> Failure {
    let mut failure = Failure { stage: Stage::NotFound, errno: Errno::NOENT };
    for candidate in child.candidates {
        // SAFETY: C strings and null-terminated arrays of them that live in the parent's memory.
        let errno = unsafe {
            libc::execve(candidate.as_ptr(), child.argv.as_ptr(), child.env.as_ptr());
            last_errno()
        };
        match errno {
            Errno::NOENT | Errno::NOTDIR => {
                // SAFETY: as above. A script whose interpreter is missing says NOENT as well.
                if unsafe { libc::access(candidate.as_ptr(), libc::F_OK) } == 0 {
                    return Failure { stage: Stage::NotExecutable, errno };
                }
            }
            Errno::ACCESS => failure = Failure { stage: Stage::NotExecutable, errno },
            _ => return Failure { stage: Stage::NotExecutable, errno },
        }
    }
    failure
}

fn check(answer: libc::c_long) -> Result<(), Errno> {
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    // SAFETY: errno is this thread's own; the suspended parent does not read it meanwhile.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Writes a request the way [`Request::parse`] reads it.
pub(crate) fn encode(spec: &crate::ExecSpec, null: [bool; 3]) -> Vec<u8> {
    let mut writer = crate::wire::Writer(vec![crate::init::request::EXEC]);
    let mask = (0..3).filter(|index| null[*index]).map(|index| 1 << index).sum();
    writer.number(mask).number(spec.argv.len() as u32);
    for argument in &spec.argv {
        writer.bytes(argument.as_bytes());
    }
    writer.number(spec.env.len() as u32);
    for (name, value) in &spec.env {
        writer.bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat());
    }
    writer.bytes(spec.cwd.as_os_str().as_bytes());
    writer.number(spec.uid).number(spec.gid).number(spec.groups.len() as u32);
    for group in &spec.groups {
        writer.number(*group);
    }
    writer.0
}

/// The cgroup a request is born into, and its stdio, as descriptors in the order sent.
pub(crate) fn descriptors<'a>(
    channel: BorrowedFd<'a>,
    cgroup: BorrowedFd<'a>,
    stdio: impl Iterator<Item = BorrowedFd<'a>>,
) -> Vec<BorrowedFd<'a>> {
    [channel, cgroup].into_iter().chain(stdio).collect()
}
