//! One run of an evaluator in its sandbox: started, its programs run, its result read.

use std::path::Path;

use esf_control::{Outcome, judge};
use esf_core::environment::ExecutorKind;
use esf_core::policy::OnExpiry;
use esf_core::record::Attempt;
use esf_core::state::AttemptStatus;
use esf_core::{Class, FailureClass, Problem};
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult};

use super::{Asking, Judged, Prepared, Stage, files};
use crate::args;
use crate::commands::environment;

/// Bytes of each stream that are kept as evidence.
const EVIDENCE_WINDOW: u64 = 1 << 20;
/// Time beyond the evaluator's own that a run may hold a sandbox, in milliseconds.
const MARGIN_MS: u64 = 300_000;
/// How often a repeated request may find the sandbox of an earlier one gone before its end.
const STARTS: usize = 16;

impl Asking<'_> {
    pub(super) fn start(&self, client: &mut Client) -> Result<Attempt, Problem> {
        let prepared = self.prepared;
        let group = self.store.graph().group(self.node.group_id).map_err(|error| error.problem())?;
        let options = args::ActivateOptions::default();
        let mut environment = environment::environment(&group.default_environment, &options, Vec::new())?;
        environment.env.extend(prepared.evaluator.environment.clone());
        let programs = 1 + u64::from(prepared.evaluator.score.is_some());
        let lifetime = prepared.evaluator.timeout_ms.saturating_mul(programs).saturating_add(MARGIN_MS);
        let request = ActivateRequest {
            meta: self.context.request_meta(""),
            node: self.node.node_id,
            lifetime_ms: Some(lifetime),
            on_expiry: Some(OnExpiry::Discard),
            no_wait: false,
            purpose: ActivatePurpose::Evaluate,
            extra: Extra {
                files: prepared.files.clone(),
                hide: files::hidden(self.store, self.node, &prepared.hide)?,
                result_channel: has_channel(environment.executor, prepared),
            },
            environment,
        };
        let mut waiting = |before| (self.progress)(Stage::Waiting(before));
        for number in 0..STARTS {
            let meta = self.context.request_meta(&self.step(&format!("activate/{number}")));
            let attempt = client.activate(ActivateRequest { meta, ..request.clone() }, &mut waiting)?;
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
fn has_channel(executor: ExecutorKind, prepared: &Prepared) -> bool {
    let own_programs = prepared.evaluator.score.is_some() || prepared.files.is_some();
    match executor {
        ExecutorKind::Oci => true,
        ExecutorKind::Wasi => own_programs,
    }
}

/// One run in its sandbox.
pub(super) struct Run<'a> {
    asking: &'a Asking<'a>,
    client: &'a mut Client,
    attempt: &'a Attempt,
    outputs: Vec<(String, Vec<u8>)>,
}

impl<'a> Run<'a> {
    pub(super) fn new(asking: &'a Asking<'a>, client: &'a mut Client, attempt: &'a Attempt) -> Self {
        Self { asking, client, attempt, outputs: Vec::new() }
    }

    /// Runs `command`, then kills what it left, then runs `score`, then reads the result.
    pub(super) fn judge(mut self) -> Result<Judged, Problem> {
        let evaluator = &self.asking.prepared.evaluator;
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
        if !has_channel(self.attempt.executor, self.asking.prepared) {
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

    fn step(
        &mut self,
        name: &'static str,
        program: &[String],
        told: &[(&str, String)],
    ) -> Result<Outcome, Problem> {
        (self.asking.progress)(Stage::Running(name));
        let request = ExecRequest {
            actor: self.asking.context.actor(),
            attempt: self.attempt.attempt_id,
            argv: program.iter().map(Into::into).collect(),
            env: told.iter().map(|(name, value)| ((*name).into(), value.into())).collect(),
            cwd: None,
            user: None,
            timeout_ms: Some(self.asking.prepared.evaluator.timeout_ms),
            detach: false,
            max_output: Some(EVIDENCE_WINDOW),
            key: None,
            stdin: false,
            trace_id: self.asking.context.trace_id().to_owned(),
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ended = self.client.exec(request, None, &mut out, &mut err);
        self.outputs.push((format!("{name}.stdout"), out));
        self.outputs.push((format!("{name}.stderr"), err));
        match ended {
            Ok(result) => outcome(&result),
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

/// How a program of the evaluator ended; one that this program's user interrupted is no outcome.
fn outcome(result: &ExecResult) -> Result<Outcome, Problem> {
    Ok(match result.failure.as_ref().map(|failure| failure.class) {
        _ if result.timed_out => Outcome::TimedOut,
        Some(FailureClass::UserOom) => Outcome::OutOfMemory,
        Some(FailureClass::Cancelled) if crate::interrupt::seen() => {
            return Err(Problem::new(Class::Failure, "cancelled", "the evaluation was interrupted")
                .remedy("ask again under the same idempotency key: it is run anew"));
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
