//! Tasks, entries and reviews as people read them.

use esf_core::development::{Outcome, QueueEntry, Refusal, Task, TaskStatus};
use esf_core::record::Evaluation;
use esf_core::{NodeId, Problem};
use esf_store::Store;
use serde_json::{Value, json};

use super::refused;
use crate::commands::show::short;
use crate::output::{Reply, Table};

const TASK_HEADS: &[&str] = &["TASK", "NAME", "STATUS", "BEGINS ON", "DRAFT", "INTEGRATED AS", "GOAL"];

fn task_row(task: &Task) -> [String; 7] {
    let goal: String = task.goal.lines().next().unwrap_or_default().chars().take(60).collect();
    [
        short(&task.task_id),
        task.name.clone(),
        task.status.as_str().to_owned(),
        short(&task.base_node_id),
        short(&task.first_node_id),
        task.integrated_as.as_ref().map_or("-".to_owned(), short),
        goal,
    ]
}

pub(super) fn tasks(tasks: &[Task]) -> Reply {
    let mut table = Table::new(TASK_HEADS);
    tasks.iter().for_each(|task| table.row(task_row(task)));
    let ids = tasks.iter().map(|task| task.task_id.to_string()).collect();
    Reply { value: json!({ "tasks": tasks }), table, ids }
}

/// A new task: with `-q` the draft at which its work begins.
pub(super) fn begun(begun: &Task) -> Reply {
    Reply { ids: vec![begun.first_node_id.to_string()], ..task(begun) }
}

pub(super) fn task(task: &Task) -> Reply {
    Reply { value: json!({ "task": task }), ..tasks(std::slice::from_ref(task)) }
}

const ENTRY_HEADS: &[&str] = &["ENTRY", "TASK", "NODE", "PRIORITY", "STATUS", "OUTCOME"];

fn entry_row(entry: &QueueEntry, task: &str) -> [String; 6] {
    [
        short(&entry.entry_id),
        task.to_owned(),
        short(&entry.node_id),
        entry.priority.to_string(),
        entry.status.as_str().to_owned(),
        entry.outcome.as_ref().map_or_else(String::new, outcome),
    ]
}

/// An outcome in a line.
pub(super) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Integrated { result_node_id, generation, .. } => {
            format!("{} is canonical at generation {generation}", short(result_node_id))
        }
        Outcome::Refused { why, against, remedy, .. } => {
            format!("{} against {}: {remedy}", refusal(why), short(against))
        }
    }
}

fn refusal(why: &Refusal) -> String {
    match why {
        Refusal::Conflicts { conflicts, .. } => {
            let paths: Vec<&str> =
                conflicts.iter().take(5).filter_map(|conflict| conflict["path"].as_str()).collect();
            let more = if conflicts.len() > 5 { ", …" } else { "" };
            format!("conflicts at {}{more}", paths.join(", "))
        }
        Refusal::Checks { failed, .. } => format!("{} failed", failed.join(", ")),
        Refusal::Reviews { rejected_by } => format!("rejected by {} reviews", rejected_by.len()),
        Refusal::NoBase { message } => message.clone(),
    }
}

pub(super) fn entry(entry: &QueueEntry) -> Reply {
    let mut table = Table::new(ENTRY_HEADS);
    table.row(entry_row(entry, &short(&entry.task_id)));
    Reply { value: json!({ "entry": entry }), table, ids: vec![entry.entry_id.to_string()] }
}

pub(super) fn entries(store: &Store, entries: &[QueueEntry]) -> Result<Reply, Problem> {
    let mut table = Table::new(ENTRY_HEADS);
    for entry in entries {
        let task = store.graph().task(entry.task_id).map_err(refused)?;
        table.row(entry_row(entry, &task.name));
    }
    let ids = entries.iter().map(|entry| entry.entry_id.to_string()).collect();
    Ok(Reply { value: json!({ "entries": entries }), table, ids })
}

