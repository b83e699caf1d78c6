//! Steps as chat messages. An action is what the assistant said, an observation what the user or a tool answered;
//! messages that already have a role stay as they are. A step without an action is what was shown first.

use serde_json::{Map, Value, json};

use super::trajectory::{Trajectory, Turn};

/// A message, and whether this trajectory may train on it.
pub(super) struct Message {
    pub(super) fields: Map<String, Value>,
    /// The place of its turn; none for what the prompt says.
    pub(super) turn: Option<usize>,
    /// Whether its turn is this trajectory's own.
    pub(super) owned: bool,
}

impl Message {
    pub(super) fn role(&self) -> &str {
        self.fields.get("role").and_then(Value::as_str).unwrap_or("user")
    }
}

/// Everything that was said, in order.
pub(super) fn messages(trajectory: &Trajectory<'_>) -> Vec<Message> {
    let extra = &trajectory.prompt.extra;
    let first = extra.get("messages").or_else(|| extra.get("prompt"));
    let mut all: Vec<Message> = said(first, "user", None)
        .into_iter()
        .map(|fields| Message { fields, turn: None, owned: false })
        .collect();
    for (place, turn) in trajectory.turns.iter().enumerate() {
        let said = of_turn(turn);
        all.extend(said.into_iter().map(|fields| Message { fields, turn: Some(place), owned: turn.owned }));
    }
    all
}

fn of_turn(turn: &Turn) -> Vec<Map<String, Value>> {
    let mut messages = said(turn.action.as_ref(), "assistant", None);
    // What answers a single call of a tool belongs to it.
    let calls: Vec<&Value> =
        messages.iter().filter_map(|message| message.get("tool_calls")?.as_array()).flatten().collect();
    let call = match calls.as_slice() {
        [one] => one.get("id").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    messages.extend(said(
        turn.observation.as_ref(),
        if call.is_some() { "tool" } else { "user" },
        call.as_deref(),
    ));
    messages
}

/// What JSON says as messages: such as have a role stay as they are, everything else is content of `role`.
fn said(value: Option<&Value>, role: &str, call: Option<&str>) -> Vec<Map<String, Value>> {
    let with_role = |value: &Value| match value {
        Value::Object(fields) if fields.get("role").is_some_and(Value::is_string) => Some(fields.clone()),
        _ => None,
    };
    let text = match value {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items))
            if !items.is_empty() && items.iter().all(|item| with_role(item).is_some()) =>
        {
            return items.iter().filter_map(with_role).collect();
        }
        Some(value) => match with_role(value) {
            Some(message) => return vec![message],
            None => value.to_string(),
        },
    };
    let mut message = Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), json!(text))]);
    if let Some(call) = call {
        message.insert("tool_call_id".to_owned(), json!(call));
    }
    vec![message]
}

/// Content as one text: its parts of text together, other parts as JSON.
pub(super) fn text(content: Option<&Value>) -> String {
    match content {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let part = |part: &Value| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None => part.to_string(),
            };
            parts.iter().map(part).collect()
        }
        Some(other) => other.to_string(),
    }
}

/// The tools that the policy was offered: of the prompt, or else of the sampler.
pub(super) fn tools<'a>(trajectory: &'a Trajectory<'_>) -> Option<&'a Value> {
    let of = |value: &'a Value| value.get("tools").filter(|tools| tools.is_array());
    of(&trajectory.prompt.extra).or_else(|| of(&trajectory.run.sampler))
}

/// A row of the messages format. An assistant's message of a shared step has weight 0: its owner trains on it.
pub(super) fn row(trajectory: &Trajectory<'_>, split: bool) -> Value {
    let forked = trajectory.trial.as_ref().is_some_and(|trial| trial.parent_sibling.is_some());
    let all = messages(trajectory);
    let first_said = all.iter().position(|message| message.role() == "assistant").unwrap_or(all.len());
    let mut shown: Vec<Value> = Vec::with_capacity(all.len());
    for message in all {
        let assistant = message.role() == "assistant";
        let mut fields = message.fields;
        if forked && assistant {
            fields.insert("weight".to_owned(), json!(u8::from(message.owned)));
        }
        shown.push(Value::Object(fields));
    }
    let mut row = Map::new();
    if split {
        let completion = shown.split_off(first_said);
        row.insert("prompt".to_owned(), json!(shown));
        row.insert("completion".to_owned(), json!(completion));
    } else {
        row.insert("messages".to_owned(), json!(shown));
    }
    if let Some(tools) = tools(trajectory) {
        row.insert("tools".to_owned(), tools.clone());
    }
    let head = trajectory.head();
    for name in [
        "run_id",
        "prompt_id",
        "prompt_index",
        "sibling_id",
        "sibling_index",
        "revision",
        "attempt_ids",
        "seed",
        "root_id",
        "environment_digest",
        "evaluators",
        "status",
        "usable",
        "reward",
    ] {
        row.insert(name.to_owned(), head[name].clone());
    }
    row.insert("task_id".to_owned(), json!(trajectory.prompt.task.id));
    let (start, end) = trajectory.span();
    row.insert("policy_name".to_owned(), json!(trajectory.run.policy.name));
    row.insert("policy_version_start".to_owned(), json!(start));
    row.insert("policy_version_end".to_owned(), json!(end));
    Value::Object(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_becomes_messages() {
        let plain = said(Some(&json!("hello")), "assistant", None);
        assert_eq!(json!(plain), json!([{"role": "assistant", "content": "hello"}]));
        let other = said(Some(&json!({"run": ["ls"]})), "assistant", None);
        assert_eq!(other[0]["content"], r#"{"run":["ls"]}"#);
        let whole = json!([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]);
        assert_eq!(json!(said(Some(&whole), "user", None)), whole);
        assert_eq!(json!(said(Some(&json!("out")), "tool", Some("c1")))[0]["tool_call_id"], "c1");
        assert!(said(Some(&Value::Null), "user", None).is_empty());
        assert_eq!(said(Some(&json!([])), "user", None)[0]["content"], "[]");
    }

    #[test]
    fn parts_of_content_become_one_text() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(text(Some(&parts)), "ab");
        assert_eq!(text(Some(&json!({"x": 1}))), r#"{"x":1}"#);
        assert_eq!(text(None), "");
    }
}
