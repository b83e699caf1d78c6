//! One trial of a sibling: a sandbox, the policy's turns in it, the seal, the scores, one end. Invariants: what the
//! policy asked for is run at most once in a trial; a sandbox that was lost is another trial, never a reward; an
//! outcome is made once and said as often as it takes.

use std::time::Instant;

use esf_control::retry::{self, Retry};
use esf_core::environment::Environment;
use esf_core::ops::rollout::{Begun, Finished, StartSibling, StartSiblings};
use esf_core::policy::OnExpiry;
use esf_core::record::{Attempt, Node};
use esf_core::{Class, FailureClass, NodeId, Problem};
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult, Stdin, SuspendRequest};
use serde_json::{Map, Value, json};

use super::policy::Policy;
use super::{Crew, Ended};
use crate::commands::find;
use crate::context::Context;
use crate::evaluation;
use crate::interrupt;
use crate::rollout::{input, refused};

/// Time beyond the turns' own that a sandbox may live, in milliseconds.
const MARGIN_MS: u64 = 600_000;
/// Most characters of a text that goes on record.
const MOST_TEXT: usize = 2000;

/// Why a trial did not come to its end.
enum Stop {
    /// The sandbox was lost, or could not be had.
    Infra(FailureClass, String),
    /// The policy broke down.
    Policy(Problem),
    /// The sibling was given up or another trial took its place.
    Over,
    /// This program is to end; the next one goes on.
    Interrupted,
    /// Nothing of the run can go on.
    Fatal(Problem),
}

/// How the turns ended.
struct Played {
    attempt: Attempt,
    /// A step that waits for the node it left.
    pending: Option<Value>,
    /// What the policy said at the end.
    said: Map<String, Value>,
    /// The budget that was used up.
    truncated: Option<&'static str>,
}

pub(super) struct Carrier<'a> {
    pub(super) crew: &'a Crew<'a>,
    pub(super) client: &'a mut Option<Client>,
    pub(super) policy: &'a mut Policy,
    pub(super) begun: Begun,
    /// Its idempotency key is the trial's.
    pub(super) context: Context,
}

