//! `esf rollout run`: carries the siblings of a run to their ends with a policy program of the user's. Invariants: a
//! killed driver loses nothing, since the next one takes the place of the trials it finds running under the driver's
//! name; each sibling ends once, which the graph sees to; no more than `--parallel` sandboxes of it live.

mod policy;
mod sibling;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use esf_core::environment::Environment;
use esf_core::ops::rollout::{Begun, StartSibling, StartSiblings};
use esf_core::policy::Retries;
use esf_core::record::Attempt;
use esf_core::rollout::{PromptStatus, Run, RunStatus, SiblingStatus};
use esf_core::state::AttemptStatus;
use esf_core::{Class, Problem};
use esf_store::Store;
use esf_worker::Client;
use serde_json::json;

use self::policy::{Policy, Program};
use self::sibling::Carrier;
use super::refused;
use crate::args;
use crate::context::Context;
use crate::evaluation::Prepared;
use crate::interrupt;
use crate::lock::DriverLock;
use crate::output::{Reply, Table};

/// Under what name the driver acts, with the run's id: nobody else does.
const ROLE: &str = "rollout-run";
/// How often is looked again whether something may begin.
const PAUSE_MS: u64 = 200;
/// Policy faults one after the other that end the run.
const MOST_FAULTS: usize = 8;
/// Prompts read at once.
const PAGE: u64 = 1000;

/// Bounds of one trial.
#[derive(Clone, Copy, Debug)]
struct Limits {
    turns: u64,
    tokens: Option<u64>,
    wall_ms: Option<u64>,
    turn_ms: u64,
}

impl Limits {
    /// Which budget is used up.
    fn used_up(&self, turns: u64, tokens: u64, elapsed_ms: u64) -> Option<&'static str> {
        if self.wall_ms.is_some_and(|most| elapsed_ms >= most) {
            Some("time")
        } else if self.tokens.is_some_and(|most| tokens >= most) {
            Some("tokens")
        } else if turns >= self.turns {
            Some("turns")
        } else {
            None
        }
    }

    /// How long a trial may live, in milliseconds; at most a day.
    fn life_ms(&self) -> u64 {
        self.wall_ms.unwrap_or_else(|| self.turns.saturating_mul(self.turn_ms)).min(86_400_000)
    }
}

/// What became of a sibling.
enum Ended {
    Result,
    Error,
    PolicyFault(Problem),
    /// Somebody else ended it.
    Over,
    Interrupted,
}

/// What all carriers share.
struct Crew<'a> {
    context: &'a Context,
    store: &'a Store,
    run: Run,
    environment: Environment,
    evaluators: Vec<Prepared>,
    retries: Retries,
    limits: Limits,
    lease_ms: u64,
    observation: u64,
    each_turn: bool,
    /// Trials of a dead driver, to be taken over.
    left: Mutex<VecDeque<StartSibling>>,
    starts: AtomicU64,
    flying: AtomicUsize,
    faults: AtomicUsize,
    counts: [AtomicU64; 4],
    failed: Mutex<Option<Problem>>,
}

pub(super) fn run(context: &Context, arguments: &args::RolloutRun) -> Result<u8, Problem> {
    let store = context.open()?;
    let run = super::run(&store, &arguments.run)?;
    if run.status != RunStatus::Open {
        return Err(Problem::new(
            Class::Conflict,
            "run_over",
            format!("{} is {}", run.run_id, run.status.as_str()),
        )
        .expected("an open run"));
    }
    let id = run.run_id;
    let _lock = DriverLock::take(store.directory(), &format!("rollouts-{id}"), || {
        Problem::new(Class::Conflict, "run_is_run", format!("another `esf rollout run` is at {id}"))
            .remedy("wait for it, or end it with Ctrl-C first")
            .retryable()
    })?;
    interrupt::watch()?;
    let group = store.graph().group(run.group_id).map_err(refused)?;
    let acting = context.acting(&format!("{ROLE}/{id}"));
    let left = left(&store, &run, &acting.actor())?;
    give_back(&acting, &store, &run)?;
    let crew = Crew {
        context: &acting,
        store: &store,
        environment: store.graph().environment(run.environment_digest).map_err(refused)?,
        evaluators: evaluators(&run, arguments)?,
        retries: group.policy.retries,
        limits: Limits {
            turns: arguments.max_turns,
            tokens: arguments.max_tokens,
            wall_ms: arguments.wall.map(|wall| wall.0),
            turn_ms: arguments.turn_timeout.0,
        },
        lease_ms: arguments.lease.0,
        observation: arguments.observation.0,
        each_turn: arguments.checkpoint == args::CheckpointArg::Turn,
        left: Mutex::new(left),
        starts: AtomicU64::new(0),
        flying: AtomicUsize::new(0),
        faults: AtomicUsize::new(0),
        counts: Default::default(),
        failed: Mutex::new(None),
        run,
    };
    let program = Program {
        esf: context.program()?,
        argv: arguments.policy.clone(),
        patience: Duration::from_millis(arguments.policy_timeout.0),
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.parallel {
            scope.spawn(|| crew.work(Policy::new(program.clone())));
        }
    });
    crew.told()
}

