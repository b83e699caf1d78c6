//! What is said of many at once: a JSON object a line. Invariants: a file is read whole and every line understood
//! before anything is recorded, so a bad line records nothing; what is read is bounded; numbers become arrays of
//! exactly their own length.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use esf_core::ops::rollout::{FinishSibling, NewPrompt, NewStep, RecordSteps};
use esf_core::rollout::{Array, Content, Contents, Dtype, Outcome, Task, bad_array};
use esf_core::{AttemptId, Class, ExecId, NodeId, Problem, SiblingId};
use esf_store::Store;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{bad_option, sibling};
use crate::args;
use crate::commands::find;
use crate::context::io_problem;

/// Most bytes of a file of lines.
const MAX_TEXT: u64 = 256 << 20;
/// Most bytes of a line.
const MAX_LINE: usize = 16 << 20;
/// Most bytes of a raw file of numbers.
const MAX_ARRAY: u64 = 64 << 20;
/// Most steps of a file.
pub(super) const MAX_STEPS: usize = 100_000;
/// Most outcomes of a file.
pub(super) const MAX_FINISHES: usize = 100_000;

/// The lines of a file, with their numbers.
pub(super) struct Lines {
    name: String,
    text: String,
}

impl Lines {
    /// Reads `path`, or standard input for `-`.
    pub(super) fn read(path: &Path) -> Result<Self, Problem> {
        let mut text = String::new();
        let read = if path == Path::new("-") {
            io::stdin().lock().take(MAX_TEXT + 1).read_to_string(&mut text)
        } else {
            fs::File::open(path).and_then(|file| file.take(MAX_TEXT + 1).read_to_string(&mut text))
        };
        read.map_err(|error| io_problem("read", path, &error))?;
        let name = path.display().to_string();
        if text.len() as u64 > MAX_TEXT {
            return Err(Problem::new(
                Class::Usage,
                "too_large",
                format!("{name} is longer than {MAX_TEXT} bytes"),
            )
            .expected(format!("at most {MAX_TEXT} bytes"))
            .remedy("say it in several requests"));
        }
        Ok(Self { name, text })
    }

    /// One line that was put together from options.
    pub(super) fn one(value: &Value) -> Self {
        Self { name: "the command line".to_owned(), text: value.to_string() }
    }

    /// Each line that is not empty, understood by `parse`; at most `most`.
    pub(super) fn each<T>(
        &self,
        most: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        let mut parsed = Vec::new();
        for (number, line) in self.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let whole = if line.len() > MAX_LINE {
                Err(bad_line("too_large", format!("{} bytes", line.len())).expected("at most 16 MiB a line"))
            } else if parsed.len() == most {
                Err(bad_line("too_many", format!("more than {most} lines"))
                    .remedy("say it in several requests"))
            } else {
                parse(line)
            };
            parsed.push(whole.map_err(|problem| self.at(number + 1, problem))?);
        }
        Ok(parsed)
    }

    fn at(&self, number: usize, problem: Problem) -> Problem {
        Problem {
            message: format!("{}:{number}: {}", self.name, problem.message),
            remediation: problem.remediation.or_else(|| Some("nothing of it was recorded".to_owned())),
            ..problem
        }
    }
}

fn bad_line(code: &'static str, message: String) -> Problem {
    Problem::new(Class::Usage, code, message)
}

fn read<'a, T: Deserialize<'a>>(line: &'a str, expected: &str) -> Result<T, Problem> {
    serde_json::from_str(line)
        .map_err(|error| bad_line("bad_line", format!("not understood: {error}")).expected(expected))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptLine {
    task: TaskLine,
    #[serde(default)]
    node: Option<String>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    size: Option<u32>,
    #[serde(default)]
    extra: Value,
}

/// A task, or its name alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum TaskLine {
    Name(String),
    Whole(Task),
}

