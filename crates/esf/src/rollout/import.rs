//! `esf rollout import`: a trajectory that another program wrote becomes a sibling of a run, with a step for each of
//! the agent's messages. Invariants: what is not understood is refused before anything is recorded; the same request
//! again records nothing new.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use esf_core::ops::rollout::{
    AddPrompts, Cancel, FinishSibling, NewPrompt, NewStep, RecordSteps, StartSibling, StartSiblings, Target,
};
use esf_core::record::Failure;
use esf_core::rollout::{CancelReason, Cost, Outcome, SiblingStatus, Task, Truncation};
use esf_core::{BlobId, Class, FailureClass, Problem};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{input, refused, run, scores, show};
use crate::args;
use crate::context::{Context, io_problem};
use crate::output::Reply;

/// Most bytes of a file.
const MAX_FILE: u64 = 256 << 20;
/// The latest timestamp, in seconds since 1970: the end of the year 9999.
const MAX_TIMESTAMP: f64 = 253_402_300_799.0;
/// The format that is understood.
const FORMAT: &str = "mini-swe-agent-1.1";

/// A file of mini-swe-agent, as far as it is looked at.
#[derive(Deserialize)]
struct Trajectory {
    #[serde(default)]
    info: Info,
    messages: Vec<Value>,
    trajectory_format: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    model_stats: Value,
    config: Value,
    mini_version: Value,
    exit_status: Value,
}

/// A trajectory as it will be recorded.
#[derive(Debug, PartialEq)]
struct Parsed {
    /// What the agent was shown first.
    opening: Vec<Value>,
    turns: Vec<Turn>,
    outcome: Outcome,
}

/// What the agent said, and what was answered.
#[derive(Debug, Default, PartialEq)]
struct Turn {
    action: Value,
    observation: Vec<Value>,
    elapsed_ms: u64,
}

pub(super) fn import(context: &Context, arguments: &args::RolloutImport) -> Result<Reply, Problem> {
    let args::ImportFormat::MiniSweAgent = arguments.format;
    let bytes = read(&arguments.file)?;
    let mut parsed = parse(&bytes).map_err(|problem| Problem {
        message: format!("{}: {}", arguments.file.display(), problem.message),
        ..problem
    })?;
    parsed.outcome.rewards = scores(&arguments.reward);
    let named = || arguments.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let digest = *BlobId::of(&bytes).digest();
    let task = Task { id: arguments.task.clone().unwrap_or_else(named), digest: None, split: None };
    let extra = json!({ "imported": { "format": FORMAT, "digest": digest } });

    let store = context.open()?;
    // What steps name is not collected before they are recorded.
    let _held = store.stack().lock_shared().map_err(|error| error.problem())?;
    let run = run(&store, &arguments.run)?;
    let graph = store.graph();
    // What can be refused is refused before anything is recorded.
    parsed.outcome.clone().complete(&run.rewards).map_err(|bad| {
        Problem::new(Class::Usage, "bad_outcome", format!("the outcome's {} cannot be recorded", bad.field))
            .expected(bad.expected)
            .found(bad.found)
            .remedy("nothing was recorded; say other --reward options")
    })?;
    let steps = steps(&store, parsed.opening, parsed.turns)?;
    if steps.len() as u64 > NewStep::MAX_INDEX {
        let most = format!("at most {}", NewStep::MAX_INDEX);
        return Err(unknown("too many turns", &most, steps.len()));
    }
    let prompt = NewPrompt { task, node: None, seed: 0, size: Some(1), extra };
    let command = AddPrompts { run_id: run.run_id, prompts: vec![prompt] };
    let added = graph.add_prompts(&context.meta("prompt")?, command).map_err(refused)?;
    let prompt = added.first().expect("one prompt was added");
    let siblings = graph.siblings(prompt.prompt_id).map_err(refused)?;
    let sibling_id = siblings.first().expect("a prompt of one sibling has it").sibling_id;
    let command = StartSiblings {
        run_id: run.run_id,
        siblings: vec![StartSibling::of(sibling_id)],
        next: 0,
        lease_ms: None,
    };
    let started = graph.start_siblings(&context.meta("start")?, command).map_err(refused)?;
    let Some(begun) = started.begun.first() else {
        let why = started.wait.as_ref().map_or_else(String::new, show::wait);
        return Err(Problem::new(Class::Refused, "no_room", format!("the run takes no more now: {why}"))
            .remedy("repeat with the same --idempotency-key once a trainer has acknowledged more")
            .retryable());
    };
    let trial = begun.trial;
    let record = RecordSteps { sibling_id, trial, lease_ms: None, steps };
    let end = FinishSibling { sibling_id, trial, outcome: parsed.outcome };
    let (steps_meta, finish_meta) = (context.meta("steps")?, context.meta("finish")?);
    let done = graph
        .record_steps(&steps_meta, vec![record])
        .and_then(|answers| answers.into_iter().try_for_each(|answer| answer.map(drop)))
        .and_then(|()| graph.finish_siblings(&finish_meta, vec![end]))
        .and_then(|answers| answers.into_iter().try_for_each(|answer| answer.map(drop)))
        .map_err(refused);
    if let Err(problem) = done {
        let now = graph.sibling(sibling_id).map_err(refused)?;
        // What can be repeated goes on where it was; what cannot leaves nothing running.
        if !problem.retryable && now.status == SiblingStatus::Running {
            let command = Cancel { target: Target::Sibling(sibling_id), reason: CancelReason::User };
            graph.cancel_rollouts(&context.meta("cancel")?, command).map_err(refused)?;
        }
        return Err(problem);
    }
    let made = graph.sibling(sibling_id).map_err(refused)?;
    let recorded = graph.steps(sibling_id, None, 0, 1000).map_err(refused)?;
    let shown = show::sibling(&made, &recorded);
    Ok(Reply { value: json!({ "sibling": made }), ..shown })
}

