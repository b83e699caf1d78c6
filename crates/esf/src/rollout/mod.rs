//! `esf rollout`: rollouts for training, one operation at a time. What a run is, and that each sibling ends exactly
//! once, is the graph's; here options and lines become requests, bytes become artifacts, and records are shown.

mod deliver;
mod export;
mod import;
mod input;
mod run;
mod show;

use std::path::Path;

use esf_core::ops::rollout::{
    AddPrompts, Cancel, CreateRun, FinishSibling, Finished, ForkFrom, NewPrompt, PublishPolicy, RecordSteps,
    RefillAgain, StartSibling, StartSiblings, Target,
};
use esf_core::record::{Evaluator, Failure};
use esf_core::rollout::{CancelReason, GenerationSource, Outcome, Policy, Refill, Run, Score, Truncation};
use esf_core::{Class, FailureClass, Problem, SiblingId};
use esf_graph::Ref;
use esf_store::Store;
use serde_json::{Value, json};

use self::input::Lines;
use crate::args::{self, CancelArg, RefillArg, RolloutCommand};
use crate::commands::{environment, find};
use crate::context::Context;
use crate::evaluation::Prepared;
use crate::output::{self, Reply};

/// Trials in one commit.
const BATCH: usize = 1000;

/// Runs a command of `esf rollout`; gives the exit code.
pub(crate) fn rollout(context: &Context, command: RolloutCommand) -> Result<u8, Problem> {
    let reply = match command {
        RolloutCommand::Create(arguments) => create(context, &arguments),
        RolloutCommand::Prompts(arguments) => prompts(context, &arguments),
        RolloutCommand::Start(arguments) => start(context, &arguments),
        RolloutCommand::Step(arguments) => return step(context, &arguments),
        RolloutCommand::Finish(arguments) => return finish(context, &arguments),
        RolloutCommand::Ls(arguments) => ls(context, &arguments),
        RolloutCommand::Show(arguments) => show_one(context, &arguments),
        RolloutCommand::Export(arguments) => export::export(context, &arguments),
        RolloutCommand::Consume(arguments) => deliver::consume(context, &arguments),
        RolloutCommand::Ack(arguments) => deliver::ack(context, &arguments),
        RolloutCommand::Hold(arguments) => deliver::hold(context, &arguments),
        RolloutCommand::Reopen(arguments) => deliver::reopen(context, &arguments),
        RolloutCommand::Cancel(arguments) => cancel(context, &arguments),
        RolloutCommand::Refill(arguments) => refill(context, &arguments),
        RolloutCommand::Publish(arguments) => publish(context, &arguments),
        RolloutCommand::Close(arguments) => {
            let store = context.open()?;
            let run = run(&store, &arguments.run)?.run_id;
            Ok(show::run(&store.graph().finish_run(&context.meta("")?, run).map_err(refused)?))
        }
        RolloutCommand::Run(arguments) => return run::run(context, &arguments),
        RolloutCommand::Import(arguments) => import::import(context, &arguments),
    }?;
    crate::commands::print(context, &reply)
}

fn refused(error: esf_graph::Error) -> Problem {
    error.problem()
}

fn bad_option(option: &str, expected: &str, found: &str) -> Problem {
    Problem::new(Class::Usage, "bad_option", format!("{option}: {found:?} is not accepted"))
        .expected(expected)
        .found(found)
}

fn wrong_kind(expected: &str, text: &str) -> Problem {
    Problem::new(Class::Usage, "wrong_kind", format!("{text} does not name {expected}"))
        .expected(expected)
        .found(text)
}

/// As `find::reference`; says where runs and siblings are listed when there is none.
fn reference(store: &Store, text: &str) -> Result<Ref, Problem> {
    find::reference(store, text).map_err(|problem| match (&*problem.code, text.get(..4)) {
        ("not_found", Some("run_")) => problem.remedy("`esf rollout ls` lists the runs"),
        ("not_found", Some("prm_")) => problem.remedy("`esf rollout ls RUN` lists the prompts of a run"),
        ("not_found", Some("sib_")) => problem.remedy("`esf rollout show PROMPT` lists its siblings"),
        _ => problem,
    })
}

fn run(store: &Store, text: &str) -> Result<Run, Problem> {
    match reference(store, text)? {
        Ref::Run(id) => store.graph().run(id).map_err(refused),
        _ => Err(wrong_kind("a run", text).remedy("`esf rollout ls` lists them")),
    }
}

