//! The variables a command finds: the executor's defaults, then the environment's, then its own.
//! Nothing of the worker's own environment goes in. Pure.

use std::collections::BTreeMap;
use std::ffi::OsString;

use esf_core::AttemptId;
use esf_core::environment::{Base, Environment};
use esf_worker::executor::Extra;

use crate::users::Identity;

/// Where programs are looked up unless the environment says otherwise.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// All variables of a command, ascending by name.
pub fn variables(
    attempt: AttemptId,
    environment: &Environment,
    extra: &Extra,
    identity: &Identity,
    own: &[(OsString, OsString)],
) -> Vec<(OsString, OsString)> {
    let mut all = BTreeMap::<OsString, OsString>::new();
    let mut set = |name: &str, value: String| drop(all.insert(name.into(), value.into()));
    set("PATH", PATH.to_owned());
    set("LANG", environment.locale.clone());
    set("TZ", "UTC".to_owned());
    set("HOME", home(environment, identity));
    set("USER", identity.name.clone().unwrap_or_else(|| identity.uid.to_string()));
    set("ESF_ATTEMPT", attempt.to_string());
    set("ESF_WORKSPACE", crate::plan::workspace(environment).to_string_lossy().into_owned());
    // The tree is root's, whoever runs inside, and all of it is the sandbox's own: git need not ask whose it is.
    set("GIT_CONFIG_COUNT", "1".to_owned());
    set("GIT_CONFIG_KEY_0", "safe.directory".to_owned());
    set("GIT_CONFIG_VALUE_0", "*".to_owned());
    let limits = &environment.limits;
    for (name, limit) in
        [("ESF_CPU_MILLI", limits.cpu_milli), ("ESF_MEMORY_BYTES", limits.memory), ("ESF_PIDS", limits.pids)]
    {
        limit.into_iter().for_each(|limit| set(name, limit.to_string()));
    }
    if extra.result_channel {
        set("ESF_RESULT", Extra::RESULT.to_owned());
    }
    if extra.files.is_some() {
        set("ESF_FILES", Extra::FILES.to_owned());
    }
    all.extend(environment.env.iter().map(|(name, value)| (name.into(), value.into())));
    all.extend(own.iter().cloned());
    all.into_iter().collect()
}

/// The user's own home; on the `host` base, where homes are not, a place that can be written.
fn home(environment: &Environment, identity: &Identity) -> String {
    match (&environment.base, identity.uid, &identity.home) {
        (Base::Host, 0, _) => "/root".to_owned(),
        (Base::Host, _, _) => "/tmp".to_owned(),
        (_, _, Some(home)) => home.to_string_lossy().into_owned(),
        (_, 0, None) => "/root".to_owned(),
        (_, _, None) => "/".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_ones_win_and_nothing_of_ours_leaks() {
        let environment = Environment {
            env: [("A".into(), "1".into()), ("PATH".into(), "/x".into())].into(),
            ..Environment::default()
        };
        let own = [(OsString::from("A"), OsString::from("2"))];
        let attempt = AttemptId::from_bytes([1; 16]);
        let found = variables(attempt, &environment, &Extra::default(), &Identity::root(), &own);
        let names: Vec<_> = found.iter().map(|(name, _)| name.to_str().expect("utf-8")).collect();
        let git = ["GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"];
        let before = ["A", "ESF_ATTEMPT", "ESF_WORKSPACE"];
        assert_eq!(names, [&before[..], &git, &["HOME", "LANG", "PATH", "TZ", "USER"]].concat());
        assert!(found.contains(&("A".into(), "2".into())) && found.contains(&("PATH".into(), "/x".into())));
    }
}
