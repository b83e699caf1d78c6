//! Runs guests: an engine with its programs, and one call of `wasi:cli/run` from start to exit.
//!
//! A guest has the calling thread for itself. Its call is a future on a runtime of that thread, so that
//! wherever the guest is (in a loop, asleep, waiting for a pipe or a socket) the future can be let go, and
//! with it the guest. What goes wrong in a call of the host ends that guest only.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;

use esf_layerstack::union::Union;
use tokio::runtime::Runtime;
use wasmtime::component::Linker;
use wasmtime::{Engine, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p2::bindings::CommandPre;

use super::artefact::{self, Loaded};
use super::cancel::Cancel;
use super::config::{self, Role};
use super::filesystem::{Context, Preopen};
use super::limits::Limits;
use super::module::printable;
use super::state::{Given, State, linker};
use super::stdio::{GuestStdio, Stdio};
use super::ticker::Ticker;

/// Programs that are kept ready to start, for each engine.
const PROGRAMS: usize = 32;

/// Runtimes that are kept for the next guest.
const RUNTIMES: usize = 16;

/// What is run, and with what.
pub(crate) struct GuestSpec {
    /// From the worker's cache.
    pub(crate) artefact: OwnedFd,
    /// The artefact's key there: guests with equal keys share one program.
    pub(crate) key: String,
    /// Its arguments, its name first.
    pub(crate) argv: Vec<String>,
    /// Its environment, all of it.
    pub(crate) env: Vec<(String, String)>,
    /// The directories it is given, in the order it sees them.
    pub(crate) preopens: Vec<Preopen>,
    /// The attempt's filesystem, which the preopens are of.
    pub(crate) union: Arc<Union>,
    /// The attempt's limits.
    pub(crate) limits: Arc<Limits>,
    /// Instructions that it may execute; the artefact must then be one for fuel.
    pub(crate) fuel: Option<u64>,
    /// Whether it has sockets and name lookup.
    pub(crate) network: bool,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuestExit {
    /// By itself, with this code.
    Code(i32),
    /// It was cancelled.
    Killed,
    /// It did what WebAssembly forbids, or what a call of the host does.
    Trap(String),
    /// It had executed all the instructions that it may.
    OutOfFuel,
    /// It was refused memory and did not survive that.
    Memory,
    /// The host panicked in one of its calls.
    Panicked(String),
    /// It never began to run.
    Failed(String),
}

impl GuestExit {
    /// What the guest's standard error is told, for an end that is not the guest's own.
    fn message(&self) -> Option<String> {
        match self {
            Self::Code(_) | Self::Killed => None,
            Self::Trap(text) => Some(format!("esf: trap: {text}\n")),
            Self::OutOfFuel => Some("esf: out of fuel\n".to_owned()),
            Self::Memory => Some("esf: out of memory: the attempt's limit is reached\n".to_owned()),
            Self::Panicked(text) => Some(format!("esf: the host failed in a call of this guest: {text}\n")),
            Self::Failed(text) => Some(format!("esf: the guest did not start: {text}\n")),
        }
    }
}

/// The engines of a process that runs guests. Shared by all its threads.
pub(crate) struct Engines {
    plain: Machine,
    fuelled: OnceLock<Machine>,
    runtimes: Mutex<Vec<Runtime>>,
    ticker: Ticker,
}

/// One engine, what it offers to guests, and the programs that are loaded in it.
struct Machine {
    engine: Engine,
    linker: Linker<State>,
    /// The most recently used last.
    programs: Mutex<Vec<(String, Arc<Program>)>>,
}

/// A loaded artefact, linked. Fields are dropped in this order; whoever runs it holds it.
struct Program {
    command: CommandPre<State>,
    _loaded: Loaded,
}

impl Engines {
    /// Opens no file, so it may be called by a process that has given up that right.
    ///
    /// # Errors
    ///
    /// When no engine can be set up on this machine, or no thread can be started.
    pub(crate) fn new() -> wasmtime::Result<Self> {
        let (plain, ticker) = (Machine::new(false)?, Ticker::new()?);
        ticker.add(&plain.engine);
        Ok(Self { plain, fuelled: OnceLock::new(), runtimes: Mutex::default(), ticker })
    }

    /// Runs a guest to its end on the calling thread. All that it wrote is in the pipes when this returns,
    /// unless it was cancelled or nobody reads them.
    pub(crate) fn run(&self, spec: GuestSpec, stdio: GuestStdio, cancel: &Cancel) -> GuestExit {
        let ready = Stdio::new(stdio).map_err(|errno| errno.to_string());
        let ready = ready.and_then(|stdio| Ok((stdio, self.runtime().map_err(|error| error.to_string())?)));
        let (stdio, runtime) = match ready {
            Ok(ready) => ready,
            Err(reason) => return GuestExit::Failed(reason),
        };
        let _running = self.ticker.run();
        let guest = async {
            let (engine, program) = self.program(&spec)?;
            run(engine, &program, spec, stdio.clone()).await
        };
        let guest = AssertUnwindSafe(|| runtime.block_on(unless(cancel, guest)));
        let exit = match catch_unwind(guest) {
            Ok(Some(Ok(exit))) => exit,
            Ok(Some(Err(error))) => GuestExit::Failed(format!("{error:#}")),
            Ok(None) => GuestExit::Killed,
            Err(panic) => GuestExit::Panicked(panic_text(&*panic)),
        };
        if let Some(message) = exit.message() {
            stdio.stderr.say(&message);
        }
        let flushed = exit != GuestExit::Killed && runtime.block_on(unless(cancel, stdio.flush())).is_some();
        match &exit {
            GuestExit::Panicked(_) => runtime.shutdown_background(),
            _ if flushed => self.give_back(runtime),
            // A name lookup that goes on would hold this thread up.
            _ => runtime.shutdown_background(),
        }
        if flushed { exit } else { GuestExit::Killed }
    }

    fn machine(&self, fuel: bool) -> wasmtime::Result<&Machine> {
        if !fuel {
            return Ok(&self.plain);
        }
        if let Some(machine) = self.fuelled.get() {
            return Ok(machine);
        }
        let machine = Machine::new(true)?;
        Ok(self.fuelled.get_or_init(|| {
            self.ticker.add(&machine.engine);
            machine
        }))
    }

    fn program(&self, spec: &GuestSpec) -> wasmtime::Result<(&Engine, Arc<Program>)> {
        let machine = self.machine(spec.fuel.is_some())?;
        Ok((&machine.engine, machine.program(&spec.key, &spec.artefact)?))
    }

    fn runtimes(&self) -> MutexGuard<'_, Vec<Runtime>> {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self) -> std::io::Result<Runtime> {
        if let Some(runtime) = self.runtimes().pop() {
            return Ok(runtime);
        }
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(4)
            .build()
    }

    fn give_back(&self, runtime: Runtime) {
        let mut runtimes = self.runtimes();
        if runtimes.len() < RUNTIMES {
            runtimes.push(runtime);
        }
    }
}

impl Machine {
    fn new(fuel: bool) -> wasmtime::Result<Self> {
        let engine = config::engine(Role::Run, fuel)?;
        let linker = linker(&engine)?;
        Ok(Self { engine, linker, programs: Mutex::default() })
    }

    fn program(&self, key: &str, artefact: &OwnedFd) -> wasmtime::Result<Arc<Program>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = programs.iter().position(|(known, _)| known == key) {
            let found = programs.remove(at);
            let program = Arc::clone(&found.1);
            programs.push(found);
            return Ok(program);
        }
        let loaded = artefact::load(&self.engine, artefact)?;
        let command = CommandPre::new(self.linker.instantiate_pre(loaded.component())?)?;
        let program = Arc::new(Program { command, _loaded: loaded });
        if programs.len() >= PROGRAMS {
            programs.remove(0);
        }
        programs.push((key.to_owned(), Arc::clone(&program)));
        Ok(program)
    }
}