/// The evaluators, which must be those that the run declared, if it did.
fn evaluators(run: &Run, arguments: &args::RolloutRun) -> Result<Vec<Prepared>, Problem> {
    let prepared: Vec<Prepared> =
        arguments.evaluator.iter().map(|path| Prepared::read(path)).collect::<Result<_, _>>()?;
    for one in &prepared {
        let declared = run.evaluators.iter().find(|declared| declared.name == one.name());
        if !run.evaluators.is_empty() && declared.is_none_or(|declared| declared.digest != Some(one.digest()))
        {
            return Err(Problem::new(
                Class::Conflict,
                "evaluator_differs",
                format!("{} is not the run's", one.name()),
            )
            .expected("the evaluators that the run was created with")
            .remedy("give the same files, or create another run"));
        }
        if !run.rewards.is_empty() && !run.rewards.contains_key(one.name()) {
            return Err(Problem::new(
                Class::Usage,
                "bad_option",
                format!("{} is no reward of the run", one.name()),
            )
            .expected(run.rewards.keys().cloned().collect::<Vec<_>>().join(", "))
            .found(one.name()));
        }
    }
    let missing = run.evaluators.iter().find(|one| prepared.iter().all(|own| own.name() != one.name));
    match missing {
        None => Ok(prepared),
        Some(missing) => Err(Problem::new(Class::Usage, "evaluator_missing", "the run has more evaluators")
            .expected(format!("--evaluator FILE with {}", missing.name))
            .found("none")),
    }
}

/// Trials that a driver had begun which is dead, as the lock says.
fn left(store: &Store, run: &Run, actor: &str) -> Result<VecDeque<StartSibling>, Problem> {
    let mut left = VecDeque::new();
    let mut from = 0;
    loop {
        let prompts = store.graph().prompts(run.run_id, from, PAGE).map_err(refused)?;
        let Some(last) = prompts.last() else { return Ok(left) };
        from = last.index + 1;
        for prompt in prompts.iter().filter(|prompt| prompt.status == PromptStatus::Open) {
            for sibling in store.graph().siblings(prompt.prompt_id).map_err(refused)? {
                let current = sibling.trials.iter().find(|trial| Some(trial.trial) == sibling.trial);
                if sibling.status == SiblingStatus::Running
                    && let Some(trial) = current.filter(|trial| trial.created_by == actor)
                {
                    let supersede = Some(trial.trial);
                    left.push_back(StartSibling { supersede, ..StartSibling::of(sibling.sibling_id) });
                }
            }
        }
    }
}

/// Lets go of the sandboxes of a dead driver: their trials are begun anew.
fn give_back(acting: &Context, store: &Store, run: &Run) -> Result<(), Problem> {
    let actor = acting.actor();
    let live = |attempt: &Attempt| {
        attempt.created_by == actor && matches!(attempt.status, AttemptStatus::Active | AttemptStatus::Queued)
    };
    let attempts = store.graph().attempts(Some(run.group_id)).map_err(refused)?;
    for attempt in attempts.iter().filter(|attempt| live(attempt)) {
        let meta = acting.request_meta(&format!("give-back/{}", attempt.attempt_id));
        if let Err(problem) = acting.worker()?.release(meta, attempt.attempt_id, true) {
            tracing::info!(attempt = %attempt.attempt_id, %problem, "not released");
        }
    }
    Ok(())
}

