//! Cgroups: where they live, the groups of one jail, limits, kill and counters.
//!
//! A jail has one group in the unified tree, which kills, freezes and says when it is empty, and
//! beneath it one for each running program. Where memory, pids and cpu are v1 controllers it has
//! one group in each of those as well. Invariant: a limit is set or refused, never dropped.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};

use crate::error::Step;
use crate::plan::CgroupLimits;
use crate::{CgroupHome, Error};

/// The controllers that limits need.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub(crate) const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
        }
    }
}

/// Counters of a jail since it was launched; zero where the machine does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of memory in use, page cache and tmpfs included.
    pub memory_bytes: u64,
    /// Processes and threads alive, the jail's init included.
    pub pids: u64,
    /// Processes killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Forks refused because the limit on processes was reached.
    pub pids_max_hits: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
}

/// The groups of one jail.
#[derive(Clone, Debug)]
pub(crate) struct JailGroup {
    unified: PathBuf,
    v1: Vec<(Controller, PathBuf)>,
    v2: Vec<Controller>,
}

impl JailGroup {
    pub(crate) fn new(home: &CgroupHome, id: &str) -> JailGroup {
        JailGroup {
            unified: home.unified.join(id),
            v1: home.v1.iter().map(|(kind, path)| (*kind, path.join(id))).collect(),
            v2: home.v2.clone(),
        }
    }

    pub(crate) fn create(&self) -> Result<(), Error> {
        for path in self.paths() {
            fs::create_dir(path).step(|| format!("mkdir {}", path.display()))?;
        }
        Ok(())
    }

    /// The v1 groups and the unified one.
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.v1.iter().map(|(_, path)| path).chain([&self.unified])
    }

    /// A descriptor of the unified group, to be born into.
    pub(crate) fn open(&self) -> Result<OwnedFd, Error> {
        open_directory(&self.unified).step(|| format!("open {}", self.unified.display()))
    }

    /// Moves the calling, single-threaded process into the v1 groups.
    pub(crate) fn join_v1(&self) -> Result<(), Error> {
        for (_, path) in &self.v1 {
            write(&path.join("tasks"), "0")?;
        }
        Ok(())
    }

    /// Lets a process of the given host ids start children in groups beneath this one.
    pub(crate) fn delegate(&self, uid: u32, gid: u32) -> Result<(), Error> {
        let path = self.unified.join("cgroup.procs");
        rustix::fs::chown(&path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .step(|| format!("chown {}", path.display()))
    }

    /// Sets the limits of a jail.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a limit whose controller this machine does not give us.
    pub(crate) fn limit(&self, limits: &CgroupLimits) -> Result<(), Error> {
        if let Some(bytes) = limits.memory_bytes {
            match self.file(Controller::Memory)? {
                (path, true) => {
                    write(&path.join("memory.limit_in_bytes"), &bytes.to_string())?;
                    write_if_there(&path.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
                }
                (path, false) => {
                    write(&path.join("memory.max"), &bytes.to_string())?;
                    write_if_there(&path.join("memory.swap.max"), "0")?;
                }
            }
        }
        if let Some(pids) = limits.pids {
            let (path, _) = self.file(Controller::Pids)?;
            write(&path.join("pids.max"), &pids.saturating_add(1).to_string())?;
        }
        if let Some(milli) = limits.cpu_milli {
            const PERIOD_US: u64 = 100_000;
            let quota = milli.saturating_mul(PERIOD_US / 1000);
            match self.file(Controller::Cpu)? {
                (path, true) => write(&path.join("cpu.cfs_quota_us"), &quota.to_string())?,
                (path, false) => write(&path.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?,
            }
        }
        Ok(())
    }

    /// The group in which a controller acts, and whether it speaks v1.
    fn file(&self, controller: Controller) -> Result<(&Path, bool), Error> {
        if let Some((_, path)) = self.v1.iter().find(|(kind, _)| *kind == controller) {
            return Ok((path, true));
        }
        if self.v2.contains(&controller) {
            return Ok((&self.unified, false));
        }
        Err(Error::Unsupported {
            what: format!("a limit on {}", controller.name()),
            found: format!("no {} controller in {}", controller.name(), self.unified.display()),
            remedy: crate::home::REMEDY.into(),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        let read = |controller, v1: &str, v2: &str| match self.file(controller) {
            Ok((path, true)) => fs::read_to_string(path.join(v1)).unwrap_or_default(),
            Ok((path, false)) => fs::read_to_string(path.join(v2)).unwrap_or_default(),
            Err(_) => String::new(),
        };
        let number = |text: String| text.trim().parse().unwrap_or(0);
        let cpu = fs::read_to_string(self.unified.join("cpu.stat")).unwrap_or_default();
        Stats {
            memory_bytes: number(read(Controller::Memory, "memory.usage_in_bytes", "memory.current")),
            pids: number(read(Controller::Pids, "pids.current", "pids.current")),
            oom_kills: field(&read(Controller::Memory, "memory.oom_control", "memory.events"), "oom_kill"),
            pids_max_hits: field(&read(Controller::Pids, "pids.events", "pids.events"), "max"),
            cpu_us: field(&cpu, "usage_usec"),
        }
    }

    /// Kills every process of the jail; it may take a moment until they are gone.
    ///
    /// The kernel's kill cannot be outrun by forking, so nothing is frozen first: a frozen process
    /// takes some 15 ms longer to die.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        write_if_there(&self.unified.join("cgroup.kill"), "1")
    }

    /// Waits until no process is left.
    pub(crate) fn wait_empty(&self, patience: Duration) -> Result<(), Error> {
        let path = self.unified.join("cgroup.events");
        let events = match open_events(&path) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            other => other.step(|| format!("open {}", path.display()))?,
        };
        match wait_empty(&events, patience) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::Unkillable { group: self.unified.clone(), millis: patience.as_millis() as u64 })
            }
            Err(source) => Err(Error::kernel(format!("read {}", path.display()), source)),
        }
    }

    /// Removes the emptied groups; what is already gone is fine.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        for path in self.paths() {
            remove_tree(path)?;
        }
        Ok(())
    }
}

