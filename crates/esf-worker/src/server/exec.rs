//! Commands of a live attempt: admitted, started, supervised, recorded.
//! Invariants: under a caller's key a command starts at most once, whatever crashes: its row is committed
//! before it starts, a repetition replays what is stored, and an outcome that nobody knows is
//! `infra_lost` and never run again. Without a key nothing is committed before the start.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esf_core::ops::exec::{FinishExec, RecordExec, exec_id};
use esf_core::ops::{Meta, Request};
use esf_core::record::{ExecStatus, Failure, Purpose};
use esf_core::{Class, ExecId, FailureClass, Problem};

use crate::executor::{ExecSpec, Exit, SpawnError, Stdio};
use crate::logs::{Note, Stream, failure};
use crate::message::{ExecRequest, ExecResult, RequestMeta};
use crate::server::Worker;
use crate::server::connection::{Served, reply};
use crate::server::gate::{Entered, Permit};
use crate::server::live::{LimitsHit, Live};
use crate::server::relay::{relay, replay};
use crate::server::running::{Command, Drains, End, Keep};
use crate::spool::{Extent, Quota, Spool};
use crate::wire::{Connection, Kind, nonblocking, pipe};
use crate::{clock, place};

/// The worker's ends of a command's pipes.
struct Ends {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// How the wait for a command's turn ended.
enum Waited {
    /// It may run; without a permit only to be told that it does not.
    Admitted(Option<Permit>),
    /// The client is gone.
    Gone,
}

/// A command about to run.
struct Prepared {
    meta: Meta,
    record: RecordExec,
    exec_id: ExecId,
    keyed: bool,
}

impl Worker {
    pub(crate) fn exec(
        self: &Arc<Self>,
        connection: &mut Connection,
        request: ExecRequest,
    ) -> Result<Served, Problem> {
        if request.argv.is_empty() {
            return Err(Problem::new(Class::Usage, "bad_arguments", "no command was given"));
        }
        let attempt = request.attempt;
        let live = match self.live_or_problem(attempt) {
            Ok(live) => live,
            Err(problem) if request.key.is_some() => {
                return self.replay_after_end(connection, &request, problem);
            }
            Err(problem) => return Err(problem),
        };
        let prepared = self.prepare(&request, live.epoch);
        let permit = match self.wait_for_permit(connection, &prepared, &live)? {
            Waited::Admitted(permit) => permit,
            Waited::Gone => return Ok(Served::Gone),
        };
        // Between its row and its start nobody may take it for lost.
        let alone = prepared.keyed.then(|| live.start_alone(prepared.exec_id));
        if prepared.keyed {
            let recorded = self.graph().record_exec(&prepared.meta, prepared.record.clone());
            let recorded = recorded.map_err(|error| error.problem())?;
            if !recorded.fresh {
                drop(alone);
                return self.again(connection, &request, &live, recorded.exec.exec_id);
            }
        }
        let (command, stdin) = self.launch(&live, &request, prepared, permit)?;
        drop(alone);
        self.attend(connection, &request, &command, stdin)
    }

    /// Waits until one more command may run. One that was recorded before needs no turn to be told again.
    fn wait_for_permit(
        &self,
        connection: &mut Connection,
        prepared: &Prepared,
        live: &Live,
    ) -> Result<Waited, Problem> {
        if let Some(permit) = self.gate.try_enter() {
            return Ok(Waited::Admitted(Some(permit)));
        }
        let known = || self.graph().recorded_exec(&prepared.meta).map_err(|error| error.problem());
        if prepared.keyed && known()?.is_some() {
            return Ok(Waited::Admitted(None));
        }
        let entered = self.gate.enter(connection, || live.is_closing());
        match entered.map_err(|error| failure(&error, "cannot wait for the command's turn"))? {
            Entered::Permit(permit) => Ok(Waited::Admitted(Some(permit))),
            Entered::Gone => Ok(Waited::Gone),
            // Its end is told as it always is.
            Entered::Over => Ok(Waited::Admitted(None)),
            Entered::Cancelled => {
                let message = "the command was cancelled while it waited for its turn";
                Err(Problem::new(Class::Failure, "cancelled", message))
            }
        }
    }

    fn prepare(&self, request: &ExecRequest, epoch: u64) -> Prepared {
        let lossy = |text: &OsStr| text.to_string_lossy().into_owned();
        let record = RecordExec {
            attempt: request.attempt,
            epoch,
            argv: request.argv.iter().map(|word| lossy(word)).collect(),
            cwd: request.cwd.as_ref().map(|cwd| lossy(cwd.as_os_str())),
            user: request.user.clone(),
            timeout_ms: request.timeout_ms,
            fingerprint: Some(fingerprint(request)),
            outcome: None,
        };
        let keyed = request.key.is_some();
        let key = request.key.clone().unwrap_or_else(|| format!("exec/{}", clock::draw()));
        let meta = RequestMeta { actor: request.actor.clone(), key, trace_id: request.trace_id.clone() };
        let meta = clock::meta(&meta);
        let store = self.graph().store_id();
        let exec_id = exec_id(&record, &Request { store, operation: "exec", meta: &meta });
        Prepared { meta, record, exec_id, keyed }
    }