impl Carrier<'_> {
    /// Carries the sibling to its end, over as many trials as the group's policy has retries for.
    pub(super) fn carry(mut self) -> Result<Ended, Problem> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.trial() {
                Ok(ended) => return Ok(ended),
                Err(Stop::Fatal(problem)) => return Err(problem),
                Err(Stop::Over) => return Ok(Ended::Over),
                Err(Stop::Interrupted) => return Ok(Ended::Interrupted),
                Err(Stop::Policy(problem)) => {
                    // It says nothing of what was asked; who wants it again refills it.
                    let failure = json!({
                        "class": "cancelled", "stage": "policy", "detail": cut(&problem.message),
                        "retryable": false, "gradable": false, "reward_valid": false,
                    });
                    let finished = self.finish(json!({ "failure": failure, "stop_reason": problem.code }))?;
                    return Ok(if finished { Ended::PolicyFault(problem) } else { Ended::Over });
                }
                Err(Stop::Infra(class, detail)) => {
                    *self.client = None;
                    match retry::decide(class, tries, &self.crew.retries, self.begun.seed) {
                        Retry::Again { after_ms } => {
                            interrupt::pause(after_ms);
                            if interrupt::seen() {
                                return Ok(Ended::Interrupted);
                            }
                            if !self.again()? {
                                return Ok(Ended::Over);
                            }
                        }
                        Retry::GiveUp => {
                            let failure =
                                json!({ "class": class, "stage": "sandbox", "detail": cut(&detail) });
                            let finished = self.finish(json!({ "failure": failure }))?;
                            return Ok(if finished { Ended::Error } else { Ended::Over });
                        }
                    }
                }
            }
        }
    }

    /// Another trial in the place of this one; false when the sibling is over.
    fn again(&mut self) -> Result<bool, Problem> {
        let before =
            StartSibling { supersede: Some(self.begun.trial), ..StartSibling::of(self.begun.sibling_id) };
        let command = StartSiblings {
            run_id: self.crew.run.run_id,
            siblings: vec![before],
            next: 0,
            lease_ms: Some(self.crew.lease_ms),
        };
        match self.crew.store.graph().start_siblings(&self.context.meta("again")?, command) {
            Ok(started) => match started.begun.into_iter().next() {
                Some(begun) => {
                    self.context = self.crew.context_of(&begun);
                    self.begun = begun;
                    Ok(true)
                }
                None => Ok(false),
            },
            Err(error) => match error.problem() {
                problem if is_over(&problem) => Ok(false),
                problem => Err(problem),
            },
        }
    }

    fn trial(&mut self) -> Result<Ended, Stop> {
        let begun = Instant::now();
        let attempt = self.activate()?;
        let first = attempt.attempt_id;
        match self.play(attempt, begun) {
            Ok(played) => self.settle(played, begun),
            Err(stop) => {
                // Whatever it made is worth nothing now.
                self.discard(first);
                Err(stop)
            }
        }
    }

    fn activate(&mut self) -> Result<Attempt, Stop> {
        let environment: Environment = self.crew.environment.clone();
        let request = ActivateRequest {
            meta: self.context.request_meta("activate"),
            node: self.begun.node_id,
            environment,
            lifetime_ms: Some(self.crew.limits.life_ms().saturating_add(MARGIN_MS)),
            on_expiry: Some(OnExpiry::Discard),
            no_wait: false,
            priority: 0,
            purpose: ActivatePurpose::Work,
            extra: Extra::default(),
        };
        self.client()?.activate(request, &mut |_| {}).map_err(stop_of)
    }

    fn client(&mut self) -> Result<&mut Client, Stop> {
        if self.client.is_none() {
            let made = self.context.worker().and_then(|mut client| {
                client.set_cancel(interrupt::watch()?);
                Ok(client)
            });
            *self.client = Some(made.map_err(Stop::Fatal)?);
        }
        Ok(self.client.as_mut().expect("made above"))
    }

    /// Asks the policy, does what it says, shows it what came of that, until it has enough or a budget is used up.
    fn play(&mut self, attempt: Attempt, begun: Instant) -> Result<Played, Stop> {
        let limits = self.crew.limits;
        let mut played = Played { attempt, pending: None, said: Map::new(), truncated: None };
        let mut seen = Value::Null;
        let mut tokens = 0;
        for turn in 0.. {
            if interrupt::seen() {
                return Err(Stop::Interrupted);
            }
            let index = self.begun.first_step + turn;
            let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            played.truncated = limits.used_up(turn, tokens, elapsed);
            if played.truncated.is_some() {
                break;
            }
            let question = self.question(index, &seen);
            let asked = Instant::now();
            let Value::Object(mut answer) = self.policy.ask(&question).map_err(Stop::Policy)? else {
                return Err(bad_answer("an object", "something else"));
            };
            let sampled = answer.get("arrays").and_then(|arrays| arrays["completion_token_ids"].as_array());
            tokens += sampled.map_or(0, |ids| ids.len() as u64);
            if let Some(finish) = answer.remove("finish") {
                let Value::Object(finish) = finish else {
                    return Err(bad_answer("\"finish\": an object", &finish.to_string()));
                };
                played.said = finish;
                break;
            }
            // Another turn follows: this one left the node as it was. The last one has what is sealed.
            if let Some(pending) = played.pending.take() {
                self.record(pending)?;
            }
            let (action, result) = self.act(&played.attempt, &mut answer)?;
            seen = result.1;
            let mut step = json!({
                "sibling_id": self.begun.sibling_id, "trial": self.begun.trial, "index": index,
                "action": action, "observation": seen,
                "elapsed_ms": u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX),
                "attempt_id": played.attempt.attempt_id, "exec_ids": [result.0.exec_id],
                "policy_version": answer.get("policy_version").cloned().unwrap_or(json!(self.begun.policy_version)),
                "arrays": arrays(answer.remove("arrays"))?, "reward": answer.get("reward"),
                "lease_ms": self.crew.lease_ms,
            });
            if self.crew.each_turn {
                let (node, next) = self.turn(&played.attempt, index)?;
                step["node_after"] = json!(node);
                played.attempt = next;
                self.record(step)?;
            } else {
                played.pending = Some(step);
            }
        }
        Ok(played)
    }

    fn question(&self, index: u64, seen: &Value) -> Value {
        let begun = &self.begun;
        json!({
            "run": self.crew.run.run_id, "prompt": begun.prompt_id, "prompt_index": begun.prompt_index,
            "task": begun.task, "extra": begun.extra, "sibling": begun.sibling_id, "index": begun.index,
            "revision": begun.revision, "trial": begun.trial, "seed": begun.seed, "node": begun.node_id,
            "policy_version": begun.policy_version, "step": index, "observation": seen,
        })
    }

    /// Runs what the policy said; a command that fails or takes too long is an observation.
    fn act(
        &mut self,
        attempt: &Attempt,
        answer: &mut Map<String, Value>,
    ) -> Result<(Value, (ExecResult, Value)), Stop> {
        let said = answer.remove("exec").unwrap_or(Value::Null);
        let argv: Vec<String> = serde_json::from_value(said.clone())
            .ok()
            .filter(|argv: &Vec<String>| !argv.is_empty())
            .ok_or_else(|| {
                bad_answer("\"exec\": [program, arguments…], or \"finish\": {…}", &said.to_string())
            })?;
        let stdin = answer.get("stdin").and_then(Value::as_str).map(|text| text.as_bytes().to_vec());
        let action = answer.remove("action").unwrap_or_else(|| match answer.get("stdin") {
            Some(stdin) => json!({ "exec": argv, "stdin": stdin }),
            None => json!({ "exec": argv }),
        });
        let request = ExecRequest {
            actor: self.context.actor(),
            attempt: attempt.attempt_id,
            argv: argv.iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            timeout_ms: Some(self.crew.limits.turn_ms),
            detach: false,
            max_output: Some(self.crew.observation),
            key: None,
            stdin: stdin.is_some(),
            trace_id: self.context.trace_id().to_owned(),
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result =
            self.client()?.exec(request, stdin.map(Stdin::Bytes), &mut out, &mut err).map_err(stop_of)?;
        if let Some(failure) = &result.failure
            && matches!(failure.class, FailureClass::InfraLost | FailureClass::InfraPrepare)
        {
            return Err(Stop::Infra(failure.class, failure.detail.clone()));
        }
        let seen = json!({
            "exit_code": result.exit_code, "signal": result.signal, "timed_out": result.timed_out,
            "stdout": String::from_utf8_lossy(&out), "stderr": String::from_utf8_lossy(&err),
            "truncated": result.truncated,
        });
        Ok((action, (result, seen)))
    }

    /// Seals a turn and goes on; an unchanged one stays as it is.
    fn turn(&mut self, attempt: &Attempt, index: u64) -> Result<(NodeId, Attempt), Stop> {
        let request = self.suspend(attempt, &format!("turn/{index}"), true);
        let reply = self.client()?.suspend(request).map_err(stop_of)?;
        match reply.attempt {
            Some(next) if next.failure.is_none() => Ok((reply.node.node_id, next)),
            _ => Err(Stop::Infra(
                FailureClass::InfraPrepare,
                "the next turn's sandbox was not made".to_owned(),
            )),
        }
    }

    fn suspend(&self, attempt: &Attempt, part: &str, keep: bool) -> SuspendRequest {
        SuspendRequest {
            meta: self.context.request_meta(part),
            attempt: attempt.attempt_id,
            terminal: false,
            state: None,
            message: None,
            keep,
            if_changed: keep,
        }
    }

    fn record(&mut self, step: Value) -> Result<(), Stop> {
        let store = self.crew.store;
        // Nothing that the step names is collected before it is recorded.
        let _held = store.stack().lock_shared().map_err(|error| Stop::Fatal(error.problem()))?;
        // What does not parse is what the policy said.
        let step = input::step(store, &step.to_string()).map_err(Stop::Policy)?;
        let meta = self.context.meta(&format!("step/{}", step.steps[0].index)).map_err(Stop::Fatal)?;
        let answers = store.graph().record_steps(&meta, vec![step]);
        let answer = answers.map_err(|error| Stop::Fatal(refused(error)))?.into_iter().next();
        match answer.expect("an answer for each").map_err(refused) {
            Ok(_) => Ok(()),
            Err(problem) if is_over(&problem) => Err(Stop::Over),
            Err(problem) => Err(Stop::Policy(problem)),
        }
    }

    /// Seals what is left to seal, scores it, and says the end.
    fn settle(&mut self, played: Played, begun: Instant) -> Result<Ended, Stop> {
        let Played { attempt, mut pending, mut said, truncated } = played;
        let mut node = None;
        if let Some(step) = &mut pending {
            let request = self.suspend(&attempt, "seal", false);
            let sealed: Node = self.client()?.suspend(request).map_err(stop_of)?.node;
            step["node_after"] = json!(sealed.node_id);
            node = Some(sealed.node_id);
        } else {
            self.discard(attempt.attempt_id);
        }
        if let Some(step) = pending {
            self.record(step)?;
        }
        let node = match node {
            Some(node) => node,
            None => self.last_node()?,
        };
        let mut outcome = Value::Object(std::mem::take(&mut said));
        let given = outcome.get("rewards").and_then(Value::as_object).cloned().unwrap_or_default();
        let (scores, failure) = self.score(node)?;
        let mut rewards = given;
        rewards.extend(scores);
        outcome["rewards"] = Value::Object(rewards);
        if let Some(failure) = failure {
            outcome["rewards"] = json!({});
            outcome["reward"] = Value::Null;
            outcome["failure"] = failure;
        }
        if let Some(truncated) = truncated {
            outcome["truncated"] = json!(truncated);
        } else if outcome.get("terminated").is_none() {
            outcome["terminated"] = json!(true);
        }
        if let Some(Value::String(text)) = outcome.get_mut("stop_reason") {
            *text = cut(text);
        }
        if outcome.get("cost").is_none() {
            outcome["cost"] =
                json!({ "wall_ms": u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX) });
        }
        let failed = outcome.get("failure").is_some_and(|failure| !failure.is_null());
        match self.finish(outcome) {
            Ok(true) => Ok(if failed { Ended::Error } else { Ended::Result }),
            Ok(false) => Ok(Ended::Over),
            // The rest is ours; this is what the policy said.
            Err(problem)
                if matches!(
                    &*problem.code,
                    "bad_outcome" | "bad_line" | "unknown_policy_version" | "bad_span"
                ) =>
            {
                Err(Stop::Policy(problem))
            }
            Err(problem) => Err(Stop::Fatal(problem)),
        }
    }

    /// The node that the last recorded step left.
    fn last_node(&self) -> Result<NodeId, Stop> {
        let sibling = self.crew.store.graph().sibling(self.begun.sibling_id);
        let sibling = sibling.map_err(|error| Stop::Fatal(refused(error)))?;
        let own = sibling.trials.iter().find(|trial| trial.trial == self.begun.trial);
        Ok(own.map_or(self.begun.node_id, |trial| trial.node_id))
    }

    /// Runs the evaluators. One that could not decide makes the end an error: nothing is known of the work.
    fn score(&mut self, node: NodeId) -> Result<(Map<String, Value>, Option<Value>), Stop> {
        let mut scores = Map::new();
        let store = self.crew.store;
        let node = store.graph().node(node).map_err(|error| Stop::Fatal(refused(error)))?;
        find::sealed_root(&node).map_err(Stop::Fatal)?;
        for prepared in &self.crew.evaluators {
            let mut tries = 0;
            let evaluation = loop {
                tries += 1;
                let part = format!("{}/{tries}", prepared.name());
                let made = evaluation::evaluate(&self.context, store, &node, prepared, &part, &|_| {});
                let made = made.map_err(stop_of)?;
                let class = made.failure.as_ref().map(|failure| failure.class);
                match class.map(|class| retry::decide(class, tries, &self.crew.retries, self.begun.seed)) {
                    Some(Retry::Again { after_ms }) if !interrupt::seen() => interrupt::pause(after_ms),
                    _ => break made,
                }
            };
            if evaluation.verdict.is_error() {
                let failure = json!({
                    "class": "evaluator_error", "stage": format!("evaluate/{}", prepared.name()),
                    "detail": evaluation.failure.as_ref().map_or_else(String::new, |failure| cut(&failure.detail)),
                });
                return Ok((scores, Some(failure)));
            }
            let reward = evaluation.reward.or_else(|| match evaluation.verdict.as_str() {
                "pass" => Some(1.0),
                "fail" => Some(0.0),
                _ => None,
            });
            scores.insert(prepared.name().to_owned(), json!(reward));
        }
        Ok((scores, None))
    }

    /// Says the end; false when it counts nowhere.
    fn finish(&self, outcome: Value) -> Result<bool, Problem> {
        let line =
            json!({ "sibling_id": self.begun.sibling_id, "trial": self.begun.trial, "outcome": outcome });
        let finish = input::finish(self.crew.store, &line.to_string())?;
        let meta = self.context.meta("finish")?;
        let answers = self.crew.store.graph().finish_siblings(&meta, vec![finish]).map_err(refused)?;
        match answers.into_iter().next().expect("an answer for each").map_err(refused) {
            Ok(Finished::Counted { .. }) => Ok(true),
            Ok(Finished::Late { .. }) => Ok(false),
            Err(problem) if is_over(&problem) => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    /// Lets go of a sandbox and of its draft.
    fn discard(&mut self, attempt: esf_core::AttemptId) {
        let meta = self.context.request_meta(&format!("release/{attempt}"));
        let released = match self.client() {
            Ok(client) => client.release(meta, attempt, true),
            Err(_) => return,
        };
        match released {
            Ok(released) => {
                let pruned = self.context.meta(&format!("prune/{attempt}")).and_then(|meta| {
                    self.crew.store.prune(&meta, released.node_id, true).map_err(|error| error.problem())
                });
                if let Err(problem) = pruned {
                    tracing::info!(node = %released.node_id, %problem, "its draft stays");
                }
            }
            // It was sealed already, or it ends with its lifetime.
            Err(problem) => tracing::info!(%attempt, %problem, "not released"),
        }
    }
}

/// What a failed request is for a trial.
fn stop_of(problem: Problem) -> Stop {
    match FailureClass::parse(&problem.code) {
        Some(FailureClass::Cancelled) => Stop::Interrupted,
        Some(class @ (FailureClass::InfraLost | FailureClass::InfraPrepare)) => {
            Stop::Infra(class, problem.message)
        }
        _ if problem.code == "not_active" => Stop::Infra(FailureClass::InfraLost, problem.message),
        _ if interrupt::seen() => Stop::Interrupted,
        _ => Stop::Fatal(problem),
    }
}

fn is_over(problem: &Problem) -> bool {
    matches!(&*problem.code, "trial_over" | "run_over" | "not_waiting" | "already_finished")
}

fn bad_answer(expected: &str, found: &str) -> Stop {
    Stop::Policy(
        Problem::new(Class::Failure, "policy_bad_answer", "the policy's answer was not understood")
            .expected(expected)
            .found(cut(found)),
    )
}

/// Arrays as numbers only: a policy names no file of this machine.
fn arrays(said: Option<Value>) -> Result<Value, Stop> {
    let arrays = said.unwrap_or_else(|| json!({}));
    let names_file = |array: &Value| array.get("file").is_some();
    match &arrays {
        Value::Object(all) if !all.values().any(names_file) => Ok(arrays),
        _ => Err(bad_answer("\"arrays\": {name: [numbers] or {dtype, values}}", &arrays.to_string())),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_TEXT).collect()
}
