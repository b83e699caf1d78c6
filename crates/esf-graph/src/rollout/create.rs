//! Runs and their prompts come to be, policies are published, runs are closed. Invariants: versions of a policy only
//! grow; a prompt's index is its place in the run, and all of a request's prompts are added or none.

use esf_core::environment::Environment;
use esf_core::id::{PromptId, RunId, SiblingId};
use esf_core::ops::rollout::{AddPrompts, CreateRun, NewPrompt, PublishPolicy, reject};
use esf_core::ops::{Decision, Meta, Reject, Request};
use esf_core::record::EventKind;
use esf_core::rollout::rules::{Counts, MAX_SEED};
use esf_core::rollout::{Content, Policy, Prompt, Run, RunStatus};
use esf_core::state::NodeStatus;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::book::{Book, about, beginning};
use super::rows;
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, first, json as text, optional};
use crate::{Graph, apply, load, statements};

/// What is remembered of added prompts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Added {
    from: u64,
    count: u64,
}

impl Graph {
    /// Makes a run.
    ///
    /// # Errors
    /// `NotFound` for the node; `Rejected` with `NotSealed`, `Terminal`, `Pruned`, `BadName`, `BadArgument`;
    /// `IdempotencyConflict`.
    pub fn create_run(&self, meta: &Meta, command: CreateRun) -> Result<Run> {
        let answer = self
            .mutate(meta, "create_run", &command.clone(), move |db, request| create(db, request, command))?;
        Ok(answer.reply)
    }

    /// Publishes a version of a run's policy. One that is the current one already, with the same weights, changes
    /// nothing.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `RunOver` or `VersionNotAscending`; `IdempotencyConflict`.
    pub fn publish_policy(&self, meta: &Meta, command: PublishPolicy) -> Result<Run> {
        let answer = self.mutate(meta, "publish_policy", &command.clone(), move |db, request| {
            publish(db, request, &command)
        })?;
        Ok(answer.reply)
    }

    /// Adds prompts to a run, with siblings that wait.
    ///
    /// # Errors
    /// `NotFound` for the run or a node; `Rejected` with `RunOver`, `NotSealed`, `Terminal`, `Pruned`, `OtherGroup`,
    /// `BadArgument`; `IdempotencyConflict`.
    pub fn add_prompts(&self, meta: &Meta, command: AddPrompts) -> Result<Vec<Prompt>> {
        let run = command.run_id;
        let answer = self
            .mutate(meta, "add_prompts", &command.clone(), move |db, request| add(db, request, &command))?;
        self.prompts(run, answer.reply.from, answer.reply.count)
    }

    /// Ends a run in which nothing waits or goes on: no more prompts are added, and its nodes are not kept for it any
    /// more. What was recorded can still be consumed. One that has ended is left as it is.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `NotEnded` or, for a cancelled one, `RunOver`; `IdempotencyConflict`.
    pub fn finish_run(&self, meta: &Meta, run: RunId) -> Result<Run> {
        let answer = self.mutate(meta, "finish_run", &run, move |db, request| {
            let mut book = Book::new(db, request.meta);
            let number = book.open(run)?;
            match book.run(number)?.status {
                RunStatus::Finished => {}
                RunStatus::Cancelled => {
                    return Err(reject::Reject::RunOver { run, status: RunStatus::Cancelled }.into());
                }
                RunStatus::Open => {
                    if let Some(prompt) = first(db, statements::OPEN_PROMPT, [number], |c| c.id())? {
                        return Err(reject::Reject::NotEnded { prompt }.into());
                    }
                    book.run(number)?.status = RunStatus::Finished;
                    book.log(number, about(EventKind::RunOver).detail(json!({ "status": "finished" })))?;
                }
            }
            let reply = book.run(number)?.clone();
            Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
        })?;
        Ok(answer.reply)
    }
}

fn bad<T>(argument: &'static str, expected: impl Into<String>, found: impl ToString) -> Result<T> {
    let found = found.to_string().chars().take(200).collect();
    Err(Reject::BadArgument { argument, expected: expected.into(), found }.into())
}

/// Refuses a text of no or too many bytes.
pub(super) fn check_text(argument: &'static str, value: &str) -> Result<()> {
    if (1..=255).contains(&value.len()) { Ok(()) } else { bad(argument, "1 to 255 bytes", value.len()) }
}