/// A prompt to be added.
pub(super) fn prompt(store: &Store, line: &str) -> Result<NewPrompt, Problem> {
    let expected =
        "task (a name, or {id, digest, split}), and node, seed, size, extra as far as they are to be said";
    let line: PromptLine = read(line, expected)?;
    let task = match line.task {
        TaskLine::Name(id) => Task { id, digest: None, split: None },
        TaskLine::Whole(task) => task,
    };
    let node = line.node.as_deref().map(|node| node_id(store, node)).transpose()?;
    Ok(NewPrompt { task, node, seed: line.seed, size: line.size, extra: line.extra })
}

fn node_id(store: &Store, text: &str) -> Result<NodeId, Problem> {
    match text.parse() {
        Ok(id) => Ok(id),
        Err(_) => Ok(find::node(store, text)?.node_id),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FinishLine {
    sibling_id: String,
    trial: u32,
    outcome: Value,
}

/// The end of a trial. A failure may be its class alone; what follows is then the class's.
pub(super) fn finish(store: &Store, line: &str) -> Result<FinishSibling, Problem> {
    let expected = "sibling_id, trial, outcome {rewards {name: score or {score, weight}}, reward, metrics, terminated, truncated, stop_reason, failure {class, stage, detail}, usable, cost, node_id, policy_version_start, policy_version_end}";
    let FinishLine { sibling_id, trial, mut outcome } = read(line, expected)?;
    if let Some(Value::Object(rewards)) = outcome.get_mut("rewards") {
        for score in rewards.values_mut().filter(|score| score.is_number() || score.is_null()) {
            *score = json!({ "score": score.take() });
        }
    }
    if let Some(failure) = outcome.get_mut("failure").filter(|failure| !failure.is_null()) {
        *failure = whole_failure(failure)?;
    }
    if let Some(Value::String(node)) = outcome.get("node_id") {
        outcome["node_id"] = json!(node_id(store, node)?);
    }
    let outcome: Outcome = serde_json::from_value(outcome)
        .map_err(|error| bad_line("bad_line", format!("not an outcome: {error}")).expected(expected))?;
    Ok(FinishSibling { sibling_id: sibling(store, &sibling_id)?, trial, outcome })
}

/// A failure with the consequences of its class, those that were said in their place.
fn whole_failure(said: &Value) -> Result<Value, Problem> {
    let class = said.as_str().or_else(|| said["class"].as_str()).unwrap_or_default();
    let class = esf_core::FailureClass::parse(class).ok_or_else(|| {
        let known: Vec<&str> = esf_core::FailureClass::ALL.iter().map(|class| class.as_str()).collect();
        bad_line("bad_line", format!("not a class of failure: {class:?}")).expected(known.join(", "))
    })?;
    let mut failure = json!(esf_core::record::Failure::new(class, "agent", ""));
    for (name, value) in said.as_object().into_iter().flatten() {
        failure[name] = value.clone();
    }
    Ok(failure)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepLine {
    sibling_id: String,
    trial: u32,
    index: u64,
    #[serde(default)]
    node_before: Option<String>,
    #[serde(default)]
    node_after: Option<String>,
    #[serde(default)]
    action: Option<Value>,
    #[serde(default)]
    observation: Option<Value>,
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    elapsed_ms: u64,
    #[serde(default)]
    attempt_id: Option<AttemptId>,
    #[serde(default)]
    exec_ids: Vec<ExecId>,
    #[serde(default)]
    policy_version: Option<u64>,
    #[serde(default)]
    arrays: Map<String, Value>,
    /// Holds the trial on for so many milliseconds.
    #[serde(default)]
    lease_ms: Option<u64>,
}

/// A step to be recorded, with its trial; its bytes are stored. Hold the store's shared lock until it is recorded.
pub(super) fn step(store: &Store, line: &str) -> Result<RecordSteps, Problem> {
    let expected = "sibling_id, trial, index, and node_after, action, observation, reward, elapsed_ms, attempt_id, exec_ids, policy_version, arrays, lease_ms as far as they are to be said";
    let line: StepLine = read(line, expected)?;
    for (name, said) in [("action", &line.action), ("observation", &line.observation)] {
        if let Some(bare @ (Value::Number(_) | Value::Bool(_))) = said {
            // A number's digits as they were written are gone once it is read.
            return Err(bad_line("bad_line", format!("{name} is a bare number or truth value"))
                .expected("a string, an object or an array")
                .found(bare.to_string())
                .remedy("say it as a string; nothing of it was recorded"));
        }
    }
    let node = |text: &Option<String>| text.as_deref().map(|text| node_id(store, text)).transpose();
    let mut arrays = Contents::new();
    for (name, value) in line.arrays {
        let (dtype, bytes, aligned_with) = numbers(&name, value)?;
        let (size, width) = (bytes.len() as u64, dtype.width());
        if size % width != 0 {
            return Err(bad_array_of(
                &name,
                &format!("whole numbers of {width} bytes"),
                &format!("{size} bytes"),
            ));
        }
        let digest = store.stack().put_artifact(&bytes).map_err(|error| error.problem())?;
        arrays.insert(name, Array { dtype, length: size / width, digest, size, aligned_with });
    }
    if let Some((name, expected, found)) = bad_array(&arrays) {
        return Err(bad_array_of(&name, &expected, &found));
    }
    let step = NewStep {
        index: line.index,
        node_before: node(&line.node_before)?,
        node_after: node(&line.node_after)?,
        action: line.action.map(|action| content(store, action)).transpose()?,
        observation: line.observation.map(|seen| content(store, seen)).transpose()?,
        reward: line.reward,
        elapsed_ms: line.elapsed_ms,
        attempt_id: line.attempt_id,
        exec_ids: line.exec_ids,
        policy_version: line.policy_version,
        arrays,
    };
    let sibling_id = sibling(store, &line.sibling_id)?;
    Ok(RecordSteps { sibling_id, trial: line.trial, lease_ms: line.lease_ms, steps: vec![step] })
}

fn bad_array_of(name: &str, expected: &str, found: &str) -> Problem {
    bad_line("bad_array", format!("array {name:?} has a wrong length")).expected(expected).found(found)
}

/// JSON as a record keeps it: an artifact when it is large.
pub(super) fn content(store: &Store, json: Value) -> Result<Content, Problem> {
    let text = json.to_string();
    if text.len() <= Content::MAX_INLINE {
        return Ok(Content::Inline(json));
    }
    let digest = store.stack().put_artifact(text.as_bytes()).map_err(|error| error.problem())?;
    Ok(Content::Artifact { digest, size: text.len() as u64 })
}

/// Steps of one trial together, in the order in which they were said.
pub(super) fn by_trial(steps: Vec<RecordSteps>) -> Vec<RecordSteps> {
    let mut places = std::collections::HashMap::<(SiblingId, u32), usize>::new();
    let mut trials: Vec<RecordSteps> = Vec::new();
    for mut said in steps {
        let place = *places.entry((said.sibling_id, said.trial)).or_insert(trials.len());
        match trials.get_mut(place) {
            Some(trial) => {
                trial.steps.append(&mut said.steps);
                trial.lease_ms = said.lease_ms.or(trial.lease_ms);
            }
            None => trials.push(said),
        }
    }
    trials
}

/// An array as it is said: numbers, or `{dtype, values | file, aligned_with}`.
fn numbers(name: &str, said: Value) -> Result<(Dtype, Vec<u8>, Option<String>), Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Said {
        #[serde(default)]
        dtype: Option<String>,
        #[serde(default)]
        values: Option<Vec<Value>>,
        #[serde(default)]
        file: Option<PathBuf>,
        #[serde(default)]
        aligned_with: Option<String>,
    }
    let expected = "[numbers], {dtype, values} or {dtype, file}";
    let bad =
        |message: String| bad_line("bad_array", format!("array {name:?}: {message}")).expected(expected);
    let said = match said {
        Value::Array(values) => Said { dtype: None, values: Some(values), file: None, aligned_with: None },
        said => serde_json::from_value(said).map_err(|error| bad(error.to_string()))?,
    };
    let named = |text: &String| {
        Dtype::parse(text).ok_or_else(|| {
            bad(format!("not a kind of numbers: {text:?}"))
                .expected("bool, u8, u16, u32, i32, i64, f16, bf16, f32 or f64")
        })
    };
    let dtype = said.dtype.as_ref().map(named).transpose()?;
    let (dtype, bytes) = match (said.values, said.file, dtype) {
        (Some(values), None, dtype) => {
            let dtype = dtype.unwrap_or_else(|| natural(name, &values));
            let mut bytes = Vec::with_capacity(values.len() * dtype.width() as usize);
            for value in &values {
                if !encode(dtype, value, &mut bytes) {
                    return Err(bad(format!("{value} is no {}", dtype.as_str())));
                }
            }
            (dtype, bytes)
        }
        (None, Some(path), Some(dtype)) => (dtype, raw(&path)?),
        _ => return Err(bad("values, or a file with its dtype".to_owned())),
    };
    Ok((dtype, bytes, said.aligned_with))
}

fn raw(path: &Path) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_ARRAY + 1).read_to_end(&mut bytes))
        .map_err(|error| io_problem("read", path, &error))?;
    if bytes.len() as u64 > MAX_ARRAY {
        return Err(bad_line("too_large", format!("{} is longer than {MAX_ARRAY} bytes", path.display())));
    }
    Ok(bytes)
}

