//! Tests of the runs in the graph.

mod deliver;
mod keep;
mod life;
mod model;
mod once;
mod training;

use esf_core::failure::FailureClass;
use esf_core::id::{NodeId, RunId, SiblingId};
use esf_core::ops::rollout::{
    Ack, AddPrompts, Batch, Begun, Consume, CreateRun, FinishSibling, Finished, NewPrompt, NewStep,
    PublishPolicy, RecordSteps, Recorded, StartSiblings, Started,
};
use esf_core::record::Failure;
use esf_core::rollout::{Outcome, Policy, Prompt, Run, Task};
use serde_json::json;

use super::{Fixture, meta};
use crate::{Error, Graph};

/// A run in a graph of its own.
pub(crate) struct Running {
    pub(crate) fixture: Fixture,
    pub(crate) run: RunId,
    pub(crate) root: NodeId,
}

impl Running {
    /// A run with settings that `change` makes of the plain ones.
    pub(crate) fn new(change: impl FnOnce(&mut CreateRun)) -> Self {
        let fixture = Fixture::new();
        let root = fixture.group("project").node.node_id;
        let policy = Policy { name: "policy".to_owned(), version: 1, digest: None, adapter: None };
        let mut command = CreateRun::new(root, "run", policy);
        change(&mut command);
        let run = fixture.graph.create_run(&meta(), command).expect("run").run_id;
        Self { fixture, run, root }
    }

    /// A run of one prompt with `size` siblings, all begun.
    pub(crate) fn begun(size: u32, change: impl FnOnce(&mut CreateRun)) -> (Self, Vec<Begun>) {
        let running = Self::new(change);
        running.add(1, size);
        let begun = running.next(size).begun;
        assert_eq!(begun.len(), size as usize);
        (running, begun)
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.fixture.graph
    }

    pub(crate) fn now(&self) -> Run {
        self.graph().run(self.run).expect("run")
    }

    /// Adds `count` prompts of `size` siblings.
    pub(crate) fn add(&self, count: u64, size: u32) -> Vec<Prompt> {
        let prompts = (0..count).map(|seed| prompt(seed, size)).collect();
        self.graph().add_prompts(&meta(), AddPrompts { run_id: self.run, prompts }).expect("prompts")
    }

    pub(crate) fn next(&self, next: u32) -> Started {
        self.graph().start_siblings(&meta(), self.ask(next)).expect("start")
    }

    pub(crate) fn ask(&self, next: u32) -> StartSiblings {
        StartSiblings { run_id: self.run, siblings: Vec::new(), next, lease_ms: None }
    }

    pub(crate) fn steps(&self, begun: &Begun, steps: Vec<NewStep>) -> Result<Recorded, Error> {
        let item = RecordSteps { sibling_id: begun.sibling_id, trial: begun.trial, lease_ms: None, steps };
        self.graph().record_steps(&meta(), vec![item]).expect("batch").remove(0)
    }

    pub(crate) fn finish(&self, begun: &Begun, outcome: Outcome) -> Result<Finished, Error> {
        self.finish_as(begun.sibling_id, begun.trial, outcome)
    }

    pub(crate) fn finish_as(
        &self,
        sibling_id: SiblingId,
        trial: u32,
        outcome: Outcome,
    ) -> Result<Finished, Error> {
        let item = FinishSibling { sibling_id, trial, outcome };
        self.graph().finish_siblings(&meta(), vec![item]).expect("batch").remove(0)
    }

    pub(crate) fn publish(&self, version: u64) {
        let command = PublishPolicy { run_id: self.run, version, digest: None, adapter: None };
        self.graph().publish_policy(&meta(), command).expect("publish");
    }

    pub(crate) fn consume(&self, consumer: &str, max: u32) -> Batch {
        self.graph().consume(&meta(), self.taking(consumer, max)).expect("consume")
    }

    pub(crate) fn taking(&self, consumer: &str, max: u32) -> Consume {
        Consume {
            run_id: self.run,
            consumer: consumer.to_owned(),
            unit: None,
            usable_only: None,
            max,
            lease_ms: 10_000,
        }
    }

    pub(crate) fn acking(&self, batch: &Batch, trainer_step: u64) -> Ack {
        Ack {
            run_id: self.run,
            consumer: batch.consumer.clone(),
            batch: batch.batch.expect("a batch"),
            sequences: None,
            filtered: Vec::new(),
            trainer_step,
        }
    }

    pub(crate) fn sound(&self) {
        assert_eq!(self.graph().check().expect("check"), Vec::<String>::new());
    }
}

pub(crate) fn prompt(seed: u64, size: u32) -> NewPrompt {
    NewPrompt {
        task: Task { id: format!("task-{seed}"), digest: None, split: Some("train".to_owned()) },
        node: None,
        seed,
        size: Some(size),
        extra: json!(null),
    }
}

pub(crate) fn scored(reward: f64) -> Outcome {
    Outcome { reward: Some(reward), terminated: true, ..Outcome::default() }
}

pub(crate) fn failed(class: FailureClass) -> Outcome {
    Outcome { failure: Some(Failure::new(class, "exec", "lost")), ..Outcome::default() }
}

pub(crate) fn step(index: u64) -> NewStep {
    NewStep { index, ..NewStep::default() }
}

pub(crate) fn sequences(batch: &Batch) -> Vec<u64> {
    batch.deliveries.iter().map(|entry| entry.delivery.sequence).collect()
}
