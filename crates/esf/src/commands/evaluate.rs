//! `evaluate`: runs an evaluator file on a sealed node, or attaches a verdict given by hand. The plan
//! and the judgement are `esf-control`'s; here they are carried out through the worker, each run in
//! an attempt of its own that ends by itself even if this program dies.

use std::fs;
use std::path::{Path, PathBuf};

use esf_control::{Evaluator, Judgement, Outcome, judge};
use esf_core::environment::ExecutorKind;
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::policy::OnExpiry;
use esf_core::record::{self, Attempt, Evaluation, Evidence, Failure, Node, Verdict};
use esf_core::state::AttemptStatus;
use esf_core::{Class, Digest, FailureClass, Problem};
use esf_store::Store;
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult};
use serde_json::{Value, json};

use super::{environment, find, live, show};
use crate::args;
use crate::context::{Context, io_problem};
use crate::output::{Reply, Table};

/// Bytes of each stream that are kept as evidence.
const EVIDENCE_WINDOW: u64 = 1 << 20;
/// Time beyond the evaluator's own that a run may hold a sandbox, in milliseconds.
const MARGIN_MS: u64 = 300_000;

pub(super) fn evaluate(context: &Context, arguments: &args::Evaluate) -> Result<Reply, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    match &arguments.evaluator {
        Some(file) => run(context, &store, &node, file, arguments.repeat),
        None => attach(context, &store, &node, arguments),
    }
}

fn attach(
    context: &Context,
    store: &Store,
    node: &Node,
    arguments: &args::Evaluate,
) -> Result<Reply, Problem> {
    let bad = |message: String| Problem::new(Class::Usage, "bad_option", message);
    let verdict: Verdict = arguments
        .verdict
        .as_deref()
        .unwrap_or_default()
        .parse()
        .map_err(|error| bad(format!("--verdict: {error}")))?;
    if arguments.reward.is_some_and(|reward| !reward.is_finite()) {
        return Err(bad("--reward: expected a finite number".to_owned()));
    }
    let keep = |path: &PathBuf| {
        let bytes = fs::read(path).map_err(|error| io_problem("read", path, &error))?;
        evidence(store, &path.display().to_string(), &bytes)
    };
    let evaluation = NewEvaluation {
        node: node.node_id,
        evaluator: record::Evaluator {
            name: "attached".to_owned(),
            version: arguments.version.clone().unwrap_or_default(),
            digest: None,
        },
        reward: if verdict.is_error() { None } else { arguments.reward },
        failure: verdict
            .is_error()
            .then(|| Failure::new(FailureClass::EvaluatorError, "evaluate", "attached as an error")),
        verdict,
        metrics: json!({}),
        evidence: arguments.evidence.iter().map(keep).collect::<Result<_, _>>()?,
        attempt: None,
        run_attempt: None,
        epoch: None,
    };
    let evaluation =
        store.graph().evaluate(&context.meta("")?, evaluation).map_err(|error| error.problem())?;
    Ok(show::evaluation(&evaluation))
}

fn evidence(store: &Store, name: &str, bytes: &[u8]) -> Result<Evidence, Problem> {
    let blob = store.stack().put_artifact(bytes).map_err(|error| error.problem())?;
    Ok(Evidence { name: name.to_owned(), blob, bytes: bytes.len() as u64 })
}

/// An evaluator file made ready: parsed, its files found and digested.
struct Ready {
    evaluator: Evaluator,
    files: Option<PathBuf>,
    digest: Digest,
    hide: Vec<Vec<u8>>,
}

impl Ready {
    /// What the caller asked for, as far as it decides the answer.
    fn asked(&self, node: &Node, runs: u32) -> Value {
        json!({
            "node": node.node_id, "evaluator": self.evaluator.name, "version": self.evaluator.version,
            "digest": self.digest, "runs": runs,
        })
    }

    fn read(store: &Store, node: &Node, path: &Path) -> Result<Self, Problem> {
        let bad = |message: String| {
            Problem::new(Class::Usage, "bad_evaluator", message).found(path.display().to_string())
        };
        let text = fs::read_to_string(path).map_err(|error| io_problem("read", path, &error))?;
        let evaluator = Evaluator::parse(&text).map_err(|error| bad(error.to_string()))?;
        let beside = path.parent().unwrap_or(Path::new(""));
        let files = evaluator.files.as_ref().map(|files| beside.join(files));
        let files_digest = files.as_deref().map(files_digest).transpose()?;
        let hidden = evaluator.hidden().map_err(|error| bad(error.to_string()))?;
        let hide = if evaluator.hide.is_empty() { Vec::new() } else { hidden_paths(store, node, &hidden)? };
        Ok(Self { digest: evaluator.digest(files_digest.as_ref()), evaluator, files, hide })
    }
}

