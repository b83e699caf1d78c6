//! One run of an evaluator: its command in a sandbox on the sealed tree, its scorer in another one.
//! Invariants: nothing that the tree's code started or changed is there where the scorer runs; a file that
//! a run left is read when everything in its sandbox is dead, through no link, up to a bound.

use esf_control::judge::MAX_RESULT;
use esf_control::report::MAX_REPORT;
use esf_control::{Evidence, JudgedBy, Judgement, Outcome, judge};
use esf_core::environment::{Base, Environment, ExecutorKind};
use esf_core::policy::OnExpiry;
use esf_core::record::{Attempt, Evaluation};
use esf_core::state::AttemptStatus;
use esf_core::{Class, FailureClass, Problem};
use esf_layerstack::Scratch;
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult, QueueNews};

use super::left::{Left, read};
use super::{Asking, Judged, Own, Stage, delta, files};
use crate::args;
use crate::commands::environment;
use crate::output::not_supported;

/// Bytes of each stream that are kept as evidence.
const EVIDENCE_WINDOW: u64 = 1 << 20;
/// How often a repeated request may find the sandbox of an earlier one gone before its end.
const STARTS: usize = 16;
/// Most bytes of one file that is collected for a scorer; all share the small place of its result.
const MAX_COLLECTED: usize = 4 << 20;

/// One run on its way.
pub(super) struct Run<'a> {
    asking: &'a Asking<'a>,
    client: Client,
    environment: Environment,
    /// Of each program.
    timeout_ms: u64,
    /// Beyond that a sandbox may be held.
    margin_ms: u64,
    hide: Vec<Vec<u8>>,
    outputs: Vec<(String, Vec<u8>)>,
}

/// What the command did, and all that it left.
struct Done {
    command: Outcome,
    /// The whole of its standard output, or nothing when it is too long.
    stdout: Option<Vec<u8>>,
    stderr: Vec<u8>,
    /// Its report or its result.
    left: Left,
    collected: Vec<(String, Vec<u8>)>,
}

/// What was found in a sandbox, or that it was lost.
type Step<T> = Result<T, Stop>;

/// Why a run goes no further.
enum Stop {
    /// It is judged: lost, or nothing that could be used.
    Judged(Judgement),
    /// It could not be carried out; nothing is recorded.
    Problem(Problem),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        match lost(&problem) {
            Some(class) => Self::Judged(judge(Outcome::Lost(class), Evidence::ExitCode)),
            None => Self::Problem(problem),
        }
    }
}