fn sibling(store: &Store, text: &str) -> Result<SiblingId, Problem> {
    match text.parse() {
        // A whole id is not looked up for that.
        Ok(id) => Ok(id),
        Err(_) => match reference(store, text)? {
            Ref::Sibling(id) => Ok(id),
            _ => Err(wrong_kind("a sibling", text).remedy("`esf rollout show PROMPT` lists them")),
        },
    }
}

fn target(store: &Store, text: &str) -> Result<Target, Problem> {
    match reference(store, text)? {
        Ref::Run(id) => Ok(Target::Run(id)),
        Ref::Prompt(id) => Ok(Target::Prompt(id)),
        Ref::Sibling(id) => Ok(Target::Sibling(id)),
        _ => Err(wrong_kind("a run, a prompt or a sibling", text)),
    }
}

fn create(context: &Context, arguments: &args::RolloutCreate) -> Result<Reply, Problem> {
    let sampler = match &arguments.sampler {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).map_err(|_| bad_option("--sampler", "JSON", text))?,
    };
    let evaluators = arguments.evaluator.iter().map(|path| evaluator(path)).collect::<Result<_, _>>()?;
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let group = store.graph().group(node.group_id).map_err(refused)?;
    let options = &arguments.options;
    // What is refused is refused before anything is stored; programs are held until the record names them.
    environment::environment(&group.default_environment, options, Vec::new())?;
    let modules = environment::modules(&store, &node, options)?;
    let pinned = modules.iter().map(environment::Module::pinned).collect();
    let command = CreateRun {
        sampler,
        generation_source: if arguments.frozen { GenerationSource::Frozen } else { GenerationSource::Live },
        environment: Some(environment::environment(&group.default_environment, options, pinned)?),
        evaluators,
        group_size: arguments.group_size,
        rewards: arguments.reward.iter().cloned().collect(),
        max_staleness: arguments.max_staleness,
        batch: arguments.batch,
        max_ready: arguments.max_ready,
        refill: match arguments.refill {
            RefillArg::None => Refill::None,
            RefillArg::Sibling => Refill::Sibling,
            RefillArg::Group => Refill::Group,
        },
        max_refills: arguments.max_refills,
        ..CreateRun::new(
            node.node_id,
            &arguments.name,
            Policy {
                name: arguments.policy.clone(),
                version: arguments.policy_version,
                digest: digest("--policy-digest", arguments.policy_digest.as_deref())?,
                adapter: arguments.adapter.clone(),
            },
        )
    };
    let made = store.graph().create_run(&context.meta("")?, command).map_err(refused)?;
    drop(modules);
    Ok(show::run(&made))
}

fn evaluator(path: &Path) -> Result<Evaluator, Problem> {
    let prepared = Prepared::read(path)?;
    Ok(Evaluator {
        name: prepared.name().to_owned(),
        version: prepared.version().to_owned(),
        digest: Some(prepared.digest()),
    })
}

fn digest(option: &str, text: Option<&str>) -> Result<Option<esf_core::Digest>, Problem> {
    let parsed =
        |text: &str| text.parse().map_err(|_| bad_option(option, "b3: and 64 hexadecimal digits", text));
    text.map(parsed).transpose()
}

fn prompts(context: &Context, arguments: &args::RolloutPrompts) -> Result<Reply, Problem> {
    let Some(file) = &arguments.add else {
        let store = context.open()?;
        let run = run(&store, &arguments.run)?.run_id;
        let found = store.graph().prompts(run, arguments.from, arguments.most).map_err(refused)?;
        return Ok(show::prompts(&found));
    };
    let lines = Lines::read(file)?;
    let store = context.open()?;
    let run_id = run(&store, &arguments.run)?.run_id;
    let prompts: Vec<NewPrompt> = lines.each(AddPrompts::MAX, |line| input::prompt(&store, line))?;
    let command = AddPrompts { run_id, prompts };
    let added = store.graph().add_prompts(&context.meta("")?, command).map_err(refused)?;
    Ok(show::prompts(&added))
}

