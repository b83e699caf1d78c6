//! `/dev` and `/proc` as every jail has them; made ahead, moved into place at the launch.
//!
//! Both belong to the host's root, which nobody inside is: what is here cannot be changed, and
//! files of `/proc` that only root may read stay closed. Invariant: masks are laid by descriptor
//! over what this kernel's own procfs holds, with a null device of our own.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::mount::MountAttrFlags;

use crate::Error;
use crate::error::Step;
use crate::mounts::{attach, clone_tree, new_filesystem, open_path};
use crate::sys::{self, attr};

const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const RDONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

/// Character devices: name and minor number with major 1, but tty, which is 5:0.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// Most pseudo-terminals of one jail.
const TERMINALS: &str = "128";
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Hidden whole: they tell of the host or change it.
pub(crate) const MASKED: [&str; 14] = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "sched_debug",
    "scsi",
    "softirqs",
    "timer_list",
    "timer_stats",
    "driver",
];
/// Shown, never written.
pub(crate) const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// Makes `/dev` at `dev` of the scratch: six devices, pts, shm and the links of convention.
pub(crate) fn dev(scratch: &OwnedFd) -> Result<OwnedFd, Error> {
    let options = [("mode", "0755"), ("size", "64m"), ("nr_inodes", "65536")];
    let dev = new_filesystem(c"tmpfs", &options, NOSUID | NOEXEC)?;
    attach(dev.as_fd(), scratch.as_fd(), c"dev")?;
    for (name, major, minor) in DEVICES {
        rustix::fs::mknodat(
            &dev,
            name,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            rustix::fs::makedev(major, minor),
        )
        .step(|| format!("mknod {name}"))?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &dev, name).step(|| format!("symlink {name}"))?;
    }
    for (name, mode) in [("pts", 0o755), ("shm", 0o1777)] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(mode)).step(|| format!("mkdir {name}"))?;
    }
    // Terminals are bounded for the machine as a whole; one jail must not take them all.
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("max", TERMINALS)];
    let pts = new_filesystem(c"devpts", &options, NOSUID | NOEXEC)?;
    attach(pts.as_fd(), dev.as_fd(), c"pts")?;
    Ok(dev)
}

/// Makes `/proc` of this process' pid namespace at `proc` of the scratch, masked.
pub(crate) fn proc(scratch: &OwnedFd, dev: &OwnedFd) -> Result<OwnedFd, Error> {
    let options = [("hidepid", "invisible")];
    let proc = new_filesystem(c"proc", &options, NOSUID | NODEV | NOEXEC)?;
    attach(proc.as_fd(), scratch.as_fd(), c"proc")?;
    let options = [("mode", "0555"), ("size", "4k"), ("nr_inodes", "2")];
    let nothing = new_filesystem(c"tmpfs", &options, NOSUID | NODEV | NOEXEC | RDONLY)?;
    // Attached, since older kernels clone no mount that is attached nowhere.
    attach(nothing.as_fd(), scratch.as_fd(), c"nothing")?;
    for name in MASKED {
        let Ok(target) = open_path(&proc, name, OFlags::NOFOLLOW) else { continue };
        let step = || format!("mask /proc/{name}");
        let stat = rustix::fs::fstat(&target).step(step)?;
        let mask = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            clone_tree(&nothing, Path::new("")).step(step)?
        } else {
            let null = clone_tree(dev, Path::new("null")).step(step)?;
            sys::mount_setattr(null.as_fd(), attr::RDONLY | attr::NOEXEC, None).step(step)?;
            null
        };
        attach(mask.as_fd(), target.as_fd(), c"")?;
    }
    for name in READ_ONLY {
        let Ok(target) = open_path(&proc, name, OFlags::NOFOLLOW) else { continue };
        let step = || format!("make /proc/{name} read-only");
        let tree = clone_tree(&target, Path::new("")).step(step)?;
        sys::mount_setattr(tree.as_fd(), attr::RDONLY, None).step(step)?;
        attach(tree.as_fd(), target.as_fd(), c"")?;
    }
    Ok(proc)
}

/// Makes a directory that holds only the mount points a jail needs, for use as the last lower of
/// a root overlay.
///
/// # Errors
/// Whatever the kernel refuses; a directory that exists already is fine.
pub fn create_skeleton(path: &Path) -> Result<(), Error> {
    for directory in [path.to_path_buf(), path.join("proc"), path.join("dev")] {
        match rustix::fs::mkdir(&directory, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            other => other.step(|| format!("mkdir {}", directory.display()))?,
        }
        let mode = Mode::from_raw_mode(0o755);
        rustix::fs::chmodat(rustix::fs::CWD, &directory, mode, AtFlags::empty())
            .step(|| format!("chmod {}", directory.display()))?;
    }
    Ok(())
}