fn steps(store: &esf_store::Store, opening: Vec<Value>, turns: Vec<Turn>) -> Result<Vec<NewStep>, Problem> {
    // What was shown first is a step without an action.
    let first = (!opening.is_empty()).then_some((None, opening, 0));
    let turns = turns.into_iter().map(|turn| (Some(turn.action), turn.observation, turn.elapsed_ms));
    let mut steps = Vec::new();
    for (index, (action, observation, elapsed_ms)) in first.into_iter().chain(turns).enumerate() {
        let observation = (!observation.is_empty()).then_some(Value::Array(observation));
        steps.push(NewStep {
            index: index as u64,
            action: action.map(|action| input::content(store, action)).transpose()?,
            observation: observation.map(|seen| input::content(store, seen)).transpose()?,
            elapsed_ms,
            ..NewStep::default()
        });
    }
    Ok(steps)
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| io_problem("read", path, &error))?;
    if bytes.len() as u64 > MAX_FILE {
        let message = format!("{} is longer than {MAX_FILE} bytes", path.display());
        return Err(
            Problem::new(Class::Usage, "too_large", message).expected(format!("at most {MAX_FILE} bytes"))
        );
    }
    Ok(bytes)
}

fn unknown(what: impl Into<String>, expected: &str, found: impl ToString) -> Problem {
    let found: String = found.to_string().chars().take(200).collect();
    Problem::new(Class::Usage, "bad_trajectory", what)
        .expected(expected)
        .found(found)
        .remedy("nothing was recorded; import what mini-swe-agent 2 writes")
}

fn parse(bytes: &[u8]) -> Result<Parsed, Problem> {
    let expected = "a JSON object with info, messages and trajectory_format";
    let file: Trajectory = serde_json::from_slice(bytes)
        .map_err(|error| unknown("not a trajectory of mini-swe-agent", expected, error))?;
    if file.trajectory_format != FORMAT {
        return Err(unknown("another format of trajectories", FORMAT, &file.trajectory_format));
    }
    let (mut opening, mut turns, mut exit) = (Vec::new(), Vec::<Turn>::new(), None);
    let (mut said_at, mut tools) = (None, 0_u64);
    for (place, message) in file.messages.iter().enumerate() {
        if exit.is_some() {
            return Err(unknown(
                format!("messages[{place}] comes after the exit"),
                "nothing after it",
                message,
            ));
        }
        let (role, kept) = kept(place, message)?;
        let at = message["extra"]["timestamp"].as_f64();
        if let Some(seconds) = at.filter(|seconds| !(0.0..=MAX_TIMESTAMP).contains(seconds)) {
            return Err(unknown(
                format!("messages[{place}].extra.timestamp is no time"),
                "seconds since 1970, before the year 10000",
                seconds,
            ));
        }
        match role {
            "exit" => exit = Some(message),
            "assistant" => {
                said_at = at;
                turns.push(Turn { action: kept, ..Turn::default() });
            }
            _ => match turns.last_mut() {
                None => opening.push(kept),
                Some(turn) => {
                    tools += 1;
                    turn.observation.push(kept);
                    if let (Some(before), Some(after)) = (said_at, at) {
                        turn.elapsed_ms = ((after - before).max(0.0) * 1000.0) as u64;
                    }
                }
            },
        }
    }
    let mut outcome = outcome(&file.info, exit)?;
    outcome.metrics = json!({
        "instance_cost": file.info.model_stats["instance_cost"],
        "api_calls": file.info.model_stats["api_calls"],
        "observations": tools,
        "model_name": file.info.config["model"]["model_name"],
        "mini_version": file.info.mini_version,
    });
    outcome.cost = Cost { wall_ms: whole_time(&turns)?, ..Cost::default() };
    Ok(Parsed { opening, turns, outcome })
}