/// The class of a problem that means that the sandbox is not, or no longer, there.
fn lost(problem: &Problem) -> Option<FailureClass> {
    match problem.code.as_str() {
        "infra_prepare" => Some(FailureClass::InfraPrepare),
        "infra_lost" | "not_active" => Some(FailureClass::InfraLost),
        _ => None,
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(asking: &'a Asking<'a>) -> Result<Self, Problem> {
        let evaluator = &asking.prepared.evaluator;
        let group = asking.store.graph().group(asking.node.group_id).map_err(|error| error.problem())?;
        let options = args::ActivateOptions::default();
        let mut environment = environment::environment(&group.default_environment, &options, Vec::new())?;
        environment.env.extend(evaluator.environment.clone());
        // Where the order of a set decides, it decides the same way each time.
        environment.env.entry("PYTHONHASHSEED".to_owned()).or_insert_with(|| "0".to_owned());
        let (own, limits) = (evaluator.limits, &mut environment.limits);
        limits.cpu_milli = own.cpu_milli.or(limits.cpu_milli);
        limits.memory = own.memory.or(limits.memory);
        limits.pids = own.pids.or(limits.pids);
        if environment.executor == ExecutorKind::Wasi && evaluator.score.is_some() {
            return Err(not_supported(
                "a scorer under the wasi executor",
                "judge by exit codes or a report, or evaluate a group of the oci executor",
            ));
        }
        let budgets = group.policy.budgets();
        let timeout_ms = evaluator.timeout_ms.unwrap_or(budgets.verify.0);
        let hide = files::hidden(asking.store, asking.node, asking.prepared)?;
        let mut client = asking.context.worker()?;
        client.set_cancel(crate::interrupt::watch()?);
        let margin_ms = budgets.margin.0;
        Ok(Self { asking, client, environment, timeout_ms, margin_ms, hide, outputs: Vec::new() })
    }

    /// Runs it, and records what it is worth.
    pub(super) fn evaluate(mut self) -> Result<Evaluation, Problem> {
        let (by, files) = (self.asking.prepared.judged_by, self.asking.prepared.files.as_ref());
        let attempt = match self.activate("activate", extra(files, by == JudgedBy::Result)) {
            Ok(attempt) => attempt,
            Err(stop) => return self.stopped(stop, None),
        };
        let done = match self.command(&attempt, by) {
            Ok(done) => done,
            Err(stop) => return self.end(&attempt, stop),
        };
        if by == JudgedBy::Score {
            return match self.lay_aside(&attempt) {
                Ok(left) => {
                    self.release(&attempt);
                    self.score(done, left.as_ref())
                }
                Err(stop) => self.end(&attempt, stop),
            };
        }
        let evidence = match by {
            JudgedBy::ExitCode | JudgedBy::Score => Evidence::ExitCode,
            JudgedBy::Result => Evidence::Result(done.left.found()),
            JudgedBy::Report => {
                let report = self.asking.prepared.evaluator.report.as_ref().expect("judged by one");
                Evidence::Report(report.format, done.left.found())
            }
        };
        self.end(&attempt, Stop::Judged(judge(done.command, evidence)))
    }

    /// Records a judgement under the lease of the run that came to it, then ends that run.
    fn end(mut self, attempt: &Attempt, stop: Stop) -> Result<Evaluation, Problem> {
        let outputs = std::mem::take(&mut self.outputs);
        let recorded = match stop {
            Stop::Judged(judgement) => self.asking.record(Judged { judgement, outputs }, Some(attempt)),
            Stop::Problem(problem) => Err(problem),
        };
        self.release(attempt);
        recorded
    }

    /// Records a judgement that no sandbox stands for.
    fn stopped(self, stop: Stop, attempt: Option<&Attempt>) -> Result<Evaluation, Problem> {
        match stop {
            Stop::Judged(judgement) => {
                self.asking.record(Judged { judgement, outputs: self.outputs }, attempt)
            }
            Stop::Problem(problem) => Err(problem),
        }
    }

    fn release(&mut self, attempt: &Attempt) {
        let step = format!("release/{}", attempt.attempt_id);
        let meta = self.asking.context.request_meta(&self.asking.step(&step));
        if let Err(problem) = self.client.release(meta, attempt.attempt_id, true) {
            tracing::warn!(%problem, "the evaluation's attempt ends at its lifetime instead");
        }
    }

    /// Brings up a sandbox on the sealed tree; a request that was cut short finds those of earlier tries gone.
    fn activate(&mut self, step: &str, extra: Extra) -> Step<Attempt> {
        let asking = self.asking;
        let request = ActivateRequest {
            meta: asking.context.request_meta(""),
            node: asking.node.node_id,
            lifetime_ms: Some(self.timeout_ms.saturating_add(self.margin_ms)),
            on_expiry: Some(OnExpiry::Discard),
            no_wait: false,
            priority: 0,
            purpose: ActivatePurpose::Evaluate,
            extra: Extra { hide: self.hide.clone(), ..extra },
            environment: self.environment.clone(),
        };
        let mut waiting = |news: &QueueNews| (asking.progress)(Stage::Waiting(news.before));
        for number in 0..STARTS {
            let key = asking.step(&format!("{step}/{number}"));
            if self.was_begun(&key)? {
                continue;
            }
            let meta = asking.context.request_meta(&key);
            let now = self.client.activate(ActivateRequest { meta, ..request.clone() }, &mut waiting)?;
            if let Err(changed) = asking.prepared.unchanged() {
                self.release(&now);
                return Err(Stop::Problem(changed));
            }
            return Ok(now);
        }
        let lost =
            Problem::new(Class::Failure, "every_sandbox_lost", "every sandbox of this evaluation was lost");
        Err(Stop::Problem(lost.remedy("evaluate under another idempotency key").retryable()))
    }

    /// Whether an earlier try of this request had a sandbox under this key: what ran in it nobody knows, so
    /// it is ended and not used again.
    fn was_begun(&mut self, key: &str) -> Result<bool, Problem> {
        let graph = self.asking.store.graph();
        let earlier = graph.recorded::<Attempt>(&self.asking.context.meta(key)?, "enqueue");
        let Some(earlier) = earlier.map_err(|error| error.problem())? else { return Ok(false) };
        let now = graph.attempt(earlier.attempt_id).map_err(|error| error.problem())?;
        if now.status.is_live() || now.status == AttemptStatus::Queued {
            self.release(&now);
        }
        Ok(true)
    }

    /// Runs `command` and reads what it left. The worker kills what it started with its end.
    fn command(&mut self, attempt: &Attempt, by: JudgedBy) -> Step<Done> {
        let evaluator = &self.asking.prepared.evaluator;
        let in_stdout = evaluator.report.as_ref().is_some_and(|report| report.path.is_none());
        let window = if in_stdout { MAX_REPORT as u64 } else { EVIDENCE_WINDOW };
        let request = ExecRequest {
            user: evaluator.user.clone(),
            max_output: Some(window),
            ..self.request(attempt, &evaluator.command)
        };
        let (result, stdout, stderr) = self.exec("command", request)?;
        let command = outcome(&result)?;
        if let Outcome::Lost(_) = command {
            return Err(Stop::Judged(judge(command, Evidence::ExitCode)));
        }
        let whole = result.stdout_bytes == stdout.len() as u64;
        let workspace = self.workspace();
        let path = evaluator.report.as_ref().and_then(|report| report.path.as_deref());
        let left = match (by, path) {
            (JudgedBy::Result, _) => self.result(attempt)?,
            (JudgedBy::Report, Some(path)) => read(&mut self.client, attempt, &workspace, path, MAX_REPORT)?,
            (JudgedBy::Report, None) if whole => Left::Bytes(stdout.clone()),
            (JudgedBy::Report, None) => {
                Left::Unusable(format!("expected at most {MAX_REPORT} bytes of output"))
            }
            (JudgedBy::ExitCode | JudgedBy::Score, _) => Left::Nothing,
        };
        if let (Some(path), Left::Bytes(bytes)) = (path, &left) {
            self.outputs.push((path.to_owned(), bytes.clone()));
        }
        let mut collected = Vec::new();
        for (name, path) in &evaluator.collect {
            match read(&mut self.client, attempt, &workspace, path, MAX_COLLECTED)? {
                Left::Bytes(bytes) => collected.push((name.clone(), bytes)),
                Left::Nothing => {}
                Left::Unusable(why) => {
                    let detail = format!("collect {path}: {why}");
                    return Err(Stop::Judged(Judgement::error(FailureClass::EvaluatorError, detail)));
                }
            }
        }
        Ok(Done { command, stdout: whole.then_some(stdout), stderr, left, collected })
    }

    /// What the command changed in the tree, for the scorer; an evaluator that collects takes only that.
    fn lay_aside(&self, attempt: &Attempt) -> Step<Option<Scratch>> {
        let prepared = self.asking.prepared;
        if !prepared.evaluator.collect.is_empty() {
            return Ok(None);
        }
        match delta::lay_aside(self.asking.store, attempt, prepared) {
            Err(problem) if problem.code == "too_much_left" => {
                Err(Stop::Judged(Judgement::error(FailureClass::EvaluatorError, problem.message)))
            }
            aside => Ok(aside?),
        }
    }

    /// Runs the scorer where nothing of the tree's code ever ran, and judges by the result that it writes.
    fn score(mut self, done: Done, left: Option<&Scratch>) -> Result<Evaluation, Problem> {
        let prepared = self.asking.prepared;
        let files = prepared.score_files.as_ref().or(prepared.files.as_ref());
        let mut extra = extra(files, true);
        extra.left = left.map(|left| left.path().to_owned());
        let attempt = match self.activate("score", extra) {
            Ok(attempt) => attempt,
            Err(stop) => return self.stopped(stop, None),
        };
        let stop = self.scored(&attempt, done).unwrap_or_else(|stop| stop);
        self.end(&attempt, stop)
    }

    fn scored(&mut self, attempt: &Attempt, done: Done) -> Step<Stop> {
        let command = done.command;
        let handed = self.hand_over(attempt, done)?;
        let program = self.asking.prepared.evaluator.score.as_ref().expect("judged by one");
        let mut env = told(command);
        env.extend(handed);
        let env = env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let request = ExecRequest { user: Some("0".to_owned()), env, ..self.request(attempt, program) };
        let (result, ..) = self.exec("score", request)?;
        let ended = outcome(&result)?;
        let left = match ended {
            Outcome::Exited(0) => self.result(attempt)?,
            _ => Left::Nothing,
        };
        Ok(Stop::Judged(judge(command, Evidence::Score(ended, left.found()))))
    }

    /// Puts what the command left beside the scorer's result; gives the variables that name it.
    fn hand_over(&mut self, attempt: &Attempt, done: Done) -> Step<Vec<(&'static str, String)>> {
        let at = |name: &str| format!("{}/{name}", Extra::CHANNEL);
        let streams = [("command.stdout", done.stdout), ("command.stderr", Some(done.stderr))];
        let streams = streams.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes?)));
        for (name, bytes) in streams.chain(done.collected) {
            let path = at(&name);
            self.client.put_file(attempt.attempt_id, path.as_ref(), 0o444, &mut bytes.as_slice())?;
        }
        Ok(vec![
            ("ESF_COMMAND_STDOUT", at("command.stdout")),
            ("ESF_COMMAND_STDERR", at("command.stderr")),
            ("ESF_COLLECTED", Extra::CHANNEL.to_owned()),
        ])
    }

    fn result(&mut self, attempt: &Attempt) -> Step<Left> {
        let name = Extra::RESULT.strip_prefix(Extra::CHANNEL).expect("it is in the channel");
        let name = name.trim_start_matches('/');
        Ok(read(&mut self.client, attempt, Extra::CHANNEL, name, MAX_RESULT)?)
    }

    fn workspace(&self) -> String {
        match (self.environment.executor, &self.environment.base) {
            (ExecutorKind::Oci, Base::Root) => "/".to_owned(),
            _ => self.environment.workspace.clone(),
        }
    }

    fn request(&self, attempt: &Attempt, program: &[String]) -> ExecRequest {
        ExecRequest {
            actor: self.asking.context.actor(),
            attempt: attempt.attempt_id,
            argv: program.iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            timeout_ms: Some(self.timeout_ms),
            detach: false,
            max_output: Some(EVIDENCE_WINDOW),
            key: None,
            stdin: false,
            trace_id: self.asking.context.trace_id().to_owned(),
        }
    }

    /// Runs one program and keeps what it printed.
    fn exec(&mut self, name: &'static str, request: ExecRequest) -> Step<(ExecResult, Vec<u8>, Vec<u8>)> {
        (self.asking.progress)(Stage::Running(name));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ended = self.client.exec(request, None, &mut out, &mut err);
        self.outputs.push((format!("{name}.stdout"), out.clone()));
        self.outputs.push((format!("{name}.stderr"), err.clone()));
        Ok((ended?, out, err))
    }
}

