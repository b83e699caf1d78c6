//! Runs, prompts, siblings and batches as people read them, beside their JSON.

use esf_core::SiblingId;
use esf_core::ops::rollout::{Batch, Refilled, Started};
use esf_core::rollout::rules::Wait;
use esf_core::rollout::{
    Consumer, Content, DeliveryKind, PolicyVersion, Prompt, RewardStats, Run, Sibling, Step,
};
use serde_json::{Value, json};

use crate::commands::show::{optional, short};
use crate::output::{Reply, Table};

pub(super) fn runs(runs: &[Run]) -> Reply {
    let mut table = Table::new(&[
        "RUN", "NAME", "STATUS", "POLICY", "PROMPTS", "COMPLETE", "WAITING", "RUNNING", "RESULTS", "ERRORS",
        "TRAINED", "STEP",
    ]);
    for run in runs {
        let counts = &run.counts;
        let numbers = [
            counts.prompts,
            counts.complete,
            counts.waiting,
            counts.running,
            counts.results,
            counts.errors,
            counts.trained,
            run.trainer_step,
        ];
        let words = [
            short(&run.run_id),
            run.name.clone(),
            run.status.as_str().to_owned(),
            format!("{}@{}", run.policy.name, run.policy.version),
        ];
        table.row(words.into_iter().chain(numbers.map(|number| number.to_string())));
    }
    let ids = runs.iter().map(|run| run.run_id.to_string()).collect();
    Reply { value: json!({ "runs": runs }), table, ids }
}

/// One run, under the name `run`.
pub(super) fn run(run: &Run) -> Reply {
    Reply { value: json!({ "run": run }), ..runs(std::slice::from_ref(run)) }
}

/// A run with its policy's versions and its consumers.
pub(super) fn whole_run(run: &Run, versions: &[PolicyVersion], consumers: &[Consumer]) -> Reply {
    let mut table =
        Table::new(&["CONSUMER", "TAKES", "CURSOR", "LEASED", "TRAINED", "FILTERED", "STALE", "STEP"]);
    for consumer in consumers {
        let numbers = [
            consumer.cursor,
            consumer.leased,
            consumer.trained,
            consumer.filtered,
            consumer.stale,
            consumer.trainer_step,
        ];
        let words = [consumer.consumer.clone(), consumer.unit.as_str().to_owned()];
        table.row(words.into_iter().chain(numbers.map(|number| number.to_string())));
    }
    let reply = self::run(run);
    let value = json!({ "run": run, "policy_versions": versions, "consumers": consumers });
    if consumers.is_empty() {
        return Reply { value, ..reply };
    }
    let below = table.render();
    let lines = reply.table.render().lines().chain(below.lines()).map(str::to_owned).collect::<Vec<_>>();
    Reply { value, table: Table::lines(lines), ids: reply.ids }
}

pub(super) fn prompts(prompts: &[Prompt]) -> Reply {
    let mut table =
        Table::new(&["PROMPT", "INDEX", "TASK", "STATUS", "SIZE", "REVISION", "USABLE", "MEAN", "STD"]);
    for prompt in prompts {
        table.row(prompt_row(prompt));
    }
    let ids = prompts.iter().map(|prompt| prompt.prompt_id.to_string()).collect();
    Reply { value: json!({ "prompts": prompts }), table, ids }
}

fn prompt_row(prompt: &Prompt) -> [String; 9] {
    let RewardStats { usable, mean, std, .. } = prompt.stats;
    [
        short(&prompt.prompt_id),
        prompt.index.to_string(),
        prompt.task.id.chars().take(40).collect(),
        prompt.status.as_str().to_owned(),
        prompt.size.to_string(),
        prompt.revision.to_string(),
        usable.to_string(),
        number(mean),
        number(std),
    ]
}

/// A prompt and its siblings.
pub(super) fn prompt(prompt: &Prompt, siblings: &[Sibling]) -> Reply {
    let Reply { value: _, table, ids } = self::siblings(siblings);
    let above = prompts(std::slice::from_ref(prompt)).table.render();
    let below = table.render();
    let lines = above.lines().chain(below.lines()).map(str::to_owned).collect::<Vec<_>>();
    Reply { value: json!({ "prompt": prompt, "siblings": siblings }), table: Table::lines(lines), ids }
}

fn siblings(siblings: &[Sibling]) -> Reply {
    let mut table =
        Table::new(&["SIBLING", "INDEX", "STATUS", "REVISION", "TRIAL", "STEPS", "USABLE", "REWARD", "WHY"]);
    for sibling in siblings {
        let outcome = sibling.outcome.as_ref();
        let why = match (sibling.cancelled, outcome) {
            (Some(reason), _) => reason.as_str().to_owned(),
            (None, Some(outcome)) => match &outcome.failure {
                Some(failure) => failure.class.as_str().to_owned(),
                None => outcome.truncated.map_or(outcome.stop_reason.clone(), |cut| cut.as_str().to_owned()),
            },
            (None, None) => String::new(),
        };
        table.row([
            short(&sibling.sibling_id),
            sibling.index.to_string(),
            sibling.status.as_str().to_owned(),
            sibling.revision.to_string(),
            optional(&sibling.trial),
            sibling.steps.to_string(),
            optional(&outcome.and_then(|outcome| outcome.usable)),
            number(outcome.and_then(|outcome| outcome.reward)),
            why,
        ]);
    }
    let ids = siblings.iter().map(|sibling| sibling.sibling_id.to_string()).collect();
    Reply { value: json!({ "siblings": siblings }), table, ids }
}

