//! One live attempt: its host process, its commands, its files, from outside.
//! Invariants: no answer is waited for without a bound, since a guest may have taken its host over; what a
//! host says of a command is believed of that command only; a host that does not do as it is told dies, and
//! the attempt with it, and no delta is lost by that.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use esf_core::AttemptId;
use esf_core::environment::Environment;
use esf_layerstack::Workspace;
use esf_worker::executor::{
    Activation, ExecSpec, ExecutorError, Exit, Files, QuiesceError, Running, Sandbox, SpawnError, Stats,
    Stdio,
};
use esf_worker::kernel_files;

use crate::child::{Child, DEATH};
use crate::engine::{self, Artefact, Cache};
use crate::executor::{in_use, machine, within};
use crate::view::View;
use crate::wire::{Answer, Channel, Ended, Exec, LARGEST_ANSWER, Refusal, Request, Run, readable};

/// How long a guest that is killed may take to end; then its host is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How long a host may take to say what it uses.
const STATS: Duration = Duration::from_secs(2);
/// Most bytes of all arguments and variables of a command.
const MOST_ARGUMENTS: usize = 2 << 20;
/// Longer than any guest runs.
const FOREVER: Duration = Duration::from_secs(1 << 32);
/// The signals of a killed, a trapped, an exhausted guest.
const KILL: i32 = 9;
const ABORT: i32 = 6;
const CPU: i32 = 24;

/// A live attempt.
pub(crate) struct WasiSandbox {
    pub(crate) child: Arc<Child>,
    pub(crate) attempt: AttemptId,
    environment: Environment,
    workspace: Workspace,
    pub(crate) view: View,
    pinned: HashMap<String, Arc<Artefact>>,
    cache: Arc<Cache>,
    next: AtomicU64,
}

impl WasiSandbox {
    pub(crate) fn new(
        child: Child,
        view: View,
        activation: &Activation<'_>,
        pinned: HashMap<String, Arc<Artefact>>,
        cache: Arc<Cache>,
    ) -> Self {
        Self {
            child: Arc::new(child),
            attempt: activation.attempt,
            environment: activation.environment.clone(),
            workspace: activation.workspace.clone(),
            view,
            pinned,
            cache,
            next: AtomicU64::new(0),
        }
    }

    /// The pinned program of a plain name, with or without its `.wasm`.
    fn pinned(&self, name: &str) -> Option<&Arc<Artefact>> {
        self.pinned.get(name).or_else(|| self.pinned.get(&format!("{name}.wasm")))
    }

    /// The variables of a command, ascending by name: ours, then the environment's, then its own.
    fn variables(&self, cwd: &str, own: &[(String, String)]) -> Vec<(String, String)> {
        let mut all = std::collections::BTreeMap::new();
        let mut set = |name: &str, value: String| drop(all.insert(name.to_owned(), value));
        set("LANG", self.environment.locale.clone());
        set("TZ", "UTC".to_owned());
        set("HOME", self.view.workspace.clone());
        set("PWD", cwd.to_owned());
        set("ESF_ATTEMPT", self.attempt.to_string());
        set("ESF_WORKSPACE", self.view.workspace.clone());
        let limits = &self.environment.limits;
        for (name, limit) in
            [("ESF_MEMORY_BYTES", limits.memory), ("ESF_PIDS", limits.pids), ("ESF_DISK_BYTES", limits.disk)]
        {
            limit.into_iter().for_each(|limit| set(name, limit.to_string()));
        }
        all.extend(self.environment.env.clone());
        all.extend(own.iter().cloned());
        all.into_iter().collect()
    }