/// How often a repeated request may find the sandbox of an earlier one gone before its end.
const STARTS: usize = 16;

/// One digest over names, modes and bytes of the evaluator's files, in the order of their names.
fn files_digest(directory: &Path) -> Result<Digest, Problem> {
    let mut lines = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(here) = waiting.pop() {
        let entries = fs::read_dir(&here).map_err(|error| io_problem("read", &here, &error))?;
        for entry in entries {
            let path = entry.map_err(|error| io_problem("read", &here, &error))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(|error| io_problem("read", &path, &error))?;
            let name = path
                .strip_prefix(directory)
                .unwrap_or(&path)
                .as_os_str()
                .as_encoded_bytes()
                .escape_ascii()
                .to_string();
            if metadata.is_dir() {
                waiting.push(path);
            } else if metadata.is_file() {
                let bytes = fs::read(&path).map_err(|error| io_problem("read", &path, &error))?;
                let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777;
                lines.push(format!("{name} {mode:o} {}", Digest::of(&bytes)));
            } else {
                return Err(Problem::new(
                    Class::Usage,
                    "bad_evaluator",
                    "an evaluator's files are regular files and directories",
                )
                .found(path.display().to_string()));
            }
        }
    }
    lines.sort_unstable();
    Ok(Digest::in_context("esf evaluator files v1", lines.join("\n").as_bytes()))
}