/// The kind of numbers that JSON values are when nothing is said: log probabilities are `f32`, token ids and masks as
/// narrow as they are usually kept, everything else as wide as JSON has it.
fn natural(name: &str, values: &[Value]) -> Dtype {
    let all = |fits: fn(&Value) -> bool| values.iter().all(fits);
    match name {
        "logprobs" => Dtype::F32,
        "loss_mask" => Dtype::U8,
        _ if name.ends_with("token_ids")
            && all(|value| value.as_u64().is_some_and(|id| u32::try_from(id).is_ok())) =>
        {
            Dtype::U32
        }
        _ if !values.is_empty() && all(Value::is_boolean) => Dtype::Bool,
        _ if all(|value| value.as_i64().is_some()) => Dtype::I64,
        _ => Dtype::F64,
    }
}

/// Appends one number; says no when it does not fit.
fn encode(dtype: Dtype, value: &Value, bytes: &mut Vec<u8>) -> bool {
    // A truth value is 0 or 1 wherever numbers are whole.
    let whole = value.as_i64().or_else(|| value.as_bool().map(i64::from));
    let real = value.as_f64();
    macro_rules! whole {
        ($kind:ty) => {
            whole
                .and_then(|number| <$kind>::try_from(number).ok())
                .map(|number| bytes.extend(number.to_le_bytes()))
        };
    }
    let done = match dtype {
        Dtype::Bool => whole
            .filter(|number| matches!(number, 0 | 1))
            .and_then(|number| u8::try_from(number).ok())
            .map(|number| bytes.push(number)),
        Dtype::U8 => whole!(u8),
        Dtype::U16 => whole!(u16),
        Dtype::U32 => whole!(u32),
        Dtype::I32 => whole!(i32),
        Dtype::I64 => whole!(i64),
        Dtype::F32 => real
            .map(|number| number as f32)
            .filter(|number| number.is_finite())
            .map(|number| bytes.extend(number.to_le_bytes())),
        Dtype::F64 => real.map(|number| bytes.extend(number.to_le_bytes())),
        // Halves come as raw files: JSON has nobody who writes them.
        Dtype::F16 | Dtype::Bf16 => None,
    };
    done.is_some()
}

