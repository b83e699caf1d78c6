//! The executor as the worker sees it: checks an environment, starts an attempt's host, finds what a dead
//! worker left. Invariants: the worker never reads a module's code, it compiles none and runs none; a host
//! holds its attempt's lock for its whole life, so a free lock means that nobody writes into the upper.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use esf_core::environment::{Base, Environment, ExecutorKind, Network, PinnedModule};
use esf_core::{BlobId, Digest};
use esf_layerstack::{LayerStack, Workspace};
use esf_worker::executor::{Activation, Capabilities, Executor, ExecutorError, Extra, Requirement, Sandbox};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::child::{Child, Idle};
use crate::engine::{self, Artefact, Cache, Compiler};
use crate::host::NAME;
use crate::sandbox::WasiSandbox;
use crate::view::View;

/// Most bytes of all compiled artefacts of a store.
const CACHE_LIMIT: u64 = 4 << 30;
/// Most artefacts of pinned programs that are held open.
const MOST_PINNED: usize = 64;
/// The least memory that a limit may leave to guests, bytes.
const LEAST_MEMORY: u64 = 1 << 20;
/// The lock of an attempt's host, in the attempt's directory.
const LOCK: &str = "wasi.lock";
/// How long a host that was left may take to go by itself, and how long one that was killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs WebAssembly guests, each attempt's in a process of its own.
pub struct WasiExecutor {
    store: PathBuf,
    /// Opened at the first use: a store that never runs a guest has no directory of artefacts.
    cache: Mutex<Option<Arc<Cache>>>,
    /// Artefacts of pinned programs that were asked for, the latest last.
    pinned: Mutex<Vec<Pinned>>,
    /// A host that waits for its attempt: made when the first attempt began, and again after each.
    spare: Arc<Spare>,
}

/// The artefact of a program of the store's, for guests that pay fuel or not.
struct Pinned {
    module: Digest,
    fuel: bool,
    artefact: Arc<Artefact>,
}

/// A place for a host that waits.
#[derive(Default)]
struct Spare {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    host: Option<Idle>,
    /// Set when there is to be none any more.
    over: bool,
}

impl WasiExecutor {
    /// An executor for the store at `store`; nothing is started or made before the first use.
    ///
    /// # Errors
    /// `Machine` when the store cannot be found.
    pub fn new(store: &Path) -> Result<Self, ExecutorError> {
        let store = fs::canonicalize(store).map_err(|error| machine("cannot find the store", &error))?;
        Ok(Self { store, cache: Mutex::new(None), pinned: Mutex::default(), spare: Arc::default() })
    }

    /// A host for an attempt: the one that waits, if there is one and it lives.
    fn host(&self, activation: &Activation<'_>, lock: &File) -> Result<Child, ExecutorError> {
        if let Some(idle) = locked(&self.spare.waiting).host.take() {
            match idle.begin(activation, lock) {
                Err(ExecutorError::Lost { what }) => tracing::warn!(what, "starting another host"),
                begun => return begun,
            }
        }
        Idle::start(&self.store)?.begin(activation, lock)
    }

