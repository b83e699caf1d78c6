//! Tree search through the command line, by hand: what counts, what is refused, and once only. The puzzle is three digits that should read 123; its evaluator is a shell script.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::*;

/// A share of the right digits, in thirds; verdict `pass` for all of them.
pub(crate) const SCORE: &str = r#"d=$(cat digits); n=0
for i in 1 2 3; do [ "$(echo "$d" | cut -c$i)" = "$i" ] && n=$((n+1)); done
v=scored; [ $n = 3 ] && v=pass
echo "{\"reward\": $((n/3)).$((n%3*3)), \"verdict\": \"$v\"}" > "$ESF_RESULT"
"#;

/// Offers to set one of the three digits to 1, 2 or 3.
pub(crate) const PROPOSE: &str = r#"while read -r line; do
  id=$(printf '%s' "$line" | sed 's/^{"id":\([0-9]*\).*/\1/')
  a=""
  for p in 1 2 3; do for v in 1 2 3; do
    a="$a,{\"action\":{\"run\":[\"sed\",\"-i\",\"s/./$v/$p\",\"digits\"]},\"name\":\"$p=$v\"}"
  done; done
  echo "{\"id\":$id,\"actions\":[${a#,}],\"exhausted\":true}"
done
"#;

pub(crate) const SEARCH: &str = r#"transpositions = "root"
leaf_value = "first"
max_depth = 3
"#;

/// A store with the puzzle in it, and beside it a directory with proposer, evaluator and settings.
pub(crate) struct Puzzle {
    pub(crate) lab: Lab,
    pub(crate) node: String,
}

