//! Takes power away: user namespace, capabilities, Landlock, seccomp.
//!
//! Invariant: after `confine` the process has no capability over anything that the initial user
//! namespace owns, and neither it nor a descendant can regain one.

use std::os::fd::{AsFd, OwnedFd};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    Scope,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType};

use crate::Error;
use crate::error::Step;
use crate::plan::{Capability, Network, Plan, SeccompProfile};
use crate::seccomp;

pub(crate) use crate::seccomp::Clone3Key;

impl Capability {
    pub(crate) fn bit(self) -> CapabilitySet {
        match self {
            Capability::Chown => CapabilitySet::CHOWN,
            Capability::DacOverride => CapabilitySet::DAC_OVERRIDE,
            Capability::Fowner => CapabilitySet::FOWNER,
            Capability::Fsetid => CapabilitySet::FSETID,
            Capability::Kill => CapabilitySet::KILL,
            Capability::Setgid => CapabilitySet::SETGID,
            Capability::Setuid => CapabilitySet::SETUID,
            Capability::NetBindService => CapabilitySet::NET_BIND_SERVICE,
        }
    }
}

fn bits(capabilities: &[Capability]) -> CapabilitySet {
    capabilities.iter().map(|capability| capability.bit()).collect()
}

/// Joins the jail's user namespace and becomes its uid 0.
pub(crate) fn enter_user_namespace(namespace: &OwnedFd) -> Result<(), Error> {
    let kind = Some(LinkNameSpaceType::User);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)
        .step(|| "enter the user namespace".into())?;
    let become_root = || {
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
    };
    become_root().step(|| "become uid 0 of the user namespace".into())
}

/// no_new_privs, Landlock, bounding set, capabilities, filter; in this order.
pub(crate) fn confine(plan: &Plan) -> Result<Clone3Key, Error> {
    rustix::thread::set_no_new_privs(true).step(|| "set no_new_privs".into())?;
    if plan.landlock {
        landlock().map_err(|error| Error::kernel("apply Landlock", std::io::Error::other(error)))?;
    }
    let kept = bits(&plan.capabilities);
    drop_bounding_set(kept)?;
    // Init itself changes ids for programs and serves files; programs get the bounding set.
    let own = kept | bits(&Capability::DEFAULT);
    let sets = CapabilitySets { effective: own, permitted: own, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).step(|| "drop capabilities".into())?;
    match (plan.seccomp, plan.network) {
        (SeccompProfile::Default, Network::None) => seccomp::install(),
    }
}

fn drop_bounding_set(kept: CapabilitySet) -> Result<(), Error> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number that this kernel does not know.
            Err(rustix::io::Errno::INVAL) => break,
            other => other.step(|| format!("drop capability {number} from the bounding set"))?,
        }
    }
    Ok(())
}

/// Everything beneath `/` but making devices; no abstract socket or signal beyond the jail.
///
/// A Landlock domain that handles the filesystem also refuses every mount operation.
fn landlock() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let abi = ABI::V7;
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
    let root = rustix::fs::open(
        c"/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rule(PathBeneath::new(root, AccessFs::from_all(abi) & !devices))?
        .restrict_self()?;
    Ok(())
}
