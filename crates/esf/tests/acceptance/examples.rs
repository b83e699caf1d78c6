//! The shipped example: each agent earns its reward by the shipped evaluator, without ESF.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::needs_root;
use crate::support::*;

fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

#[test]
fn the_evaluator_has_the_project_s_own_cases() {
    let cases = |place: &str| fs::read_to_string(examples().join(place).join("cases.sh")).unwrap();
    assert_eq!(cases("wordcount"), cases("evaluator"));
}

#[test]
fn wrong_half_and_right_are_told_apart() {
    for (agent, reward) in [("true", "0.6"), ("wrong.sh", "0.6"), ("half.sh", "0.8"), ("right.sh", "1.0")] {
        let tree = tempfile::tempdir().unwrap();
        let from = examples().display().to_string();
        let work = match agent {
            "true" => String::new(),
            script => format!("sh -c \"$(cat '{from}/agents/{script}')\""),
        };
        sh_in(tree.path(), &format!("cp '{from}'/wordcount/* .\n{work}"));
        sh_in(tree.path(), &format!("cp '{from}'/evaluator/* . && ESF_RESULT=$PWD/result sh ./evaluate.sh"));
        let result: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(tree.path().join("result")).unwrap()).unwrap();
        assert_eq!(result["reward"], reward.parse::<f64>().unwrap(), "{agent}: {result}");
        assert_eq!(result["verdict"], if reward == "1.0" { "pass" } else { "fail" }, "{agent}");
    }
}

/// The README's commands: build it, run it under WASI, go on under Linux.
#[test]
fn the_c_example_runs_under_wasi_and_its_node_under_linux() {
    needs_root!();
    let lab = Lab::new();
    let module = lab.path("tally.wasm");
    let source = examples().join("tally.c");
    let clang =
        Command::new("clang").args(["--target=wasm32-wasi", "-O2", "-o"]).arg(&module).arg(source).output();
    if !clang.is_ok_and(|built| built.status.success()) {
        eprintln!("skipped: there is no clang with wasi-libc");
        return;
    }
    let node = lab.group("words", &examples().join("wordcount"));
    let module = module.display().to_string();
    let run =
        ["run", &node, "--executor", "wasi", "--module", &module, "-o", "json", "--", "tally", "count.awk"];
    let text = fs::read_to_string(examples().join("wordcount/count.awk")).unwrap();
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let tally = format!("{lines} {words} {} count.awk\n", text.len());
    let made = id(&lab.json(run)["node"], "node_id");
    assert_eq!(String::from_utf8(lab.cat(&made, "tally.txt")).unwrap(), tally);
    let attempt = lab.activate(&made);
    assert_eq!(lab.sh(&attempt, "cat tally.txt && echo more >> tally.txt"), tally);
    let last = lab.suspend(&attempt);
    assert_eq!(String::from_utf8(lab.cat(&last, "tally.txt")).unwrap(), format!("{tally}more\n"));
}

/// Fetches toolz into pip's cache; false, and says so, where that cannot be.
fn pip_has_toolz(lab: &Lab) -> bool {
    let wheels = lab.path("wheels").display().to_string();
    let asked =
        ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", &wheels, "toolz==1.0.0"];
    let pip = Command::new("python3").args(["-m", "pip"]).args(asked).output();
    let has = pip.is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("skipped: pip cannot fetch toolz");
    }
    has
}

