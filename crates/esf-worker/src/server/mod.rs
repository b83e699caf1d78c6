//! The resident worker: owner of a store's live sandboxes, reached by a unix socket.
//! Invariants: one worker for a store, by its lock; never over a bound of its configuration; one thread
//! for each connection and each running command, so nothing a sandbox or a client does stops another.
//! Policies: a foreground command whose client went away goes on to its end or time-out; a queued
//! attempt whose client went away is cancelled; a worker with nothing to do ends.

mod activate;
mod admit;
mod connection;
mod ending;
mod exec;
mod files;
mod gate;
mod handover;
mod house;
mod keeper;
mod leftover;
mod live;
mod queue;
mod relay;
mod running;
mod salvage;
mod top;

use std::collections::HashMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esf_control::scheduler::{self, Group, Pace, Reason, Shed, Waiting};
use esf_core::environment::ExecutorKind;
use esf_core::policy::Budgets;
use esf_core::{AttemptId, Class, GroupId, Problem, WorkerId};
use esf_graph::Graph;
use esf_layerstack::LayerStack;
use esf_store::{Store, WorkerLock};
use rustix::event::{PollFd, PollFlags};

use crate::executor::Executor;
use crate::logs::failure;
use crate::server::gate::Gate;
use crate::server::house::House;
use crate::server::leftover::Leftovers;
use crate::server::live::Live;
use crate::server::queue::Queue;
use crate::server::running::{Bell, locked};
use crate::server::top::Failures;
use crate::wire::wait;
use crate::{clock, place};

/// Stack of a connection's thread, on which seals run too; only what is touched costs memory, and there may be a
/// thousand that wait for their turn.
const STACK: usize = 2 << 20;

/// How a worker behaves. What it may use is bounded here; nothing ever goes over a bound, what would waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Most live attempts at one time; the rest wait as `queued`.
    pub max_live: u64,
    /// Thousandths of processors that live attempts may be promised; four times the machine's when absent.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory that live attempts may be promised; nine tenths of the machine's when absent.
    pub memory: Option<u64>,
    /// Bytes of the store's file system that must be free for anything new to be admitted; a twentieth of
    /// it, at most a gibibyte, when absent.
    pub min_free: Option<u64>,
    /// Most commands that run at one time; the rest wait.
    pub max_execs: u64,
    /// Most attempts started within a second.
    pub creates_per_second: u64,
    /// Attempts by which it may grow within five seconds; a tenth of what lives, when that is more.
    pub growth: u64,
    /// Most attempts that wait; beyond, the youngest groups' are refused.
    pub max_waiting: u64,
    /// How long one that does not fit is passed by; then room is kept free for it.
    pub patience: Duration,
    /// How long it stays with nothing to do.
    pub idle_exit: Duration,
    /// Milliseconds of a lease; it is renewed at a third of that.
    pub lease_ms: u64,
    /// How long a queued attempt that an earlier worker left may stay without anybody waiting for it.
    pub orphan_ms: u64,
}

impl Default for WorkerConfig {
    /// 64 live attempts, what the machine has, 1024 commands, 200 creates per second, 256 of growth, 10 000
    /// that wait, patience of 30 seconds; a minute of idleness, leases of 30 seconds, orphans for 20.
    fn default() -> Self {
        Self {
            max_live: 64,
            cpu_milli: None,
            memory: None,
            min_free: None,
            max_execs: 1024,
            creates_per_second: 200,
            growth: 256,
            max_waiting: 10_000,
            patience: Duration::from_secs(30),
            idle_exit: Duration::from_secs(60),
            lease_ms: 30_000,
            orphan_ms: 20_000,
        }
    }
}

/// An attempt that was admitted and is being started by one of those who waited for it.
struct Starting {
    waiting: Waiting,
    claimed: bool,
    bells: Vec<Arc<Bell>>,
}

/// An attempt that will not be started; those who waited for it are still to be told.
struct Refused {
    why: Shed,
    bells: Vec<Arc<Bell>>,
}

/// What is known of a group that had an attempt here.
struct Known {
    group: Group,
    budgets: Budgets,
    /// Why its attempts wait, at the last look.
    reason: Option<Reason>,
}

