//! Rows of rollouts for training: what an event of a run costs when they come in batches. An event is a step or the end of
//! a sibling; every batch is one durable commit. 100 us are 10 000 events a second.

use std::time::Duration;

use esf_core::ops::rollout::{
    Ack, AddPrompts, Begun, Consume, CreateRun, FinishSibling, NewPrompt, NewStep, RecordSteps, StartSiblings,
};
use esf_core::record::Json;
use esf_core::rollout::{Array, Content, Dtype, Outcome, Policy, Task};
use esf_core::{BlobId, Digest, Problem, RunId};

use super::control::group;
use super::{Lab, Row, timed};

/// Siblings of a batch, and the steps that each of them takes.
const SIBLINGS: u32 = 64;
const STEPS: u64 = 8;

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let root = group(lab, "rollouts", 10, 100)?;
    let policy = Policy { name: "bench".to_owned(), version: 1, digest: None, adapter: None };
    let command = CreateRun { group_size: 8, ..CreateRun::new(root, "bench", policy) };
    let run = lab.store.graph().create_run(&lab.context.meta("rollouts")?, command);
    let run = run.map_err(|error| error.problem())?.run_id;
    let samples = lab.samples.min(30);
    let (mut events, mut entries) = (Vec::new(), Vec::new());
    for number in 0..samples {
        let begun = begin(lab, run, number)?;
        events.push(timed(|| record(lab, &begun, number))?);
        entries.push(timed(|| consume(lab, run, number))?);
    }
    let of = |times: Vec<Duration>, each: u64| super::median_us(times) / each as f64;
    let (batch, ends) = (u64::from(SIBLINGS), u64::from(SIBLINGS) * (STEPS + 1));
    let row = |name, value, must, aim| Row {
        name,
        value,
        unit: "us",
        floor: None,
        must: Some(must),
        aim: Some(aim),
        samples,
    };
    lab.add(row("rollout_event_of_64", of(events, ends), 100.0, 50.0));
    lab.add(row("rollout_delivery_of_64", of(entries, batch), 200.0, 100.0));
    Ok(())
}

fn begin(lab: &Lab<'_>, run_id: RunId, number: usize) -> Result<Vec<Begun>, Problem> {
    let graph = lab.store.graph();
    let prompt = |seed: u64| NewPrompt {
        task: Task { id: format!("task-{seed}"), digest: None, split: None },
        node: None,
        seed,
        size: None,
        extra: Json::Null,
    };
    let prompts = (0..u64::from(SIBLINGS / 8)).map(prompt).collect();
    let meta = lab.context.meta(&format!("rollouts-{number}"))?;
    graph.add_prompts(&meta, AddPrompts { run_id, prompts }).map_err(|error| error.problem())?;
    let command = StartSiblings { run_id, siblings: Vec::new(), next: SIBLINGS, lease_ms: Some(600_000) };
    graph.start_siblings(&meta, command).map(|started| started.begun).map_err(|error| error.problem())
}

/// A step of each sibling in a commit, as often as there are steps; then their ends in one.
fn record(lab: &Lab<'_>, begun: &[Begun], number: usize) -> Result<(), Problem> {
    let meta = lab.context.meta(&format!("rollouts-{number}"))?;
    let graph = lab.store.graph();
    for index in 0..STEPS {
        let items = begun.iter().map(|one| RecordSteps {
            sibling_id: one.sibling_id,
            trial: one.trial,
            lease_ms: Some(600_000),
            steps: vec![step(one, index)],
        });
        let answers = graph.record_steps(&meta, items.collect()).map_err(|error| error.problem())?;
        answers.into_iter().try_for_each(|answer| answer.map(drop)).map_err(|error| error.problem())?;
    }
    let outcome = |one: &Begun| Outcome {
        reward: Some(f64::from(one.index) / 8.0),
        terminated: true,
        stop_reason: "stop".to_owned(),
        ..Outcome::default()
    };
    let items = begun.iter().map(|one| FinishSibling {
        sibling_id: one.sibling_id,
        trial: one.trial,
        outcome: outcome(one),
    });
    let answers = graph.finish_siblings(&meta, items.collect()).map_err(|error| error.problem())?;
    answers.into_iter().try_for_each(|answer| answer.map(drop)).map_err(|error| error.problem())
}

/// A step as a trainer's runner has it: a small action, an observation elsewhere, and four arrays of tokens.
fn step(one: &Begun, index: u64) -> NewStep {
    let digest = BlobId::new(Digest::of(&[one.index.to_le_bytes(), [0; 4]].concat()));
    let array = |dtype: Dtype, length| Array {
        dtype,
        length,
        digest,
        size: length * dtype.width(),
        aligned_with: None,
    };
    let arrays = [
        ("prompt_token_ids", array(Dtype::I32, 512)),
        ("completion_token_ids", array(Dtype::I32, 128)),
        ("logprobs", array(Dtype::F32, 128)),
        ("loss_mask", array(Dtype::Bool, 128)),
    ];
    NewStep {
        index,
        action: Some(Content::Inline(serde_json::json!({ "command": "make test", "step": index }))),
        observation: Some(Content::Artifact { digest, size: 4_096 }),
        elapsed_ms: 250,
        policy_version: Some(1),
        arrays: arrays.into_iter().map(|(name, array)| (name.to_owned(), array)).collect(),
        ..NewStep::default()
    }
}

/// Takes what ended, and acknowledges it.
fn consume(lab: &Lab<'_>, run_id: RunId, number: usize) -> Result<(), Problem> {
    let graph = lab.store.graph();
    let meta = lab.context.meta(&format!("rollouts-{number}"))?;
    let command = Consume {
        run_id,
        consumer: "bench".to_owned(),
        unit: None,
        usable_only: None,
        max: SIBLINGS,
        lease_ms: 600_000,
    };
    let batch = graph.consume(&meta, command).map_err(|error| error.problem())?;
    let Some(batch) = batch.batch else { return Err(super::failed("consume", "nothing ended")) };
    let ack = Ack {
        run_id,
        consumer: "bench".to_owned(),
        batch,
        sequences: None,
        filtered: Vec::new(),
        trainer_step: 1,
    };
    graph.ack(&meta, ack).map(drop).map_err(|error| error.problem())
}