    /// Serves the client, unless it does not want to wait.
    fn attend(
        &self,
        connection: &mut Connection,
        request: &ExecRequest,
        command: &Command,
        stdin: Option<OwnedFd>,
    ) -> Result<Served, Problem> {
        if request.detach {
            let left_alone = || ExecResult { detached: true, ..unknown(command.exec_id) };
            return reply(&command.progress().result.unwrap_or_else(left_alone));
        }
        if connection.send_json(Kind::Started, &command.exec_id).is_err() {
            return Ok(Served::Gone);
        }
        match relay(connection, &self.directory, request.attempt, command, stdin, request.max_output) {
            Ok(result) => reply(&result),
            Err(error) => {
                tracing::debug!(exec = %command.exec_id, %error, "the client of a command is gone");
                Ok(Served::Gone)
            }
        }
    }

    /// A keyed command was asked for again: joins it, or replays it, or says that it is lost.
    fn again(
        &self,
        connection: &mut Connection,
        request: &ExecRequest,
        live: &Live,
        exec: ExecId,
    ) -> Result<Served, Problem> {
        if let Some(command) = live.command(exec) {
            return self.attend(connection, request, &command, None);
        }
        self.replay_stored(connection, request, exec)
    }

    /// The attempt is over, but a keyed command of it may be asked for again.
    fn replay_after_end(
        &self,
        connection: &mut Connection,
        request: &ExecRequest,
        problem: Problem,
    ) -> Result<Served, Problem> {
        let prepared = self.prepare(request, 0);
        // Records nothing: a repetition is answered, and anything new is refused since the attempt is over.
        match self.graph().record_exec(&prepared.meta, prepared.record).map_err(|error| error.problem()) {
            Ok(recorded) => self.replay_stored(connection, request, recorded.exec.exec_id),
            Err(conflict) if conflict.code == "idempotency_conflict" => Err(conflict),
            Err(_) => Err(problem),
        }
    }

    fn replay_stored(
        &self,
        connection: &mut Connection,
        request: &ExecRequest,
        exec: ExecId,
    ) -> Result<Served, Problem> {
        let note = Note::read(&self.directory, request.attempt, exec)
            .map_err(|error| failure(&error, "cannot read what is stored of the command"))?;
        if let Some(note) = note {
            return match replay(connection, &self.directory, request.attempt, &note, request.max_output) {
                Ok(result) => reply(&result),
                Err(error) => Err(failure(&error, "cannot replay the output")),
            };
        }
        let record = self.graph().exec(exec).map_err(|error| error.problem())?;
        let mut result = unknown(exec);
        match (record.status, record.outcome) {
            (ExecStatus::Finished, Some(outcome)) => {
                result.exit_code = outcome.exit_code;
                result.signal = outcome.signal;
                result.timed_out = outcome.timed_out;
                result.stdout_bytes = outcome.stdout_bytes;
                result.stderr_bytes = outcome.stderr_bytes;
                result.truncated = outcome.stdout_bytes + outcome.stderr_bytes > 0;
                result.duration_ms = outcome.duration_ms;
                result.failure = outcome.failure;
            }
            (ExecStatus::Running | ExecStatus::Lost | ExecStatus::Finished, _) => {
                let detail =
                    "it was started under this key and nobody knows how it ended; it is not run again";
                result.failure = Some(Failure::new(FailureClass::InfraLost, "exec", detail));
            }
        }
        reply(&result)
    }