/// The paths of the node's tree that the globs hide; below a hidden directory nothing more is named.
fn hidden_paths(store: &Store, node: &Node, hidden: &globset::GlobSet) -> Result<Vec<Vec<u8>>, Problem> {
    let pin = find::sealed_root(node)?;
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for entry in esf_core::manifest::walk(store.stack().objects(), &pin) {
        let path = entry.map_err(|error| error.problem())?.path;
        let below = |top: &Vec<u8>| path.starts_with(top) && path.get(top.len()) == Some(&b'/');
        if paths.last().is_some_and(below) {
            continue;
        }
        if hidden.is_match(Path::new(std::ffi::OsStr::new(&*String::from_utf8_lossy(&path)))) {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn run(
    context: &Context,
    store: &Store,
    node: &Node,
    file: &Path,
    repeat: Option<u32>,
) -> Result<Reply, Problem> {
    find::sealed_root(node)?;
    let ready = Ready::read(store, node, file)?;
    let runs = repeat.unwrap_or(ready.evaluator.repeat);
    let mut evaluations = Vec::new();
    for number in 0..runs {
        let part = if runs == 1 { String::new() } else { number.to_string() };
        let asked = ready.asked(node, runs);
        evaluations.push(Asking { context, store, node, ready: &ready, part, asked }.answer()?);
    }
    Ok(summary(&evaluations))
}

/// One evaluation that was asked for.
struct Asking<'a> {
    context: &'a Context,
    store: &'a Store,
    node: &'a Node,
    ready: &'a Ready,
    /// Its part of the request's idempotency key.
    part: String,
    asked: Value,
}

impl Asking<'_> {
    /// Answers from the record where there is one, else runs. Several that ask the same at once wait
    /// for the first.
    fn answer(&self) -> Result<Evaluation, Problem> {
        let _turn = esf_worker::lock::same_request(self.context.dir(), &self.context.key(&self.part))?;
        let meta = self.context.meta(&self.part)?;
        let known = self.store.graph().recorded_asked(&meta, "evaluate", &self.asked);
        match known.map_err(|error| error.problem())? {
            Some(evaluation) => Ok(evaluation),
            None => self.run(),
        }
    }

    fn run(&self) -> Result<Evaluation, Problem> {
        let mut client = self.context.worker()?;
        match self.start(&mut client) {
            Ok(attempt) => {
                let run = Run {
                    context: self.context,
                    ready: self.ready,
                    client: &mut client,
                    attempt: &attempt,
                    outputs: Vec::new(),
                };
                // Recorded under the run's own lease, so the release comes after it, whatever it came to.
                let recorded = run.judge().and_then(|judged| self.record(judged, Some(&attempt)));
                let meta = self.context.request_meta(&format!("{}/release", self.part));
                if let Err(problem) = client.release(meta, attempt.attempt_id, true) {
                    tracing::warn!(%problem, "the evaluation's attempt ends at its lifetime instead");
                }
                recorded
            }
            Err(problem) if problem.code == "infra_prepare" || problem.code == "infra_lost" => {
                let judgement = judge(Outcome::Lost(FailureClass::InfraPrepare), None, None);
                self.record(Judged { judgement, outputs: Vec::new() }, None)
            }
            Err(problem) => Err(problem),
        }
    }

    fn record(&self, judged: Judged, attempt: Option<&Attempt>) -> Result<Evaluation, Problem> {
        let Judged { judgement, outputs } = judged;
        let evaluator = &self.ready.evaluator;
        let kept = outputs.iter().filter(|(_, bytes)| !bytes.is_empty());
        let new = NewEvaluation {
            node: self.node.node_id,
            evaluator: record::Evaluator {
                name: evaluator.name.clone(),
                version: evaluator.version.clone(),
                digest: Some(self.ready.digest),
            },
            verdict: judgement.verdict,
            reward: judgement.reward,
            metrics: json!(judgement.metrics),
            failure: judgement.failure.map(|(class, detail)| Failure::new(class, "evaluate", detail)),
            evidence: kept
                .map(|(name, bytes)| evidence(self.store, name, bytes))
                .collect::<Result<_, _>>()?,
            attempt: None,
            run_attempt: attempt.map(|attempt| attempt.attempt_id),
            epoch: attempt.map(|attempt| attempt.lease_epoch),
        };
        let meta = self.context.meta(&self.part)?;
        self.store.graph().evaluate_asked(&meta, &self.asked, new).map_err(|error| error.problem())
    }

    fn start(&self, client: &mut Client) -> Result<Attempt, Problem> {
        let ready = self.ready;
        let group = self.store.graph().group(self.node.group_id).map_err(|error| error.problem())?;
        let options = args::ActivateOptions::default();
        let mut environment = environment::environment(&group.default_environment, &options, Vec::new())?;
        environment.env.extend(ready.evaluator.environment.clone());
        let programs = 1 + u64::from(ready.evaluator.score.is_some());
        let request = ActivateRequest {
            meta: self.context.request_meta(""),
            node: self.node.node_id,
            lifetime_ms: Some(ready.evaluator.timeout_ms.saturating_mul(programs).saturating_add(MARGIN_MS)),
            on_expiry: Some(OnExpiry::Discard),
            no_wait: false,
            purpose: ActivatePurpose::Evaluate,
            extra: Extra {
                files: ready.files.clone(),
                hide: ready.hide.clone(),
                result_channel: has_channel(environment.executor, ready),
            },
            environment,
        };
        client.set_cancel(super::exec::interrupts()?);
        for number in 0..STARTS {
            let meta = self.context.request_meta(&format!("{}/activate/{number}", self.part));
            let attempt = client.activate(ActivateRequest { meta, ..request.clone() }, &mut live::waiting)?;
            // The same request may have been cut short after its sandbox was up: that one is gone.
            let now = self.store.graph().attempt(attempt.attempt_id).map_err(|error| error.problem())?;
            if now.status == AttemptStatus::Active {
                return Ok(now);
            }
        }
        Err(Problem::new(Class::Failure, "infra_lost", "every sandbox of this evaluation was lost")
            .remedy("evaluate under another idempotency key"))
    }
}

/// Whether a run has a place for its result. One that has no programs of the evaluator's own could not use it
/// rightly, and an executor that has no such place runs it all the same.
fn has_channel(executor: ExecutorKind, ready: &Ready) -> bool {
    let own_programs = ready.evaluator.score.is_some() || ready.files.is_some();
    match executor {
        ExecutorKind::Oci => true,
        ExecutorKind::Wasi => own_programs,
    }
}

/// A judgement and what the programs printed.
struct Judged {
    judgement: Judgement,
    outputs: Vec<(String, Vec<u8>)>,
}

/// One run in its sandbox.
struct Run<'a> {
    context: &'a Context,
    ready: &'a Ready,
    client: &'a mut Client,
    attempt: &'a Attempt,
    outputs: Vec<(String, Vec<u8>)>,
}

