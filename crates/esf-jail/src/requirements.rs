//! What this machine must have, said before it is missed.

use std::fs;
use std::path::Path;

use rustix::thread::CapabilitySet;

use crate::cgroup::Controller;
use crate::plan::{Capability, CgroupLimits, Network, Overlay, Plan, Root, SeccompProfile};
use crate::{CgroupHome, Error, Zygote, ZygoteConfig, create_skeleton};

/// One thing that jails need, or can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// What it is.
    pub name: &'static str,
    /// Whether jails can be made as far as this is concerned.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// What to do if it is not ok, or to have more.
    pub remedy: String,
}

/// Looks at the machine, one row for each requirement. On cgroup v2 the controllers found are
/// enabled for the caller's group; nothing else is changed.
pub fn requirements() -> Vec<Requirement> {
    let mut rows = vec![kernel(), privilege(), user_namespaces(), overlay(), seccomp(), landlock()];
    rows.extend(cgroups());
    rows
}

/// Makes a jail with its layers in a directory and brings it to rest: the proof that the rest only
/// suggests. The program's `main` must call [`crate::run_if_zygote`]. Nothing stays behind.
pub fn rehearse(directory: &Path) -> Requirement {
    let scratch = directory.join(format!("rehearsal-{}", std::process::id()));
    let result = fs::create_dir(&scratch)
        .map_err(|error| Error::kernel(format!("mkdir {}", scratch.display()), error))
        .and_then(|()| rehearse_in(&scratch));
    // What cannot be removed is small, and named for what it is.
    let _ = fs::remove_dir_all(&scratch);
    Requirement {
        name: "a jail of its own",
        ok: result.is_ok(),
        found: match result {
            Ok(()) => format!("made and brought to rest in {}", directory.display()),
            Err(error) => error.to_string(),
        },
        remedy: "read what was found; the rows above say how to get each part".into(),
    }
}

fn rehearse_in(scratch: &Path) -> Result<(), Error> {
    create_skeleton(&scratch.join("skeleton"))?;
    for name in ["upper", "work"] {
        let path = scratch.join(name);
        fs::create_dir(&path).map_err(|e| Error::kernel(format!("mkdir {}", path.display()), e))?;
    }
    let zygote = Zygote::start(&ZygoteConfig {
        name: "jail-zygote of a rehearsal".into(),
        cgroup_home: CgroupHome::discover(&format!("jail-rehearsal-{}", std::process::id()))?,
        warm_slots: 0,
        layers_dir: scratch.into(),
    })?;
    let overlay = Overlay { lowers: vec!["skeleton".into()], upper: "upper".into(), work: "work".into() };
    let jail = zygote.launch(&Plan {
        id_base: 1_879_048_192,
        id_count: 65536,
        hostname: "rehearsal".into(),
        root: Root::Overlay(overlay),
        mounts: Vec::new(),
        cgroup: CgroupLimits { memory_bytes: Some(64 << 20), pids: Some(16), cpu_milli: Some(1000) },
        capabilities: Capability::DEFAULT.to_vec(),
        rlimits: Vec::new(),
        seccomp: SeccompProfile::Default,
        landlock: true,
        network: Network::None,
    })?;
    match jail.quiesce() {
        Ok(_) => Ok(()),
        Err(crate::QuiesceError::Other(error)) => Err(error),
        Err(busy) => Err(Error::kernel("bring it to rest", std::io::Error::other(busy))),
    }
}

fn row(name: &'static str, ok: bool, found: impl Into<String>, remedy: &str) -> Requirement {
    Requirement { name, ok, found: found.into(), remedy: remedy.into() }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_string()).unwrap_or_default()
}

fn kernel() -> Requirement {
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    row("Linux 6.1 or later", version >= (6, 1), release, "boot a newer kernel")
}

fn privilege() -> Requirement {
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::SYS_CHROOT
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::KILL
        | CapabilitySet::MKNOD
        | CapabilitySet::NET_ADMIN;
    let remedy = "run as root; inside a container, start that container privileged";
    match rustix::thread::capabilities(None) {
        Ok(sets) => {
            let missing = needed & !sets.effective;
            let root = rustix::process::geteuid().is_root();
            let found = match (root, missing.is_empty()) {
                (true, true) => "root with every capability needed".to_string(),
                (false, _) => format!("uid {}", rustix::process::geteuid().as_raw()),
                (true, false) => format!("root without capabilities {:#x}", missing.bits()),
            };
            row("root's privilege", root && missing.is_empty(), found, remedy)
        }
        Err(error) => row("root's privilege", false, error.to_string(), remedy),
    }
}

fn user_namespaces() -> Requirement {
    let most = read("/proc/sys/user/max_user_namespaces");
    let there = Path::new("/proc/self/ns/user").exists();
    let found = if there { format!("at most {most}") } else { "none".into() };
    let remedy = "sysctl user.max_user_namespaces=65536";
    row("user namespaces", there && most != "0", found, remedy)
}

fn overlay() -> Requirement {
    let known = read("/proc/filesystems").lines().any(|line| line.ends_with("\toverlay"));
    let found = if known { "overlay is known" } else { "overlay is not known" };
    row("overlayfs", known, found, "modprobe overlay")
}

fn seccomp() -> Requirement {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    let ok = ["kill_process", "errno", "allow"].iter().all(|action| actions.contains(action));
    row("seccomp filters", ok, actions, "boot a kernel with CONFIG_SECCOMP_FILTER")
}

/// Used where it is there; a jail without it keeps all its other walls.
fn landlock() -> Requirement {
    // SAFETY: with a null attribute and the version flag the call only answers a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, 1) };
    let found = match version {
        1.. => format!("ABI {version}"),
        _ => "not in this kernel; jails are made without it".into(),
    };
    row("Landlock (optional)", true, found, "boot with lsm=landlock,... for one more wall")
}

fn cgroups() -> Vec<Requirement> {
    let name = "a cgroup home";
    let home = match CgroupHome::discover("jail-doctor") {
        Ok(home) => home,
        Err(error) => return vec![row(name, false, error.to_string(), crate::home::REMEDY)],
    };
    let mut rows = vec![row(name, true, home.unified.display().to_string(), crate::home::REMEDY)];
    for controller in Controller::ALL {
        let v1 = home.v1.iter().find(|(kind, _)| *kind == controller);
        let found = match v1 {
            Some((_, path)) => format!("v1 at {}", path.display()),
            None if home.v2.contains(&controller) => "v2".into(),
            None => "no controller".into(),
        };
        let name = match controller {
            Controller::Memory => "limits on memory",
            Controller::Pids => "limits on processes",
            Controller::Cpu => "limits on processor time",
        };
        let ok = v1.is_some() || home.v2.contains(&controller);
        rows.push(row(name, ok, found, crate::home::REMEDY));
    }
    rows
}
