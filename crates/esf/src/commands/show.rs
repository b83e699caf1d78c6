//! Records as people read them: one row each, ids short but unambiguous enough to type.

use std::fmt::Display;

use esf_core::record::{Attempt, Evaluation, Group, Node};
use esf_core::state::NodeStatus;
use serde_json::json;

use crate::output::{Reply, Table};

/// An id cut to what one types: its prefix and twelve digits.
pub(crate) fn short(id: &impl Display) -> String {
    id.to_string().chars().take(16).collect()
}

pub(crate) fn optional<T: Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
}

pub(super) fn group(group: &Group) -> Reply {
    let mut table = Table::new(&["GROUP", "NAME", "CANONICAL", "GENERATION"]);
    group_row(&mut table, group);
    Reply { value: json!({ "group": group }), table, ids: vec![group.group_id.to_string()] }
}

fn group_row(table: &mut Table, group: &Group) {
    let canonical = short(&group.canonical_node_id);
    table.row([short(&group.group_id), group.name.clone(), canonical, group.generation.to_string()]);
}

pub(super) fn groups(groups: &[Group]) -> Reply {
    let mut table = Table::new(&["GROUP", "NAME", "CANONICAL", "GENERATION"]);
    groups.iter().for_each(|group| group_row(&mut table, group));
    let ids = groups.iter().map(|group| group.group_id.to_string()).collect();
    Reply { value: json!({ "groups": groups }), table, ids }
}

pub(super) fn nodes(nodes: &[Node]) -> Reply {
    let mut table = Table::new(&["NODE", "STATUS", "ROOT", "CHANGED", "TAGS", "MESSAGE"]);
    for node in nodes {
        let changed = node.changed.map(|c| format!("+{} ~{} -{}", c.added, c.modified, c.deleted));
        table.row([
            short(&node.node_id),
            status(node),
            node.root_id.as_ref().map_or("-".to_owned(), short),
            optional(&changed),
            node.tags.join(","),
            node.message.clone().unwrap_or_default(),
        ]);
    }
    let ids = nodes.iter().map(|node| node.node_id.to_string()).collect();
    Reply { value: json!({ "nodes": nodes }), table, ids }
}

/// The status of a node; of a draft that a merge left, with how many paths conflict.
fn status(node: &Node) -> String {
    let conflicts = node.merge.as_ref().map_or(0, |terms| terms.conflicts.len());
    match node.status {
        NodeStatus::Draft if conflicts > 0 => format!("draft, {conflicts} conflicts"),
        status => status.as_str().to_owned(),
    }
}

pub(super) fn attempts(attempts: &[Attempt]) -> Reply {
    let mut table = Table::new(&["ATTEMPT", "NODE", "STATUS", "EXECUTOR", "PURPOSE", "DELTA", "FAILURE"]);
    for attempt in attempts {
        table.row([
            short(&attempt.attempt_id),
            short(&attempt.node_id),
            attempt.status.as_str().to_owned(),
            attempt.executor.as_str().to_owned(),
            attempt.purpose.as_str().to_owned(),
            attempt.private_delta.as_str().to_owned(),
            attempt.failure.as_ref().map_or("-".to_owned(), |failure| failure.class.as_str().to_owned()),
        ]);
    }
    let ids = attempts.iter().map(|attempt| attempt.attempt_id.to_string()).collect();
    Reply { value: json!({ "attempts": attempts }), table, ids }
}

/// One attempt, under the name `attempt`.
pub(super) fn attempt(attempt: &Attempt) -> Reply {
    Reply { value: json!({ "attempt": attempt }), ..attempts(std::slice::from_ref(attempt)) }
}

pub(super) fn evaluation_row(evaluation: &Evaluation) -> [String; 6] {
    [
        short(&evaluation.evaluation_id),
        short(&evaluation.node_id),
        format!("{}@{}", evaluation.evaluator, evaluation.evaluator_version),
        evaluation.verdict.to_string(),
        optional(&evaluation.reward),
        evaluation.failure.as_ref().map_or("-".to_owned(), |failure| failure.detail.clone()),
    ]
}

pub(crate) fn evaluation(evaluation: &Evaluation) -> Reply {
    let mut table = Table::new(&["EVALUATION", "NODE", "EVALUATOR", "VERDICT", "REWARD", "FAILURE"]);
    table.row(evaluation_row(evaluation));
    let ids = vec![evaluation.evaluation_id.to_string()];
    Reply { value: json!({ "evaluation": evaluation }), table, ids }
}