/// One guest, from its store to its exit.
async fn run(
    engine: &Engine,
    program: &Program,
    spec: GuestSpec,
    stdio: Stdio,
) -> wasmtime::Result<GuestExit> {
    let given = Given { argv: spec.argv, env: spec.env, network: spec.network };
    let files = Context { union: spec.union, preopens: spec.preopens };
    let mut store = State::new(&given, files, stdio, spec.limits).store(engine, spec.fuel)?;
    let result = match program.command.instantiate_async(&mut store).await {
        Ok(command) => command.wasi_cli_run().call_run(&mut store).await,
        Err(error) => Err(error),
    };
    let refused = store.data().limiter.refused;
    match result {
        Ok(Ok(())) => Ok(GuestExit::Code(0)),
        Ok(Err(())) => Ok(GuestExit::Code(1)),
        Err(error) => Ok(end(&error, refused)),
    }
}

/// What an error of a running guest means.
fn end(error: &wasmtime::Error, refused: bool) -> GuestExit {
    match (error.downcast_ref::<I32Exit>(), error.downcast_ref::<Trap>()) {
        (Some(I32Exit(code)), _) => GuestExit::Code(*code),
        (None, Some(Trap::OutOfFuel)) => GuestExit::OutOfFuel,
        (None, _) if refused => GuestExit::Memory,
        (None, _) => GuestExit::Trap(trap_text(error)),
    }
}

/// The cause, and the guest's functions that it was in, innermost first.
fn trap_text(error: &wasmtime::Error) -> String {
    let mut text = error.root_cause().to_string();
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    for name in frames.iter().filter_map(|frame| frame.func_name()) {
        let mut name = name.to_owned();
        printable(&mut name);
        text.push_str("\n    in ");
        text.push_str(&name);
    }
    text
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

/// The future's outcome, or nothing as soon as the guest is cancelled.
async fn unless<T>(cancel: &Cancel, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if cancel.poll(context) {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}