impl Puzzle {
    pub(crate) fn new() -> Self {
        let lab = Lab::new();
        let node = lab.group("g", &lab.tree("t", "echo 000 > digits"));
        fs::create_dir_all(lab.path("p/own")).unwrap();
        let puzzle = Self { lab, node };
        puzzle.file("own/score.sh", SCORE);
        puzzle.file("propose.sh", PROPOSE);
        puzzle.file(
            "evaluator.toml",
            "name = \"digits\"\nversion = \"1\"\ncommand = [\"true\"]\nscore = [\"sh\", \"score.sh\"]\nfiles = \"own\"\ntimeout = \"20s\"\n",
        );
        puzzle
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.lab.path("p").join(name)
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A search.toml with these settings beside what every run here has; gives its path.
    pub(crate) fn settings(&self, search: &str, run: &str) -> String {
        let proposer = if run.contains("proposer =") { "" } else { "proposer = [\"sh\", \"propose.sh\"]\n" };
        let lease = if run.contains("lease =") { "" } else { "lease = \"5s\"\n" };
        self.file(
            "search.toml",
            &format!("[search]\n{search}\n[run]\n{proposer}evaluator = \"evaluator.toml\"\n{lease}{run}\n"),
        );
        self.path("search.toml").display().to_string()
    }

    pub(crate) fn run(&self, at: &str, settings: &str) -> Output {
        self.lab.output(["-o", "json", "search", "run", at, "--config", settings])
    }

    pub(crate) fn show(&self, search: &str) -> Value {
        self.lab.json(["search", "show", search])["search"].clone()
    }

    /// The only search of the store.
    pub(crate) fn only_search(&self) -> Option<String> {
        let all = self.lab.json(["search", "ls"]);
        all["searches"].as_array().unwrap().first().map(|search| id(search, "search_id"))
    }

    /// The whole tree, after checking what must hold of it whatever happened.
    #[track_caller]
    pub(crate) fn tree(&self, search: &str) -> Value {
        let output = self.lab.output(["search", "export", search]);
        assert!(output.status.success(), "{}", said(&output));
        let tree = parsed(&output);
        let positions = tree["positions"].as_array().unwrap();
        let root = &positions[0];
        let accepted = tree["search"]["accepted"].as_u64().unwrap();
        assert_eq!(root["visits"], accepted, "the visits of the root are the accepted rollouts");
        for position in positions {
            let edges = position["edges"].as_array().unwrap();
            let visits: u64 = edges.iter().map(|edge| edge["visits"].as_u64().unwrap()).sum();
            let own = u64::from(position["values"].as_u64().unwrap() > 0);
            assert!(position["visits"].as_u64().unwrap() >= visits + own, "{position}");
        }
        let mut nodes: Vec<&Value> =
            positions.iter().map(|position| &position["node_id"]).filter(|node| !node.is_null()).collect();
        let count = nodes.len();
        nodes.sort_by_key(|node| node.to_string());
        nodes.dedup();
        assert_eq!(nodes.len(), count, "no node is two positions");
        self.lab.text(["fsck"]);
        tree
    }
}

#[track_caller]
pub(crate) fn cli(lab: &Lab, args: &[&str]) -> Value {
    lab.json([&["search"][..], args].concat())
}

fn actions(names: &[&str]) -> Value {
    let actions: Vec<Value> = names.iter().map(|name| json!({ "action": name, "name": name })).collect();
    json!({ "actions": actions, "exhausted": true })
}

/// One rollout by hand, from select to complete; gives the completion's reply.
#[track_caller]
fn by_hand(puzzle: &Puzzle, search: &str, value: f64) -> Value {
    let lab = &puzzle.lab;
    let ticket = cli(lab, &["select", search])["tickets"][0].clone();
    let mut ticket = ticket;
    if ticket["stage"] == "expand" {
        puzzle.file("actions.json", &actions(&["left", "right"]).to_string());
        let path = puzzle.path("actions.json").display().to_string();
        ticket = cli(lab, &["expand", &id(&ticket, "rollout_id"), "--actions", &path])["ticket"].clone();
    }
    cli(lab, &["complete", &id(&ticket, "rollout_id"), "--value", &value.to_string()])
}

#[test]
fn a_search_by_hand_counts_what_it_is_told_once() {
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let search = id(&cli(lab, &["create", &puzzle.node, "--seed", "3"])["search"], "search_id");
    let first = by_hand(&puzzle, &search, 0.5);
    assert_eq!((&first["position"]["visits"], &first["fresh"]), (&json!(1), &json!(true)));
    let rollout = id(&first["rollout"], "rollout_id");

    // The same again changes nothing; another outcome is refused; so is giving it up.
    assert_eq!(cli(lab, &["complete", &rollout, "--value", "0.5"])["fresh"], false);
    assert_eq!(lab.refused(["search", "complete", &rollout, "--value", "0.75"]).code(), "rollout_ended");
    assert_eq!(lab.refused(["search", "void", &rollout, "--reason", "no"]).exit, 4);
    assert_eq!(puzzle.show(&search)["accepted"], 1);

    for value in [0.25, 1.0, 0.5] {
        by_hand(&puzzle, &search, value);
    }
    let best = cli(lab, &["best", &search, "--kind", "max"])["best"].clone();
    assert_eq!(best["position"]["value"], json!([1.0]), "{best}");
    let line = cli(lab, &["pv", &search])["pv"].clone();
    assert!(line.as_array().is_some_and(|line| !line.is_empty()), "{line}");

    // Given back: nothing is counted, and another rollout gets the same edge.
    let ticket = cli(lab, &["select", &search])["tickets"][0].clone();
    let void = cli(lab, &["void", &id(&ticket, "rollout_id"), "--reason", "not now"]);
    assert_eq!(void["rollout"]["status"], "void");
    let again = lab.refused(["search", "complete", &id(&ticket, "rollout_id"), "--value", "1"]);
    assert_eq!((again.exit, again.code()), (4, "rollout_void"));
    let tree = puzzle.tree(&search);
    assert_eq!((&tree["search"]["accepted"], &tree["search"]["void"]), (&json!(4), &json!(1)));

    assert_eq!(cli(lab, &["stop", &search])["search"]["stopped"], "user");
    let stopped = cli(lab, &["select", &search]);
    assert_eq!((&stopped["stopped"], &stopped["tickets"]), (&json!("user"), &json!([])));
}

#[test]
fn what_is_no_outcome_is_refused_with_its_reason() {
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let search = id(&cli(lab, &["create", &puzzle.node])["search"], "search_id");
    let rollout = id(&cli(lab, &["select", &search])["tickets"][0], "rollout_id");
    let before = puzzle.show(&search);
    for value in ["NaN", "inf", "-inf", "1e999", "x", "1,NaN"] {
        let refused = lab.refused(["search", "complete", &rollout, "--value", value]);
        assert_eq!(refused.exit, 2, "{value}: {refused:?}");
    }
    for (words, exit, code) in [
        (vec!["complete", &rollout, "--value", "1,2"], 2, "bad_value"),
        (vec!["complete", &rollout], 4, "value_missing"),
        (vec!["complete", "rol_00000000000000000000000000000000", "--value", "1"], 3, "not_found"),
        (vec!["complete", &search, "--value", "1"], 2, "wrong_kind"),
        (vec!["show", "sea_00000000000000000000000000000000"], 3, "not_found"),
        (vec!["void", &rollout, "--reason", "x", "--class", "bad luck"], 2, "bad_option"),
        (vec!["select", &search, "--at", "999999"], 3, "not_found"),
        (vec!["create", &puzzle.node, "--config", "/nowhere/search.toml"], 3, "not_found"),
        (vec!["expand", &rollout, "--actions", "/nowhere"], 3, "not_found"),
    ] {
        let refused = lab.refused([&["search"][..], &words].concat());
        assert_eq!((refused.exit, refused.code()), (exit, code), "{words:?}: {refused:?}");
    }
    for text in
        ["[{\"action\":1,\"prior\":-1}]", "[{\"action\":1,\"prior\":1e999}]", "{}x", "[{\"prior\":1}]"]
    {
        puzzle.file("actions.json", text);
        let path = puzzle.path("actions.json").display().to_string();
        let refused = lab.refused(["search", "expand", &rollout, "--actions", &path]);
        assert_eq!((refused.exit, refused.code()), (2, "bad_actions"), "{text}: {refused:?}");
    }
    let after = puzzle.show(&search);
    assert_eq!((&after["accepted"], &after["void"]), (&before["accepted"], &before["void"]));
}

#[test]
fn p31_one_outcome_delivered_50_times_in_parallel_counts_once() {
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let search = id(&cli(lab, &["create", &puzzle.node])["search"], "search_id");
    by_hand(&puzzle, &search, 0.0);
    let ticket = cli(lab, &["select", &search])["tickets"][0].clone();
    puzzle.file("actions.json", &actions(&["a", "b"]).to_string());
    let path = puzzle.path("actions.json").display().to_string();
    let rollout = id(&ticket, "rollout_id");
    cli(lab, &["expand", &rollout, "--actions", &path]);
    let deliveries: Vec<Running> = (0..50)
        .map(|at| {
            let mut command = lab.esf(["-o", "json", "search", "complete", &rollout, "--value", "0.75"]);
            // Half of them are killed at some moment of their lives.
            if at % 2 == 1 {
                command = killed_after(&command, at * 2);
            }
            Running::start(command)
        })
        .collect();
    let outputs: Vec<Output> = deliveries.into_iter().map(Running::wait).collect();
    let fresh = outputs.iter().filter(|output| output.status.success() && parsed(output)["fresh"] == true);
    assert!(fresh.count() <= 1, "one at most was told that it counted");
    assert_eq!(cli(lab, &["complete", &rollout, "--value", "0.75"])["fresh"], false);
    let tree = puzzle.tree(&search);
    let root = &tree["positions"][0];
    assert_eq!((&root["visits"], &root["mean"]), (&json!(2), &json!([0.375])));
    assert_eq!(tree["search"]["accepted"], 2);
    let taken: Vec<u64> =
        root["edges"].as_array().unwrap().iter().filter_map(|e| e["visits"].as_u64()).collect();
    assert_eq!(taken, [1, 0]);
}

/// The same command, killed after so many milliseconds.
fn killed_after(command: &Command, ms: u64) -> Command {
    let mut killed = Command::new("timeout");
    killed.args(["-s", "KILL", &format!("{:.3}", ms as f64 / 1000.0)]);
    killed.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    killed
}

#[test]
fn a_batch_is_counted_line_by_line() {
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let search = id(&cli(lab, &["create", &puzzle.node])["search"], "search_id");
    by_hand(&puzzle, &search, 0.0);
    let ticket = cli(lab, &["select", &search])["tickets"][0].clone();
    puzzle.file("actions.json", &actions(&["a", "b", "c", "d"]).to_string());
    let path = puzzle.path("actions.json").display().to_string();
    let first = id(&ticket, "rollout_id");
    cli(lab, &["expand", &first, "--actions", &path]);
    let more = cli(lab, &["select", &search, "-n", "10"]);
    assert_eq!(more["saturated"], true, "three edges are left: {more}");
    let mut rollouts = vec![first];
    rollouts.extend(more["tickets"].as_array().unwrap().iter().map(|ticket| id(ticket, "rollout_id")));
    assert_eq!(rollouts.len(), 4);
    let mut lines: Vec<String> =
        rollouts.iter().map(|rollout| json!({ "rollout_id": rollout, "value": [0.5] }).to_string()).collect();
    lines.push(lines[0].clone());
    lines.push(json!({ "rollout_id": rollouts[1], "value": [0.75] }).to_string());
    puzzle.file("batch", &lines.join("\n"));
    let batch = puzzle.path("batch").display().to_string();
    let output = lab.output(["-o", "json", "search", "complete", "--batch", &batch]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let completed = parsed(&output)["completed"].clone();
    let fresh: Vec<&Value> = completed.as_array().unwrap().iter().map(|answer| &answer["fresh"]).collect();
    assert_eq!(fresh, [&json!(true), &json!(true), &json!(true), &json!(true), &json!(false), &Value::Null]);
    assert_eq!(completed[5]["error"]["code"], "rollout_ended");
    assert_eq!(puzzle.show(&search)["accepted"], 5);
    puzzle.file("batch", "{\"rollout_id\":1}");
    assert_eq!(lab.refused(["search", "complete", "--batch", &batch]).code(), "bad_outcome");
}

/// A rollout whose lease is over goes to whoever asks next; its late outcome counts nowhere.
#[test]
fn a_late_outcome_counts_nowhere() {
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let search = id(&cli(lab, &["create", &puzzle.node])["search"], "search_id");
    let late = id(&cli(lab, &["select", &search, "--lease", "1ms"])["tickets"][0], "rollout_id");
    let next = id(&cli(lab, &["select", &search])["tickets"][0], "rollout_id");
    let refused = lab.refused(["search", "complete", &late, "--value", "1"]);
    assert_eq!((refused.exit, refused.code()), (4, "rollout_lapsed"), "{refused:?}");
    assert_eq!(cli(lab, &["extend", &late, &next])["lost"], json!([late]));
    cli(lab, &["complete", &next, "--value", "0.25"]);
    let tree = puzzle.tree(&search);
    assert_eq!(tree["positions"][0]["mean"], json!([0.25]));
    assert_eq!((&tree["search"]["accepted"], &tree["search"]["void"]), (&json!(1), &json!(1)));
}