/// What a sandbox has of the evaluator's.
fn extra(files: Option<&Own>, result_channel: bool) -> Extra {
    Extra { files: files.map(|own| own.path.clone()), result_channel, ..Extra::default() }
}

/// What the scorer is told of the command's end.
fn told(command: Outcome) -> Vec<(&'static str, String)> {
    let (kind, value) = match command {
        Outcome::Exited(code) => ("exit", code.to_string()),
        Outcome::Signalled(signal) => ("signal", signal.to_string()),
        Outcome::TimedOut => ("timeout", String::new()),
        Outcome::OutOfMemory => ("oom", String::new()),
        Outcome::Lost(class) => ("lost", class.as_str().to_owned()),
    };
    vec![("ESF_COMMAND_OUTCOME", kind.to_owned()), ("ESF_COMMAND_CODE", value)]
}

/// How a program of the evaluator ended; one that this program's user interrupted is no outcome.
fn outcome(result: &ExecResult) -> Step<Outcome> {
    Ok(match result.failure.as_ref().map(|failure| failure.class) {
        _ if result.timed_out => Outcome::TimedOut,
        Some(FailureClass::UserTimeout) => Outcome::TimedOut,
        Some(FailureClass::UserOom) => Outcome::OutOfMemory,
        Some(FailureClass::Cancelled) if crate::interrupt::seen() => {
            let problem = Problem::new(Class::Failure, "cancelled", "the evaluation was interrupted")
                .remedy("ask again under the same idempotency key: it is run anew");
            return Err(Stop::Problem(problem));
        }
        Some(class @ (FailureClass::InfraLost | FailureClass::InfraPrepare | FailureClass::Cancelled)) => {
            Outcome::Lost(class)
        }
        _ => match (result.exit_code, result.signal) {
            (Some(code), _) => Outcome::Exited(code),
            (None, Some(signal)) => Outcome::Signalled(signal),
            (None, None) => Outcome::Lost(FailureClass::InfraLost),
        },
    })
}
