//! One rollout, carried out: its proposer is asked, its action is taken in a sandbox of its own, what comes of
//! that is sealed, evaluated and completed. Invariants: every step has a key of the rollout's, so a driver
//! that was killed and started again repeats it without a second effect; a rollout ends accepted or void,
//! or stays held for the next driver; a failure is never a reward of zero.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use esf_control::proposer::{Question, Seen};
use esf_control::retry::{Retry, decide};
use esf_core::environment::{Base, ExecutorKind};
use esf_core::ops::search::{Complete, Expand, VoidRollout};
use esf_core::policy::{OnExpiry, Retries};
use esf_core::record::{Attempt, Evaluation, Json, Node};
use esf_core::search::config::Transpositions;
use esf_core::search::{Position, RolloutStatus, Stage, Ticket, rules};
use esf_core::state::AttemptStatus;
use esf_core::{Class, FailureClass, Problem, SearchId};
use esf_store::Store;
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult, Stdin, SuspendRequest};
use serde::Deserialize;

use super::progress::Tell;
use super::proposer::Proposer;
use crate::args::ActivateOptions;
use crate::commands::environment;
use crate::context::Context;
use crate::evaluation::{self, Prepared};
use crate::interrupt;
use crate::search::config;

/// Time beyond the action's own that its sandbox may live, in milliseconds.
const MARGIN_MS: u64 = 300_000;
/// How often a rollout may find the sandbox of an earlier driver gone.
const STARTS: u32 = 16;
/// How long a seal of an earlier driver is waited for, in steps of 100 ms.
const SEAL_STEPS: u32 = 600;
/// Bytes of an action's output that are kept for its failure.
const WINDOW: u64 = 8 << 10;

/// What all rollouts of a run have in common.
pub(super) struct Crew<'a> {
    pub(super) context: &'a Context,
    pub(super) store: &'a Store,
    pub(super) search: SearchId,
    pub(super) config: &'a esf_core::search::Config,
    pub(super) run: &'a config::Run,
    /// Milliseconds that taking an action may last.
    pub(super) apply_timeout_ms: u64,
    pub(super) retries: Retries,
    pub(super) evaluator: &'a Prepared,
    pub(super) options: &'a ActivateOptions,
    pub(super) proposer: &'a Proposer,
    pub(super) tell: &'a Tell,
}

/// How a rollout ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It counts; what its value is worth, if it brought one.
    Accepted(Option<f64>),
    /// It came to nothing, and says why.
    Void,
    /// It was given up since the run is ending.
    GivenBack,
}

/// What came of an action.
enum Acted {
    Sealed(Box<Node>),
    Failed(FailureClass, String),
    GivenBack,
}

/// An action that needs no program of the user's.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Run(RunForm),
    Write(WriteForm),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunForm {
    run: Vec<String>,
    stdin: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteForm {
    write: BTreeMap<String, String>,
}

/// A problem that is this rollout's own: its class, or nothing when the run is ending.
fn own_failure(problem: &Problem) -> Option<Option<FailureClass>> {
    match FailureClass::parse(&problem.code) {
        Some(FailureClass::Cancelled) => Some(None),
        Some(class) => Some(Some(class)),
        None => match &*problem.code {
            "not_active" | "every_sandbox_lost" => Some(Some(FailureClass::InfraLost)),
            // Somebody pruned the leaf's node meanwhile.
            "pruned" => Some(Some(FailureClass::InfraPrepare)),
            _ => None,
        },
    }
}

/// One rollout in the hands of one worker's connection.
pub(super) struct Carrier<'a> {
    crew: &'a Crew<'a>,
    /// Its idempotency key is the rollout's.
    context: Context,
    client: &'a mut Option<Client>,
    ticket: Ticket,
}

impl<'a> Carrier<'a> {
    pub(super) fn new(crew: &'a Crew<'a>, client: &'a mut Option<Client>, ticket: Ticket) -> Self {
        let context = crew.context.keyed(ticket.rollout.rollout_id.to_string());
        Self { crew, context, client, ticket }
    }

    /// Carries the rollout to its end.
    ///
    /// # Errors
    /// What ends the whole run: a proposer that gives nothing, settings that cannot work, a broken store.
    /// The rollout is still held then.
    pub(super) fn carry(mut self) -> Result<Ended, Problem> {
        let done = self.steps();
        match done {
            // It lapsed, or somebody ended it by hand; the search has it as it says.
            Err(problem) if matches!(&*problem.code, "rollout_void" | "rollout_lapsed" | "rollout_ended") => {
                self.crew.tell.line(&format!("{}: {problem}", self.ticket.rollout.rollout_id));
                Ok(Ended::Void)
            }
            Err(problem) => match own_failure(&problem) {
                Some(Some(class)) => self.void(Some(class), problem.message),
                Some(None) => self.void(None, "the run was ended".to_owned()).map(|_| Ended::GivenBack),
                None => Err(problem),
            },
            done => done,
        }
    }