/// JSON when it is an object, an array or a string; everything else is the text itself, exactly as it was typed.
fn json_or_text(text: &String) -> Value {
    let whole = |value: &Value| value.is_object() || value.is_array() || value.is_string();
    serde_json::from_str(text).ok().filter(whole).unwrap_or_else(|| json!(text))
}

/// The line that options of `step` say.
pub(super) fn step_of(arguments: &args::RolloutStep) -> Result<Value, Problem> {
    let mut arrays = Map::new();
    for text in &arguments.array {
        let parts = text.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(':')?)));
        let (name, (dtype, file)) = parts
            .ok_or_else(|| bad_option("--array", "NAME=DTYPE:FILE, such as logprobs=f32:step0.f32", text))?;
        arrays.insert(name.to_owned(), json!({ "dtype": dtype, "file": file }));
    }
    Ok(json!({
        "sibling_id": arguments.sibling, "trial": arguments.trial, "index": arguments.index,
        "node_after": arguments.node, "action": arguments.action.as_ref().map(json_or_text),
        "observation": arguments.observation.as_ref().map(json_or_text), "reward": arguments.reward,
        "policy_version": arguments.policy_version, "arrays": arrays,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_kind_that_their_name_says() {
        let kind =
            |name: &str, said: Value| numbers(name, said).map(|(dtype, bytes, _)| (dtype, bytes.len()));
        assert_eq!(kind("completion_token_ids", json!([1, 70_000])).unwrap(), (Dtype::U32, 8));
        assert_eq!(kind("completion_token_ids", json!([-1])).unwrap(), (Dtype::I64, 8));
        assert_eq!(kind("logprobs", json!([-0.5, 0])).unwrap(), (Dtype::F32, 8));
        assert_eq!(kind("loss_mask", json!([true, 0, 1])).unwrap(), (Dtype::U8, 3));
        assert_eq!(kind("other", json!([0.5])).unwrap(), (Dtype::F64, 8));
        assert_eq!(kind("other", json!({"dtype": "i32", "values": [-7]})).unwrap(), (Dtype::I32, 4));
    }

    #[test]
    fn what_is_no_number_of_the_kind_is_refused() {
        for said in [
            json!(["a"]),
            json!([null]),
            json!({"dtype": "u8", "values": [256]}),
            json!({"dtype": "u9", "values": []}),
            json!({"values": [1], "file": "x"}),
            json!({"file": "x"}),
            json!(7),
            json!({"dtype": "bool", "values": [2]}),
            json!({"dtype": "f32", "values": [1e300]}),
        ] {
            assert_eq!(numbers("n", said.clone()).unwrap_err().code, "bad_array", "{said}");
        }
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let lines = Lines { name: "f".to_owned(), text: "{}\n\nnonsense\n".to_owned() };
        let problem = lines.each(10, |line| read::<Value>(line, "JSON")).unwrap_err();
        assert!(problem.message.starts_with("f:3: "), "{}", problem.message);
        assert_eq!(lines.each(1, |line| Ok(line.len())).unwrap_err().code, "too_many");
    }

    #[test]
    fn text_on_the_command_line_stays_as_typed() {
        for text in ["1.10", "1e2", "123456789012345678901234567890", "true", "null", "ls", "\"open", "{a"] {
            assert_eq!(json_or_text(&text.to_owned()), json!(text));
        }
        assert_eq!(json_or_text(&"[1]".to_owned()), json!([1]));
        assert_eq!(json_or_text(&"{\"a\": 1}".to_owned()), json!({"a": 1}));
        assert_eq!(json_or_text(&"\"a\"".to_owned()), json!("a"));
    }

    #[test]
    fn a_failure_may_be_its_class_alone() {
        let failure = whole_failure(&json!("infra_lost")).unwrap();
        assert_eq!((&failure["gradable"], &failure["class"]), (&json!(false), &json!("infra_lost")));
        let said = whole_failure(&json!({"class": "user_exit", "stage": "exec", "detail": "1"})).unwrap();
        assert_eq!(said["stage"], "exec");
        assert!(whole_failure(&json!("sandbox not found")).is_err());
    }
}