/// A sibling and steps of it.
pub(super) fn sibling(sibling: &Sibling, steps: &[Step]) -> Reply {
    let above = siblings(std::slice::from_ref(sibling));
    let mut table = Table::new(&["STEP", "NODE", "CHANGED", "REWARD", "POLICY", "ARRAYS", "ACTION"]);
    for step in steps {
        let arrays: Vec<&str> = step.arrays.keys().map(String::as_str).collect();
        table.row([
            step.index.to_string(),
            short(&step.node_after),
            if step.node_before == step.node_after { "no" } else { "yes" }.to_owned(),
            number(step.reward),
            optional(&step.policy_version),
            arrays.join(" "),
            step.action.as_ref().map_or("-".to_owned(), content),
        ]);
    }
    let below = table.render();
    let lines = above.table.render().lines().chain(below.lines()).map(str::to_owned).collect::<Vec<_>>();
    Reply { value: json!({ "sibling": sibling, "steps": steps }), table: Table::lines(lines), ids: above.ids }
}

fn content(content: &Content) -> String {
    match content {
        Content::Inline(Value::String(text)) => text.chars().take(60).collect(),
        Content::Inline(json) => json.to_string().chars().take(60).collect(),
        Content::Artifact { digest, size } => format!("{size} bytes {}", short(digest)),
    }
}

pub(super) fn started(started: &Started) -> Reply {
    let mut table = Table::new(&["SIBLING", "PROMPT", "INDEX", "TRIAL", "NODE", "SEED", "POLICY", "TASK"]);
    for begun in &started.begun {
        table.row([
            begun.sibling_id.to_string(),
            begun.prompt_index.to_string(),
            begun.index.to_string(),
            begun.trial.to_string(),
            short(&begun.node_id),
            begun.seed.to_string(),
            begun.policy_version.to_string(),
            begun.task.id.chars().take(40).collect(),
        ]);
    }
    let ids = started.begun.iter().map(|begun| begun.sibling_id.to_string()).collect();
    Reply { value: json!(started), table, ids }
}

/// Why nothing more begins now.
pub(super) fn wait(wait: &Wait) -> String {
    match wait {
        Wait::Staleness { committed, most } => {
            format!("{committed} results and running siblings, {most} at most at this step of the trainer")
        }
        Wait::Ready { ready, most } => {
            format!("{ready} usable results wait for a trainer, {most} at most before anything begins")
        }
    }
}

/// What became of trials, each under `name`.
pub(super) fn answers(rows: &[(SiblingId, u32, Value)], name: &'static str, batch: bool) -> Reply {
    let mut table = Table::new(&["SIBLING", "TRIAL", "RESULT"]);
    let mut values = Vec::new();
    for (sibling, trial, value) in rows {
        let (word, entry) = match value.get("error") {
            Some(problem) => {
                let text = problem["message"].as_str().unwrap_or_default();
                let entry = json!({ "sibling_id": sibling, "trial": trial, "error": problem });
                (format!("refused: {text}"), entry)
            }
            None => {
                let mut entry = value.clone();
                entry["sibling_id"] = json!(sibling);
                entry["trial"] = json!(trial);
                (name.to_owned(), entry)
            }
        };
        table.row([short(sibling), trial.to_string(), word]);
        values.push(entry);
    }
    let ids = rows.iter().map(|(sibling, _, _)| sibling.to_string()).collect();
    let value = if batch { json!({ name: values }) } else { json!({ name: values.into_iter().next() }) };
    Reply { value, table, ids }
}

pub(super) fn refilled(refilled: &Refilled) -> Reply {
    let mut table = Table::new(&["SIBLING", "REVISION"]);
    let mut siblings = Vec::new();
    for (sibling, revision) in &refilled.siblings {
        table.row([short(sibling), revision.to_string()]);
        siblings.push(json!({ "sibling_id": sibling, "revision": revision }));
    }
    let value = json!({ "refilled": {
        "prompt_id": refilled.prompt_id, "siblings": siblings, "refills": refilled.refills,
    } });
    Reply { value, table, ids: refilled.siblings.iter().map(|(id, _)| id.to_string()).collect() }
}

pub(super) fn batch(batch: &Batch) -> Reply {
    let mut table =
        Table::new(&["SEQUENCE", "KIND", "PROMPT", "SIBLING", "REVISION", "USABLE", "REWARD", "STD"]);
    for delivered in &batch.deliveries {
        let entry = &delivered.delivery;
        let (reward, std) = match entry.kind {
            DeliveryKind::Sibling => (entry.outcome.as_ref().and_then(|outcome| outcome.reward), None),
            DeliveryKind::Group => {
                (entry.stats.and_then(|stats| stats.mean), entry.stats.and_then(|stats| stats.std))
            }
        };
        table.row([
            entry.sequence.to_string(),
            entry.kind.as_str().to_owned(),
            entry.prompt_index.to_string(),
            optional(&entry.sibling_index),
            entry.revision.to_string(),
            entry.usable.to_string(),
            number(reward),
            number(std),
        ]);
    }
    let heading = match batch.batch {
        Some(number) => format!("batch {number}"),
        None => "nothing to deliver".to_owned(),
    };
    let rows = table.render();
    let lines = std::iter::once(heading).chain(rows.lines().map(str::to_owned)).collect::<Vec<_>>();
    let ids = batch.batch.iter().map(u64::to_string).collect();
    Reply { value: json!(batch), table: Table::lines(lines), ids }
}

/// A small record, a line a field, under `name`.
pub(super) fn fields(value: Value, name: &'static str) -> Reply {
    let mut table = Table::new(&["WHAT", "VALUE"]);
    for (key, value) in value.as_object().into_iter().flatten() {
        table.row([key.clone(), value.to_string()]);
    }
    Reply { table, ids: Vec::new(), value: json!({ name: value }) }
}

fn number(value: Option<f64>) -> String {
    match value {
        Some(value) => format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => "-".to_owned(),
    }
}