    fn steps(&mut self) -> Result<Ended, Problem> {
        while self.ticket.rollout.status == RolloutStatus::Selected
            && self.ticket.rollout.stage == Stage::Expand
        {
            self.expand()?;
        }
        match (self.ticket.rollout.status, self.ticket.rollout.stage) {
            (RolloutStatus::Accepted, _) => Ok(Ended::Accepted(None)),
            (RolloutStatus::Void, _) => Ok(Ended::Void),
            (RolloutStatus::Selected, Stage::Visit) => self.visit(),
            (RolloutStatus::Selected, Stage::Expand | Stage::Revisit) => self.revisit(),
        }
    }

    /// Gives the rollout up. What may pass gets the pause of the group's retry policy first: the edge is free for
    /// its next try only then, so a broken worker does not use up every edge's tries at once.
    fn void(&self, class: Option<FailureClass>, reason: String) -> Result<Ended, Problem> {
        let rollout = self.ticket.rollout.rollout_id;
        let name = self.ticket.action_name.as_deref().map_or(String::new(), |name| format!(" ({name})"));
        let shown = class.map_or("given back", FailureClass::as_str);
        self.crew.tell.line(&format!("{rollout}{name}: {shown}: {reason}"));
        let reason: String = reason.chars().take(1000).collect();
        if let (Some(class), Some(step)) = (class, self.ticket.rollout.path.last()) {
            let edge = self.crew.store.graph().edge(step.edge).map_err(|error| error.problem())?;
            let tries = edge.stats.failures.saturating_add(1);
            if let Retry::Again { after_ms } = decide(class, tries, &self.crew.retries, step.edge.0) {
                pause(after_ms);
            }
        }
        let meta = self.context.meta("void")?;
        let command = VoidRollout { rollout, class, reason };
        self.crew.store.graph().void_rollout(&meta, command).map_err(|error| error.problem())?;
        Ok(Ended::Void)
    }

    fn position(&self) -> Result<Position, Problem> {
        self.crew.store.graph().position(self.ticket.rollout.leaf).map_err(|error| error.problem())
    }

    fn expand(&mut self) -> Result<(), Problem> {
        let graph = self.crew.store.graph();
        let position = self.position()?;
        let offer = self.crew.proposer.ask(self.question(&position)?)?;
        if offer.merged > 0 {
            let (merged, rollout) = (offer.merged, self.ticket.rollout.rollout_id);
            tracing::info!(%rollout, merged, "actions that the proposer repeated");
        }
        let part = format!("expand/{}/{}", position.stats.number.0, self.ticket.known);
        let command = Expand {
            rollout: self.ticket.rollout.rollout_id,
            candidates: offer.candidates,
            to_move: offer.to_move,
        };
        let expanded = graph.expand(&self.context.meta(&part)?, command);
        self.ticket = expanded.map_err(|error| error.problem())?.ticket;
        Ok(())
    }

    fn question(&self, position: &Position) -> Result<Question, Problem> {
        let graph = self.crew.store.graph();
        let node = match position.node_id {
            Some(node) => Some(graph.node(node).map_err(|error| error.problem())?),
            None => None,
        };
        let evaluation = match position.evaluation_id {
            Some(evaluation) => Some(graph.evaluation(evaluation).map_err(|error| error.problem())?),
            None => None,
        };
        let known = if self.ticket.known == 0 {
            Vec::new()
        } else {
            let edges = graph.edges_of(position.stats.number).map_err(|error| error.problem())?;
            edges.into_iter().map(|edge| edge.action).collect()
        };
        Ok(Question {
            id: 0,
            search_id: self.crew.search,
            node_id: position.node_id,
            root_id: position.root_id,
            logical_state: node.map_or(Json::Null, |node| node.logical_state.value()),
            depth: u32::try_from(self.ticket.actions.len()).unwrap_or(u32::MAX),
            actions: self.ticket.actions.clone(),
            evaluation: evaluation.map(|evaluation| Seen {
                reward: evaluation.reward,
                verdict: evaluation.verdict.to_string(),
                metrics: evaluation.metrics,
            }),
            want: self.ticket.want,
            known,
        })
    }