fn start(context: &Context, arguments: &args::RolloutStart) -> Result<Reply, Problem> {
    let store = context.open()?;
    let run_id = run(&store, &arguments.run)?.run_id;
    let of_one = arguments.attempt.is_some() || arguments.supersede.is_some() || arguments.fork.is_some();
    if of_one && arguments.siblings.len() != 1 {
        let message = "--attempt, --supersede and --fork say something of one sibling";
        return Err(Problem::new(Class::Usage, "bad_option", message)
            .expected("exactly one sibling")
            .found(format!("{} siblings", arguments.siblings.len())));
    }
    let attempt = |text: &str| match find::reference(&store, text)? {
        Ref::Attempt(id) => Ok(id),
        _ => Err(wrong_kind("an attempt", text)),
    };
    let fork = match (&arguments.fork, arguments.fork_step) {
        (Some(parent), Some(step)) => {
            Some(ForkFrom { sibling_id: sibling(&store, parent)?, step, owned_from: None })
        }
        _ => None,
    };
    let attempt_id = arguments.attempt.as_deref().map(attempt).transpose()?;
    let begin = |text: &String| {
        let sibling_id = sibling(&store, text)?;
        Ok(StartSibling { attempt_id, supersede: arguments.supersede, fork, ..StartSibling::of(sibling_id) })
    };
    let siblings = arguments.siblings.iter().map(begin).collect::<Result<Vec<_>, Problem>>()?;
    let command = StartSiblings {
        run_id,
        next: arguments.next.unwrap_or(u32::from(siblings.is_empty())),
        siblings,
        lease_ms: arguments.lease.map(|lease| lease.0),
    };
    let started = store.graph().start_siblings(&context.meta("")?, command).map_err(refused)?;
    if let Some(wait) = &started.wait {
        eprintln!("esf: not all that was asked for: {}", show::wait(wait));
    } else if started.exhausted && started.begun.is_empty() {
        eprintln!("esf: nothing waits to be begun");
    }
    Ok(show::started(&started))
}

/// Records steps: of one trial, or of many with an answer for each. The exit code is that of the first refusal.
fn step(context: &Context, arguments: &args::RolloutStep) -> Result<u8, Problem> {
    let lines = match &arguments.batch {
        Some(path) => Lines::read(path)?,
        None => Lines::one(&input::step_of(arguments)?),
    };
    let store = context.open()?;
    // Nothing that steps name is collected before they are recorded.
    let _held = store.stack().lock_shared().map_err(|error| error.problem())?;
    let steps = lines.each(input::MAX_STEPS, |line| input::step(&store, line))?;
    let trials: Vec<RecordSteps> = input::by_trial(steps);
    let mut answers = Answers::default();
    for (number, batch) in trials.chunks(BATCH).enumerate() {
        let meta = context.meta(&format!("batch/{number}"))?;
        let given = store.graph().record_steps(&meta, batch.to_vec()).map_err(refused)?;
        for (asked, answer) in batch.iter().zip(given) {
            answers.add(asked.sibling_id, asked.trial, answer.map(|recorded| json!(recorded)));
        }
    }
    answers.print(context, arguments.batch.is_some(), "recorded")
}

/// Ends trials: one, or many with an answer for each. The exit code is that of the first refusal.
fn finish(context: &Context, arguments: &args::RolloutFinish) -> Result<u8, Problem> {
    let batch = match &arguments.batch {
        Some(path) => {
            let lines = Lines::read(path)?;
            let store = context.open()?;
            (lines.each(input::MAX_FINISHES, |line| input::finish(&store, line))?, store)
        }
        None => {
            let outcome = outcome_of(arguments)?;
            let store = context.open()?;
            let sibling_id = sibling(&store, arguments.sibling.as_deref().unwrap_or_default())?;
            (vec![FinishSibling { sibling_id, trial: arguments.trial.unwrap_or_default(), outcome }], store)
        }
    };
    let (finishes, store) = batch;
    let mut answers = Answers::default();
    for (number, batch) in finishes.chunks(BATCH).enumerate() {
        let meta = context.meta(&format!("batch/{number}"))?;
        let given = store.graph().finish_siblings(&meta, batch.to_vec()).map_err(refused)?;
        for (asked, answer) in batch.iter().zip(given) {
            if let Ok(Finished::Late { because, .. }) = &answer {
                let why = json!(because);
                eprintln!(
                    "esf: {}: came too late to count: {}",
                    asked.sibling_id,
                    why.as_str().unwrap_or("")
                );
            }
            answers.add(asked.sibling_id, asked.trial, answer.map(|finished| json!(finished)));
        }
    }
    answers.print(context, arguments.batch.is_some(), "finished")
}

fn outcome_of(arguments: &args::RolloutFinish) -> Result<Outcome, Problem> {
    let failure = |text: &String| {
        let class = FailureClass::parse(text).ok_or_else(|| {
            let known: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
            bad_option("--failure", &known.join(", "), text)
        })?;
        Ok(Failure::new(class, &arguments.stage, &arguments.stop_reason))
    };
    let truncated = |text: &String| {
        let known = "turns, tokens, time, output or quota";
        Truncation::parse(text).ok_or_else(|| bad_option("--truncated", known, text))
    };
    Ok(Outcome {
        rewards: scores(&arguments.reward),
        terminated: arguments.terminated,
        truncated: arguments.truncated.as_ref().map(truncated).transpose()?,
        stop_reason: arguments.stop_reason.clone(),
        failure: arguments.failure.as_ref().map(failure).transpose()?,
        usable: arguments.unusable.then_some(false),
        ..Outcome::default()
    })
}