    /// Starts the command and its supervisor.
    fn launch(
        self: &Arc<Self>,
        live: &Arc<Live>,
        request: &ExecRequest,
        prepared: Prepared,
        permit: Option<Permit>,
    ) -> Result<(Arc<Command>, Option<OwnedFd>), Problem> {
        let exec_id = prepared.exec_id;
        let io = |error: std::io::Error| failure(&error, "cannot set up the command");
        let path = |stream| place::stream(&self.directory, request.attempt, exec_id, stream);
        let stdout = Spool::create(&path(Stream::Stdout), Quota::DEFAULT).map_err(io)?;
        let stderr = Spool::create(&path(Stream::Stderr), Quota::DEFAULT).map_err(io)?;
        let (ends, stdio) = pipes(request.stdin).map_err(io)?;
        let spec = ExecSpec {
            argv: request.argv.clone(),
            env: request.env.clone(),
            cwd: request.cwd.clone(),
            user: request.user.clone(),
        };
        let begun = Instant::now();
        let fresh = stdout.extent();
        let admitted = match live.admit() {
            Ok(admitted) => admitted,
            Err(problem) => return Err(self.not_started(live, &prepared, problem, FailureClass::Cancelled)),
        };
        let running = match admitted.exec(&spec, stdio) {
            Ok(running) => running,
            Err(error) => return self.spawn_failed(live, prepared, &error, fresh, begun),
        };
        // A time-out is the command's own: what it took to get it started, a compilation perhaps, is not counted.
        let begun = Instant::now();
        let argv = prepared.record.argv.clone();
        let command = Arc::new(Command::new(exec_id, argv, running, fresh));
        live.add(Arc::clone(&command));
        drop(admitted);
        let drains = Drains::new((ends.stdout, stdout), (ends.stderr, stderr));
        let deadline = request.timeout_ms.map(|millis| begun + Duration::from_millis(millis));
        let (worker, watched, supervised) = (Arc::clone(self), Arc::clone(live), Arc::clone(&command));
        let body = move || {
            worker.supervise(&watched, &supervised, drains, deadline, begun, prepared);
            drop(permit);
        };
        if let Err(error) =
            std::thread::Builder::new().name("command".to_owned()).stack_size(256 << 10).spawn(body)
        {
            let why = Failure::new(FailureClass::InfraLost, "exec", "no thread for its supervisor");
            live.remove(exec_id);
            // It dies with the reply that says so; an error here means that it is dead already.
            let _ = command.kill(why);
            return Err(io(error));
        }
        Ok((command, ends.stdin))
    }

    /// A command that never ran, as a problem; recorded when it had a row already.
    fn not_started(
        &self,
        live: &Live,
        prepared: &Prepared,
        problem: Problem,
        class: FailureClass,
    ) -> Problem {
        let mut result = unknown(prepared.exec_id);
        result.failure = Some(Failure::new(class, "exec", problem.message.clone()));
        if prepared.keyed {
            self.commit_end(live, prepared, &result);
        }
        problem
    }

    /// 126 and 127 are results like any other; the rest are problems of the request.
    fn spawn_failed(
        &self,
        live: &Live,
        prepared: Prepared,
        error: &SpawnError,
        fresh: Extent,
        begun: Instant,
    ) -> Result<(Arc<Command>, Option<OwnedFd>), Problem> {
        let Some(code) = error.exit_code() else {
            return Err(self.not_started(live, &prepared, error.problem(), error.failure_class()));
        };
        let mut result = unknown(prepared.exec_id);
        result.exit_code = Some(code);
        result.duration_ms = millis_since(begun);
        result.failure = Some(Failure::new(error.failure_class(), "exec", error.to_string()));
        let command = Arc::new(Command::ended(prepared.exec_id, prepared.record.argv.clone(), fresh));
        self.end_command(live, &command, &prepared, result, fresh, fresh);
        Ok((command, None))
    }

    fn supervise(
        &self,
        live: &Live,
        command: &Command,
        drains: Drains,
        deadline: Option<Instant>,
        begun: Instant,
        prepared: Prepared,
    ) {
        // Where nothing of a tree's code may run on beside what judges it.
        let processes = live.attempt.purpose != Purpose::Evaluate;
        let keep = Keep { durably: prepared.keyed, processes };
        let end = drains.supervise(command, deadline, keep, &self.leftovers);
        let end = end.unwrap_or_else(|error| {
            tracing::error!(exec = %command.exec_id, %error, "supervision failed");
            let why = Failure::new(FailureClass::InfraLost, "exec", format!("supervision failed: {error}"));
            // Without its supervisor it must not run on; if it cannot be killed it dies with the attempt.
            let _ = command.kill(why.clone());
            let progress = command.progress();
            let exit = Err(crate::executor::ExecutorError::Lost { what: why.detail.clone() });
            End {
                exit,
                timed_out: false,
                condemned: Some(why),
                stdout: progress.stdout,
                stderr: progress.stderr,
            }
        });
        let result = conclude(command.exec_id, &end, live.limits_hit(), millis_since(begun));
        self.end_command(live, command, &prepared, result, end.stdout, end.stderr);
    }

