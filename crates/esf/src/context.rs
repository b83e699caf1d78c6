//! From parsed options to ready-to-use handles: the store's place, who asks, the request's key, the
//! clocks. The only part of the program that reads the environment, the clock and random numbers
//! for the libraries, which take them as arguments.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use esf_core::ops::{BootClock, Meta};
use esf_core::time::BootMillis;
use esf_core::{Class, Problem, Timestamp};
use esf_store::Store;
use esf_worker::{Client, RequestMeta};

use crate::args::{Format, Global};
use crate::output;

/// What every command is given.
#[derive(Clone)]
pub(crate) struct Context {
    dir: PathBuf,
    is_default: bool,
    actor: Option<String>,
    key: String,
    trace_id: String,
    pub(crate) key_was_given: bool,
    pub(crate) format: Format,
    pub(crate) quiet: bool,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Result<Self, Problem> {
        if let Some(url) = std::env::var_os("ESF_API_URL") {
            return Err(output::not_supported(
                "a server's client",
                "unset ESF_API_URL to work on a local store",
            )
            .found(format!("ESF_API_URL={}", url.to_string_lossy())));
        }
        let default = default_store();
        let dir = match (&global.store, default) {
            (Some(dir), _) => absolute(dir)?,
            (None, Some(dir)) => dir,
            (None, None) => {
                return Err(Problem::new(Class::Usage, "no_store", "cannot tell where the store is")
                    .expected("--store DIR, or ESF_STORE, XDG_STATE_HOME or HOME in the environment"));
            }
        };
        Ok(Self {
            is_default: global.store.is_none(),
            dir,
            actor: global.actor.clone(),
            key_was_given: global.idempotency_key.is_some(),
            key: match &global.idempotency_key {
                Some(key) => key.clone(),
                None => draw()?,
            },
            trace_id: draw()?,
            format: global.output,
            quiet: global.quiet,
        })
    }

    /// The store's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The store as a user has to name it; nothing when it is the default one.
    pub(crate) fn store_option(&self) -> Option<&Path> {
        (!self.is_default).then_some(self.dir.as_path())
    }

    /// The actor that was named on the command line.
    pub(crate) fn actor_option(&self) -> Option<&str> {
        self.actor.as_deref()
    }

    /// Who asks: the named actor, else the user's id on this machine.
    pub(crate) fn actor(&self) -> String {
        let user = || format!("uid:{}", rustix::process::getuid().as_raw());
        self.actor.clone().unwrap_or_else(user)
    }

    /// This program's own file.
    pub(crate) fn program(&self) -> Result<PathBuf, Problem> {
        std::env::current_exe().map_err(|error| io_problem("find", Path::new("this program"), &error))
    }

    pub(crate) fn store_exists(&self) -> bool {
        esf_layerstack::LayerStack::exists(&self.dir)
    }

    /// Opens the store, which must exist.
    pub(crate) fn open(&self) -> Result<Store, Problem> {
        if !self.store_exists() {
            return Err(Problem::new(Class::NotFound, "no_store", format!("no store at {}", self.dir.display()))
                .remedy("make one with `esf group create NAME --from DIR` or `esf quickstart`, or name another with --store"));
        }
        let store = Store::open(&self.dir).map_err(|error| error.problem())?;
        self.settle(&store)?;
        Ok(store)
    }

    /// Settles what a crash left behind, when no worker lives that would do it.
    fn settle(&self, store: &Store) -> Result<(), Problem> {
        let report = store.recover_if_idle(&self.meta("recover")?).map_err(|error| error.problem())?;
        if let Some(report) = report.filter(|report| !report.is_empty()) {
            tracing::info!(?report, "settled what a crash left behind");
        }
        Ok(())
    }

    /// Opens the store, or makes it.
    pub(crate) fn open_or_create(&self) -> Result<Store, Problem> {
        let store = Store::open_or_create(&self.dir).map_err(|error| error.problem())?;
        self.settle(&store)?;
        Ok(store)
    }

    /// Connects to the store's worker, starting it if there is none.
    pub(crate) fn worker(&self) -> Result<Client, Problem> {
        Client::connect_or_start(&self.dir, &self.program()?)
    }

    /// The idempotency key of one part of this request.
    pub(crate) fn key(&self, part: &str) -> String {
        if part.is_empty() { self.key.clone() } else { format!("{}/{part}", self.key) }
    }

    /// The same for work that has a key of its own, whichever request does it.
    pub(crate) fn keyed(&self, key: String) -> Self {
        Self { key, ..self.clone() }
    }

    /// The same for a controller that acts for whoever asked.
    pub(crate) fn acting(&self, role: &str) -> Self {
        Self { actor: Some(format!("{}/{role}", self.actor())), ..self.clone() }
    }

    /// A fresh stamp for one part of this request.
    pub(crate) fn meta(&self, part: &str) -> Result<Meta, Problem> {
        Ok(Meta {
            actor: self.actor(),
            key: self.key(part),
            now: now(),
            boot: boot_clock()?,
            trace_id: self.trace_id.clone(),
        })
    }

    /// The same for the worker, which stamps time itself.
    pub(crate) fn request_meta(&self, part: &str) -> RequestMeta {
        RequestMeta { actor: self.actor(), key: self.key(part), trace_id: self.trace_id.clone() }
    }

    pub(crate) fn trace_id(&self) -> &str {
        &self.trace_id
    }
}

fn default_store() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/esf".into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.filter(|path| path.is_absolute()).or_else(home)?.join("esf"))
}

fn absolute(path: &Path) -> Result<PathBuf, Problem> {
    std::path::absolute(path).map_err(|error| io_problem("resolve", path, &error))
}

/// Wall-clock time.
#[expect(clippy::disallowed_methods, reason = "the edge reads the wall clock")]
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis());
    Timestamp(i64::try_from(since).unwrap_or(i64::MAX))
}

/// The state plane's clock.
pub(crate) fn boot_clock() -> Result<BootClock, Problem> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let boot_id = std::fs::read_to_string(path).map_err(|error| io_problem("read", path, &error))?;
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Ok(BootClock {
        boot_id: boot_id.trim().to_owned(),
        millis: BootMillis(time.tv_sec * 1000 + time.tv_nsec / 1_000_000),
    })
}

fn draw() -> Result<String, Problem> {
    let mut bytes = [0_u8; 16];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(16) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        other => Err(Problem::new(Class::Failure, "random", format!("no random bytes: {other:?}"))),
    }
}

/// An I/O error of this program's own file work.
pub(crate) fn io_problem(what: &str, path: &Path, error: &std::io::Error) -> Problem {
    let message = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::StorageFull => Problem::new(Class::Failure, "storage_full", message)
            .remedy("free some space and repeat the command")
            .retryable(),
        std::io::ErrorKind::NotFound => Problem::new(Class::NotFound, "not_found", message),
        _ => Problem::new(Class::Failure, "io", message),
    }
}
