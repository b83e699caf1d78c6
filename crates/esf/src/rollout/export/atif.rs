//! Trajectories in ATIF v1.8. Its rules that matter here: steps are numbered densely from 1; what a tool answered names
//! a call of the same step; unknown fields are forbidden, so ours are under `extra`; a step that no model sampled has
//! `llm_call_count` 0 and no metrics.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::messages::{self, Message};
use super::trajectory::{Trajectory, Turn};

/// The document of a trajectory; none when nothing was said in it, which ATIF has no form for.
pub(super) fn document(trajectory: &Trajectory<'_>) -> Option<Value> {
    let steps = steps(trajectory);
    if steps.is_empty() {
        return None;
    }
    let policy = &trajectory.run.policy;
    let (start, end) = trajectory.span();
    let mut agent = json!({
        "name": policy.name,
        "version": end.or(start).unwrap_or(policy.version).to_string(),
        "extra": trajectory.head()["policy"],
    });
    if let Some(adapter) = &policy.adapter {
        agent["model_name"] = json!(adapter);
    }
    if let Some(tools) = messages::tools(trajectory) {
        agent["tool_definitions"] = tools.clone();
    }
    Some(json!({
        "schema_version": "ATIF-v1.8",
        "session_id": trajectory.run.run_id,
        "trajectory_id": trajectory.sibling.sibling_id,
        "agent": agent,
        "steps": steps,
        "final_metrics": { "total_steps": steps.len() },
        "extra": { "esf": trajectory.head() },
    }))
}

fn steps(trajectory: &Trajectory<'_>) -> Vec<Value> {
    let scripted = trajectory.run.sampler.get("scripted").is_some_and(|scripted| *scripted == true);
    let mut steps: Vec<Map<String, Value>> = Vec::new();
    // The agent's step of a turn, to which the turn's observations belong.
    let mut open: Option<usize> = None;
    for message in messages::messages(trajectory) {
        let turn = message.turn.and_then(|place| trajectory.turns.get(place));
        match message.role() {
            "assistant" => {
                let first = open != message.turn || message.turn.is_none();
                open = message.turn;
                steps.push(agent_step(&message, turn.filter(|_| first), scripted));
            }
            role => match steps.last_mut().filter(|_| open.is_some() && open == message.turn) {
                Some(step) => observe(step, &message),
                None => {
                    open = None;
                    let source = if matches!(role, "system" | "developer") { "system" } else { "user" };
                    steps.push(Map::from_iter([
                        ("source".to_owned(), json!(source)),
                        ("message".to_owned(), json!(messages::text(message.fields.get("content")))),
                    ]));
                }
            },
        }
    }
    let numbered = steps.into_iter().enumerate().map(|(place, mut step)| {
        step.insert("step_id".to_owned(), json!(place + 1));
        Value::Object(step)
    });
    numbered.collect()
}

fn agent_step(message: &Message, turn: Option<&Turn>, scripted: bool) -> Map<String, Value> {
    let mut step = Map::from_iter([
        ("source".to_owned(), json!("agent")),
        ("message".to_owned(), json!(messages::text(message.fields.get("content")))),
    ]);
    let calls: Vec<Value> =
        message.fields.get("tool_calls").and_then(Value::as_array).into_iter().flatten().map(call).collect();
    if !calls.is_empty() {
        step.insert("tool_calls".to_owned(), json!(calls));
    }
    if message.turn.is_some() && !message.owned {
        step.insert("is_copied_context".to_owned(), json!(true));
    }
    let Some(turn) = turn else { return step };
    if scripted {
        step.insert("llm_call_count".to_owned(), json!(0));
    } else if let Some(metrics) = metrics(turn) {
        step.insert("llm_call_count".to_owned(), json!(1));
        step.insert("metrics".to_owned(), metrics);
    }
    let extra = json!({ "esf": {
        "index": turn.step.index, "sibling_id": turn.sibling, "node_before": turn.step.node_before,
        "node_after": turn.step.node_after, "reward": turn.step.reward, "elapsed_ms": turn.step.elapsed_ms,
        "policy_version": turn.step.policy_version, "exec_ids": turn.step.exec_ids,
    } });
    step.insert("extra".to_owned(), extra);
    step
}

/// A call of a tool. Arguments that are no JSON object are kept as text.
fn call(call: &Value) -> Value {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::Object(arguments) => Value::Object(arguments.clone()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(arguments)) => Value::Object(arguments),
            _ => json!({ "text": text }),
        },
        other => json!({ "text": other.to_string() }),
    };
    json!({
        "tool_call_id": messages::text(call.get("id")),
        "function_name": messages::text(function.get("name")),
        "arguments": arguments,
    })
}

fn observe(step: &mut Map<String, Value>, message: &Message) {
    let calls = step.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let known: HashSet<&str> = calls.filter_map(|call| call["tool_call_id"].as_str()).collect();
    let source = message.fields.get("tool_call_id").and_then(Value::as_str).filter(|id| known.contains(id));
    let mut result = json!({ "content": messages::text(message.fields.get("content")) });
    if let Some(source) = source {
        result["source_call_id"] = json!(source);
    }
    let observation = step.entry("observation").or_insert_with(|| json!({ "results": [] }));
    if let Some(results) = observation["results"].as_array_mut() {
        results.push(result);
    }
}

/// Tokens of a step; none when no model's were recorded.
fn metrics(turn: &Turn) -> Option<Value> {
    let whole = |name: &str| turn.arrays.get(name).and_then(super::trajectory::Numbers::whole);
    let completion = whole("completion_token_ids")?;
    let mut metrics = json!({ "completion_tokens": completion.len(), "completion_token_ids": completion });
    if let Some(prompt) = whole("prompt_token_ids") {
        metrics["prompt_tokens"] = json!(prompt.len());
        metrics["prompt_token_ids"] = json!(prompt);
    }
    // ATIF's are numbers, so such as are not finite leave the array out.
    let logprobs = turn.arrays.get("logprobs").map(super::trajectory::Numbers::real);
    if let Some(logprobs) = logprobs.filter(|numbers| numbers.iter().all(|number| number.is_finite())) {
        metrics["logprobs"] = json!(logprobs);
    }
    Some(metrics)
}