    /// Stores and publishes the end of a command. With a key its record comes first: whoever was told
    /// finds the same again.
    fn end_command(
        &self,
        live: &Live,
        command: &Command,
        prepared: &Prepared,
        result: ExecResult,
        stdout: Extent,
        stderr: Extent,
    ) {
        if let Some(failure) = &result.failure {
            self.failures.count(failure.class);
        }
        let note = Note { result: result.clone(), stdout, stderr };
        if let Err(error) = note.write(&self.directory, live.id()) {
            tracing::error!(exec = %command.exec_id, %error, "cannot note how a command ended");
        }
        if prepared.keyed {
            self.commit_end(live, prepared, &result);
        }
        command.finish(result.clone());
        live.remove(command.exec_id);
        if !prepared.keyed {
            self.commit_end(live, prepared, &result);
        }
    }

    fn commit_end(&self, live: &Live, prepared: &Prepared, result: &ExecResult) {
        let committed = if prepared.keyed {
            let finish = FinishExec { exec: prepared.exec_id, epoch: live.epoch, outcome: result.outcome() };
            self.graph().finish_exec(&prepared.meta.sub("end"), finish).map(drop)
        } else {
            let record = RecordExec { outcome: Some(result.outcome()), ..prepared.record.clone() };
            self.graph().record_exec(&prepared.meta, record).map(drop)
        };
        if let Err(error) = committed {
            // The attempt was sealed, released or fenced while it ended; then its end is on record there.
            tracing::debug!(exec = %prepared.exec_id, %error, "the end of a command is not recorded");
        }
    }
}

/// What of a request is not in its record but distinguishes it all the same.
fn fingerprint(request: &ExecRequest) -> String {
    let rest = (&request.argv, &request.env, &request.cwd, request.stdin);
    let bytes = serde_json::to_vec(&rest).expect("words and paths are plain values");
    esf_core::Digest::in_context("esf exec fingerprint v1", &bytes).to_string()
}

fn pipes(stdin: bool) -> std::io::Result<(Ends, Stdio)> {
    let (inner_stdin, own_stdin) = if stdin {
        let (read, write) = pipe()?;
        nonblocking(&write)?;
        (read, Some(write))
    } else {
        (File::open(Path::new("/dev/null"))?.into(), None)
    };
    let (own_stdout, stdout) = pipe()?;
    let (own_stderr, stderr) = pipe()?;
    nonblocking(&own_stdout)?;
    nonblocking(&own_stderr)?;
    let ends = Ends { stdin: own_stdin, stdout: own_stdout, stderr: own_stderr };
    Ok((ends, Stdio { stdin: inner_stdin, stdout, stderr }))
}

fn unknown(exec_id: ExecId) -> ExecResult {
    ExecResult {
        exec_id,
        exit_code: None,
        signal: None,
        timed_out: false,
        stdout_bytes: 0,
        stderr_bytes: 0,
        truncated: false,
        duration_ms: 0,
        failure: None,
        detached: false,
    }
}

fn millis_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The signal of a command that used up what it may compute (SIGXCPU).
const CPU_SPENT: i32 = 24;

/// What the end of a command means: a time-out, then a reason it was killed for, then a limit, then its
/// own code. Pure.
fn conclude(exec_id: ExecId, end: &End, limits: LimitsHit, duration_ms: u64) -> ExecResult {
    let (exit_code, signal) = match &end.exit {
        Ok(Exit::Code(code)) => (Some(*code), None),
        Ok(Exit::Signal(signal)) => (None, Some(*signal)),
        Err(_) => (None, None),
    };
    let class = |class, detail: String| Some(Failure::new(class, "exec", detail));
    let failure = match (&end.exit, &end.condemned) {
        _ if end.timed_out => class(FailureClass::UserTimeout, "its time ran out".to_owned()),
        (Ok(Exit::Code(0)), _) => None,
        (_, Some(condemned)) => Some(condemned.clone()),
        (Err(error), None) => class(FailureClass::InfraLost, error.to_string()),
        (Ok(Exit::Code(_) | Exit::Signal(_)), None) if limits.oom => {
            class(FailureClass::UserOom, "oom: the memory limit of the attempt was hit".to_owned())
        }
        (Ok(Exit::Code(_) | Exit::Signal(_)), None) if limits.pids => {
            class(FailureClass::Quota, "pids: the process limit of the attempt was hit".to_owned())
        }
        (Ok(Exit::Signal(CPU_SPENT)), None) => {
            class(FailureClass::UserTimeout, "it used up what it may compute".to_owned())
        }
        (Ok(Exit::Code(code)), None) => class(FailureClass::UserExit, format!("exit code {code}")),
        (Ok(Exit::Signal(signal)), None) => class(FailureClass::UserExit, format!("signal {signal}")),
    };
    ExecResult {
        exit_code,
        signal,
        timed_out: end.timed_out,
        stdout_bytes: end.stdout.total,
        stderr_bytes: end.stderr.total,
        duration_ms,
        failure,
        ..unknown(exec_id)
    }
}
