//! Taking an action: a sandbox on the leaf's node, the action in it, the seal. Invariants: what an earlier driver
//! sealed is found and used; what it had begun is begun anew in a fresh sandbox, since nobody knows whether
//! the action was told whole; a sandbox whose work is worth nothing goes with its draft.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use esf_core::environment::{Base, ExecutorKind};
use esf_core::policy::OnExpiry;
use esf_core::record::{Attempt, Json, Node};
use esf_core::state::AttemptStatus;
use esf_core::{Class, FailureClass, Problem};
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult, Stdin, SuspendRequest};
use serde::Deserialize;

use super::rollout::{Carrier, own_failure};
use crate::commands::environment;
use crate::interrupt;

/// Time beyond the action's own that its sandbox may live, in milliseconds.
const MARGIN_MS: u64 = 300_000;
/// How often a rollout may find the sandbox of an earlier driver gone.
const STARTS: u32 = 16;
/// How long a seal of an earlier driver is waited for, in steps of 100 ms.
const SEAL_STEPS: u32 = 600;
/// Bytes of an action's output that are kept for its failure.
const WINDOW: u64 = 8 << 10;

/// What came of an action.
pub(super) enum Acted {
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

impl Carrier<'_> {
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
    pub(super) fn act(&mut self) -> Result<Acted, Problem> {
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
            interrupt::pause(100);
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
            keep: false,
            if_changed: false,
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
