//! From options to the pinned environment of an attempt: the group's default, changed by what was
//! said. What this build cannot do is refused here, before anything is recorded.

use esf_core::environment::{Base, Bind, Environment, ExecutorKind, Network};
use esf_core::policy::OnExpiry;
use esf_core::{Class, Problem};

use crate::args::{ActivateOptions, OnExpiryArg};
use crate::output::not_supported;

fn usage(option: &str, expected: &str, found: &str) -> Problem {
    Problem::new(Class::Usage, "bad_option", format!("{option}: {found:?} is not accepted"))
        .expected(expected)
        .found(found)
}

/// The environment that `options` ask for.
pub(super) fn environment(default: &Environment, options: &ActivateOptions) -> Result<Environment, Problem> {
    let mut environment = default.clone();
    match options.executor.as_deref() {
        None | Some("oci") => environment.executor = ExecutorKind::Oci,
        Some("wasi") => return Err(not_supported("the wasi executor", "leave --executor out, or say oci")),
        Some(other) => return Err(usage("--executor", "oci or wasi", other)),
    }
    match options.base.as_deref() {
        None => {}
        Some("host") => environment.base = Base::Host,
        Some("root") => environment.base = Base::Root,
        Some(image) if image.starts_with("image:") => {
            return Err(not_supported(
                "an image base",
                "use --base host, or --base root with the image's tree as the root",
            ));
        }
        Some(other) => return Err(usage("--base", "host, root or image:ROOT", other)),
    }
    match options.network.as_deref() {
        None | Some("none") => environment.network = Network::None,
        Some(other) if other == "host" || other.starts_with("allow:") => {
            return Err(not_supported(
                "a network",
                "leave --network out: a sandbox has its own loopback only",
            ));
        }
        Some(other) => return Err(usage("--network", "none, host or allow:HOST[:PORT],…", other)),
    }
    if options.disk.is_some() {
        return Err(not_supported("a disk quota", "leave --disk out"));
    }
    place(&mut environment, options)?;
    limits(&mut environment, options)?;
    Ok(environment)
}

fn place(environment: &mut Environment, options: &ActivateOptions) -> Result<(), Problem> {
    if let Some(workspace) = &options.workspace {
        environment.workspace = utf8("--workspace", workspace.as_os_str())?;
    }
    if let Some(workdir) = &options.workdir {
        environment.cwd = Some(utf8("--workdir", workdir.as_os_str())?);
    }
    if options.user.is_some() {
        environment.user.clone_from(&options.user);
    }
    environment.env.extend(options.env.iter().cloned());
    for bind in &options.bind_ro {
        let (source, at) = bind.split_once(':').unwrap_or((bind, bind));
        if !source.starts_with('/') || !at.starts_with('/') {
            return Err(usage("--bind-ro", "PATH or PATH:AT, both absolute", bind));
        }
        environment.binds.push(Bind { source: source.to_owned(), at: at.to_owned() });
    }
    Ok(())
}

fn limits(environment: &mut Environment, options: &ActivateOptions) -> Result<(), Problem> {
    let limits = &mut environment.limits;
    if let Some(cpus) = options.cpus {
        if !(cpus.is_finite() && (0.01..=4096.0).contains(&cpus)) {
            return Err(usage("--cpus", "0.01 to 4096", &cpus.to_string()));
        }
        limits.cpu_milli = Some((cpus * 1000.0).round() as u64);
    }
    if let Some(memory) = options.memory {
        limits.memory = Some(memory.0);
    }
    if let Some(pids) = options.pids {
        limits.pids = Some(pids);
    }
    Ok(())
}

fn utf8(option: &str, text: &std::ffi::OsStr) -> Result<String, Problem> {
    let lossy = || text.to_string_lossy().into_owned();
    text.to_str().map(str::to_owned).ok_or_else(|| usage(option, "a path of UTF-8 text", &lossy()))
}

/// What happens at the end of the lifetime, when it was said.
pub(super) fn on_expiry(options: &ActivateOptions) -> Option<OnExpiry> {
    options.on_expiry.map(|on_expiry| match on_expiry {
        OnExpiryArg::Seal => OnExpiry::Seal,
        OnExpiryArg::Discard => OnExpiry::Discard,
    })
}
