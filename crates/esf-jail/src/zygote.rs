//! The zygote: a small single-threaded process that makes slots ahead and outlives no owner.
//!
//! It is a copy of the owner's program started from sealed memory, so what runs as pid 1 of a jail
//! cannot be rewritten through the jail. Invariant: when the owner's socket closes, every jail of
//! this zygote is killed, its cgroups are removed, and the zygote ends; if the zygote itself is
//! killed, the kernel kills each init (parent death signal) and with it each jail.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::MountPropagationFlags;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, Uid, WaitId, WaitIdOptions, WaitOptions,
};
use rustix::thread::{CapabilitiesSecureBits, UnshareFlags};
use serde::{Deserialize, Serialize};

use crate::cgroup::JailGroup;
use crate::error::{Report, Step};
use crate::home::PATIENCE;
use crate::slot::{self, Seed, UserNamespace};
use crate::sys::{self, Fork};
use crate::{CgroupHome, Error, unmount, wire};

/// Set in the environment of a process that was started to be a zygote.
pub(crate) const MARK: &str = "JAIL_ZYGOTE";

/// First and number of the host ids that own the user namespaces of slots: each slot has its own,
/// which no process ever runs as. Above every range of a jail that fits below them.
const OWNERS: (u32, u32) = (0x7ffc_0000, 0x3_0000);

/// What the owner tells a new zygote.
#[derive(Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) home: CgroupHome,
    pub(crate) warm_slots: usize,
    pub(crate) layers_dir: PathBuf,
}

/// What the owner asks for.
#[derive(Serialize, Deserialize)]
pub(crate) enum Command {
    /// One more slot.
    Make,
    /// Unmount everything of a slot whose processes are dead; the answer goes to the descriptor.
    Unmount(String),
    /// The slot's groups are removed; let go of its mount namespace.
    Forget(String),
}

/// A slot as announced to the owner, with its socket and the pidfd of its init.
#[derive(Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub(crate) id: String,
}

/// Becomes the zygote and never returns, if this process was started as one; else does nothing.
///
/// Must be the first call of `main`, before any thread is started.
pub fn run_if_zygote() {
    if std::env::var_os(MARK).is_some_and(|mark| mark == "1") {
        // Whatever happens, this process must not go on as the program it is a copy of.
        let code = std::panic::catch_unwind(|| match Zygote::start().and_then(Zygote::serve) {
            Ok(()) => 0,
            Err(_) => 1,
        });
        sys::exit_now(code.unwrap_or(70));
    }
}

struct Zygote {
    owner: OwnedFd,
    signals: OwnedFd,
    setup: Setup,
    slots: HashMap<String, Slot>,
    /// Tells this zygote's groups from those of any other, also after a crash.
    token: u32,
    made: u64,
    soft_files: u64,
}

struct Slot {
    group: JailGroup,
    /// Not there if the slot died at once; its owner then finds its report, and nothing to unmount.
    mounts: Option<OwnedFd>,
}

