//! Exports of JSON lines that hold everything: a rollout a line, or a prompt a line as a tree in which shared steps
//! are only at their owner.

use serde_json::{Map, Value, json};

use super::trajectory::{Trajectory, Turn};

/// A rollout with all of its steps.
pub(super) fn rollout(trajectory: &Trajectory<'_>) -> Value {
    let mut row = trajectory.head();
    row.insert("prompt_extra".to_owned(), trajectory.prompt.extra.clone());
    row.insert("steps".to_owned(), trajectory.turns.iter().map(step).collect());
    Value::Object(row)
}

/// A prompt; `siblings` were read with their own steps only.
pub(super) fn tree(siblings: &[Trajectory<'_>]) -> Option<Value> {
    let first = siblings.first()?;
    let members: Vec<Value> = siblings.iter().map(rollout).collect();
    Some(json!({
        "run_id": first.run.run_id,
        "prompt_id": first.prompt.prompt_id,
        "prompt": first.prompt,
        "stats": first.prompt.stats,
        "siblings": members,
    }))
}

fn step(turn: &Turn) -> Value {
    let arrays: Map<String, Value> = turn
        .arrays
        .iter()
        .map(|(name, numbers)| (name.clone(), json!({ "dtype": numbers.dtype, "values": numbers.json() })))
        .collect();
    json!({
        "index": turn.step.index,
        "sibling_id": turn.sibling,
        "owned": turn.owned,
        "node_before": turn.step.node_before,
        "node_after": turn.step.node_after,
        "action": turn.action,
        "observation": turn.observation,
        "reward": turn.step.reward,
        "elapsed_ms": turn.step.elapsed_ms,
        "attempt_id": turn.step.attempt_id,
        "exec_ids": turn.step.exec_ids,
        "policy_version": turn.step.policy_version,
        "arrays": arrays,
    })
}
