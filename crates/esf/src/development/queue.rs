//! `esf queue run`: takes what waits, one after the other: rebases it on the canonical node (a merge, a new node),
//! runs the required evaluators on just that node, and makes it canonical; or refuses it, saying against what and
//! what to do. Invariants: nothing becomes canonical on evidence of another root or base; every step has a key of
//! its own that follows from the entry, the generation and all that its request may vary in, so a run that was cut
//! short is taken up where it ended, nothing is merged, evaluated or promoted twice, and no key is ever met with
//! another request; what is wrong with one entry does not stop the ones behind it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use esf_core::development::{self, Binding, Outcome, QueueEntry, Refusal, Task};
use esf_core::manifest::escape;
use esf_core::ops::development::{Integrate, Refuse, Settled};
use esf_core::record::{Evaluation, Group, Node};
use esf_core::{Class, NodeId, Problem, canonical};
use esf_store::{Merge, MergeOutcome, Store, TextMerge};
use serde::Serialize;
use serde_json::{Value, json};

use super::{refused, reviews_of, show};
use crate::args;
use crate::commands::find;
use crate::commands::show::short;
use crate::context::Context;
use crate::evaluation::{self, Prepared};
use crate::lock::DriverLock;
use crate::output::Reply;

/// How often an entry is tried again because the group moved meanwhile.
const TRIES: u32 = 16;
/// How often the queue is looked at while it is empty.
const PAUSE: Duration = Duration::from_millis(300);
/// Most entries that are looked at to find who changed a path meanwhile.
const LOOKED_AT: usize = 200;

/// What a try came to.
enum Came {
    /// The entry has ended.
    Ended(Box<Settled>),
    /// It goes on waiting.
    Waits(String),
}

struct Runner<'a> {
    context: &'a Context,
    store: &'a Store,
    prepared: Vec<Prepared>,
    /// Which files have their lines merged.
    text: Option<TextMerge>,
}

pub(super) fn run(context: &Context, arguments: &args::QueueRun) -> Result<u8, Problem> {
    let store = context.open()?;
    let group = find::group(&store, &arguments.group)?;
    let runner = Runner {
        context,
        store: &store,
        prepared: prepare(&group, arguments)?,
        text: arguments.text.then(TextMerge::default),
    };
    let name = &group.name;
    let _lock = DriverLock::take(store.directory(), &format!("queue-{}", group.group_id), || {
        Problem::new(Class::Conflict, "queue_is_run", format!("another `esf queue run` is at {name}"))
            .remedy("wait for it, or end it with Ctrl-C first")
            .retryable()
    })?;
    crate::interrupt::watch()?;
    let (mut ended, mut waits, mut passed) = (Vec::new(), Vec::new(), HashSet::new());
    // What failed is not tried again by this run: whoever mends it starts another.
    let (mut failed, mut failure): (Vec<Value>, Option<Problem>) = (Vec::new(), None);
    let mut given_up = HashSet::new();
    while !crate::interrupt::seen() && arguments.max.is_none_or(|max| ended.len() < max) {
        let waiting = store.graph().waiting(group.group_id).map_err(refused)?;
        let next = |entry: &QueueEntry| ![&passed, &given_up].iter().any(|out| out.contains(&entry.entry_id));
        let Some(entry) = waiting.into_iter().find(next) else {
            if !arguments.watch {
                break;
            }
            std::thread::sleep(PAUSE);
            passed.clear();
            waits.clear();
            continue;
        };
        let task = store.graph().task(entry.task_id).map_err(refused)?;
        match runner.entry(&task, &entry) {
            Ok(Came::Ended(settled)) => {
                eprintln!("{}", show::progress(&task.name, &settled.entry));
                ended.push(settled.entry);
                // What became canonical may be what another waited for.
                passed.clear();
                waits.clear();
            }
            Ok(Came::Waits(why)) => {
                if !arguments.watch {
                    eprintln!("esf: {}: waits: {why}", task.name);
                }
                waits.push(json!({ "entry_id": entry.entry_id, "task": task.name, "why": why }));
                passed.insert(entry.entry_id);
            }
            Err(problem) => {
                let stop = concerns_all(&problem);
                if !stop {
                    eprintln!("esf: {}: passed over: {problem}", task.name);
                    failed.push(json!({ "entry_id": entry.entry_id, "task": task.name, "error": problem }));
                    given_up.insert(entry.entry_id);
                }
                failure.get_or_insert(problem);
                if stop {
                    break;
                }
            }
        }
    }
    let reply = show::entries(&store, &ended)?;
    let value = json!({ "entries": ended, "waiting": waits, "failed": failed });
    let code = crate::commands::print(context, &Reply { value, ..reply })?;
    failure.map_or(Ok(code), Err)
}