/// What all threads share; held for instants only.
struct State {
    live: HashMap<AttemptId, Arc<Live>>,
    starting: HashMap<AttemptId, Starting>,
    /// What the live ones and the starting ones take; also one whose start was given up and is still being
    /// taken down.
    taken: HashMap<AttemptId, scheduler::Live>,
    queue: Queue,
    refused: HashMap<AttemptId, Refused>,
    groups: HashMap<GroupId, Known>,
    pace: Pace,
    /// Numbers the starts.
    starts: u64,
    /// When to look again though nothing ended.
    again_at: Option<Instant>,
    connections: u64,
    /// Set while the worker must not take anything new.
    stopping: bool,
    busy_until: Instant,
}

impl State {
    fn new() -> Self {
        Self {
            live: HashMap::new(),
            starting: HashMap::new(),
            taken: HashMap::new(),
            queue: Queue::default(),
            refused: HashMap::new(),
            groups: HashMap::new(),
            pace: Pace::default(),
            starts: 0,
            again_at: None,
            connections: 0,
            stopping: false,
            busy_until: Instant::now(),
        }
    }

    /// Whether an attempt waits, is being started or is live.
    fn knows(&self, id: AttemptId) -> bool {
        self.live.contains_key(&id) || self.starting.contains_key(&id) || self.queue.contains(id)
    }

    fn is_idle(&self) -> bool {
        self.live.is_empty() && self.starting.is_empty() && self.queue.is_empty() && self.connections == 0
    }
}

/// A worker at work.
pub(crate) struct Worker {
    store: Store,
    directory: PathBuf,
    id: WorkerId,
    executors: Vec<Arc<dyn Executor>>,
    config: WorkerConfig,
    house: House,
    /// The bound on commands.
    gate: Arc<Gate>,
    failures: Failures,
    state: Mutex<State>,
    /// Rung when the keeper should look again.
    keeper: Bell,
    leftovers: Leftovers,
    started: Instant,
    /// Attempts that were queued before anybody could ask this worker for one.
    orphans: Vec<AttemptId>,
    _lock: WorkerLock,
}

impl Worker {
    fn graph(&self) -> &Graph {
        self.store.graph()
    }

    fn stack(&self) -> &LayerStack {
        self.store.stack()
    }

    fn live(&self, attempt: AttemptId) -> Option<Arc<Live>> {
        locked(&self.state).live.get(&attempt).cloned()
    }

    /// The live attempt, or what became of it as a problem.
    fn live_or_problem(&self, attempt: AttemptId) -> Result<Arc<Live>, Problem> {
        if let Some(live) = self.live(attempt) {
            return Ok(live);
        }
        let record = self.graph().attempt(attempt).map_err(|error| error.problem())?;
        let status = record.status.as_str();
        let mut problem = Problem::new(Class::Conflict, "not_active", format!("{attempt} is {status}"))
            .expected("an active attempt")
            .found(status)
            .remedy("`esf activate` its node, or `esf retry` it when it failed");
        if let Some(failure) = record.failure {
            problem = problem.context(serde_json::json!({ "failure": failure }));
        }
        Err(problem)
    }

    /// Takes an attempt off the table after its end and lets the next one in.
    fn forget(&self, attempt: AttemptId) {
        let mut state = locked(&self.state);
        state.live.remove(&attempt);
        state.taken.remove(&attempt);
        state.busy_until = Instant::now();
        self.admit(&mut state);
        drop(state);
        self.keeper.ring();
    }

    fn executor(&self, name: &str) -> Result<&Arc<dyn Executor>, Problem> {
        self.executors.iter().find(|executor| executor.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.executors.iter().map(|executor| executor.name()).collect();
            Problem::new(Class::Refused, "not_supported", format!("this build has no executor {name}"))
                .expected(names.join(", "))
                .found(name)
        })
    }
}