    /// The command as its host is told, all checked that can be without the tree.
    fn describe(&self, spec: &ExecSpec) -> Result<Exec, SpawnError> {
        if spec.user.is_some() {
            let unsupported = ExecutorError::Unsupported {
                what: "a user".to_owned(),
                expected: "no user: guests have no user ids".to_owned(),
            };
            return Err(unsupported.into());
        }
        let cwd = self.view.cwd(&self.environment, spec.cwd.as_deref())?;
        let argv: Vec<String> = spec.argv.iter().map(|word| plain(word)).collect::<Result<_, _>>()?;
        let own = spec.env.iter().map(|(name, value)| Ok((plain(name)?, plain(value)?)));
        let env = self.variables(&cwd.at, &own.collect::<Result<Vec<_>, SpawnError>>()?);
        let length: usize = argv.iter().map(|word| word.len() + 1).sum::<usize>()
            + env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
        if length > MOST_ARGUMENTS {
            let what =
                format!("{length} bytes of arguments and variables, expected at most {MOST_ARGUMENTS}");
            return Err(SpawnError::BadArguments(what));
        }
        let name = argv.first().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| SpawnError::BadArguments("no program is named".to_owned()))?;
        let is_pinned = !name.contains('/') && self.pinned(name).is_some();
        let program = match is_pinned {
            true => None,
            false => Some(self.view.program(&cwd, name).ok_or_else(|| not_found(name))?),
        };
        Ok(Exec { number: self.next.fetch_add(1, Ordering::Relaxed), argv, env, cwd, program })
    }

    /// The artefact of a module that the host has opened.
    fn compile(&self, name: &str, descriptors: Vec<OwnedFd>) -> Result<Artefact, SpawnError> {
        let lost = |what: &str| ExecutorError::Lost { what: what.to_owned() };
        let file = descriptors.into_iter().next().ok_or_else(|| lost("a module without its file"))?;
        // Whatever a host hands over, reading it must end.
        let file = kernel_files::regular(file).map_err(|error| lost(&format!("a module's file: {error}")))?;
        let fuel = self.environment.wasi.as_ref().is_some_and(|wasi| wasi.fuel.is_some());
        self.cache.artefact(&file.content.into(), None, fuel).map_err(|error| match error {
            engine::Error::Module(refused) => SpawnError::NotExecutable(format!("{name}: {refused}")),
            engine::Error::Io { .. } => machine("cannot compile the module", &error).into(),
        })
    }
}

/// Text without NUL, as guests have it.
fn plain(word: &std::ffi::OsStr) -> Result<String, SpawnError> {
    let text = word.to_str().filter(|text| !text.contains('\0'));
    text.map(str::to_owned)
        .ok_or_else(|| SpawnError::BadArguments(format!("{word:?}: expected text of UTF-8 without NUL")))
}

impl Sandbox for WasiSandbox {
    fn exec(&self, spec: &ExecSpec, stdio: Stdio) -> Result<Box<dyn Running>, SpawnError> {
        let exec = self.describe(spec)?;
        let (number, name) = (exec.number, exec.argv[0].clone());
        let pinned = if exec.program.is_none() { self.pinned(&name) } else { None };
        let streams = [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_fd()];
        let channel = self.child.ask(&Request::Exec(exec), &streams)?;
        drop(stdio);
        let lost = |error: io::Error| SpawnError::from(self.child.lost(&error));
        let compiled;
        let artefact = match pinned {
            Some(artefact) => artefact,
            None => match self.child.answer(&channel).map_err(lost)? {
                (Answer::Module, file) => {
                    compiled = self.compile(&name, file)?;
                    &compiled
                }
                (Answer::Refused(refusal), _) => return Err(refused(refusal, &name)),
                (other, _) => return Err(unexpected(&other).into()),
            },
        };
        tracing::debug!(attempt = %self.attempt, program = name, module = %artefact.module, "a guest is to start");
        // It may have refused the command already.
        channel
            .send_unless_answered(&Run { key: artefact.key.clone() }, &[artefact.file.as_fd()])
            .map_err(lost)?;
        match self.child.answer(&channel).map_err(lost)?.0 {
            Answer::Started => {
                let child = Arc::clone(&self.child);
                Ok(Box::new(Guest { child, channel, number, ended: OnceLock::new() }))
            }
            Answer::Refused(refusal) => Err(refused(refusal, &name)),
            other => Err(unexpected(&other).into()),
        }
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn stats(&self) -> Result<Stats, ExecutorError> {
        let channel = self.child.ask(&Request::Stats, &[])?;
        // Not long, since all of the worker's state is asked for at once; a busy machine is no reason to kill.
        let used = channel.expect::<Answer>(LARGEST_ANSWER, within(STATS));
        match used.map_err(|error| ExecutorError::Lost { what: format!("the attempt's host: {error}") })?.0 {
            // Nobody's command is refused a guest: who wants to start one is told at once.
            Answer::Used { memory, guests, refused, cpu_us } => {
                // What guests took, at least, where the machine cannot say what the process holds.
                let memory_bytes = self.child.resident().unwrap_or(memory);
                Ok(Stats { memory_bytes, pids: guests, cpu_us, oom_kills: refused, pids_refused: 0 })
            }
            other => Err(unexpected(&other)),
        }
    }

    fn died(&self) -> BorrowedFd<'_> {
        self.child.died()
    }