/// Whether no other entry would fare better: the machine, the store or the worker failed, or the run is to end.
fn concerns_all(problem: &Problem) -> bool {
    problem.class == Class::Failure || crate::interrupt::seen()
}

/// The evaluators, which must be all that the group's policy asks for.
fn prepare(group: &Group, arguments: &args::QueueRun) -> Result<Vec<Prepared>, Problem> {
    let read = |path: &PathBuf| Prepared::read(path);
    let prepared: Vec<Prepared> = arguments.evaluator.iter().map(read).collect::<Result<_, _>>()?;
    let names: Vec<&str> = prepared.iter().map(Prepared::name).collect();
    let asked = &group.policy.queue.evaluators;
    let missing: Vec<&str> = asked.iter().map(String::as_str).filter(|name| !names.contains(name)).collect();
    if !missing.is_empty() {
        return Err(Problem::new(
            Class::Usage,
            "evaluator_missing",
            "the group's policy asks for more checks",
        )
        .expected(format!("evaluators named {}", asked.join(", ")))
        .found(format!("none named {}", missing.join(", ")))
        .remedy("give each with --evaluator FILE"));
    }
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return Err(Problem::new(
            Class::Usage,
            "bad_option",
            format!("two evaluators are named {}", twice.1),
        )
        .expected("evaluators of different names"));
    }
    if prepared.is_empty() && !arguments.unchecked {
        return Err(Problem::new(Class::Usage, "bad_option", "nothing would be checked")
            .expected("--evaluator FILE, or --unchecked to integrate whatever merges cleanly")
            .found("neither"));
    }
    Ok(prepared)
}

impl Runner<'_> {
    fn entry(&self, task: &Task, entry: &QueueEntry) -> Result<Came, Problem> {
        for _ in 0..TRIES {
            let group = self.store.graph().group(entry.group_id).map_err(refused)?;
            let key = format!("queue/{}/{}", entry.entry_id, group.generation);
            let turn = Turn {
                runner: self,
                context: self.context.keyed(key),
                canonical: self.store.graph().node(group.canonical_node_id).map_err(refused)?,
                group,
                task,
                entry,
            };
            match turn.take() {
                Ok(came) => return Ok(came),
                Err(problem) if problem.code == "stale_generation" => {}
                Err(problem) => return Err(problem),
            }
        }
        Ok(Came::Waits(format!("the canonical node moved {TRIES} times while it was checked")))
    }
}

/// One try of one entry at one generation.
struct Turn<'a> {
    runner: &'a Runner<'a>,
    context: Context,
    group: Group,
    canonical: Node,
    task: &'a Task,
    entry: &'a QueueEntry,
}