impl Zygote {
    fn start() -> Result<Zygote, Error> {
        let owner =
            rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).step(|| "take the owner's socket".into())?;
        sys::close_all_but(&[owner.as_fd()]);
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .step(|| "open /dev/null".into())?;
        for standard in 0..3 {
            sys::dup_standard(&null, standard).step(|| "replace stdio".into())?;
        }
        // A terminal's Ctrl-C is the owner's business.
        rustix::process::setsid().step(|| "leave the session".into())?;
        rustix::process::umask(Mode::empty());
        rustix::process::chdir(c"/").step(|| "enter /".into())?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .step(|| "become non-dumpable".into())?;
        let signals = sys::reset_signals().step(|| "reset the signals".into())?;
        // A change of the user id takes no capability.
        rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)
            .step(|| "keep capabilities across a change of ids".into())?;
        let files = rustix::process::getrlimit(Resource::Nofile);
        // Many programs at once need many descriptors; each program gets the old limit back.
        let raised = Rlimit { current: files.maximum, maximum: files.maximum };
        rustix::process::setrlimit(Resource::Nofile, raised)
            .step(|| "raise the soft limit on descriptors".into())?;
        // SAFETY: the process has one thread, and the flags do not unshare the descriptor table.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
            .step(|| "unshare the mount namespace".into())?;
        rustix::mount::mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .step(|| "keep mounts from the host's view".into())?;
        crate::seccomp::prepare();
        let message = wire::receive(&owner).step(|| "receive the setup".into())?;
        let message = message.ok_or(Error::Lost { what: "the owner" })?;
        let setup: Setup = serde_json::from_slice(&message.bytes)
            .map_err(|error| Error::kernel("read the setup", std::io::Error::other(error)))?;
        let soft_files = files.current.unwrap_or(u64::MAX);
        let mut token = [0; 4];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .step(|| "draw a name".into())?;
        let token = u32::from_ne_bytes(token);
        Ok(Zygote { owner, signals, setup, slots: HashMap::new(), token, made: 0, soft_files })
    }

    fn serve(mut self) -> Result<(), Error> {
        for _ in 0..self.setup.warm_slots {
            self.make_and_announce();
        }
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.owner.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::kernel("poll", error)),
            }
            let (asked, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if ended {
                sys::drain_signals(self.signals.as_fd());
                while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
            }
            if asked {
                match wire::receive(&self.owner) {
                    Ok(Some(message)) => self.obey(message),
                    Ok(None) | Err(_) => break,
                }
            }
        }
        self.end_all()
    }

    fn obey(&mut self, message: wire::Message) {
        match serde_json::from_slice(&message.bytes) {
            Ok(Command::Make) => self.make_and_announce(),
            Ok(Command::Unmount(id)) => {
                let mounts = self.slots.get(&id).and_then(|slot| slot.mounts.as_ref());
                if let (Some(mounts), Some(asker)) = (mounts, message.fds.first()) {
                    unmount_in_child(mounts, asker);
                }
            }
            Ok(Command::Forget(id)) => drop(self.slots.remove(&id)),
            // The owner runs the same program; what it cannot mean is ignored.
            Err(_) => {}
        }
    }

    fn make_and_announce(&mut self) {
        let made = self.make();
        // A failed send means that the owner is gone, which the loop sees next.
        let _ = match made {
            Ok((id, socket, pidfd)) => {
                let text = serde_json::to_vec(&Ok::<_, Report>(Announcement { id }));
                let text = text.expect("an announcement has a JSON form");
                wire::send(&self.owner, &text, &[socket.as_fd(), pidfd.as_fd()])
            }
            Err(error) => {
                let text = serde_json::to_vec(&Err::<Announcement, _>(Report::from(error)));
                wire::send(&self.owner, &text.expect("a report has a JSON form"), &[])
            }
        };
    }

    /// Makes a slot; it goes on preparing itself while the zygote goes on.
    fn make(&mut self) -> Result<(String, OwnedFd, OwnedFd), Error> {
        self.setup.home.prepare()?;
        self.made += 1;
        let userns = user_namespace(self.next_owner())?;
        let id = format!("j-{:08x}-{}", self.token, self.made);
        let group = JailGroup::new(&self.setup.home, &id);
        group.create()?;
        match self.fork_slot(userns, &group) {
            Ok((socket, pidfd, mounts)) => {
                self.slots.insert(id.clone(), Slot { group, mounts });
                Ok((id, socket, pidfd))
            }
            Err(error) => {
                // The first error is the one to report.
                let _ = group.kill().and_then(|()| group.wait_empty(PATIENCE));
                let _ = group.remove();
                Err(error)
            }
        }
    }

    /// An owner for the next slot's user namespace, most likely nobody else's.
    fn next_owner(&self) -> Uid {
        let number = u64::from(self.token).wrapping_add(self.made) % u64::from(OWNERS.1);
        Uid::from_raw(OWNERS.0 + number as u32)
    }

    fn fork_slot(
        &self,
        userns: UserNamespace,
        group: &JailGroup,
    ) -> Result<(OwnedFd, OwnedFd, Option<OwnedFd>), Error> {
        let (ours, theirs) = wire::pair().step(|| "make a slot's socket".into())?;
        let unified = group.open()?;
        let flags = libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        // SAFETY: the zygote has one thread; `slot::run` never returns.
        let fork = unsafe { sys::fork_with(flags as u64, Some(unified.as_fd())) };
        match fork.step(|| "clone a slot".into())? {
            Fork::Child => slot::run(Seed {
                owner: theirs,
                userns,
                group: group.clone(),
                layers_dir: self.setup.layers_dir.clone(),
                soft_files: self.soft_files,
            }),
            Fork::Parent { pid, pidfd } => {
                let mounts = open_proc(pid, "ns/mnt", OFlags::RDONLY);
                Ok((ours, pidfd, mounts.ok()))
            }
        }
    }

    /// The owner is gone: kills and removes everything.
    fn end_all(self) -> Result<(), Error> {
        let mut first = Ok(());
        let mut keep = |result: Result<(), Error>| {
            if first.is_ok() {
                first = result;
            }
        };
        for slot in self.slots.values() {
            keep(slot.group.kill());
        }
        for (_, Slot { group, mounts }) in self.slots {
            keep(group.wait_empty(PATIENCE).and_then(|()| group.remove()));
            drop(mounts);
        }
        for path in self.setup.home.paths() {
            // Another zygote of the same owner may still live there.
            let _ = std::fs::remove_dir(path);
        }
        first
    }
}

