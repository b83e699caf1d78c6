//! Rollouts through the command line (R04): what a trajectory carries, what is refused, what exports hold. Exports are
//! read by the formats' own public readers where pip can fetch them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::*;

/// A run of prompts with `size` siblings each.
struct Rollouts {
    lab: Lab,
    node: String,
    run: String,
}

impl Rollouts {
    fn new(prompts: usize, size: usize, options: &[&str]) -> Self {
        let lab = Lab::new();
        let node = lab.group("g", &lab.tree("t", "echo a > a"));
        let create = ["rollout", "create", &node, "--name", "r", "--policy", "p", "--group-size"];
        let size = size.to_string();
        let created = lab.json(create.iter().copied().chain([&*size]).chain(options.iter().copied()));
        let run = id(&created["run"], "run_id");
        let rollouts = Self { lab, node, run };
        let lines = (0..prompts).map(|n| {
            json!({ "task": format!("t{n}"), "seed": n, "extra": { "messages": [
                { "role": "system", "content": "be brief" }, { "role": "user", "content": format!("question {n}") } ] } })
        });
        let file = rollouts.lines("prompts", lines);
        if prompts > 0 {
            rollouts.lab.json(["rollout", "prompts", &rollouts.run, "--add", &file]);
        }
        rollouts
    }

