//! From options to the pinned environment of an attempt: the group's default, changed by what was
//! said. What this build cannot do is refused here, before anything is recorded.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use esf_core::environment::{Base, Bind, Environment, ExecutorKind, Network, PinnedModule, Preopen};
use esf_core::policy::OnExpiry;
use esf_core::record::Node;
use esf_core::{Class, Problem};
use esf_layerstack::StoredArtifact;
use esf_store::Store;

use crate::args::{ActivateOptions, OnExpiryArg};
use crate::context::io_problem;
use crate::output::not_supported;

fn usage(option: &str, expected: &str, found: &str) -> Problem {
    Problem::new(Class::Usage, "bad_option", format!("{option}: {found:?} is not accepted"))
        .expected(expected)
        .found(found)
}

/// The environment that `options` ask for; `modules` are the programs they name.
pub(crate) fn environment(
    default: &Environment,
    options: &ActivateOptions,
    modules: Vec<PinnedModule>,
) -> Result<Environment, Problem> {
    let mut environment = default.clone();
    match options.executor.as_deref() {
        None => {}
        Some(name) => {
            let known = ExecutorKind::parse(name);
            environment.executor = known.ok_or_else(|| usage("--executor", "oci or wasi", name))?;
        }
    }
    match environment.executor {
        ExecutorKind::Oci => for_oci(&mut environment, options)?,
        ExecutorKind::Wasi => for_wasi(&mut environment, options, modules)?,
    }
    place(&mut environment, options)?;
    limits(&mut environment, options)?;
    if let Some(wasi) = environment.wasi.as_mut().filter(|_| !options.preopen.is_empty()) {
        let workspace = environment.workspace.clone();
        wasi.preopens =
            options.preopen.iter().map(|text| preopen(text, &workspace)).collect::<Result<_, _>>()?;
    }
    Ok(environment)
}

fn for_oci(environment: &mut Environment, options: &ActivateOptions) -> Result<(), Problem> {
    let given = [
        ("--module", !options.module.is_empty()),
        ("--preopen", !options.preopen.is_empty()),
        ("--fuel", options.fuel.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        let message = format!("{option} is for the wasi executor");
        return Err(Problem::new(Class::Usage, "bad_option", message)
            .expected("--executor wasi with it")
            .found("the oci executor"));
    }
    environment.wasi = None;
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
        None => {}
        Some("none") => environment.network = Network::None,
        Some(other) if other == "host" || other.starts_with("allow:") => {
            return Err(not_supported(
                "a network",
                "leave --network out: a sandbox has its own loopback only",
            ));
        }
        Some(other) => return Err(usage("--network", "none, host or allow:HOST[:PORT],…", other)),
    }
    if options.disk.is_some() {
        return Err(not_supported("a disk quota of the oci executor", "leave --disk out"));
    }
    Ok(())
}

fn for_wasi(
    environment: &mut Environment,
    options: &ActivateOptions,
    modules: Vec<PinnedModule>,
) -> Result<(), Problem> {
    let refuse =
        |option: &str, remedy: &str| Err(not_supported(&format!("{option} of the wasi executor"), remedy));
    match options.base.as_deref() {
        // Nothing of this machine is shown, so the default of a group for another executor means nothing.
        None | Some("root") => environment.base = Base::Root,
        Some(other) if other == "host" || other.starts_with("image:") => {
            return refuse(
                &format!("base {other}"),
                "leave --base out: a guest sees the tree and nothing else",
            );
        }
        Some(other) => return Err(usage("--base", "root", other)),
    }
    match options.network.as_deref() {
        None => {}
        Some("none") => environment.network = Network::None,
        Some("host") => environment.network = Network::Host,
        Some(other) if other.starts_with("allow:") => {
            return refuse("a list of allowed hosts", "say --network none or host");
        }
        Some(other) => return Err(usage("--network", "none or host", other)),
    }
    let given = [
        ("--user", options.user.is_some(), "leave it out: guests have no user ids"),
        ("--cpus", options.cpus.is_some(), "bound the work with --fuel, or the time with --timeout"),
        ("--bind-ro", !options.bind_ro.is_empty(), "import what guests need into the tree"),
    ];
    if let Some((option, _, remedy)) = given.iter().find(|(_, given, _)| *given) {
        return refuse(option, remedy);
    }
    let wasi = environment.wasi.get_or_insert_default();
    if wasi.engine.is_empty() {
        wasi.engine = esf_wasi::engine_identity();
    }
    wasi.modules.extend(modules);
    if options.fuel.is_some() {
        wasi.fuel = options.fuel;
    }
    environment.limits.disk = options.disk.map_or(environment.limits.disk, |disk| Some(disk.0));
    Ok(())
}

/// A program of `--module`, kept by the store under its digest. Held until a record names it, it keeps
/// collections out.
pub(crate) struct Module {
    name: String,
    stored: StoredArtifact,
}

impl Module {
    pub(crate) fn pinned(&self) -> PinnedModule {
        PinnedModule { name: self.name.clone(), digest: *self.stored.blob().digest() }
    }
}

/// Stores the programs that `options` name. Doing it again changes nothing.
pub(crate) fn modules(store: &Store, node: &Node, options: &ActivateOptions) -> Result<Vec<Module>, Problem> {
    options.module.iter().map(|text| module(store, node, text)).collect()
}