fn check_run(command: &CreateRun) -> Result<()> {
    check_text("name", &command.name)?;
    check_policy(&command.policy)?;
    if !(1..=NewPrompt::MAX_SIZE).contains(&command.group_size) {
        return bad("group_size", format!("1 to {}", NewPrompt::MAX_SIZE), command.group_size);
    }
    if command.rewards.len() > esf_core::rollout::Outcome::MAX_REWARDS {
        return bad("rewards", "at most 64", command.rewards.len());
    }
    for (name, weight) in &command.rewards {
        check_text("rewards", name)?;
        if !weight.is_finite() {
            return bad("rewards", "finite weights", format!("{name}: {weight}"));
        }
    }
    for (argument, json) in [
        ("sampler", command.sampler.to_string()),
        ("evaluators", text(&command.evaluators)?.unwrap_or_default()),
    ] {
        if json.len() > 65_536 {
            return bad(argument, "at most 65536 bytes of JSON", json.len());
        }
    }
    for (argument, number) in
        [("max_staleness", command.max_staleness), ("batch", command.batch), ("max_ready", command.max_ready)]
    {
        if number.is_some_and(|number| {
            i64::try_from(number).is_err() || number == 0 && argument != "max_staleness"
        }) {
            return bad(argument, "a number from 1 to 2^63 - 1", number.unwrap_or_default());
        }
    }
    Ok(())
}

fn check_policy(policy: &Policy) -> Result<()> {
    check_text("policy", &policy.name)?;
    if let Some(adapter) = &policy.adapter {
        check_text("adapter", adapter)?;
    }
    if i64::try_from(policy.version).is_err() {
        return bad("policy_version", "a number up to 2^63 - 1", policy.version);
    }
    Ok(())
}

fn create(db: &Connection, request: &Request<'_>, command: CreateRun) -> Result<Decision<Run>> {
    check_run(&command)?;
    let node = beginning(db, command.node)?;
    let environment: Environment = match command.environment {
        Some(environment) => environment,
        None => load::group(db, node.group_id)?.default_environment,
    };
    apply::insert_environment(db, &environment)?;
    let meta = request.meta;
    let run = Run {
        run_id: RunId::derive(&request.seed(command.node.as_bytes(), 0)),
        group_id: node.group_id,
        node_id: node.node_id,
        name: command.name,
        policy: command.policy,
        sampler: command.sampler,
        generation_source: command.generation_source,
        environment_digest: environment.digest(),
        evaluators: command.evaluators,
        group_size: command.group_size,
        rewards: command.rewards,
        max_staleness: command.max_staleness,
        batch: command.batch,
        max_ready: command.max_ready,
        refill: command.refill,
        max_refills: command.max_refills,
        status: RunStatus::Open,
        cancelled: None,
        counts: Counts::default(),
        trainer_step: 0,
        created_at: meta.now,
        created_by: meta.actor.clone(),
        trace_id: meta.trace_id.clone(),
    };
    insert_run(db, &run)?;
    let mut book = Book::new(db, meta);
    let number = book.open(run.run_id)?;
    insert_version(db, number, &run.policy, meta)?;
    let detail = json!({ "name": run.name, "policy": run.policy });
    let created = about(EventKind::RunCreated).detail(detail);
    book.log(number, esf_core::ops::Transition { node_id: Some(run.node_id), ..created })?;
    Ok(Decision { reply: run, changes: Vec::new(), transitions: book.close()? })
}

fn insert_run(db: &Connection, run: &Run) -> Result<()> {
    let optional_count = |number: Option<u64>| number.map(count).transpose();
    let values = params![
        run.run_id.bytes(),
        run.group_id.bytes(),
        run.node_id.bytes(),
        run.name,
        run.policy.name,
        count(run.policy.version)?,
        optional(run.policy.digest.as_ref()),
        run.policy.adapter,
        text(&run.sampler)?,
        run.generation_source.as_str(),
        run.environment_digest.bytes(),
        text(&run.evaluators)?,
        run.group_size,
        text(&run.rewards)?,
        optional_count(run.max_staleness)?,
        optional_count(run.batch)?,
        optional_count(run.max_ready)?,
        run.refill.as_str(),
        run.max_refills,
        run.created_at.0,
        run.created_by,
        run.trace_id,
    ];
    change(db, statements::INSERT_RUN, values, "run")
}

fn insert_version(db: &Connection, run: i64, policy: &Policy, meta: &Meta) -> Result<()> {
    let values =
        params![run, count(policy.version)?, optional(policy.digest.as_ref()), policy.adapter, meta.now.0];
    change(db, statements::INSERT_POLICY_VERSION, values, "policy version")
}

