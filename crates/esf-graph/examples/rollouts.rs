//! Measures runs: what a step or an end costs in batches of 64 siblings, each batch one durable commit, and what a delivery
//! with its acknowledgement costs. `cargo run -p esf-graph --example rollouts [BATCHES]`; build it optimised to
//! compare with budgets.

use std::error::Error;
use std::time::{Duration, Instant};

use esf_core::environment::Environment;
use esf_core::ops::create_group::CreateGroup;
use esf_core::ops::rollout::{
    Ack, AddPrompts, Consume, CreateRun, FinishSibling, NewPrompt, NewStep, RecordSteps, StartSiblings,
};
use esf_core::policy::PolicyDocument;
use esf_core::record::Json;
use esf_core::rollout::{Array, Content, Dtype, Outcome, Policy, Task};
use esf_core::time::BootMillis;
use esf_core::{BlobId, Digest, Timestamp};
use esf_graph::{BootClock, Graph, Meta};
use esf_layerstack::{ImportOptions, LayerStack};

const SIBLINGS: u32 = 64;
const STEPS: u64 = 8;

fn meta(key: String) -> Meta {
    Meta {
        actor: "measure".to_owned(),
        key,
        now: Timestamp(1),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(1) },
        trace_id: "trace".to_owned(),
    }
}

/// A small action, an observation elsewhere, four arrays of tokens.
fn step(index: u64) -> NewStep {
    let digest = BlobId::new(Digest::of(&index.to_le_bytes()));
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
        policy_version: Some(1),
        arrays: arrays.map(|(name, array)| (name.to_owned(), array)).into(),
        ..NewStep::default()
    }
}

fn median(mut samples: Vec<Duration>) -> f64 {
    samples.sort();
    samples[samples.len() / 2].as_secs_f64() * 1e6
}

fn main() -> Result<(), Box<dyn Error>> {
    let batches: u32 = std::env::args().nth(1).map_or(Ok(50), |text| text.parse())?;
    let place = tempfile::tempdir()?;
    let source = place.path().join("source");
    std::fs::create_dir(&source)?;
    let stack = LayerStack::create(&place.path().join("store"))?;
    let root = stack.import_directory(&source, &ImportOptions::default(), &())?.sealed;
    let graph = Graph::create(&place.path().join("graph.db"), stack.store_id())?;
    let command = CreateGroup {
        name: "measure".to_owned(),
        root: *root.pin(),
        policy: PolicyDocument::default(),
        source: String::new(),
        default_environment: Environment::default(),
        provenance: Json::Null,
    };
    let node = graph.create_group_with_node(&meta("group".to_owned()), command, Some(&root))?.node.node_id;
    let policy = Policy { name: "policy".to_owned(), version: 1, digest: None, adapter: None };
    let run_id = graph.create_run(&meta("run".to_owned()), CreateRun::new(node, "run", policy))?.run_id;
    let (mut begins, mut steps, mut ends, mut deliveries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for batch in 0..batches {
        let meta = meta(format!("batch-{batch}"));
        let task = Task { id: "task".to_owned(), digest: None, split: None };
        let prompt = NewPrompt { task, node: None, seed: 0, size: Some(8), extra: Json::Null };
        graph.add_prompts(&meta, AddPrompts { run_id, prompts: vec![prompt; SIBLINGS as usize / 8] })?;
        let begun = Instant::now();
        let start = StartSiblings { run_id, siblings: Vec::new(), next: SIBLINGS, lease_ms: None };
        let siblings = graph.start_siblings(&meta, start)?.begun;
        begins.push(begun.elapsed());
        for index in 0..STEPS {
            let item = |one: &esf_core::ops::rollout::Begun| RecordSteps {
                sibling_id: one.sibling_id,
                trial: one.trial,
                lease_ms: None,
                steps: vec![step(index)],
            };
            let items = siblings.iter().map(item).collect();
            let begun = Instant::now();
            graph.record_steps(&meta, items)?.into_iter().collect::<Result<Vec<_>, _>>()?;
            steps.push(begun.elapsed());
        }
        let item = |one: &esf_core::ops::rollout::Begun| FinishSibling {
            sibling_id: one.sibling_id,
            trial: one.trial,
            outcome: Outcome { reward: Some(1.0), ..Outcome::default() },
        };
        let items = siblings.iter().map(item).collect();
        let begun = Instant::now();
        graph.finish_siblings(&meta, items)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        ends.push(begun.elapsed());
        let consumer = || "trainer".to_owned();
        let take = Consume {
            run_id,
            consumer: consumer(),
            unit: None,
            usable_only: None,
            max: SIBLINGS,
            lease_ms: 1_000,
        };
        let begun = Instant::now();
        let batch = graph.consume(&meta, take)?.batch.ok_or("nothing was delivered")?;
        let ack = Ack {
            run_id,
            consumer: consumer(),
            batch,
            sequences: None,
            filtered: Vec::new(),
            trainer_step: 1,
        };
        graph.ack(&meta, ack)?;
        deliveries.push(begun.elapsed());
    }
    for (what, samples) in
        [("begin", begins), ("step", steps), ("end", ends), ("deliver and acknowledge", deliveries)]
    {
        let each = median(samples) / f64::from(SIBLINGS);
        println!("{what}: {each:.1} us each in batches of {SIBLINGS}, {:.0} a second", 1e6 / each);
    }
    let begun = Instant::now();
    let findings = graph.check()?;
    println!(
        "fsck of {} events: {:.2?}, {} findings",
        graph.run(run_id)?.counts.sequence,
        begun.elapsed(),
        findings.len()
    );
    Ok(())
}