/// Runs the worker of the store at `store_dir` until it has been idle for as long as `config` says, or
/// is told to stop. Settles first what a dead worker left. `ready` is called when it can be reached.
/// Returns false, at once, when another worker lives already.
///
/// # Errors
/// When the store cannot be opened or recovered, or the socket cannot be made.
pub fn serve(
    store_dir: &Path,
    executors: Vec<Arc<dyn Executor>>,
    config: WorkerConfig,
    ready: impl FnOnce(&Path),
) -> Result<bool, Problem> {
    let directory = place::canonical(store_dir)?;
    let Some(lock) = crate::lock::acquire(&directory)? else { return Ok(false) };
    use_all_descriptors();
    let store = Store::open(&directory).map_err(|error| error.problem())?;
    for line in crate::recover::recover_with(&store, &executors, &lock)?.lines() {
        tracing::info!("recovered: {line}");
    }
    for executor in &executors {
        if let Err(error) = executor.prepare() {
            // Whoever activates is told; everything else works.
            tracing::warn!(executor = executor.name(), %error, "an executor is not ready");
        }
    }
    let orphans = store.graph().queued_ids().map_err(|error| error.problem())?;
    let listener = bind(&directory)?;
    let kinds = executors.iter().filter_map(|executor| ExecutorKind::parse(executor.name())).collect();
    let wire = |error: io::Error| failure(&error, "cannot start the worker");
    let worker = Arc::new(Worker {
        id: draw_id(&store),
        store,
        directory: directory.clone(),
        executors,
        config,
        house: House::new(&config, kinds),
        gate: Gate::new(config.max_execs),
        failures: Failures::default(),
        state: Mutex::new(State::new()),
        keeper: Bell::new().map_err(wire)?,
        leftovers: Leftovers::start().map_err(wire)?,
        started: Instant::now(),
        orphans,
        _lock: lock,
    });
    let keeping = Arc::clone(&worker);
    let keeper = std::thread::Builder::new().name("keeper".to_owned());
    let done = Arc::new(Bell::new().map_err(wire)?);
    let over = Arc::clone(&done);
    let keeper = keeper.spawn(move || {
        keeping.keep();
        over.ring();
    });
    let keeper = keeper.map_err(wire)?;
    ready(&place::socket(&directory));
    accept(&worker, &listener, &done).map_err(wire)?;
    worker.let_clients_go();
    // Nobody can come any more; who came too late finds no answer and tries anew.
    // It may be gone already; the next worker replaces it anyway.
    let _ = std::fs::remove_file(place::socket(&directory));
    drop(listener);
    // While the lock is held, so that a free lock means that all of it is gone.
    worker.executors.iter().for_each(|executor| executor.shut_down());
    if keeper.join().is_err() {
        return Err(Problem::new(Class::Failure, "worker_failed", "the worker's keeper panicked"));
    }
    Ok(true)
}

/// A command takes about ten descriptors, and the usual soft limit is 1024. Sandboxes have limits of their
/// own.
fn use_all_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// The worker's id: its store, its process and when it started.
fn draw_id(store: &Store) -> WorkerId {
    WorkerId::derive(&esf_core::id::Seed {
        store: store.stack().store_id(),
        principal: "worker",
        operation: "serve",
        key: &clock::draw(),
        target: &std::process::id().to_le_bytes(),
        ordinal: 0,
    })
}

/// Binds the socket; a file left by a dead worker is replaced, which is safe under the lock.
fn bind(store: &Path) -> Result<UnixListener, Problem> {
    let failed = |error: io::Error| failure(&error, "cannot make the worker's socket");
    place::private_directory(&place::runtime_directory()).map_err(failed)?;
    let path = place::socket(store);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    UnixListener::bind(&path).map_err(failed)
}

/// Takes connections until the keeper is done.
fn accept(worker: &Arc<Worker>, listener: &UnixListener, done: &Bell) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(done, PollFlags::IN)];
        wait(&mut fds, None)?;
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        match listener.accept() {
            Ok((stream, _)) => serve_connection(worker, stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, or a client that was gone at once: others are served all the same.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn serve_connection(worker: &Arc<Worker>, stream: UnixStream) {
    {
        let mut state = locked(&worker.state);
        if state.stopping {
            return;
        }
        state.connections += 1;
    }
    let serving = Arc::clone(worker);
    let body = move || {
        // One that panics costs its client the answer and nobody else anything.
        let served = std::panic::AssertUnwindSafe(|| connection::serve(&serving, stream));
        if std::panic::catch_unwind(served).is_err() {
            tracing::error!("a connection's thread panicked");
        }
        serving.disconnected();
    };
    if std::thread::Builder::new().name("connection".to_owned()).stack_size(STACK).spawn(body).is_err() {
        worker.disconnected();
    }
}

impl Worker {
    /// Gives the last answers a moment to be read, the one to a stop among them.
    fn let_clients_go(&self) {
        for _ in 0..200 {
            if locked(&self.state).connections == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn disconnected(&self) {
        let mut state = locked(&self.state);
        state.connections -= 1;
        state.busy_until = Instant::now();
        drop(state);
        self.keeper.ring();
    }
}
