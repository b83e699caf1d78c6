//! The system calls that no safe library wraps.
//!
//! Invariant: with `seccomp`'s installation and `spawn`'s child this is all the unsafe code there
//! is; each wrapper takes typed arguments and gives back an owned result.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

/// `struct clone_args` of clone3(2), up to the cgroup field.
#[repr(C)]
#[derive(Default)]
pub(crate) struct CloneArgs {
    pub(crate) flags: u64,
    pub(crate) pidfd: u64,
    pub(crate) child_tid: u64,
    pub(crate) parent_tid: u64,
    pub(crate) exit_signal: u64,
    pub(crate) stack: u64,
    pub(crate) stack_size: u64,
    pub(crate) tls: u64,
    pub(crate) set_tid: u64,
    pub(crate) set_tid_size: u64,
    pub(crate) cgroup: u64,
}

pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The two sides of a fork.
pub(crate) enum Fork {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

/// Forks the calling, single-threaded process with extra clone flags.
///
/// # Safety
/// The process must have one thread: locks held by others would stay held in the child. The child
/// must end by `exit_now`, never by returning into the parent's work.
pub(crate) unsafe fn fork_with(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let mut pidfd: i32 = -1;
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` is a clone_args of the given size and outlives the call; without CLONE_VM and
    // without a stack the child runs on its own copy of this stack, as after fork(2).
    let answer = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            let pid = Pid::from_raw(pid as i32).expect("clone3 answers a pid above 0");
            // SAFETY: with CLONE_PIDFD the kernel stored a new descriptor that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent { pid, pidfd })
        }
    }
}

/// Ends the process at once, running no destructors or exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Attributes for [`mount_setattr`].
pub(crate) mod attr {
    pub(crate) const RDONLY: u64 = 0x1;
    pub(crate) const NOSUID: u64 = 0x2;
    pub(crate) const NODEV: u64 = 0x4;
    pub(crate) const NOEXEC: u64 = 0x8;
    pub(crate) const IDMAP: u64 = 0x0010_0000;
}

/// Sets attributes of one mount; with `userns` it is id-mapped as well.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    set: u64,
    userns: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = MountAttr { attr_set: set, ..MountAttr::default() };
    if let Some(userns) = userns {
        attr.attr_set |= attr::IDMAP;
        attr.userns_fd = userns.as_raw_fd() as u64;
    }
    // SAFETY: the path is an empty C string (AT_EMPTY_PATH: the mount of the descriptor) and `attr`
    // is a mount_attr of the given size; both outlive the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw mut attr,
            size_of::<MountAttr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts by mount(2), whose option string may be longer than fsconfig(2) allows.
pub(crate) fn mount(fstype: &CStr, target: &CStr, flags: u64, data: &CStr) -> io::Result<()> {
    // SAFETY: four C strings that outlive the call; the kernel copies at most one page of data.
    let answer = unsafe {
        libc::mount(fstype.as_ptr(), target.as_ptr(), fstype.as_ptr(), flags, data.as_ptr().cast())
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the ids by which this process is judged, and what it creates is owned, in filesystems.
pub(crate) fn set_fs_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: both calls take a number and touch only this thread's credentials. They report
    // nothing, so a second call with an impossible id reads back what is in force.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (
            libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32,
            libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32,
        )
    };
    if now == (uid, gid) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// Leaves the keyring of the session that started the process.
pub(crate) fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring; nothing else is passed.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes every descriptor from 3 up but the given ones.
pub(crate) fn close_all_but(keep: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if fd > from {
            // SAFETY: closes descriptors of a process that has just begun and owns none yet, or was
            // just forked and whose owners, copies of the parent's values, are never dropped: the
            // process ends by `exit_now`.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd.wrapping_sub(1), 0) };
        }
        from = fd.wrapping_add(1).max(from);
    }
}

/// Closes every descriptor but the standard three.
///
/// For a program that goes on for long after whoever started it: a lock or a pipe that was handed
/// down by accident would be held as long. To be called first in `main`, when nothing is open yet.
pub fn close_inherited() {
    close_all_but(&[]);
}

/// Gives every signal its default action and returns the set {SIGCHLD}, blocked.
pub(crate) fn reset_signals() -> io::Result<OwnedFd> {
    // The kernel's own structure: handler, flags, restorer, mask; all zero is the default action.
    let default = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: installs no code. The raw call reaches the two signals that libc keeps for
        // itself; SIGKILL and SIGSTOP refuse, which is as good.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, 0, 8) };
    }
    child_signals()
}

/// A descriptor that is readable while the end of a child waits to be seen.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by sigemptyset before use; signalfd returns a new descriptor.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Empties a descriptor of [`child_signals`].
pub(crate) fn drain_signals(signals: BorrowedFd<'_>) {
    let mut info = [0u8; 128 * 4];
    while rustix::io::read(signals, &mut info).is_ok_and(|count| count == info.len()) {}
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: an ifreq is plain data for which zero is valid; the ioctl reads the name and the
    // flags, both set, from a structure that outlives the call.
    let answer = unsafe {
        let mut request = std::mem::zeroed::<libc::ifreq>();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Overwrites the command line that `/proc` shows for this process.
pub(crate) fn hide_command_line(name: &str) {
    unsafe extern "C" {
        static mut program_invocation_name: *mut libc::c_char;
    }
    // SAFETY: glibc points this at argv[0], a writable C string that lives as long as the process;
    // the process has one thread, and never more bytes are written than the string has.
    unsafe {
        let start = program_invocation_name.cast::<u8>();
        if start.is_null() {
            return;
        }
        let length = libc::strlen(start.cast());
        std::ptr::write_bytes(start, 0, length);
        std::ptr::copy_nonoverlapping(name.as_ptr(), start, name.len().min(length));
    }
}

/// Duplicates `from` onto the standard descriptor `to` (0, 1 or 2), inherited by programs.
pub(crate) fn dup_standard(from: impl AsFd, to: i32) -> io::Result<()> {
    // SAFETY: 0, 1 and 2 have no owner in the processes that call this.
    let answer = unsafe { libc::dup2(from.as_fd().as_raw_fd(), to) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