    fn lines(&self, name: &str, lines: impl IntoIterator<Item = Value>) -> String {
        let path = self.lab.path(name);
        let text: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn start(&self, count: usize) -> Vec<Value> {
        let started = self.lab.json(["rollout", "start", &self.run, "-n", &count.to_string()]);
        started["begun"].as_array().unwrap().clone()
    }

    fn refused_lines(&self, verb: &str, lines: impl IntoIterator<Item = Value>) -> Refusal {
        let file = self.lines("refused", lines);
        self.lab.refused(["rollout", verb, "--from", &file])
    }

    fn finish(&self, begun: &Value, outcome: Value) -> Value {
        let file = self.lines("finish", [end(begun, outcome)]);
        self.lab.json(["rollout", "finish", "--from", &file])["finished"][0].clone()
    }

    fn show(&self, what: &str) -> Value {
        self.lab.json(["rollout", "show", what])
    }

    fn export(&self, format: &str, options: &[&str]) -> (Value, std::path::PathBuf) {
        let to = self.lab.path(&format!("out{}.{format}", options.len()));
        let place = to.display().to_string();
        let args = ["rollout", "export", &self.run, "--format", format, "--to", &place];
        let exported = self.lab.json(args.iter().copied().chain(options.iter().copied()));
        assert_eq!(self.lab.json(["verify", &place])["verified"]["run_id"], self.run);
        (exported["export"].clone(), to)
    }
}

fn end(begun: &Value, outcome: Value) -> Value {
    json!({ "sibling_id": begun["sibling_id"], "trial": begun["trial"], "outcome": outcome })
}

fn step(begun: &Value, index: u64, tokens: usize) -> Value {
    json!({
        "sibling_id": begun["sibling_id"], "trial": begun["trial"], "index": index, "action": format!("say {index}"),
        "observation": { "seen": index }, "arrays": {
            "prompt_token_ids": [1, 2], "completion_token_ids": vec![7; tokens], "logprobs": vec![-0.5; tokens],
            "loss_mask": vec![1; tokens], "routed_experts": { "dtype": "u8", "values": [3] },
        },
    })
}

#[test]
fn bad_input_is_refused_and_nothing_is_recorded() {
    let rollouts = Rollouts::new(1, 3, &["--reward", "score=1"]);
    let lab = &rollouts.lab;
    let begun = rollouts.start(3);
    let one = &begun[0];
    let sibling = id(one, "sibling_id");
    let with = |name: &str, value: Value| {
        let mut line = step(one, 0, 3);
        line["arrays"][name] = value;
        line
    };
    // A good line before a bad one records nothing either.
    for (line, code) in [
        (with("logprobs", json!([-0.5])), "bad_array"),
        (with("loss_mask", json!([1, 1, 1, 1])), "bad_array"),
        (with("x", json!({ "dtype": "f32", "file": "/nowhere" })), "not_found"),
        (with("x", json!(["a"])), "bad_array"),
        (json!({ "sibling_id": sibling, "trial": 0 }), "bad_line"),
        (json!({ "sibling_id": sibling, "trial": 0, "index": 0, "acton": 1 }), "bad_line"),
        (json!("step"), "bad_line"),
        (json!({ "sibling_id": sibling, "trial": 0, "index": 0, "action": 1.5 }), "bad_line"),
    ] {
        let refused = rollouts.refused_lines("step", [step(&begun[1], 0, 2), line.clone()]);
        assert_eq!(refused.code(), code, "{line}: {refused:?}");
        assert!(refused.text().contains("refused:2: "), "{refused:?}");
    }
    let odd = lab.path("odd");
    fs::write(&odd, [0; 7]).unwrap();
    let array = format!("logprobs=f32:{}", odd.display());
    let refused =
        lab.refused(["rollout", "step", &sibling, "--trial", "0", "--index", "0", "--array", &array]);
    assert_eq!(refused.code(), "bad_array", "{refused:?}");
    for begun in &begun {
        assert_eq!(rollouts.show(&id(begun, "sibling_id"))["steps"], json!([]));
    }

    // A version that was never published, and steps out of order.
    let refused =
        lab.refused(["rollout", "step", &sibling, "--trial", "0", "--index", "0", "--policy-version", "9"]);
    assert_eq!((refused.exit, refused.code()), (4, "unknown_policy_version"), "{refused:?}");
    let refused = lab.refused(["rollout", "step", &sibling, "--trial", "0", "--index", "5"]);
    assert_eq!(refused.exit, 4, "{refused:?}");

    // One end: the same again is the same answer, another one is refused with both digests.
    let first = rollouts.finish(one, json!({ "rewards": { "score": 1 }, "terminated": true }));
    let again = rollouts.finish(one, json!({ "rewards": { "score": 1 }, "terminated": true }));
    assert_eq!(first, again);
    let file = rollouts.lines("other", [end(one, json!({ "rewards": { "score": 0 } }))]);
    let output = lab.output(["-o", "json", "rollout", "finish", "--from", &file]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["finished"][0]["error"]["code"], "already_finished", "{answer}");
    let refused = lab.refused(["rollout", "finish", &sibling, "--trial", "0", "--reward", "score=0"]);
    assert_eq!((refused.exit, refused.code()), (4, "already_finished"));
    assert!(refused.text().matches("b3:").count() >= 2, "{refused:?}");

    // A lost sandbox has no reward, not even zero; a reward that is not declared is none.
    let two = id(&begun[1], "sibling_id");
    let lost = lab.refused([
        "rollout",
        "finish",
        &two,
        "--trial",
        "0",
        "--failure",
        "infra_lost",
        "--reward",
        "score=0",
    ]);
    assert_eq!(lost.code(), "bad_outcome", "{lost:?}");
    let unknown = lab.refused(["rollout", "finish", &two, "--trial", "0", "--reward", "style=1"]);
    assert_eq!(unknown.code(), "bad_outcome", "{unknown:?}");
    assert_eq!(rollouts.show(&two)["sibling"]["status"], "running");

    // What was never leased cannot be acknowledged.
    let ack = ["rollout", "ack", &rollouts.run, "--consumer", "t", "--trainer-step", "1", "--batch"];
    let refused = lab.refused(ack.iter().copied().chain(["1"]));
    assert!(matches!(refused.exit, 3 | 4), "{refused:?}");
    let batch = lab.json(["rollout", "consume", &rollouts.run, "--consumer", "t", "--max", "1"]);
    assert_eq!((&batch["batch"], batch["deliveries"].as_array().unwrap().len()), (&json!(1), 1));
    let refused = lab.refused(ack.iter().copied().chain(["1", "--sequences", "99"]));
    assert_eq!((refused.exit, refused.code()), (4, "never_leased"), "{refused:?}");
    let acked = lab.json(ack.iter().copied().chain(["1"]));
    assert_eq!(acked["acked"]["trained"], 1);
    assert_eq!(lab.json(ack.iter().copied().chain(["1"]))["acked"]["repeated"], 1);

    // What does not exist, and what is of another kind.
    assert_eq!(lab.refused(["rollout", "show", "run_00"]).exit, 3);
    assert_eq!(lab.refused(["rollout", "show", &rollouts.node]).code(), "wrong_kind");
    assert_eq!(lab.refused(["rollout", "cancel", &rollouts.node]).code(), "wrong_kind");
}

#[test]
fn r04_each_trajectory_carries_where_it_is_from_and_ends_once() {
    let evaluator = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/evaluator.toml");
    let options =
        ["--refill", "sibling", "--max-refills", "8", "--max-staleness", "2", "--evaluator", evaluator];
    let rollouts = Rollouts::new(25, 8, &options);
    let lab = &rollouts.lab;
    let (mut steps, mut ends) = (Vec::new(), Vec::new());
    let begun = rollouts.start(200);
    for (n, one) in begun.iter().enumerate() {
        let lost = n % 5 == 0;
        steps.push(step(one, 0, 1 + n % 3));
        ends.push(end(
            one,
            if lost {
                json!({ "failure": "infra_lost" })
            } else {
                json!({ "rewards": { "score": (n % 4) } })
            },
        ));
    }
    lab.json(["rollout", "step", "--from", &rollouts.lines("steps", steps.clone())]);
    // A step that comes twice is there once.
    lab.json(["rollout", "step", "--from", &rollouts.lines("steps", steps)]);
    for _ in 0..2 {
        lab.json(["rollout", "finish", "--from", &rollouts.lines("ends", ends.clone())]);
    }
    let again = rollouts.start(200);
    assert_eq!(again.len(), 40, "a fifth is done again");
    assert!(again.iter().all(|one| one["revision"] == 1 && one["trial"] == 1));
    let file = rollouts.lines(
        "again",
        again.iter().map(|one| end(one, json!({ "rewards": { "score": 2 }, "terminated": true }))),
    );
    lab.json(["rollout", "finish", "--from", &file]);

    let run = rollouts.show(&rollouts.run)["run"].clone();
    assert_eq!((&run["results"], &run["errors"], &run["complete"]), (&json!(200), &json!(40), &json!(25)));
    let (exported, path) = rollouts.export("jsonl", &[]);
    assert_eq!((&exported["trajectories"], &exported["usable"]), (&json!(200), &json!(200)));
    let text = fs::read_to_string(path).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let root = rollouts.lab.json(["inspect", &rollouts.node])["node"]["root_id"].clone();
    let mut seeds = std::collections::BTreeSet::new();
    for row in &rows {
        assert_eq!(row["root_id"], root);
        assert_eq!((&row["policy"]["name"], &row["policy"]["version_start"]), (&json!("p"), &json!(0)));
        assert!(row["environment_digest"].is_string(), "{row}");
        assert!(
            row["evaluators"][0]["digest"].as_str().is_some_and(|digest| digest.starts_with("b3:")),
            "{row}"
        );
        assert!(row["attempt_ids"].is_array() && row["trial"].is_number(), "{row}");
        seeds.insert(row["seed"].as_u64().unwrap());
    }
    assert_eq!(seeds.len(), 200, "each has a seed of its own");

    // Two consumers each see everything once; one that dies gives back what it held.
    let consume = |options: &[&str]| {
        let args = ["rollout", "consume", &rollouts.run, "--consumer", "a", "--max", "10000"];
        lab.json(args.iter().copied().chain(options.iter().copied()))
    };
    let batch = consume(&["--unit", "group", "--lease", "1h"]);
    assert_eq!(batch["deliveries"].as_array().unwrap().len(), 25);
    assert_eq!(consume(&[])["batch"], Value::Null, "what is leased is not delivered again");
    let number = batch["batch"].to_string();
    lab.json(["rollout", "hold", &rollouts.run, "--consumer", "a", "--batch", &number, "--release"]);
    let batch = consume(&["--lease", "1h"]);
    let number = batch["batch"].to_string();
    lab.json(["rollout", "ack", &rollouts.run, "--consumer", "a", "--batch", &number, "--trainer-step", "4"]);
    let reopened = lab.json(["rollout", "reopen", &rollouts.run, "--consumer", "a", "--after", "3"]);
    assert_eq!(reopened["reopened"]["reopened"], 25);

    // What is too old is not delivered.
    lab.json(["rollout", "publish", &rollouts.run, "--version", "7"]);
    let stale = consume(&[]);
    assert_eq!((stale["batch"].clone(), stale["dropped"].as_u64() > Some(0)), (Value::Null, true), "{stale}");
    lab.text(["fsck"]);
}

#[test]
fn an_export_replaces_nothing_and_leaves_nothing_half_done() {
    let rollouts = Rollouts::new(1, 1, &[]);
    let begun = rollouts.start(1);
    rollouts.finish(&begun[0], json!({ "rewards": { "score": null } }));
    let (_, path) = rollouts.export("messages", &[]);
    let before = fs::read(&path).unwrap();
    let to = path.display().to_string();
    let export = ["rollout", "export", &rollouts.run, "--format", "tree", "--to", &to];
    let refused = rollouts.lab.refused(export);
    assert_eq!((refused.exit, refused.code()), (4, "target_exists"), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    fs::write(&path, b"changed").unwrap();
    assert_eq!(rollouts.lab.refused(["verify", &to]).code(), "export_unverified");
    let refused = rollouts.lab.refused(export.iter().copied().chain(["--split-prompt"]));
    assert_eq!(refused.exit, 2);
}

#[test]
fn a_fork_shares_steps_that_one_owner_trains_on() {
    let rollouts = Rollouts::new(1, 2, &[]);
    let lab = &rollouts.lab;
    let parent = &rollouts.start(1)[0];
    let steps = (0..3).map(|index| step(parent, index, 2));
    lab.json(["rollout", "step", "--from", &rollouts.lines("steps", steps)]);
    let siblings = rollouts.show(&id(parent, "prompt_id"))["siblings"].clone();
    let (parent_id, child_id) = (id(&siblings[0], "sibling_id"), id(&siblings[1], "sibling_id"));
    let fork = ["rollout", "start", &rollouts.run, &child_id, "--fork", &parent_id, "--fork-step", "2"];
    let child = &lab.json(fork)["begun"][0];
    assert_eq!(child["first_step"], 2);
    lab.json(["rollout", "step", "--from", &rollouts.lines("steps", [step(child, 2, 4)])]);
    for one in [parent, child] {
        rollouts.finish(one, json!({ "rewards": { "score": 1 } }));
    }

    let read = |path: &Path| -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let tree = read(&rollouts.export("tree", &[]).1);
    let [own_of_parent, own_of_child] =
        [0, 1].map(|n| tree[0]["siblings"][n]["steps"].as_array().unwrap().len());
    assert_eq!((own_of_parent, own_of_child), (3, 1), "shared steps are written once");
    assert_eq!(tree[0]["siblings"][1]["parent_sibling"], json!(parent_id));
    let rows = read(&rollouts.export("jsonl", &[]).1);
    let owned: Vec<bool> =
        rows[1]["steps"].as_array().unwrap().iter().map(|step| step["owned"] == true).collect();
    assert_eq!(owned, [false, false, true]);
    let messages = read(&rollouts.export("messages", &[]).1);
    let weights: Vec<&Value> =
        messages[1]["messages"].as_array().unwrap().iter().map(|m| &m["weight"]).collect();
    assert_eq!(weights.iter().filter(|weight| ***weight == json!(1)).count(), 1, "{weights:?}");
    // Every sampled token is trained on by exactly one: 3 steps of 2, and 1 of 4.
    check_with_readers(&rollouts, 2, 10);
}

/// Parquet and messages by pyarrow, which is what `datasets` reads them with; ATIF by harbor's own model.
fn check_with_readers(rollouts: &Rollouts, rows: usize, trained_tokens: usize) {
    let (_, parquet) = rollouts.export("parquet", &[]);
    let (_, atif) = rollouts.export("atif", &[]);
    let (_, messages) = rollouts.export("messages", &["--split-prompt"]);
    let packages = rollouts.lab.path("python");
    let pip = |args: &[&str]| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet"]).args(args);
        pip.output().is_ok_and(|output| output.status.success())
    };
    let place = packages.display().to_string();
    let harbor = [
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--python-version",
        "3.12",
        "--dest",
        &place,
        "harbor==0.26.0",
    ];
    if !pip(&["install", "--target", &place, "--only-binary", ":all:", "pyarrow", "pydantic"])
        || !pip(&harbor)
    {
        eprintln!("skipped: pip cannot fetch pyarrow, pydantic and harbor");
        return;
    }
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/rollouts_readers.py"));
    let output = Command::new("python3")
        .arg(script)
        .args([&packages, &parquet, &atif, &messages])
        .args([rows.to_string(), trained_tokens.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_trajectory_of_mini_swe_agent_is_imported() {
    let rollouts = Rollouts::new(0, 1, &[]);
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/mini-swe-agent.traj.json"));
    let file = file.display().to_string();
    let import = |key: &str| {
        let args = [
            "--idempotency-key",
            key,
            "rollout",
            "import",
            &file,
            "--run",
            &rollouts.run,
            "--reward",
            "tests=1",
        ];
        rollouts.lab.json(args)["sibling"].clone()
    };
    let sibling = import("k");
    assert_eq!(import("k"), sibling, "the same request again records nothing new");
    assert_eq!((&sibling["status"], &sibling["steps"]), (&json!("result"), &json!(4)), "{sibling}");
    assert_eq!(sibling["outcome"]["stop_reason"], "Submitted");
    assert_eq!(sibling["outcome"]["reward"], 1.0);
    let (exported, path) = rollouts.export("messages", &["--only", "usable"]);
    assert_eq!(exported["trajectories"], 1);
    let row: Value = serde_json::from_str(fs::read_to_string(path).unwrap().trim()).unwrap();
    let roles: Vec<&str> =
        row["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles[..4], ["system", "user", "assistant", "tool"], "{roles:?}");
    let bad = rollouts.lab.path("bad.json");
    fs::write(&bad, r#"{"messages":[],"trajectory_format":"mini-swe-agent-9"}"#).unwrap();
    let refused = rollouts.lab.refused(["rollout", "import", bad.to_str().unwrap(), "--run", &rollouts.run]);
    assert_eq!((refused.exit, refused.code()), (2, "bad_trajectory"), "{refused:?}");
}

#[test]
fn a_refused_import_records_nothing() {
    let rollouts = Rollouts::new(0, 1, &["--reward", "right=1"]);
    let whole = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acceptance/mini-swe-agent.traj.json").to_owned();
    let write = |name: &str, messages: Value| {
        let path = rollouts.lab.path(name);
        let file = json!({ "info": {}, "messages": messages, "trajectory_format": "mini-swe-agent-1.1" });
        fs::write(&path, file.to_string()).unwrap();
        path.display().to_string()
    };
    let said = |at: f64| json!({ "role": "assistant", "content": "a", "extra": { "timestamp": at } });
    let seen = |at: f64| json!({ "role": "user", "content": "b", "extra": { "timestamp": at } });
    let lost = write("lost.json", json!([said(1.0), seen(2.0)]));
    let late = write("late.json", json!([said(0.0), seen(1e300), said(0.0), seen(1e300)]));
    let before = rollouts.show(&rollouts.run);
    for (file, reward, code, named) in [
        (&whole, "wrong=1", "bad_outcome", "declares: right"),
        (&lost, "right=0", "bad_outcome", "infra_lost"),
        (&late, "right=1", "bad_trajectory", "messages[1].extra.timestamp"),
    ] {
        let refused =
            rollouts.lab.refused(["rollout", "import", file, "--run", &rollouts.run, "--reward", reward]);
        assert_eq!((refused.exit, refused.code()), (2, code), "{refused:?}");
        assert!(refused.text().contains(named), "{refused:?}");
        assert_eq!(rollouts.show(&rollouts.run), before);
    }
}

#[test]
fn a_number_on_the_command_line_is_its_text() {
    let rollouts = Rollouts::new(1, 1, &[]);
    let sibling = id(&rollouts.start(1)[0], "sibling_id");
    for (index, action) in ["1.10", "1e2", "123456789012345678901234567890", "true"].iter().enumerate() {
        let place = index.to_string();
        let args = ["rollout", "step", &sibling, "--trial", "0", "--index", &place, "--action", action];
        rollouts.lab.json(args);
        let shown = rollouts.show(&sibling)["steps"][index]["action"].to_string();
        assert!(shown.contains(&format!("\"{action}\"")), "{shown}");
    }
}

/// The page for newcomers, as it is written.
#[test]
fn the_page_s_commands_run_as_written() {
    crate::needs_root!();
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rollouts.md")).unwrap();
    let mut script = "set -eu\n".to_owned();
    for block in page.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        // What follows a prompt is a command; what follows `<<` belongs to it.
        script.extend(block.lines().map(|line| format!("{}\n", line.strip_prefix("$ ").unwrap_or(line))));
    }
    let lab = Lab::new();
    let bin = lab.path("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_esf"), bin.join("esf")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(lab.path("."))
        .env("PATH", path)
        .env("ESF_STORE", lab.store())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let rows = fs::read_to_string(lab.path("first.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 2, "{rows}");
    let runs = lab.json(["rollout", "ls"]);
    assert_eq!((&runs["runs"][0]["trained"], &runs["runs"][0]["errors"]), (&json!(2), &json!(1)));
}