fn scores(rewards: &[(String, Option<f64>)]) -> std::collections::BTreeMap<String, Score> {
    rewards.iter().map(|(name, score)| (name.clone(), Score { score: *score, weight: None })).collect()
}

/// What became of each trial of a batch.
#[derive(Default)]
struct Answers {
    rows: Vec<(SiblingId, u32, Value)>,
    first_refusal: Option<Problem>,
}

impl Answers {
    fn add(&mut self, sibling: SiblingId, trial: u32, answer: esf_graph::Result<Value>) {
        let value = match answer {
            Ok(value) => value,
            Err(error) => {
                let problem = error.problem();
                let value = json!({ "error": problem });
                self.first_refusal.get_or_insert(problem);
                value
            }
        };
        self.rows.push((sibling, trial, value));
    }

    /// One alone is the reply, or the error; of a batch each says in its place what became of it.
    fn print(self, context: &Context, batch: bool, name: &'static str) -> Result<u8, Problem> {
        let Self { rows, first_refusal } = self;
        if let (false, Some(problem)) = (batch, &first_refusal) {
            return Err(problem.clone());
        }
        let reply = show::answers(&rows, name, batch);
        let code = crate::commands::print(context, &reply)?;
        Ok(first_refusal.as_ref().map_or(code, output::exit_code))
    }
}

fn ls(context: &Context, arguments: &args::RolloutLs) -> Result<Reply, Problem> {
    let store = context.open()?;
    let group = match &arguments.at {
        None => None,
        Some(text) => match reference(&store, text)? {
            Ref::Run(run) => {
                return Ok(show::prompts(&store.graph().prompts(run, 0, 100_000).map_err(refused)?));
            }
            _ => Some(find::group(&store, text)?.group_id),
        },
    };
    Ok(show::runs(&store.graph().runs(group).map_err(refused)?))
}

fn show_one(context: &Context, arguments: &args::RolloutShow) -> Result<Reply, Problem> {
    let store = context.open()?;
    let graph = store.graph();
    match reference(&store, &arguments.what)? {
        Ref::Run(id) => {
            let versions = graph.policy_versions(id).map_err(refused)?;
            let consumers = graph.consumers(id).map_err(refused)?;
            Ok(show::whole_run(&graph.run(id).map_err(refused)?, &versions, &consumers))
        }
        Ref::Prompt(id) => {
            let siblings = graph.siblings(id).map_err(refused)?;
            Ok(show::prompt(&graph.prompt(id).map_err(refused)?, &siblings))
        }
        Ref::Sibling(id) => {
            let steps = graph.steps(id, arguments.trial, arguments.from, arguments.most).map_err(refused)?;
            Ok(show::sibling(&graph.sibling(id).map_err(refused)?, &steps))
        }
        _ => Err(wrong_kind("a run, a prompt or a sibling", &arguments.what)),
    }
}

fn cancel(context: &Context, arguments: &args::RolloutCancel) -> Result<Reply, Problem> {
    let store = context.open()?;
    let reason = match arguments.reason {
        CancelArg::User => CancelReason::User,
        CancelArg::Stale => CancelReason::Stale,
        CancelArg::Overload => CancelReason::Overload,
        CancelArg::Budget => CancelReason::Budget,
    };
    let command = Cancel { target: target(&store, &arguments.what)?, reason };
    let reply = store.graph().cancel_rollouts(&context.meta("")?, command).map_err(refused)?;
    Ok(show::fields(json!(reply), "cancelled"))
}

fn refill(context: &Context, arguments: &args::RolloutRefill) -> Result<Reply, Problem> {
    let store = context.open()?;
    let target = target(&store, &arguments.what)?;
    let reply = store.graph().refill(&context.meta("")?, RefillAgain { target }).map_err(refused)?;
    Ok(show::refilled(&reply))
}

fn publish(context: &Context, arguments: &args::RolloutPublish) -> Result<Reply, Problem> {
    let store = context.open()?;
    let command = PublishPolicy {
        run_id: run(&store, &arguments.run)?.run_id,
        version: arguments.version,
        digest: digest("--digest", arguments.digest.as_deref())?,
        adapter: arguments.adapter.clone(),
    };
    Ok(show::run(&store.graph().publish_policy(&context.meta("")?, command).map_err(refused)?))
}