    fn visit(&mut self) -> Result<Ended, Problem> {
        let node = match self.act()? {
            Acted::Sealed(node) => node,
            Acted::Failed(class, reason) => return self.void(Some(class), reason),
            Acted::GivenBack => {
                return self.void(None, "the run was ended".to_owned()).map(|_| Ended::GivenBack);
            }
        };
        let mut outcome = Complete::of(self.ticket.rollout.rollout_id);
        outcome.node = Some(node.node_id);
        if self.crew.run.reuse && self.crew.config.transpositions != Transpositions::Off {
            match self.complete(outcome.clone()) {
                Ok(ended) => {
                    self.crew.tell.reused();
                    return Ok(ended);
                }
                // It is new.
                Err(problem) if problem.code == "value_missing" => {}
                Err(problem) => return Err(problem),
            }
        }
        self.evaluate_and_complete(&node, outcome)
    }

    fn revisit(&mut self) -> Result<Ended, Problem> {
        let graph = self.crew.store.graph();
        let position = self.position()?;
        let mut outcome = Complete::of(self.ticket.rollout.rollout_id);
        if !rules::wants_value(self.crew.config, &position.stats) {
            return self.complete(outcome);
        }
        let Some(node) = position.node_id else {
            let message = "the positions of this search have no nodes: its states are kept elsewhere";
            return Err(Problem::new(Class::Conflict, "no_node", message)
                .remedy("carry its rollouts out by hand: select, expand, complete"));
        };
        let node = graph.node(node).map_err(|error| error.problem())?;
        if self.crew.run.reuse && position.stats.values == 0 {
            let known = graph.evaluations(node.node_id).map_err(|error| error.problem())?;
            let digest = Some(self.crew.evaluator.digest());
            let usable = |evaluation: &&Evaluation| {
                evaluation.evaluator_digest == digest && evaluation.counts && evaluation.reward.is_some()
            };
            if let Some(evaluation) = known.iter().find(usable) {
                self.crew.tell.reused();
                return self.complete_with(evaluation, outcome);
            }
        }
        outcome.terminal = position.stats.terminal;
        self.evaluate_and_complete(&node, outcome)
    }

    fn evaluate_and_complete(&mut self, node: &Node, outcome: Complete) -> Result<Ended, Problem> {
        let crew = self.crew;
        let progress = |_stage: evaluation::Stage| {};
        let evaluation =
            evaluation::evaluate(&self.context, crew.store, node, crew.evaluator, "evaluate", &progress)?;
        self.complete_with(&evaluation, outcome)
    }

    fn complete_with(&mut self, evaluation: &Evaluation, mut outcome: Complete) -> Result<Ended, Problem> {
        if let Some(failure) = &evaluation.failure {
            return match failure.class {
                FailureClass::Cancelled => {
                    self.void(None, "the run was ended".to_owned()).map(|_| Ended::GivenBack)
                }
                class => self.void(Some(class), format!("evaluation: {}", failure.detail)),
            };
        }
        if evaluation.reward.is_none() {
            let reason = format!("the evaluator gave no reward, but the verdict {}", evaluation.verdict);
            return self.void(Some(FailureClass::EvaluatorError), reason);
        }
        outcome.evaluation = Some(evaluation.evaluation_id);
        outcome.terminal |=
            self.crew.run.terminal.iter().any(|verdict| verdict == evaluation.verdict.as_str());
        self.complete(outcome)
    }

    fn complete(&self, outcome: Complete) -> Result<Ended, Problem> {
        let completed = self.crew.store.graph().complete(&self.context.meta("complete")?, outcome);
        let value = completed.map_err(|error| error.problem())?.rollout.value;
        Ok(Ended::Accepted((!value.is_empty()).then(|| rules::worth(self.crew.config, 0, &value))))
    }

    fn client(&mut self) -> Result<&mut Client, Problem> {
        if self.client.is_none() {
            let mut client = self.context.worker()?;
            client.set_cancel(interrupt::watch()?);
            *self.client = Some(client);
        }
        Ok(self.client.as_mut().expect("made above"))
    }

    /// Takes the action in a sandbox, and seals what came of it. What an earlier driver had sealed is found;
    /// what it had begun is begun anew, since nobody knows whether the action was told whole.
    fn act(&mut self) -> Result<Acted, Problem> {
        for start in 0..STARTS {
            let attempt = match self.start(start) {
                Ok(attempt) => attempt,
                Err(problem) => return self.failed(problem),
            };
            let attempt = self.settled(attempt)?;
            match attempt.status {
                AttemptStatus::Sealed => {
                    let node = self.crew.store.graph().node(attempt.node_id);
                    return Ok(Acted::Sealed(Box::new(node.map_err(|error| error.problem())?)));
                }
                AttemptStatus::Active if attempt.trace_id == self.context.trace_id() => {
                    return self.act_in(&attempt, start);
                }
                AttemptStatus::Active => self.discard(&attempt),
                AttemptStatus::Queued
                | AttemptStatus::Quiescing
                | AttemptStatus::Failed
                | AttemptStatus::Released => {}
            }
        }
        Ok(Acted::Failed(FailureClass::InfraLost, "every sandbox of this rollout was lost".to_owned()))
    }