    /// Makes the next host ahead, beside whatever else is to be done.
    fn refill(&self) {
        let (spare, store) = (Arc::clone(&self.spare), self.store.clone());
        let body = move || {
            let mut waiting = locked(&spare.waiting);
            if !waiting.over && waiting.host.is_none() {
                waiting.host = Idle::start(&store).ok();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("spare host".to_owned()).spawn(body) {
            tracing::debug!(%error, "the next attempt starts its host itself");
        }
    }

    fn cache(&self) -> Result<Arc<Cache>, ExecutorError> {
        // One at a time: opening removes what an interrupted compiler left.
        let mut cache = locked(&self.cache);
        if let Some(cache) = &*cache {
            return Ok(Arc::clone(cache));
        }
        let arguments = vec!["--store".to_owned(), self.store.to_string_lossy().into_owned()];
        let compiler = Compiler { arguments, ..Compiler::default() };
        let opened = Cache::with_compiler(&self.store.join("artefacts"), CACHE_LIMIT, compiler)
            .map_err(|error| machine("cannot open the cache of compiled modules", &error))?;
        Ok(Arc::clone(cache.insert(Arc::new(opened))))
    }

    /// The artefacts of the programs that an environment pins, by name; compiled now if need be.
    fn pinned(&self, environment: &Environment) -> Result<HashMap<String, Arc<Artefact>>, ExecutorError> {
        let Some(wasi) = &environment.wasi else { return Ok(HashMap::new()) };
        let named = wasi.modules.iter().map(|module| {
            let artefact = self.artefact_of(module, wasi.fuel.is_some())?;
            Ok((module.name.clone(), artefact))
        });
        named.collect()
    }

    fn artefact_of(&self, module: &PinnedModule, fuel: bool) -> Result<Arc<Artefact>, ExecutorError> {
        let is_it = |known: &Pinned| known.module == module.digest && known.fuel == fuel;
        let mut pinned = locked(&self.pinned);
        if let Some(index) = pinned.iter().position(is_it) {
            // To the end, where it stays longest.
            pinned[index..].rotate_left(1);
            return Ok(Arc::clone(&pinned[pinned.len() - 1].artefact));
        }
        drop(pinned);
        let artefact = Arc::new(self.compile(module, fuel)?);
        let mut pinned = locked(&self.pinned);
        if pinned.len() >= MOST_PINNED {
            pinned.remove(0);
        }
        pinned.push(Pinned { module: module.digest, fuel, artefact: Arc::clone(&artefact) });
        Ok(artefact)
    }

    /// The artefact of a program of the store's, from the cache if it is there.
    fn compile(&self, module: &PinnedModule, fuel: bool) -> Result<Artefact, ExecutorError> {
        let stack =
            LayerStack::open(&self.store).map_err(|error| machine("cannot open the store", &error))?;
        let file =
            stack.artifact_file(BlobId::new(module.digest)).map_err(|error| ExecutorError::Invalid {
                what: format!("module {} is not in the store: {error}", module.name),
                expected: format!("an artifact {}, as `--module FILE` stores it", module.digest),
            })?;
        let known = blake3::Hash::from_bytes(*module.digest.as_bytes());
        self.cache()?.artefact(&file, Some(known), fuel).map_err(|error| match error {
            engine::Error::Module(refused) => ExecutorError::Invalid {
                what: format!("module {}: {refused}", module.name),
                expected: "a component of WASI 0.2, or a module of preview 1".to_owned(),
            },
            engine::Error::Io { source, .. } => of_io("cannot compile a module", &source),
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor for WasiExecutor {
    fn name(&self) -> &'static str {
        ExecutorKind::Wasi.as_str()
    }

    fn capabilities(&self) -> Capabilities {
        crate::capabilities()
    }

    fn requirements(&self) -> Vec<Requirement> {
        crate::capabilities::requirements()
    }

    fn check(&self, environment: &Environment, extra: &Extra) -> Result<(), ExecutorError> {
        check(environment, extra)?;
        // Compiled before anything is on record: what cannot be is refused.
        self.pinned(environment).map(drop)
    }

    fn prepare(&self) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn activate(&self, activation: Activation<'_>) -> Result<Box<dyn Sandbox>, ExecutorError> {
        let Activation { environment, workspace, extra, .. } = activation;
        check(environment, extra)?;
        let pinned = self.pinned(environment)?;
        let lock = lock(workspace, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| machine("cannot take the attempt's lock", &error))?;
        let child = self.host(&activation, &lock)?;
        drop(lock);
        self.refill();
        let view = View::new(environment)?;
        Ok(Box::new(WasiSandbox::new(child, view, &activation, pinned, self.cache()?)))
    }

    fn in_use(&self, workspace: &Workspace) -> Result<bool, ExecutorError> {
        in_use(workspace)
    }

    fn recover(&self) -> Result<Vec<String>, ExecutorError> {
        let left = processes(&self.store);
        let count = left.len();
        for process in left {
            process.end().map_err(|error| machine("cannot end a process of a dead worker", &error))?;
        }
        Ok(match count {
            0 => Vec::new(),
            count => vec![format!("ended {count} hosts or compilers of dead WASI attempts")],
        })
    }

    fn shut_down(&self) {
        let mut waiting = locked(&self.spare.waiting);
        waiting.over = true;
        drop(waiting.host.take());
    }
}

/// Whether some process holds an attempt's lock: its host, or what came of it.
pub(crate) fn in_use(workspace: &Workspace) -> Result<bool, ExecutorError> {
    match lock(workspace, FlockOperation::NonBlockingLockExclusive) {
        Ok(_free) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(machine("cannot try the attempt's lock", &error)),
    }
}

fn lock(workspace: &Workspace, how: FlockOperation) -> io::Result<File> {
    let path = workspace.home.join(LOCK);
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&file, how)?;
    Ok(file)
}

/// Refuses what a guest could not be given.
fn check(environment: &Environment, extra: &Extra) -> Result<(), ExecutorError> {
    let unsupported = |what: &str, expected: &str| {
        Err(ExecutorError::Unsupported { what: what.to_owned(), expected: expected.to_owned() })
    };
    let invalid =
        |what: String, expected: &str| Err(ExecutorError::Invalid { what, expected: expected.to_owned() });
    match &environment.base {
        Base::Root => {}
        Base::Host => return unsupported("base host", "base root: a guest sees nothing of this machine"),
        Base::Image(_) => return unsupported("base image", "base root"),
    }
    match &environment.network {
        Network::None | Network::Host => {}
        Network::Allow { hosts } => {
            return unsupported(&format!("network allow:{}", hosts.join(",")), "network none or host");
        }
    }
    if environment.secrets_policy != "none" {
        return unsupported(&format!("secrets policy {}", environment.secrets_policy), "secrets policy none");
    }
    if environment.user.is_some() {
        return unsupported("a user", "no user: guests have no user ids");
    }
    if !environment.binds.is_empty() {
        return unsupported("a bind", "none: a guest sees the tree and nothing of this machine");
    }
    if environment.limits.cpu_milli.is_some() {
        return unsupported("a processor limit", "fuel, or a time-out");
    }
    if extra.files.is_some() || extra.result_channel || extra.left.is_some() {
        return unsupported("an evaluator's own files or result file", "an evaluator of exit codes");
    }
    if let Some(path) = extra.hide.iter().find(|path| !is_of_tree(path)) {
        return invalid(format!("hidden path {}", path.escape_ascii()), "a path of the tree without `..`");
    }
    if environment.limits.memory.is_some_and(|bytes| bytes < LEAST_MEMORY) {
        return invalid("memory limit below 1 MiB".to_owned(), "at least 1m");
    }
    if environment.limits.pids == Some(0) {
        return invalid("a limit of 0 guests".to_owned(), "at least 1");
    }
    let Some(wasi) = &environment.wasi else {
        return invalid("an environment that pins no engine".to_owned(), &engine::identity());
    };
    if wasi.engine != engine::identity() {
        return invalid(format!("engine {}", wasi.engine), &engine::identity());
    }
    if wasi.fuel == Some(0) {
        return invalid("no fuel".to_owned(), "at least 1");
    }
    for (index, module) in wasi.modules.iter().enumerate() {
        if module.name.is_empty() || module.name.contains(['/', '\0']) {
            return invalid(format!("module name {:?}", module.name), "a name without slashes");
        }
        if wasi.modules[..index].iter().any(|other| other.name == module.name) {
            return invalid(format!("two modules named {:?}", module.name), "one for each name");
        }
    }
    View::new(environment).map(drop)
}

/// Whether a path names something in a tree, and nothing else.
fn is_of_tree(path: &[u8]) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !path.is_empty() && Path::new(std::ffi::OsStr::from_bytes(path)).components().all(plain)
}

/// A process that serves a store under one of our names.
struct Left {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Left {
    fn end(self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        if crate::wire::readable(self.pidfd.as_fd(), PATIENCE)? {
            return Ok(());
        }
        let what = format!("process {} does not end", self.pid.as_raw_nonzero());
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }
}

/// Hosts and compilers of this store. Only a holder of the worker's lock may take them for left behind.
fn processes(store: &Path) -> Vec<Left> {
    let ours = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let name = words.next().unwrap_or_default();
        let is_ours = [NAME, engine::COMPILER].iter().any(|ours| name == ours.as_bytes());
        is_ours && words.next() == Some(b"--store") && words.next() == Some(store.as_os_str().as_bytes())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| ours(*pid))
        .filter_map(|pid| {
            let found = Pid::from_raw(i32::try_from(pid).ok()?)?;
            let pidfd = pidfd_open(found, PidfdFlags::empty()).ok()?;
            // Not another process that got the number meanwhile.
            ours(pid).then_some(Left { pid: found, pidfd })
        })
        .collect()
}

pub(crate) fn machine(what: &str, error: &dyn std::fmt::Display) -> ExecutorError {
    ExecutorError::Machine { what: format!("{what}: {error}") }
}

pub(crate) fn of_io(what: &str, error: &io::Error) -> ExecutorError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ExecutorError::Full { what: format!("{what}: {error}") }
        }
        _ => machine(what, error),
    }
}

/// How long from now.
pub(crate) fn within(patience: Duration) -> Option<Instant> {
    Some(Instant::now() + patience)
}