    fn quiesce(self: Box<Self>) -> Result<(), QuiesceError> {
        let busy = |what: String| QuiesceError::Busy { what };
        self.child.end().map_err(|error| busy(error.to_string()))?;
        // The host was one process, and could not make another: this says so of what it may have given away.
        if in_use(&self.workspace)? {
            return Err(busy("a process beside the attempt's host holds its lock".to_owned()));
        }
        Ok(())
    }

    fn release(self: Box<Self>) -> Result<(), ExecutorError> {
        self.child.end().map_err(|error| machine("cannot end the attempt's host", &error))
    }
}

impl Drop for WasiSandbox {
    fn drop(&mut self) {
        // A command that somebody still holds does not keep the host alive.
        self.child.kill();
    }
}

pub(crate) fn unexpected(answer: &Answer) -> ExecutorError {
    ExecutorError::Lost { what: format!("the attempt's host answered out of turn: {answer:.200?}") }
}

fn not_found(name: &str) -> SpawnError {
    SpawnError::NotFound(format!(
        "{name} (a program is a WebAssembly module: one of --module by its name, or a path of the tree)"
    ))
}

fn refused(refusal: Refusal, name: &str) -> SpawnError {
    match refusal {
        Refusal::NotFound => not_found(name),
        Refusal::NotExecutable(why) => SpawnError::NotExecutable(format!("{name}: {why}")),
        Refusal::BadCwd(why) => SpawnError::BadCwd(why),
        Refusal::TooMany => SpawnError::PidsLimit,
    }
}

/// A running guest.
struct Guest {
    child: Arc<Child>,
    /// Readable when the guest ended, or its host.
    channel: Channel,
    number: u64,
    ended: OnceLock<Result<Exit, String>>,
}

impl Guest {
    fn read_end(&self) -> Result<Exit, String> {
        let answer = readable(self.channel.as_fd(), FOREVER)
            .and_then(|_| self.channel.expect::<Answer>(LARGEST_ANSWER, within(GRACE)));
        match answer {
            Ok((Answer::Ended(ended), _)) => match ended {
                Ended::Code(code) => Ok(Exit::Code(code)),
                Ended::Killed => Ok(Exit::Signal(KILL)),
                Ended::Trapped => Ok(Exit::Signal(ABORT)),
                Ended::OutOfFuel => Ok(Exit::Signal(CPU)),
                Ended::Lost(what) => Err(what),
            },
            Ok((other, _)) => Err(unexpected(&other).to_string()),
            Err(error) => Err(format!("its host died with it: {error}")),
        }
    }
}

impl Running for Guest {
    fn exited(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn wait(&self) -> Result<Exit, ExecutorError> {
        let lost = |what: String| ExecutorError::Lost { what };
        self.ended.get_or_init(|| self.read_end()).clone().map_err(lost)
    }

    fn signal(&self, signal: i32) -> Result<(), ExecutorError> {
        if signal == KILL {
            return self.kill_tree();
        }
        Err(ExecutorError::Unsupported {
            what: format!("signal {signal}"),
            expected: "KILL (9): guests have no others".to_owned(),
        })
    }

    fn kill_tree(&self) -> Result<(), ExecutorError> {
        if self.ended.get().is_some() {
            return Ok(());
        }
        let sent = self.child.order_kill(self.number);
        let ended = |patience| readable(self.channel.as_fd(), patience).unwrap_or(false);
        if sent.is_ok() && ended(GRACE) {
            return Ok(());
        }
        // A call of its that does not come back: the host goes, and with it the attempt.
        self.child.kill();
        if ended(DEATH) {
            Ok(())
        } else {
            Err(ExecutorError::Lost { what: "its host does not die".to_owned() })
        }
    }
}