pub(super) fn reviews(reviews: &[Evaluation]) -> Reply {
    let mut table = Table::new(&["REVIEW", "NODE", "BY", "VERDICT", "COUNTS", "COMMENT"]);
    for review in reviews {
        table.row([
            short(&review.evaluation_id),
            short(&review.node_id),
            review.created_by.clone(),
            review.verdict.to_string(),
            if review.counts { "yes" } else { "no" }.to_owned(),
            review.metrics["comment"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    let ids = reviews.iter().map(|review| review.evaluation_id.to_string()).collect();
    Reply { value: json!({ "reviews": reviews }), table, ids }
}

/// A task with its nodes, their evidence, and what the queue said. Evidence is stale when the canonical node has
/// moved past what its node stands on. Its work goes on at its newest node: what the queue made of it, if that is
/// newer than what was submitted. Where the task has `several` ends, none of them is picked.
pub(super) fn whole(store: &Store, task: &Task, several: &[NodeId]) -> Result<Reply, Problem> {
    let graph = store.graph();
    let canonical = graph.group(task.group_id).map_err(refused)?.canonical_node_id;
    let entries = graph.entries_of_task(task.task_id).map_err(refused)?;
    let mut table = Table::new(&["NODE", "STATUS", "BY", "VERDICT", "STALE", "MESSAGE"]);
    let mut nodes = Vec::new();
    let line = graph.line(task.task_id).map_err(refused)?;
    let newest = line.last().map_or(task.first_node_id, |node| node.node_id);
    let goes_on_at = several.is_empty().then_some(newest);
    for node in line {
        let stale = task.status != TaskStatus::Integrated
            && !graph.descends(node.node_id, canonical).map_err(refused)?;
        let evaluations = graph.evaluations(node.node_id).map_err(refused)?;
        let message = node.message.clone().unwrap_or_default();
        let name = short(&node.node_id);
        let status = node.status.as_str().to_owned();
        if evaluations.is_empty() {
            table.row([name.clone(), status.clone(), "-".into(), "-".into(), "-".into(), message.clone()]);
        }
        for one in &evaluations {
            let by = match one.run_attempt_id {
                Some(_) => one.evaluator.clone(),
                None => format!("{} by {}", one.evaluator, one.created_by),
            };
            let stale = if stale { "yes" } else { "no" }.to_owned();
            table.row([name.clone(), status.clone(), by, one.verdict.to_string(), stale, message.clone()]);
        }
        let evidence: Vec<Value> =
            evaluations.iter().map(|one| json!({ "evaluation": one, "stale": stale })).collect();
        nodes.push(json!({ "node": node, "evidence": evidence }));
    }
    let ends = goes_on_at.as_ref().map_or(several, std::slice::from_ref);
    let said = Table::lines(told(task, &entries, ends));
    let value =
        json!({ "task": task, "nodes": nodes, "entries": entries, "goes_on_at": goes_on_at, "ends": ends });
    let table = Table::lines(said.render().lines().chain(table.render().lines()).map(str::to_owned));
    Ok(Reply { value, table, ids: ends.iter().map(NodeId::to_string).collect() })
}

fn told(task: &Task, entries: &[QueueEntry], ends: &[NodeId]) -> Vec<String> {
    let at = ends.iter().map(short).collect::<Vec<_>>().join(", ");
    let mut lines = vec![
        format!("{} {} is {}", task.task_id, task.name, task.status.as_str()),
        format!("goal: {}", task.goal),
        format!("begins on {} at generation {}", short(&task.base_node_id), task.base_generation),
    ];
    lines.push(match (&task.integrated_as, ends.len()) {
        (Some(node), _) => format!("integrated as {}", short(node)),
        (None, 0 | 1) => format!("goes on at {at}"),
        (None, several) => format!("{several} ends: {at}"),
    });
    if let Some(reason) = task.reason.as_ref().filter(|reason| !reason.is_empty()) {
        lines.push(format!("given up: {reason}"));
    }
    for entry in entries {
        let came = entry.outcome.as_ref().map_or_else(String::new, |came| format!(": {}", outcome(came)));
        lines.push(format!(
            "{} {} {}{came}",
            short(&entry.entry_id),
            short(&entry.node_id),
            entry.status.as_str()
        ));
    }
    lines
}

/// What became of one entry, for the one who watches.
pub(super) fn progress(name: &str, entry: &QueueEntry) -> String {
    let came = entry.outcome.as_ref().map_or_else(String::new, outcome);
    format!("esf: {name}: {}: {came}", entry.status.as_str())
}