    /// A failure of this rollout, or the problem that ends the run. A connection that broke is not used again.
    fn failed(&mut self, problem: Problem) -> Result<Acted, Problem> {
        match own_failure(&problem) {
            Some(None) => Ok(Acted::GivenBack),
            Some(Some(class)) => {
                *self.client = None;
                Ok(Acted::Failed(class, problem.message))
            }
            None => Err(problem),
        }
    }

    fn start(&mut self, start: u32) -> Result<Attempt, Problem> {
        let crew = self.crew;
        let graph = crew.store.graph();
        let leaf = self.ticket.leaf_node_id.ok_or_else(|| {
            Problem::new(Class::Conflict, "no_node", "the leaf of this rollout has no node")
                .remedy("carry the rollouts of this search out by hand: select, expand, complete")
        })?;
        let node = graph.node(leaf).map_err(|error| error.problem())?;
        let group = graph.group(node.group_id).map_err(|error| error.problem())?;
        // Held until the attempt's record names them.
        let modules = environment::modules(crew.store, &node, crew.options)?;
        let pinned = modules.iter().map(environment::Module::pinned).collect();
        let request = ActivateRequest {
            meta: self.context.request_meta(&format!("activate/{start}")),
            node: leaf,
            environment: environment::environment(&group.default_environment, crew.options, pinned)?,
            lifetime_ms: Some(crew.apply_timeout_ms.saturating_add(MARGIN_MS)),
            on_expiry: Some(OnExpiry::Discard),
            no_wait: crew.options.no_wait,
            priority: 0,
            purpose: ActivatePurpose::Work,
            extra: Extra::default(),
        };
        self.client()?.activate(request, &mut |_| {})
    }

    /// The attempt as it is once nobody is sealing it.
    fn settled(&self, attempt: Attempt) -> Result<Attempt, Problem> {
        for _ in 0..SEAL_STEPS {
            let now = self.crew.store.graph().attempt(attempt.attempt_id);
            let now = now.map_err(|error| error.problem())?;
            if now.status != AttemptStatus::Quiescing {
                return Ok(now);
            }
            pause(100);
        }
        Ok(attempt)
    }

    fn act_in(&mut self, attempt: &Attempt, start: u32) -> Result<Acted, Problem> {
        let action = self.ticket.action.clone().unwrap_or(Json::Null);
        let taken = match self.take(attempt, &action) {
            Ok(None) => self.seal(attempt, start),
            Ok(Some((class, reason))) => Ok(Acted::Failed(class, reason)),
            Err(problem) => self.failed(problem),
        };
        if !matches!(taken, Ok(Acted::Sealed(_))) {
            self.discard(attempt);
        }
        taken
    }

    /// Lets go of a sandbox whose work is worth nothing, and of its draft.
    fn discard(&mut self, attempt: &Attempt) {
        let meta = self.context.request_meta(&format!("release/{}", attempt.attempt_id));
        let released = self.client().and_then(|client| client.release(meta, attempt.attempt_id, true));
        if let Err(problem) = released {
            // It ends with its lifetime.
            tracing::info!(attempt = %attempt.attempt_id, %problem, "not released");
            return;
        }
        let pruned = self.context.meta(&format!("prune/{}", attempt.attempt_id)).and_then(|meta| {
            self.crew.store.prune(&meta, attempt.node_id, true).map_err(|error| error.problem())
        });
        if let Err(problem) = pruned {
            tracing::info!(node = %attempt.node_id, %problem, "its draft stays");
        }
    }

    fn seal(&mut self, attempt: &Attempt, start: u32) -> Result<Acted, Problem> {
        let request = SuspendRequest {
            meta: self.context.request_meta(&format!("suspend/{start}")),
            attempt: attempt.attempt_id,
            terminal: false,
            state: None,
            message: self.ticket.action_name.clone(),
        };
        match self.client()?.suspend(request) {
            Ok(reply) => Ok(Acted::Sealed(Box::new(reply.node))),
            Err(problem) if problem.code == "workspace_busy" => {
                Ok(Acted::Failed(FailureClass::InfraLost, problem.message))
            }
            Err(problem) => self.failed(problem),
        }
    }

