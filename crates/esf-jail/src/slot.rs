//! A slot: a process in namespaces of its own that waits for a plan and becomes the jail's init.
//!
//! What depends on no plan is done ahead: namespaces, cgroups, loopback, `/proc` with its masks,
//! `/dev`, the clone of the layers directory. Order of the rest: ids, mounts, pivot, user
//! namespace, no_new_privs, Landlock, bounding set, capabilities, filter; after the filter the
//! process can undo none of it. Invariant: all namespaces but the user namespace belong to the
//! initial one, so no capability inside reaches a mount, an interface or a host name.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::Signal;
use rustix::thread::{CapabilitiesSecureBits, UnshareFlags};

use crate::cgroup::JailGroup;
use crate::error::{Report, Step};
use crate::mounts::{self, Scratch};
use crate::plan::Plan;
use crate::spawn::{OomPreference, Spawner};
use crate::{Error, confine, init, sys, wire};

/// What the zygote hands a slot.
pub(crate) struct Seed {
    /// The slot's end of the socket to the jail's owner.
    pub(crate) owner: OwnedFd,
    pub(crate) userns: UserNamespace,
    pub(crate) group: JailGroup,
    pub(crate) layers_dir: PathBuf,
    /// Soft limit on descriptors to give back to programs.
    pub(crate) soft_files: u64,
}

/// A user namespace without ids; the files accept its maps once.
pub(crate) struct UserNamespace {
    pub(crate) namespace: OwnedFd,
    pub(crate) uid_map: OwnedFd,
    pub(crate) gid_map: OwnedFd,
}

/// Lives a slot's life and ends the process.
pub(crate) fn run(seed: Seed) -> ! {
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match live(&seed) {
        Ok(()) => 0,
        Err(error) => {
            let report = serde_json::to_vec(&Err::<(), _>(Report::from(error)));
            // The owner may be gone as well; then nobody is left to tell.
            let _ = wire::send(&seed.owner, &report.unwrap_or_default(), &[]);
            1
        }
    }));
    sys::exit_now(code.unwrap_or(70))
}

fn live(seed: &Seed) -> Result<(), Error> {
    let user = &seed.userns;
    sys::close_all_but(&[
        seed.owner.as_fd(),
        user.namespace.as_fd(),
        user.uid_map.as_fd(),
        user.gid_map.as_fd(),
    ]);
    let warm = Warm::prepare(seed)?;
    let message = wire::receive(&seed.owner).step(|| "receive the plan".into())?;
    let Some(message) = message else { return Ok(()) };
    let plan: Plan = serde_json::from_slice(&message.bytes)
        .map_err(|error| Error::kernel("read the plan", io::Error::other(error)))?;
    let spawner = warm.become_jail(seed, &plan)?;
    let done = serde_json::to_vec(&Ok::<(), Report>(())).expect("a unit has a JSON form");
    wire::send(&seed.owner, &done, &[]).step(|| "report the launch".into())?;
    init::serve(&seed.owner, &warm.signals, spawner);
    Ok(())
}

/// What a slot has made ahead.
struct Warm {
    signals: OwnedFd,
    scratch: Scratch,
}

impl Warm {
    fn prepare(seed: &Seed) -> Result<Warm, Error> {
        sys::hide_command_line("init");
        rustix::thread::set_name(c"init").step(|| "name the process".into())?;
        die_with_parent()?;
        seed.group.join_v1()?;
        rustix_unshare(UnshareFlags::NEWCGROUP)?;
        // The session's keys are not the jail's; the kernel may be built without keyrings.
        let _ = sys::new_session_keyring();
        let signals = sys::reset_signals().step(|| "reset the signals".into())?;
        sys::loopback_up().step(|| "bring the loopback interface up".into())?;
        // Ports are the jail's own; no capability over the namespace is needed to bind one.
        crate::cgroup::write_if_there("/proc/sys/net/ipv4/ip_unprivileged_port_start".as_ref(), "0")?;
        rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .step(|| "make the mounts private".into())?;
        let scratch = Scratch::prepare(&seed.layers_dir)?;
        let bits = CapabilitiesSecureBits::NO_SETUID_FIXUP | CapabilitiesSecureBits::KEEP_CAPS;
        rustix::thread::set_capabilities_secure_bits(bits)
            .step(|| "keep capabilities across a change of ids".into())?;
        Ok(Warm { signals, scratch })
    }

    /// Carries out the plan; afterwards this process is the jail's init.
    fn become_jail(&self, seed: &Seed, plan: &Plan) -> Result<Spawner, Error> {
        write_map(&seed.userns.uid_map, plan)?;
        write_map(&seed.userns.gid_map, plan)?;
        rustix::system::sethostname(plan.hostname.as_bytes())
            .step(|| format!("set host name {:?}", plan.hostname))?;
        let old_root = mounts::open_path(CWD, "/", OFlags::DIRECTORY).step(|| "open the old root".into())?;
        sys::set_fs_ids(plan.id_base, plan.id_base)
            .step(|| format!("act as id {} in filesystems", plan.id_base))?;
        let root = mounts::build(&self.scratch, plan, &seed.layers_dir, &seed.userns.namespace)?;
        pivot(root.as_fd(), old_root.as_fd())?;
        drop((root, old_root));
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .step(|| "open /dev/null inside".into())?;
        for standard in 0..3 {
            sys::dup_standard(&null, standard).step(|| "replace stdio".into())?;
        }
        let victims = OomPreference::open()?;
        confine::enter_user_namespace(&seed.userns.namespace)?;
        die_with_parent()?;
        let clone3_key = confine::confine(plan)?;
        Ok(Spawner::new(plan, clone3_key, victims, seed.soft_files))
    }
}

/// Makes the process die with the zygote, whatever happens to both.
fn die_with_parent() -> Result<(), Error> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step(|| "die with the parent".into())
}

fn rustix_unshare(flags: UnshareFlags) -> Result<(), Error> {
    // SAFETY: the process has one thread, and the flags do not unshare the descriptor table.
    unsafe { rustix::thread::unshare_unsafe(flags) }.step(|| format!("unshare {flags:?}"))
}

fn write_map(map: &OwnedFd, plan: &Plan) -> Result<(), Error> {
    let line = format!("0 {} {}", plan.id_base, plan.id_count);
    rustix::io::write(map, line.as_bytes())
        .map(|_| ())
        .step(|| format!("map ids {}+{}", plan.id_base, plan.id_count))
}

/// Makes `root` the root of the mount namespace and lets go of the old one.
fn pivot(root: BorrowedFd<'_>, old: BorrowedFd<'_>) -> Result<(), Error> {
    rustix::process::fchdir(root).step(|| "enter the new root".into())?;
    rustix::process::pivot_root(c".", c".").step(|| "pivot to the new root".into())?;
    // The old root now lies on top of the new one, at the same place.
    rustix::process::fchdir(old).step(|| "enter the old root".into())?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).step(|| "detach the old root".into())?;
    rustix::process::chdir(c"/").step(|| "enter the new root".into())
}