impl Crew<'_> {
    fn context_of(&self, begun: &Begun) -> Context {
        self.context.keyed(format!("rollout/{}/{}", begun.sibling_id, begun.trial))
    }

    fn stopped(&self) -> bool {
        interrupt::seen() || self.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn fail(&self, problem: Problem) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
    }

    fn work(&self, mut policy: Policy) {
        let mut client: Option<Client> = None;
        let mut told = false;
        while !self.stopped() {
            // Counted before it is asked for, so that nobody thinks the run is over in between.
            self.flying.fetch_add(1, Ordering::SeqCst);
            let begun = self.next();
            let idle = match begun {
                Ok(Next::Begun(begun)) => {
                    told = false;
                    self.carry(*begun, &mut client, &mut policy);
                    None
                }
                Ok(Next::Exhausted) => Some(None),
                Ok(Next::Wait(why)) => Some(Some(why)),
                Err(problem) => {
                    self.fail(problem);
                    None
                }
            };
            let others = self.flying.fetch_sub(1, Ordering::SeqCst) - 1;
            match idle {
                Some(None) if others == 0 => return,
                Some(Some(why)) if !told => {
                    told = true;
                    eprintln!("esf: nothing may begin now: {why}");
                    interrupt::pause(PAUSE_MS);
                }
                Some(_) => interrupt::pause(PAUSE_MS),
                None => {}
            }
        }
    }

    fn next(&self) -> Result<Next, Problem> {
        let taken = self.left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let command = StartSiblings {
            run_id: self.run.run_id,
            next: u32::from(taken.is_none()),
            siblings: taken.into_iter().collect(),
            lease_ms: Some(self.lease_ms),
        };
        // Each look has a key of its own: the answer is to be that of now.
        let key = format!("start/{}", self.starts.fetch_add(1, Ordering::Relaxed));
        let started = self.store.graph().start_siblings(&self.context.meta(&key)?, command);
        let started = match started.map_err(refused) {
            Ok(started) => started,
            // It ended, or somebody else took it.
            Err(problem) if matches!(&*problem.code, "trial_over" | "not_waiting") => {
                return Ok(Next::Wait("a sibling of an earlier run has ended".to_owned()));
            }
            Err(problem) if problem.code == "run_over" => return Ok(Next::Exhausted),
            Err(problem) => return Err(problem),
        };
        Ok(match (started.begun.into_iter().next(), started.wait) {
            (Some(begun), _) => Next::Begun(Box::new(begun)),
            (None, Some(wait)) => Next::Wait(super::show::wait(&wait)),
            (None, None) => Next::Exhausted,
        })
    }

    fn carry(&self, begun: Begun, client: &mut Option<Client>, policy: &mut Policy) {
        let name = format!("prompt {} sibling {}", begun.prompt_index, begun.index);
        let context = self.context_of(&begun);
        let carrier = Carrier { crew: self, client, policy, begun, context };
        let place = match carrier.carry() {
            Ok(Ended::Result) => 0,
            Ok(Ended::Error) => 1,
            Ok(Ended::PolicyFault(problem)) => {
                eprintln!("esf: {name}: {} [{}]", crate::output::printable(&problem.message), problem.code);
                if self.faults.fetch_add(1, Ordering::SeqCst) + 1 >= MOST_FAULTS {
                    self.fail(problem);
                }
                self.counts[2].fetch_add(1, Ordering::Relaxed);
                return;
            }
            Ok(Ended::Over) => 3,
            Ok(Ended::Interrupted) => return,
            Err(problem) => {
                self.fail(problem);
                return;
            }
        };
        self.faults.store(0, Ordering::SeqCst);
        let done = self.counts[place].fetch_add(1, Ordering::Relaxed) + 1;
        if place == 0 && done.is_multiple_of(50) {
            eprintln!("esf: {done} results");
        }
    }

    fn told(self) -> Result<u8, Problem> {
        let run = self.store.graph().run(self.run.run_id).map_err(refused)?;
        let [results, errors, faults, over] = self.counts.map(AtomicU64::into_inner);
        let value = json!({
            "run": run, "ended": { "results": results, "errors": errors, "policy_faults": faults, "over": over },
            "interrupted": interrupt::seen(),
        });
        let mut table = Table::new(&["RUN", "RESULTS", "ERRORS", "POLICY FAULTS", "OVER"]);
        let row = [
            run.run_id.to_string(),
            results.to_string(),
            errors.to_string(),
            faults.to_string(),
            over.to_string(),
        ];
        table.row(row);
        let reply = Reply { value, table, ids: vec![run.run_id.to_string()] };
        let code = crate::commands::print(self.context, &reply)?;
        match self.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(problem) => Err(problem),
            None if interrupt::seen() => Err(Problem::new(
                Class::Failure,
                "cancelled",
                "interrupted; what was running is begun anew next time",
            )
            .remedy("the same command goes on")),
            None => Ok(code),
        }
    }
}

/// What is to be done next.
enum Next {
    Begun(Box<Begun>),
    /// Nothing waits.
    Exhausted,
    /// Something waits that may not begin yet.
    Wait(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_used_up_is_named() {
        let limits = Limits { turns: 3, tokens: Some(10), wall_ms: Some(1000), turn_ms: 5 };
        let cases = [
            ((0, 0, 0), None),
            ((3, 0, 0), Some("turns")),
            ((2, 10, 0), Some("tokens")),
            ((3, 10, 1000), Some("time")),
        ];
        for ((turns, tokens, elapsed), expected) in cases {
            assert_eq!(limits.used_up(turns, tokens, elapsed), expected);
        }
        assert_eq!(limits.life_ms(), 1000);
        assert_eq!(Limits { wall_ms: None, ..limits }.life_ms(), 15);
    }
}