fn publish(db: &Connection, request: &Request<'_>, command: &PublishPolicy) -> Result<Decision<Run>> {
    let mut book = Book::new(db, request.meta);
    let number = book.open_active(command.run_id)?;
    let current = book.run(number)?.policy.clone();
    let policy = Policy {
        name: current.name.clone(),
        version: command.version,
        digest: command.digest,
        adapter: command.adapter.clone(),
    };
    check_policy(&policy)?;
    if policy != current {
        if policy.version <= current.version {
            let values = params![number, count(policy.version)?];
            let known = first(db, statements::POLICY_VERSION, values, rows::policy_version)?;
            let (version, current) = (policy.version, current.version);
            let taken = known.is_some();
            return Err(reject::Reject::VersionNotAscending { version, current, taken }.into());
        }
        insert_version(db, number, &policy, request.meta)?;
        let detail = json!({ "version": policy.version, "was": current.version });
        book.run(number)?.policy = policy;
        book.log(number, about(EventKind::PolicyPublished).detail(detail))?;
    }
    let reply = book.run(number)?.clone();
    Ok(Decision { reply, changes: Vec::new(), transitions: book.close()? })
}

fn check_prompts(command: &AddPrompts, group_size: u32) -> Result<()> {
    if !(1..=AddPrompts::MAX).contains(&command.prompts.len()) {
        return bad("prompts", format!("1 to {}", AddPrompts::MAX), command.prompts.len());
    }
    let mut siblings = 0;
    for prompt in &command.prompts {
        let size = prompt.size.unwrap_or(group_size);
        if !(1..=NewPrompt::MAX_SIZE).contains(&size) {
            return bad("size", format!("1 to {}", NewPrompt::MAX_SIZE), size);
        }
        siblings += u64::from(size);
        check_text("task.id", &prompt.task.id)?;
        if let Some(split) = &prompt.task.split {
            check_text("task.split", split)?;
        }
        if prompt.seed > MAX_SEED {
            return bad("seed", format!("at most {MAX_SEED}"), prompt.seed);
        }
        let bytes = prompt.extra.to_string().len();
        if bytes > Content::MAX_INLINE {
            return bad("extra", format!("at most {} bytes of JSON", Content::MAX_INLINE), bytes);
        }
    }
    if siblings > AddPrompts::MAX_SIBLINGS {
        return bad("prompts", format!("at most {} siblings", AddPrompts::MAX_SIBLINGS), siblings);
    }
    Ok(())
}

fn add(db: &Connection, request: &Request<'_>, command: &AddPrompts) -> Result<Decision<Added>> {
    let mut book = Book::new(db, request.meta);
    let number = book.open_active(command.run_id)?;
    let run = book.run(number)?.clone();
    check_prompts(command, run.group_size)?;
    let from = run.counts.prompts;
    let (mut last, mut ordinal) = (beginning(db, run.node_id), 0_u64);
    for (index, prompt) in (from..).zip(&command.prompts) {
        let id = prompt.node.unwrap_or(run.node_id);
        if !matches!(&last, Ok(node) if node.node_id == id) {
            last = beginning(db, id);
        }
        let node = last.as_ref().map_err(Clone::clone)?;
        if node.group_id != run.group_id {
            return Err(Reject::OtherGroup { node: id }.into());
        }
        debug_assert_eq!(node.status, NodeStatus::Sealed);
        let size = prompt.size.unwrap_or(run.group_size);
        let prompt_id = PromptId::derive(&request.seed(run.run_id.as_bytes(), index - from));
        let values = params![
            prompt_id.bytes(),
            number,
            count(index)?,
            prompt.task.id,
            optional(prompt.task.digest.as_ref()),
            prompt.task.split,
            id.bytes(),
            optional(node.root_id.as_ref()),
            count(prompt.seed)?,
            size,
            text(&prompt.extra)?,
            request.meta.now.0,
        ];
        let row: i64 = first(db, statements::INSERT_PROMPT, values, |columns| columns.take())?
            .ok_or_else(|| Error::damaged("a prompt was not stored"))?;
        for sibling in 0..size {
            let sibling_id = SiblingId::derive(&request.seed(run.run_id.as_bytes(), ordinal));
            ordinal += 1;
            change(
                db,
                statements::INSERT_SIBLING,
                params![sibling_id.bytes(), row, number, sibling],
                "sibling",
            )?;
        }
    }
    let added = command.prompts.len() as u64;
    let counts = &mut book.run(number)?.counts;
    counts.prompts += added;
    counts.siblings += ordinal;
    counts.waiting += ordinal;
    let detail = json!({ "from": from, "count": added, "siblings": ordinal });
    book.log(number, about(EventKind::PromptsAdded).detail(detail))?;
    Ok(Decision { reply: Added { from, count: added }, changes: Vec::new(), transitions: book.close()? })
}