fn open_proc(pid: Pid, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
    let path = format!("/proc/{}/{name}", pid.as_raw_nonzero());
    rustix::fs::openat(CWD, &path, flags | OFlags::CLOEXEC, Mode::empty()).step(|| format!("open {path}"))
}

/// Makes a user namespace that lives on by descriptor after the process that began it.
///
/// The kernel counts what is used inside (inotify instances, timers, queued signals, message
/// queues) on the namespace's owner as well, by the owner's limits. Were that root, one jail could
/// leave nothing to its siblings and to the host's own services.
fn user_namespace(owner: Uid) -> Result<UserNamespace, Error> {
    let act_as = |id| rustix::thread::set_thread_res_uid(Uid::ROOT, id, Uid::ROOT);
    act_as(owner).step(|| "act as the namespace's owner".into())?;
    // SAFETY: the zygote has one thread; the child only waits to be killed.
    let fork = unsafe { sys::fork_with(libc::CLONE_NEWUSER as u64, None) };
    if let Ok(Fork::Parent { .. }) | Err(_) = &fork {
        act_as(Uid::ROOT).step(|| "act as root again".into())?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .step(|| "become non-dumpable again".into())?;
    }
    match fork.step(|| "clone a user namespace".into())? {
        Fork::Child => loop {
            // SAFETY: pause takes nothing and touches nothing.
            unsafe { libc::pause() };
        },
        Fork::Parent { pid, pidfd } => {
            let open = || {
                Ok(UserNamespace {
                    namespace: open_proc(pid, "ns/user", OFlags::RDONLY)?,
                    uid_map: open_proc(pid, "uid_map", OFlags::WRONLY)?,
                    gid_map: open_proc(pid, "gid_map", OFlags::WRONLY)?,
                })
            };
            let opened = open();
            rustix::process::pidfd_send_signal(&pidfd, Signal::KILL)
                .step(|| "end the namespace's first process".into())?;
            rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)
                .step(|| "reap the namespace's first process".into())?;
            opened
        }
    }
}

fn unmount_in_child(mounts: &OwnedFd, asker: &OwnedFd) {
    // SAFETY: the zygote has one thread; `answer` ends the child.
    match unsafe { sys::fork_with(0, None) } {
        Ok(Fork::Child) => unmount::answer(mounts, asker),
        Ok(Fork::Parent { .. }) => {}
        Err(error) => {
            let report = unmount::Outcome::Failed(Error::kernel("clone a helper", error).into());
            let text = serde_json::to_vec(&report).expect("an outcome has a JSON form");
            // The asker may be gone.
            let _ = wire::send(asker, &text, &[]);
        }
    }
}