impl Turn<'_> {
    fn take(&self) -> Result<Came, Problem> {
        let store = self.runner.store;
        let submitted = store.graph().node(self.entry.node_id).map_err(refused)?;
        let (evaluations, reviews) = reviews_of(store, submitted.node_id)?;
        if !reviews.rejected.is_empty() {
            let remedy =
                format!("`esf review ls {}` says why; mend it and submit again", short(&submitted.node_id));
            let why = Refusal::Reviews { rejected_by: reviews.rejected };
            return self.refuse(why, Vec::new(), remedy);
        }
        let needed = self.group.policy.queue.reviews as usize;
        if reviews.accepted.len() < needed {
            let has = reviews.accepted.len();
            return Ok(Came::Waits(format!("{has} of {needed} accepting reviews that count")));
        }
        let result = match self.rebased(&submitted)? {
            Ok(result) => result,
            Err(came) => return Ok(came),
        };
        let reviewed = evaluations.iter().filter(|one| reviews.accepted.contains(&one.evaluation_id));
        let root = find::sealed_root(&submitted)?.root;
        let mut evidence: Vec<Binding> =
            reviewed.map(|one| Binding::new(one, root, self.canonical.node_id, true)).collect();
        if let Some(came) = self.check(&result, &mut evidence)? {
            return Ok(came);
        }
        let command = Integrate {
            entry: self.entry.entry_id,
            result: result.node_id,
            expect: self.group.generation,
            evidence,
        };
        let meta = self.context.meta(&of_body("integrate", &command))?;
        let settled = store.graph().integrate(&meta, command).map_err(refused)?;
        Ok(Came::Ended(Box::new(settled)))
    }

    /// The submitted node where the canonical one has not moved past its base, else a merge of both: a new node.
    fn rebased(&self, submitted: &Node) -> Result<Result<Node, Came>, Problem> {
        let store = self.runner.store;
        if store.graph().descends(submitted.node_id, self.canonical.node_id).map_err(refused)? {
            return Ok(Ok(submitted.clone()));
        }
        let request = Merge {
            nodes: vec![self.canonical.node_id, submitted.node_id],
            expect: self.group.generation,
            text: self.runner.text.clone(),
            ..Merge::default()
        };
        // A run that merges lines asks for something else than the one before it, which may have been cut short.
        let part = if request.text.is_some() { "merge-text" } else { "merge" };
        let outcome = match store.merge(&self.context.meta(part)?, &request) {
            Ok(outcome) => outcome,
            Err(error) => {
                let problem = error.problem();
                if !matches!(problem.code.as_str(), "ambiguous_base" | "no_common_ancestor") {
                    return Err(problem);
                }
                let remedy = "merge it by hand with `esf merge … --base NODE`, and submit what comes of it";
                let why = Refusal::NoBase { message: problem.message };
                return self.refuse(why, Vec::new(), remedy.to_owned()).map(Err);
            }
        };
        match outcome {
            MergeOutcome::Merged { node: Some(node), .. } => Ok(Ok(node)),
            MergeOutcome::Conflicted { node: Some(draft), conflicts, .. } => {
                let conflicts = self.blamed(conflicts)?;
                let remedy = format!(
                    "`esf activate {draft}`: it has your work on what is canonical, and at these paths the canonical \
                     contents; yours are `esf cat {yours}:PATH`. Resolve them, `esf suspend`, `esf task submit` again",
                    draft = short(&draft.node_id),
                    yours = short(&submitted.node_id),
                );
                let why = Refusal::Conflicts { draft_node_id: draft.node_id, conflicts };
                self.refuse(why, Vec::new(), remedy).map(Err)
            }
            MergeOutcome::Merged { node: None, .. }
            | MergeOutcome::Conflicted { node: None, .. }
            | MergeOutcome::Stale { .. } => {
                Err(Problem::new(Class::Conflict, "stale_generation", "the group has moved on").retryable())
            }
        }
    }

    /// Adds to each conflict which tasks changed its path since this one began.
    fn blamed(&self, mut conflicts: Vec<Value>) -> Result<Vec<Value>, Problem> {
        let graph = self.runner.store.graph();
        let objects = self.runner.store.stack().objects();
        let entries = graph.entries_of_group(self.group.group_id).map_err(refused)?;
        for other in entries.iter().rev().take(LOOKED_AT) {
            let Some(Outcome::Integrated { onto, result_node_id, .. }) = &other.outcome else { continue };
            if graph.descends(self.entry.node_id, *result_node_id).map_err(refused)? {
                break;
            }
            let root = |id: &NodeId| find::sealed_root(&graph.node(*id).map_err(refused)?);
            let changes = esf_core::diff::diff(objects, &root(onto)?, &root(result_node_id)?)
                .map_err(|error| error.problem())?;
            let changed: HashSet<String> = changes.iter().map(|change| escape(&change.path)).collect();
            let task = graph.task(other.task_id).map_err(refused)?;
            for conflict in &mut conflicts {
                if conflict["path"].as_str().is_some_and(|path| changed.contains(path)) {
                    let by = json!({ "task": task.name, "task_id": task.task_id, "node_id": result_node_id });
                    match conflict["integrated_by"].as_array_mut() {
                        Some(all) => all.push(by),
                        None => conflict["integrated_by"] = json!([by]),
                    }
                }
            }
        }
        Ok(conflicts)
    }

    /// Runs what is required on `result`, or takes what is known of just this root on just this base.
    fn check(&self, result: &Node, evidence: &mut Vec<Binding>) -> Result<Option<Came>, Problem> {
        let root = find::sealed_root(result)?.root;
        let mut failed = Vec::new();
        for prepared in &self.runner.prepared {
            let known = self.runner.store.graph().evaluations(result.node_id).map_err(refused)?;
            let passed = known.iter().find(|one| development::passes(one, prepared.digest()));
            let (evaluation, reused) = match passed {
                Some(one) => (one.clone(), true),
                None => (self.evaluate(result, prepared, &known)?, false),
            };
            if evaluation.verdict.is_error() {
                let class = evaluation.failure.as_ref().map_or("error", |failure| failure.class.as_str());
                return Ok(Some(Came::Waits(format!(
                    "evaluator {} could not decide ({class}): `esf inspect {}`",
                    prepared.name(),
                    short(&evaluation.evaluation_id)
                ))));
            }
            evidence.push(Binding::new(&evaluation, root, self.canonical.node_id, reused));
            if evaluation.verdict.as_str() != "pass" {
                failed.push(prepared.name().to_owned());
            }
        }
        if failed.is_empty() {
            return Ok(None);
        }
        let node = short(&result.node_id);
        let remedy = format!(
            "`esf task show {}` has the evidence; `esf activate {node}` goes on from what was checked, then \
             `esf suspend` and `esf task submit` again",
            short(&self.task.task_id)
        );
        let why = Refusal::Checks { failed, result_node_id: result.node_id };
        self.refuse(why, std::mem::take(evidence), remedy).map(Some)
    }

    /// Evaluates under a key of this node and just this evaluator that counts the tries: one that broke is not
    /// merely remembered, and one that was mended under the same name is another.
    fn evaluate(
        &self,
        result: &Node,
        prepared: &Prepared,
        known: &[Evaluation],
    ) -> Result<Evaluation, Problem> {
        let digest = Some(prepared.digest());
        let broken =
            known.iter().filter(|one| one.evaluator_digest == digest && one.verdict.is_error()).count();
        let part = of_body("evaluate", &(result.node_id, prepared.digest(), prepared.runs(), broken));
        evaluation::evaluate(&self.context, self.runner.store, result, prepared, &part, &|_| {})
    }

    fn refuse(&self, why: Refusal, evidence: Vec<Binding>, remedy: String) -> Result<Came, Problem> {
        let command =
            Refuse { entry: self.entry.entry_id, why, expect: self.group.generation, evidence, remedy };
        let meta = self.context.meta(&of_body("refuse", &command))?;
        let settled = self.runner.store.graph().refuse(&meta, command).map_err(refused)?;
        Ok(Came::Ended(Box::new(settled)))
    }
}

/// The part of a key of a step whose request may be another one in the next run: it tells them apart. That the step
/// is made once follows from what it changes, such as the entry's status.
fn of_body(step: &str, body: &impl Serialize) -> String {
    format!("{step}/{}", canonical::digest("esf queue step v1", body))
}