/// The cgroup of one program and its descendants. Reused by later programs once it is empty, unless
/// it was killed: the kernel counts a group's kills, and kills at birth what is cloned into a group
/// with a higher count than its parent's.
#[derive(Debug)]
pub(crate) struct ExecGroup {
    pub(crate) directory: OwnedFd,
    events: OwnedFd,
    name: String,
    killed: AtomicBool,
}

impl ExecGroup {
    /// Makes group number `number` beneath a jail's and lets the given host ids be born into it.
    pub(crate) fn create(jail: &OwnedFd, number: u64, uid: u32, gid: u32) -> io::Result<ExecGroup> {
        let name = format!("e-{number}");
        rustix::fs::mkdirat(jail, &name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(jail, &name, flags, Mode::empty())?;
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(&directory, "cgroup.procs", owner.0, owner.1, AtFlags::empty())?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = rustix::fs::openat(&directory, "cgroup.events", flags, Mode::empty())?;
        Ok(ExecGroup { directory, events, name, killed: AtomicBool::new(false) })
    }

    /// Whether a later program may be born into it.
    pub(crate) fn is_reusable(&self) -> bool {
        !self.killed.load(Ordering::Acquire)
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        self.killed.store(true, Ordering::Release);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, "cgroup.kill", flags, Mode::empty())?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        is_empty(&self.events)
    }

    /// Opens the file of events for itself: the kernel notes per open file what was read, so of several threads
    /// that wait on one the first would take the others' notice away.
    pub(crate) fn wait_empty(&self, patience: Duration) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, "cgroup.events", flags, Mode::empty()) {
            Ok(events) => wait_empty(&events, patience),
            // The group was removed, which only an empty one can be.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn remove(self, jail: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(jail, &self.name, AtFlags::REMOVEDIR)?)
    }
}

pub(crate) fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn open_events(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn is_empty(events: &OwnedFd) -> io::Result<bool> {
    let mut text = [0; 128];
    match rustix::io::pread(events, &mut text, 0) {
        Ok(count) => Ok(text[..count].starts_with(b"populated 0")),
        // The group was removed, which only an empty one can be.
        Err(rustix::io::Errno::NODEV) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn wait_empty(events: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        if is_empty(events)? {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let left = crate::wire::timespec(left);
        let mut fds = [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::PRI)];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes a group and those beneath it, once they are empty.
pub(crate) fn remove_tree(path: &Path) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(path) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    // A group can be busy for a moment after its last process was reaped.
    for attempt in 0.. {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempt < 100 => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            other => return other.step(|| format!("rmdir {}", path.display())),
        }
    }
    Ok(())
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    try_write(path, text).step(|| format!("write {text} to {}", path.display()))
}

pub(crate) fn write_if_there(path: &Path, text: &str) -> Result<(), Error> {
    match try_write(path, text) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => other.step(|| format!("write {text} to {}", path.display())),
    }
}

fn try_write(path: &Path, text: &str) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes()).map(|_| ())
}

/// The number after a key in a flat-keyed file.
fn field(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}
