//! The owner's handle on a zygote.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::{Report, Step};
use crate::home::ANSWER;
use crate::zygote::{self, Announcement, MARK, Setup};
use crate::{CgroupHome, Error, Jail, Plan, wire};

/// How a zygote is started.
#[derive(Clone, Debug)]
pub struct ZygoteConfig {
    /// Shown by `ps` as the zygote's command line, whole.
    pub name: String,
    /// Where the cgroups of its jails go.
    pub cgroup_home: CgroupHome,
    /// Slots kept ready; 0 makes each when it is asked for.
    pub warm_slots: usize,
    /// Directory that holds every layer, upper and work directory of the plans.
    pub layers_dir: PathBuf,
}

/// A running zygote. It and its jails end when the last handle and jail are dropped, or the
/// process that holds them dies.
#[derive(Debug, Clone)]
pub struct Zygote {
    shared: Arc<Shared>,
}

/// What jails keep of their zygote.
#[derive(Debug)]
pub(crate) struct Shared {
    control: Option<OwnedFd>,
    /// Held while an announcement is taken.
    taking: Mutex<()>,
    /// Slots asked for and not taken yet.
    asked: AtomicUsize,
    child: Mutex<Child>,
    pub(crate) home: CgroupHome,
    warm_slots: usize,
    pub(crate) layers_dir: PathBuf,
}

/// A slot that was announced and not used yet.
pub(crate) struct ReadySlot {
    pub(crate) id: String,
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: OwnedFd,
}

impl Zygote {
    /// Starts a sealed copy of this program as a zygote. Its `main` must call
    /// [`crate::run_if_zygote`] first.
    ///
    /// # Errors
    /// Whatever the kernel refuses; what a slot needs and lacks is reported by the launch.
    pub fn start(config: &ZygoteConfig) -> Result<Zygote, Error> {
        let layers_dir = std::fs::canonicalize(&config.layers_dir)
            .step(|| format!("find the layers directory {}", config.layers_dir.display()))?;
        let program = sealed_copy()?;
        let (ours, theirs) = wire::pair().step(|| "make the zygote's socket".into())?;
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0(&config.name)
            .env_clear()
            .env(MARK, "1")
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .step(|| "start the zygote".into())?;
        let shared = Shared {
            control: Some(ours),
            taking: Mutex::new(()),
            asked: AtomicUsize::new(config.warm_slots),
            child: Mutex::new(child),
            home: config.cgroup_home.clone(),
            warm_slots: config.warm_slots,
            layers_dir: layers_dir.clone(),
        };
        let setup = Setup { home: config.cgroup_home.clone(), warm_slots: config.warm_slots, layers_dir };
        let text = serde_json::to_vec(&setup)
            .map_err(|error| Error::kernel("write the setup", std::io::Error::other(error)))?;
        shared.send(&text, &[])?;
        Ok(Zygote { shared: Arc::new(shared) })
    }

    /// Launches a plan in a warm slot, or in one made now.
    ///
    /// # Errors
    /// [`Error::Plan`] and [`Error::Image`] refuse the plan or what its layers hold;
    /// [`Error::Unsupported`] a limit; [`Error::Lost`] says that the zygote died.
    pub fn launch(&self, plan: &Plan) -> Result<Jail, Error> {
        let launched = Jail::launch(&self.shared, plan);
        // Only now, so that making the next slot takes no time from this launch. A zygote that is
        // gone is found so by the next launch.
        let _ = self.shared.refill();
        launched
    }

    /// The zygote's process id.
    pub fn pid(&self) -> u32 {
        self.shared.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }
}

impl Shared {
    fn control(&self) -> &OwnedFd {
        self.control.as_ref().expect("the socket is closed by drop alone")
    }

    fn send(&self, text: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Error> {
        wire::send(self.control(), text, fds).map_err(|_| Error::Lost { what: "the zygote" })
    }

    pub(crate) fn command(
        &self,
        command: &zygote::Command,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let text = serde_json::to_vec(command).expect("a command has a JSON form");
        self.send(&text, fds)
    }

    /// Takes a slot, after asking for one if none is ready or on its way.
    pub(crate) fn take_slot(&self) -> Result<ReadySlot, Error> {
        let _turn = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        self.ask_up_to(1)?;
        let lost = || Error::Lost { what: "the zygote" };
        let message = wire::receive_within(self.control(), ANSWER).map_err(|_| lost())?.ok_or_else(lost)?;
        self.asked.fetch_sub(1, Ordering::SeqCst);
        let announced: Result<Announcement, Report> =
            serde_json::from_slice(&message.bytes).map_err(|_| lost())?;
        let Announcement { id } = announced?;
        let [socket, pidfd]: [OwnedFd; 2] = message.fds.try_into().map_err(|_| lost())?;
        Ok(ReadySlot { id, socket, pidfd })
    }

    fn refill(&self) -> Result<(), Error> {
        self.ask_up_to(self.warm_slots)
    }

    /// Asks for slots until so many are ready or on their way.
    fn ask_up_to(&self, wanted: usize) -> Result<(), Error> {
        let more = |asked: usize| (asked < wanted).then_some(asked + 1);
        while self.asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
            self.command(&zygote::Command::Make, &[])?;
        }
        Ok(())
    }

    /// Has a dead jail's mounts undone, plainly.
    pub(crate) fn unmount(&self, id: &str) -> Result<crate::unmount::Outcome, Error> {
        let lost = || Error::Lost { what: "the zygote" };
        let (ours, theirs) = wire::pair().step(|| "make a socket".into())?;
        self.command(&zygote::Command::Unmount(id.into()), &[theirs.as_fd()])?;
        drop(theirs);
        let message = wire::receive_within(&ours, ANSWER).map_err(|_| lost())?.ok_or_else(lost)?;
        serde_json::from_slice(&message.bytes).map_err(|_| lost())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.control = None;
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2000 {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // Stuck; its jails die with it. There is nobody left to tell of a failure.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Copies this program into memory that nobody can write any more.
fn sealed_copy() -> Result<OwnedFd, Error> {
    let mut program = std::fs::File::open("/proc/self/exe").step(|| "open this program".into())?;
    let name = c"jail-init";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 know no EXEC and need none.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    };
    let memory = memory.step(|| "make memory for a copy of this program".into())?;
    let mut file = std::fs::File::from(memory);
    std::io::copy(&mut program, &mut file).step(|| "copy this program".into())?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals).step(|| "seal the copy".into())?;
    Ok(file.into())
}