impl Run<'_> {
    /// Runs `command`, then kills what it left, then runs `score`, then reads the result.
    fn judge(mut self) -> Result<Judged, Problem> {
        let evaluator = &self.ready.evaluator;
        let command = self.step("command", &evaluator.command, &[])?;
        if matches!(command, Outcome::Lost(_)) {
            return Ok(Judged { judgement: judge(command, None, None), outputs: self.outputs });
        }
        let mut score = None;
        if let Some(program) = &evaluator.score {
            // Nothing of the tree's runs beside the scorer, and nothing that it wrote is a result.
            self.client.kill(self.attempt.attempt_id, None, 9)?;
            self.client.clear_result(self.attempt.attempt_id)?;
            score = Some(self.step("score", program, &told(command))?);
        }
        let mut bytes = Vec::new();
        if !has_channel(self.attempt.executor, self.ready) {
            return Ok(Judged { judgement: judge(command, score, None), outputs: self.outputs });
        }
        let result = match self.client.get_file(self.attempt.attempt_id, Path::new(Extra::RESULT), &mut bytes)
        {
            Ok(_) => Some(bytes.as_slice()),
            Err(problem) if problem.code == "not_found" => None,
            Err(problem) if problem.code == "infra_lost" => {
                let judgement = judge(Outcome::Lost(FailureClass::InfraLost), None, None);
                return Ok(Judged { judgement, outputs: self.outputs });
            }
            Err(problem) => return Err(problem),
        };
        Ok(Judged { judgement: judge(command, score, result), outputs: self.outputs })
    }

    fn step(&mut self, name: &str, program: &[String], told: &[(&str, String)]) -> Result<Outcome, Problem> {
        let request = ExecRequest {
            actor: self.context.actor(),
            attempt: self.attempt.attempt_id,
            argv: program.iter().map(Into::into).collect(),
            env: told.iter().map(|(name, value)| ((*name).into(), value.into())).collect(),
            cwd: None,
            user: None,
            timeout_ms: Some(self.ready.evaluator.timeout_ms),
            detach: false,
            max_output: Some(EVIDENCE_WINDOW),
            key: None,
            stdin: false,
            trace_id: self.context.trace_id().to_owned(),
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ended = self.client.exec(request, None, &mut out, &mut err);
        self.outputs.push((format!("{name}.stdout"), out));
        self.outputs.push((format!("{name}.stderr"), err));
        match ended {
            Ok(result) => Ok(outcome(&result)),
            Err(problem) if problem.code == "infra_lost" => Ok(Outcome::Lost(FailureClass::InfraLost)),
            Err(problem) => Err(problem),
        }
    }
}

/// What the scorer is told of the command's end.
fn told(command: Outcome) -> [(&'static str, String); 2] {
    let (kind, value) = match command {
        Outcome::Exited(code) => ("exit", code.to_string()),
        Outcome::Signalled(signal) => ("signal", signal.to_string()),
        Outcome::TimedOut => ("timeout", String::new()),
        Outcome::OutOfMemory => ("oom", String::new()),
        Outcome::Lost(class) => ("lost", class.as_str().to_owned()),
    };
    [("ESF_COMMAND_OUTCOME", kind.to_owned()), ("ESF_COMMAND_CODE", value)]
}

fn outcome(result: &ExecResult) -> Outcome {
    match result.failure.as_ref().map(|failure| failure.class) {
        _ if result.timed_out => Outcome::TimedOut,
        Some(FailureClass::UserOom) => Outcome::OutOfMemory,
        Some(class @ (FailureClass::InfraLost | FailureClass::InfraPrepare | FailureClass::Cancelled)) => {
            Outcome::Lost(class)
        }
        _ => match (result.exit_code, result.signal) {
            (Some(code), _) => Outcome::Exited(code),
            (None, Some(signal)) => Outcome::Signalled(signal),
            (None, None) => Outcome::Lost(FailureClass::InfraLost),
        },
    }
}

/// One evaluation as it is; several with the mean and variance of their rewards.
fn summary(evaluations: &[Evaluation]) -> Reply {
    let [one] = evaluations else {
        let rewards: Vec<f64> = evaluations.iter().filter_map(|evaluation| evaluation.reward).collect();
        let count = rewards.len() as f64;
        let mean = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / count);
        let variance =
            mean.map(|mean| rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / count);
        let mut table = Table::new(&["EVALUATION", "VERDICT", "REWARD"]);
        for evaluation in evaluations {
            let reward = show::optional(&evaluation.reward);
            table.row([show::short(&evaluation.evaluation_id), evaluation.verdict.to_string(), reward]);
        }
        table.row(["mean".to_owned(), String::new(), show::optional(&mean)]);
        table.row(["variance".to_owned(), String::new(), show::optional(&variance)]);
        let last = evaluations.last();
        let value = json!({ "evaluation": last, "evaluations": evaluations, "reward_mean": mean, "reward_variance": variance });
        return Reply {
            value,
            table,
            ids: evaluations.iter().map(|e| e.evaluation_id.to_string()).collect(),
        };
    };
    show::evaluation(one)
}