/// The time of all turns, in milliseconds.
fn whole_time(turns: &[Turn]) -> Result<u64, Problem> {
    let whole = turns.iter().fold(0_u64, |sum, turn| sum.saturating_add(turn.elapsed_ms));
    let most = (MAX_TIMESTAMP * 1000.0) as u64;
    if whole > most {
        let what = "the turns' messages[].extra.timestamp say more time than there is";
        return Err(unknown(what, &format!("at most {most} ms"), whole));
    }
    Ok(whole)
}

/// A message's role and what is kept of it; the raw answers of APIs are not.
fn kept(place: usize, message: &Value) -> Result<(&str, Value), Problem> {
    let at = |what: &str| format!("messages[{place}]{what}");
    if message["object"] == "response" {
        return Err(unknown(
            at(" is of the responses API"),
            "messages with a role, as the chat API has them",
            "an object of kind response",
        ));
    }
    let role = message["role"].as_str().unwrap_or_default();
    if !matches!(role, "system" | "user" | "assistant" | "tool" | "exit") {
        return Err(unknown(
            at(".role is not known"),
            "system, user, assistant, tool or exit",
            &message["role"],
        ));
    }
    let content = message.get("content").unwrap_or(&Value::Null);
    if !(content.is_string() || content.is_null() || content.is_array()) {
        return Err(unknown(at(".content is not known"), "text, null or a list of parts", content));
    }
    let mut kept =
        Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), content.clone())]);
    for name in ["tool_calls", "tool_call_id"] {
        if let Some(value) = message.get(name).filter(|value| !value.is_null()) {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    let extra = &message["extra"];
    for name in ["actions", "returncode", "exception_info"] {
        if let Some(value) = extra.get(name).filter(|value| !value.is_null()) {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    Ok((role, Value::Object(kept)))
}

/// How it ended.
fn outcome(info: &Info, exit: Option<&Value>) -> Result<Outcome, Problem> {
    let status = match exit {
        Some(message) => message["extra"]["exit_status"].as_str().or(info.exit_status.as_str()),
        None => info.exit_status.as_str().filter(|status| !status.is_empty()),
    };
    let Some(status) = status else {
        let detail = "the trajectory has no end: its agent died";
        let failure = Some(Failure::new(FailureClass::InfraLost, "agent", detail));
        return Ok(Outcome { failure, stop_reason: "no exit".to_owned(), ..Outcome::default() });
    };
    let limits = &info.config["agent"];
    let by_turns = limits["step_limit"].as_u64().is_some_and(|limit| {
        limit > 0 && info.model_stats["api_calls"].as_u64().is_some_and(|calls| calls >= limit)
    });
    let mut outcome = Outcome { stop_reason: clipped(status), ..Outcome::default() };
    match status {
        "Submitted" | "RepeatedFormatError" => outcome.terminated = true,
        "LimitsExceeded" if by_turns => outcome.truncated = Some(Truncation::Turns),
        "LimitsExceeded" => outcome.truncated = Some(Truncation::Quota),
        "TimeExceeded" => outcome.truncated = Some(Truncation::Time),
        other => match exit.map(|message| &message["extra"]["exception_str"]) {
            // What broke the agent's own program says nothing of the policy.
            Some(Value::String(what)) => {
                let detail = clipped(&format!("{other}: {what}"));
                outcome.failure = Some(Failure::new(FailureClass::InfraLost, "agent", detail));
            }
            _ => {
                let known = "Submitted, LimitsExceeded, TimeExceeded, RepeatedFormatError, or an exception";
                return Err(unknown("an exit that is not known", known, other));
            }
        },
    }
    Ok(outcome)
}

fn clipped(text: &str) -> String {
    text.chars().take(1000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: Value) -> Result<Parsed, Problem> {
        parse(value.to_string().as_bytes())
    }

    fn file(messages: Value) -> Value {
        json!({ "info": { "model_stats": { "api_calls": 2 }, "config": { "agent": { "step_limit": 2 } } },
            "messages": messages, "trajectory_format": FORMAT })
    }

    fn exit(status: &str) -> Value {
        json!({ "role": "exit", "content": status, "extra": { "exit_status": status } })
    }

    #[test]
    fn messages_become_turns() {
        let said = |text: &str, at: f64| json!({ "role": "assistant", "content": text, "extra": { "timestamp": at, "actions": [{"command": "ls"}], "response": {"huge": 1} } });
        let seen = |text: &str, at: f64| json!({ "role": "user", "content": text, "extra": { "timestamp": at, "returncode": 0 } });
        let system = json!({ "role": "system", "content": "you are" });
        let task = json!({ "role": "user", "content": "do" });
        let file =
            file(json!([system, task, said("a", 1.0), seen("x", 1.5), said("b", 2.0), exit("Submitted")]));
        let parsed = parsed(file).unwrap();
        assert_eq!(parsed.opening, [json!({"role": "system", "content": "you are"}), task]);
        assert_eq!(parsed.turns.len(), 2);
        assert_eq!(parsed.turns[0].elapsed_ms, 500);
        assert_eq!(parsed.turns[0].action["actions"][0]["command"], "ls");
        assert!(parsed.turns[0].action.get("response").is_none());
        assert!(parsed.turns[1].observation.is_empty());
        assert!(parsed.outcome.terminated);
    }

    #[test]
    fn a_timestamp_that_is_no_time_is_refused() {
        let said = |at: f64| json!({ "role": "assistant", "content": "a", "extra": { "timestamp": at } });
        let seen = |at: f64| json!({ "role": "user", "content": "b", "extra": { "timestamp": at } });
        for messages in
            [json!([said(0.0), seen(1e300), said(0.0), seen(1e300)]), json!([said(0.0), seen(-1.0)])]
        {
            let problem = parsed(file(messages)).unwrap_err();
            assert_eq!(problem.code, "bad_trajectory");
            assert!(problem.message.contains("messages[1].extra.timestamp"), "{}", problem.message);
        }
        let long = file(json!([said(0.0), seen(2e11), said(0.0), seen(2e11)]));
        assert_eq!(parsed(long).unwrap_err().code, "bad_trajectory");
    }

    #[test]
    fn ends_are_told_apart() {
        let ended = |exit: Value| parsed(file(json!([{ "role": "user", "content": "x" }, exit])));
        assert_eq!(ended(exit("LimitsExceeded")).unwrap().outcome.truncated, Some(Truncation::Turns));
        assert_eq!(ended(exit("TimeExceeded")).unwrap().outcome.truncated, Some(Truncation::Time));
        let broke = json!({ "role": "exit", "content": "e", "extra": { "exit_status": "ValueError", "exception_str": "e" } });
        let failure = ended(broke).unwrap().outcome.failure.unwrap();
        assert!(!failure.gradable && failure.detail == "ValueError: e");
        assert_eq!(ended(exit("Surprise")).unwrap_err().code, "bad_trajectory");
        let unended = parsed(file(json!([{ "role": "user", "content": "x" }]))).unwrap();
        assert_eq!(unended.outcome.failure.unwrap().class, FailureClass::InfraLost);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let with = |message: Value| file(json!([message]));
        let mut older = file(json!([]));
        older["trajectory_format"] = json!("mini-swe-agent-1");
        for bad in [
            json!({}),
            json!([]),
            older,
            with(json!({ "role": "robot", "content": "" })),
            with(json!({ "role": "user", "content": 7 })),
            with(json!({ "object": "response", "output": [] })),
            file(json!([exit("Submitted"), { "role": "user", "content": "more" }])),
        ] {
            assert_eq!(parsed(bad.clone()).unwrap_err().code, "bad_trajectory", "{bad}");
        }
    }
}