    /// Takes the action; says how it failed, if it did.
    fn take(&mut self, attempt: &Attempt, action: &Json) -> Result<Option<(FailureClass, String)>, Problem> {
        let form = serde_json::from_value::<Form>(action.clone()).ok();
        match (form, &self.crew.run.apply) {
            (Some(Form::Run(RunForm { run, stdin })), _) if !run.is_empty() => {
                let result = self.exec(attempt, &run, stdin.map(String::into_bytes))?;
                Ok(failure(&result.0, &result.1))
            }
            (Some(Form::Write(WriteForm { write })), _) => self.write(attempt, &write),
            (_, Some(apply)) => {
                let mut line = action.to_string().into_bytes();
                line.push(b'\n');
                let (result, output) = self.exec(attempt, &apply.clone(), Some(line))?;
                if matches!(result.exit_code, Some(126 | 127)) {
                    let message = format!("apply cannot be run inside the sandbox: {}", tail(&output));
                    return Err(Problem::new(Class::Usage, "apply_not_found", message)
                        .expected("a program of the sandbox, with its arguments")
                        .found(apply.join(" "))
                        .remedy("import it into the tree, or show it with --bind-ro"));
                }
                Ok(failure(&result, &output))
            }
            (_, None) => Err(Problem::new(
                Class::Usage,
                "no_apply",
                "an action says neither what to run nor what to write, and [run] has no `apply`",
            )
            .expected("{\"run\":[…]}, {\"write\":{…}}, or a program `apply` in [run]")
            .found(action.to_string().chars().take(200).collect::<String>())),
        }
    }

    fn exec(
        &mut self,
        attempt: &Attempt,
        argv: &[String],
        stdin: Option<Vec<u8>>,
    ) -> Result<(ExecResult, Vec<u8>), Problem> {
        let request = ExecRequest {
            actor: self.context.actor(),
            attempt: attempt.attempt_id,
            argv: argv.iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            timeout_ms: Some(self.crew.apply_timeout_ms),
            detach: false,
            max_output: Some(WINDOW),
            key: None,
            stdin: stdin.is_some(),
            trace_id: self.context.trace_id().to_owned(),
        };
        let mut said = Vec::new();
        let result = self.client()?.exec(request, stdin.map(Stdin::Bytes), &mut io::sink(), &mut said)?;
        Ok((result, said))
    }

    fn write(
        &mut self,
        attempt: &Attempt,
        files: &BTreeMap<String, String>,
    ) -> Result<Option<(FailureClass, String)>, Problem> {
        let top = match attempt.environment.base {
            Base::Root if attempt.executor == ExecutorKind::Oci => Path::new("/"),
            Base::Root | Base::Host | Base::Image(_) => Path::new(&attempt.environment.workspace),
        };
        for (name, text) in files {
            let path = &top.join(name);
            let id = attempt.attempt_id;
            let client = self.client()?;
            // A file that is there keeps its mode.
            let mode = match client.get_file(id, path, &mut io::sink()) {
                Ok(mode) => mode,
                Err(problem) if problem.code == "not_found" => 0o644,
                Err(problem) if own_failure(&problem).is_some() => return Err(problem),
                Err(problem) => return Ok(Some((FailureClass::UserExit, problem.message))),
            };
            match client.put_file(id, path, mode, &mut text.as_bytes()) {
                Ok(_) => {}
                Err(problem) if own_failure(&problem).is_some() || problem.code == "storage_full" => {
                    return Err(problem);
                }
                Err(problem) => return Ok(Some((FailureClass::UserExit, problem.message))),
            }
        }
        Ok(None)
    }
}

/// How a command that took an action failed, if it did.
fn failure(result: &ExecResult, output: &[u8]) -> Option<(FailureClass, String)> {
    let told = |what: String| match tail(output) {
        said if said.is_empty() => what,
        said => format!("{what}: {said}"),
    };
    if result.timed_out {
        return Some((FailureClass::UserTimeout, told(format!("no end after {} ms", result.duration_ms))));
    }
    match (&result.failure, result.exit_code) {
        (_, Some(0)) => None,
        (Some(failure), None) => Some((failure.class, told(failure.detail.clone()))),
        (_, Some(code)) => Some((FailureClass::UserExit, told(format!("exit {code}")))),
        (None, None) => Some((FailureClass::UserExit, told("ended by a signal".to_owned()))),
    }
}

/// The last line that a command wrote on its standard error.
fn tail(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    last.chars().take(200).collect()
}

/// Waits, but not beyond Ctrl-C.
fn pause(ms: u64) {
    let until = Instant::now() + Duration::from_millis(ms);
    while !interrupt::seen() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}