fn module(store: &Store, node: &Node, text: &str) -> Result<Module, Problem> {
    let (path, mut file) = match text.strip_prefix("root:") {
        Some(path) => {
            let root = node.root().or_else(|| node.base_root());
            let root = root.ok_or_else(|| usage("--module", "root:PATH for a node that has a root", text))?;
            let path = path.trim_start_matches('/');
            let file = store.stack().open_file(&root, path.as_bytes()).map_err(|error| error.problem())?;
            (Path::new(path), file)
        }
        None => {
            let path = Path::new(text);
            // Looking at a fifo must not wait for whoever might write to it.
            let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
            let file = File::options().read(true).custom_flags(nonblocking).open(path);
            (path, file.map_err(|error| io_problem("open", path, &error))?)
        }
    };
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| usage("--module", "a file with a name of UTF-8 text", text))?.to_owned();
    if !file.metadata().map_err(|error| io_problem("read", path, &error))?.is_file() {
        return Err(usage("--module", "a regular file", text));
    }
    let stored = store.stack().store_artifact(&mut file).map_err(|error| error.problem())?;
    Ok(Module { name, stored })
}

/// `PATH[:AT][:ro|rw]`; without AT it is where it would be if all of the tree were given.
fn preopen(text: &str, workspace: &str) -> Result<Preopen, Problem> {
    let bad = || {
        usage("--preopen", "PATH[:AT][:ro|rw], PATH in the tree, AT absolute, as the guest calls it", text)
    };
    let (rest, write) = match text.rsplit_once(':') {
        Some((rest, "ro")) => (rest, false),
        Some((rest, "rw")) => (rest, true),
        _ => (text, true),
    };
    let (path, at) = rest.split_once(':').map_or((rest, None), |(path, at)| (path, Some(at)));
    let path = path.trim_start_matches("./").trim_matches('/');
    let path = if path == "." { "" } else { path };
    let at = match at {
        // What looks like a mistyped mode must not become a name, and be writable.
        Some(at) if !at.starts_with('/') || at.contains(':') => return Err(bad()),
        Some(at) => at.to_owned(),
        None if path.is_empty() => workspace.to_owned(),
        None => format!("{}/{path}", workspace.trim_end_matches('/')),
    };
    Ok(Preopen { path: path.to_owned(), at, write })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, String, bool)> {
        preopen(text, "/workspace").ok().map(|found| (found.path, found.at, found.write))
    }

    #[test]
    fn preopens_are_read() {
        let is = |text: &str, path: &str, at: &str, write: bool| {
            assert_eq!(parsed(text), Some((path.to_owned(), at.to_owned(), write)), "{text}");
        };
        is("src", "src", "/workspace/src", true);
        is("src:ro", "src", "/workspace/src", false);
        is("./a/b/:/data", "a/b", "/data", true);
        is("a:/b:rw", "a", "/b", true);
        is(".", "", "/workspace", true);
        is("/", "", "/workspace", true);
        is(":/all:ro", "", "/all", false);
        for text in ["a::ro", "a:/b:c", "a:b:c", "a:rx", "a:b"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    fn asked(options: ActivateOptions) -> Result<Environment, Problem> {
        environment(&Environment::default(), &options, Vec::new())
    }

    #[test]
    fn wasi_shows_the_tree_and_nothing_of_this_machine() {
        let wasi = || ActivateOptions { executor: Some("wasi".to_owned()), ..ActivateOptions::default() };
        let found = asked(wasi()).expect("an environment");
        assert_eq!((found.base, found.workspace.as_str()), (Base::Root, "/workspace"));
        assert_eq!(found.wasi.expect("pinned").engine, esf_wasi::engine_identity());
        let text = |text: &str| Some(text.to_owned());
        let refused = [
            ActivateOptions { base: text("host"), ..wasi() },
            ActivateOptions { base: text("image:x"), ..wasi() },
            ActivateOptions { network: text("allow:x"), ..wasi() },
            ActivateOptions { user: text("0"), ..wasi() },
            ActivateOptions { cpus: Some(1.0), ..wasi() },
            ActivateOptions { bind_ro: vec!["/usr".to_owned()], ..wasi() },
        ];
        for options in refused {
            assert_eq!(asked(options).expect_err("refused").code, "not_supported");
        }
    }

    #[test]
    fn what_is_for_wasi_alone_is_refused_without_it() {
        let plain = ActivateOptions::default;
        let refused = [
            ActivateOptions { module: vec!["x.wasm".to_owned()], ..plain() },
            ActivateOptions { preopen: vec!["x".to_owned()], ..plain() },
            ActivateOptions { fuel: Some(1), ..plain() },
        ];
        for options in refused {
            assert_eq!(asked(options).expect_err("refused").code, "bad_option");
        }
        assert_eq!(asked(plain()).expect("an environment"), Environment::default());
    }

    #[test]
    fn a_group_that_says_wasi_means_it() {
        let default =
            Environment { executor: ExecutorKind::Wasi, base: Base::Root, ..Environment::default() };
        let found = environment(&default, &ActivateOptions::default(), Vec::new()).expect("an environment");
        assert!(found.executor == ExecutorKind::Wasi && found.wasi.is_some());
        let oci = ActivateOptions { executor: Some("oci".to_owned()), ..ActivateOptions::default() };
        let other = environment(&found, &oci, Vec::new()).expect("an environment");
        assert!(other.executor == ExecutorKind::Oci && other.wasi.is_none());
    }
}