/// Runs an example in `place`; gives what it printed.
fn shown(script: &str, place: &Path) -> String {
    let mut command = Command::new(examples().join(script));
    command.arg(place).env("ESF", env!("CARGO_BIN_EXE_esf")).env_remove("ESF_STORE");
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Ten agents on a published package: what is accepted is there, and git comes to the same trees.
#[test]
fn ten_agents_work_on_a_published_package() {
    needs_root!();
    let lab = Lab::new();
    if !pip_has_toolz(&lab) {
        return;
    }
    let place = lab.path("team");
    let shown = shown("team/run", &place);
    assert!(shown.contains("git agrees on 11 entries and on the tree at the end"), "{shown}");
    let lab = Lab::with_store(place.join("store"));
    let listed = lab.json(["task", "ls", "toolz"]);
    let tasks = listed["tasks"].as_array().unwrap();
    let integrated =
        |name: &str| tasks.iter().any(|task| task["name"] == name && task["status"] == "integrated");
    assert_eq!(tasks.iter().filter(|task| task["status"] == "integrated").count(), 6, "{shown}");
    assert!(
        ["pick", "pairwise", "chunked"].into_iter().all(integrated) && !integrated("shortcut"),
        "{shown}"
    );
    for (one, other) in [("columns", "transpose"), ("strings", "lines"), ("drop-compat", "compat-note")] {
        assert_ne!(integrated(one), integrated(other), "one of {one} and {other}: {shown}");
    }
    let itertoolz = String::from_utf8(lab.cat("toolz:@", "toolz/itertoolz.py")).unwrap();
    let dicttoolz = String::from_utf8(lab.cat("toolz:@", "toolz/dicttoolz.py")).unwrap();
    for (text, name) in [(&itertoolz, "pairwise"), (&itertoolz, "chunked"), (&dicttoolz, "pick")] {
        assert!(text.contains(&format!("def {name}(")), "{name}");
    }
    for (name, why) in [("shortcut", "checks"), ("compat-note", "conflicts"), ("strings", "conflicts")] {
        let task = lab.json(["task", "show", &format!("toolz:{name}")]);
        let outcome = &task["entries"][0]["outcome"];
        if !integrated(name) {
            assert_eq!(outcome["why"]["reason"], why, "{task}");
            assert!(outcome["remedy"].as_str().unwrap().contains("esf activate"), "{task}");
        }
    }
}

/// R02: two planted bugs in a published package, 43 edits at each step, some of which never end.
#[test]
fn r02_a_search_repairs_a_published_package() {
    needs_root!();
    let lab = Lab::new();
    if !pip_has_toolz(&lab) {
        return;
    }
    let place = lab.path("repair");
    let shown = shown("repair/run", &place);
    for line in ["+        d[item] += 1", "+        if len(index) == 1:"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let lab = Lab::with_store(place.join("store"));
    let searches = lab.json(["search", "ls"]);
    let search = &searches["searches"][0];
    assert_eq!(search["stopped"], "reward", "{search}");
    assert!(search["accepted"].as_u64().unwrap() <= 150, "{search}");
    assert_eq!(
        search["accepted"].as_u64().unwrap() + search["void"].as_u64().unwrap(),
        search["selected"],
        "{search}"
    );

    both_orders_are_one_state(&lab);
}

/// The two edits in either order, by hand: one position, reached by two edges.
fn both_orders_are_one_state(lab: &Lab) {
    let config = lab.path("by-hand.toml");
    fs::write(&config, "[search]\npolicy = { kind = \"ucb1\" }\ntranspositions = \"root\"\nmax_depth = 2\n")
        .unwrap();
    let created = lab.json(["search", "create", "repair:@", "--config", config.to_str().unwrap()]);
    let search = id(&created["search"], "search_id");
    let edits = [("count", "s/d.item. -= 1/d[item] += 1/"), ("pluck", "s/len(index) != 1/len(index) == 1/")];
    let actions = lab.path("actions.json");
    let offered = edits.map(|(name, edit)| serde_json::json!({ "action": { "edit": edit }, "name": name }));
    let offered = serde_json::json!({ "actions": offered, "exhausted": true });
    fs::write(&actions, offered.to_string()).unwrap();
    let mut reached = std::collections::BTreeMap::new();
    for _ in 0..12 {
        let mut ticket = lab.json(["search", "select", &search])["tickets"][0].clone();
        let rollout = id(&ticket, "rollout_id");
        if ticket["stage"] == "expand" {
            let expanded = lab.json(["search", "expand", &rollout, "--actions", actions.to_str().unwrap()]);
            ticket = expanded["ticket"].clone();
        }
        if ticket["stage"] == "revisit" {
            lab.json(["search", "complete", &rollout, "--value", "0.5"]);
            continue;
        }
        let edit = ticket["action"]["edit"].as_str().unwrap();
        let leaf = id(&ticket, "leaf_node_id");
        let ran = lab.json(["run", &leaf, "--", "sed", "-i", edit, "toolz/itertoolz.py"]);
        let node = id(&ran["node"], "node_id");
        let done = lab.json(["search", "complete", &rollout, "--node", &node, "--value", "0.6"]);
        let before = ticket["actions"].as_array().unwrap().iter().map(|action| action["edit"].to_string());
        let path: Vec<String> = before.chain([ticket["action"]["edit"].to_string()]).collect();
        reached.insert(path, done["position"]["number"].as_u64().unwrap());
    }
    let [count, pluck] = edits.map(|(_, edit)| format!("\"{edit}\""));
    let one = reached[&vec![count.clone(), pluck.clone()]];
    assert_eq!(one, reached[&vec![pluck.clone(), count.clone()]], "{reached:?}");
    assert!(reached[&vec![count]] != reached[&vec![pluck]], "{reached:?}");
}

/// 64 prompts of 8, a fifth of the sandboxes lost, the trainer killed in the middle of a batch: the example counts
/// everything again by itself, and the store agrees.
#[test]
fn rollouts_over_puzzles_lose_nothing_and_count_nothing_twice() {
    needs_root!();
    let lab = Lab::new();
    let wheels = lab.path("wheels").display().to_string();
    let fetched = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"])
        .args(["--dest", &wheels, "reasoning-gym==0.1.25"])
        .output();
    if !fetched.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: pip cannot fetch reasoning-gym");
        return;
    }
    let place = lab.path("puzzles");
    let mut command = Command::new(examples().join("puzzles/run"));
    command.arg(&place).env("ESF", env!("CARGO_BIN_EXE_esf")).env_remove("ESF_STORE");
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("512 answers trained on, each once"), "{shown}");
    let lab = Lab::with_store(place.join("store"));
    let runs = lab.json(["rollout", "ls"]);
    let run = &runs["runs"][0];
    assert_eq!((&run["results"], &run["complete"], &run["trained"]), (&512.into(), &64.into(), &512.into()));
    assert!(run["errors"].as_u64().unwrap() > 50, "{run}");
    lab.text(["fsck"]);
}
