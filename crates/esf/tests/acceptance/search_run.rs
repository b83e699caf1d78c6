//! `esf search run`: proposers, evaluators and kills of every kind, and what must hold of the search afterwards.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::needs_root;
use crate::search::{PROPOSE, Puzzle, SCORE, SEARCH, cli};
use crate::support::*;

/// Offers what the file `actions` has.
const PROPOSE_FILE: &str = r#"while read -r line; do
  id=$(printf '%s' "$line" | sed 's/^{"id":\([0-9]*\).*/\1/')
  printf '{"id":%s,"exhausted":true,"actions":%s}\n' "$id" "$(cat actions)"
done
"#;

#[test]
fn the_driver_finds_the_answer_and_every_picture_shows_it() {
    needs_root!();
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let stop = "budget = { rollouts = 200 }\nstop = { reward = 1.0 }";
    let settings = puzzle.settings(
        &format!("{SEARCH}{stop}"),
        "parallel = 1\nterminal = [\"pass\"]\nfinal = \"evaluator.toml\"",
    );
    let output = puzzle.run("g", &settings);
    assert!(output.status.success(), "{}", said(&output));
    let reply = parsed(&output);
    assert_eq!(
        (&reply["search"]["stopped"], &reply["best"]["reward"]),
        (&json!("reward"), &json!(1.0)),
        "{reply}"
    );
    assert_eq!(reply["final"]["verdict"], "pass");
    assert_eq!(lab.cat(&id(&reply["best"], "node_id"), "digits"), b"123\n");
    assert_eq!(reply["best"]["actions"].as_array().unwrap().len(), 3);
    let search = id(&reply["search"], "search_id");
    let tree = puzzle.tree(&search);
    // A state is evaluated once, and the last one by the final evaluator again.
    let events = lab.text(["-o", "jsonl", "events"]);
    let evaluations = events.lines().filter(|line| line.contains("\"evaluated\"")).count();
    assert_eq!(evaluations, tree["positions"].as_array().unwrap().len() + 1);
    assert!(evaluations < usize::try_from(tree["search"]["accepted"].as_u64().unwrap()).unwrap());
    let dot = lab.text(["search", "export", &search, "--format", "dot"]);
    let svg = lab.text(["search", "export", &search, "--format", "svg"]);
    let to = lab.path("tree.html").display().to_string();
    lab.text(["search", "export", &search, "--format", "html", "--to", &to]);
    let html = fs::read_to_string(&to).unwrap();
    let positions = tree["positions"].as_array().unwrap().len();
    assert_eq!(svg.matches("<circle").count(), positions);
    assert_eq!(html.matches("<circle").count(), positions);
    assert!(dot.starts_with("digraph") && !html.contains("<script"));
    let watched = lab.text(["search", "watch", &search, "--once"]);
    assert!(watched.contains("stopped (reward)") && watched.contains("3=3"), "{watched}");
    let rows = lab.json(["search", "watch", &search, "--once"])["rows"].clone();
    let best = rows.as_array().unwrap().iter().filter(|row| row["status"].as_str().unwrap().contains("best"));
    assert_eq!(best.count(), 1, "{rows}");
    assert!(rows.to_string().contains("principal") && html.contains("principal"), "{rows}");
    assert_eq!(lab.json(["search", "show", &search])["best"]["node_id"], reply["best"]["node_id"]);
    assert_eq!(lab.inspect(&search)["search"]["search_id"], search.as_str());
    let rollout = lab.inspect(&search)["search"]["accepted"].clone();
    assert!(rollout.as_u64().is_some_and(|accepted| accepted < 200));
}

/// A driver that is killed where it happens to be, again and again; then the search is taken to its end, and its
/// losing part is given up.
#[test]
fn r03_a_driver_killed_50_times_counts_every_rollout_once() {
    needs_root!();
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let settings =
        puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 100000 }}"), "parallel = 3\nlease = \"1h\"");
    let search = id(&cli(lab, &["create", "g", "--config", &settings])["search"], "search_id");
    // Nothing lapses: what a dead driver held, the next one has to take to its end.
    let (mut state, mut held) = (0x9e37_79b9_u64, 0);
    for _ in 0..50 {
        let mut command = lab.esf(["search", "run", &search, "--config", &settings]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut driver = command.spawn().unwrap();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(20 + (state >> 33) % 480));
        driver.kill().unwrap();
        driver.wait().unwrap();
        let at = puzzle.show(&search);
        let [selected, accepted, void] =
            ["selected", "accepted", "void"].map(|field| at[field].as_u64().unwrap());
        held += u64::from(selected > accepted + void);
    }
    assert!(held > 20, "most kills came in the middle of rollouts: {held}");
    let wanted = puzzle.show(&search)["accepted"].as_u64().unwrap() + 10;
    let budget = wanted.to_string();
    let run = ["-o", "json", "search", "run", &search, "--config", &settings, "--budget-rollouts", &budget];
    let output = lab.output(run);
    assert!(output.status.success(), "{}", said(&output));
    let tree = puzzle.tree(&search);
    let record = &tree["search"];
    assert_eq!((&record["accepted"], &record["stopped"]), (&json!(wanted), &json!("rollouts")), "{record}");
    assert_eq!(tree["in_flight"], json!([]), "nothing is held by a driver that is dead");
    assert_eq!(record["selected"], json!(wanted + record["void"].as_u64().unwrap()));
    let positions = tree["positions"].as_array().unwrap().len();

    let plan = cli(lab, &["prune", &search, "--no-frontier", "--dry-run"]);
    let planned = plan["pruned"].as_array().unwrap().len();
    let given_up = usize::try_from(plan["positions"].as_u64().unwrap()).unwrap();
    // Several nodes can be one position.
    assert!(planned >= given_up && given_up > 0 && given_up < positions, "{plan}");
    let before = lab.json(["df"])["hot"].as_u64().unwrap();
    let done = cli(lab, &["prune", &search, "--no-frontier"]);
    assert_eq!(done["pruned"], plan["pruned"], "the plan is what is done");
    for node in done["pruned"].as_array().unwrap() {
        assert_eq!(lab.inspect(node.as_str().unwrap())["node"]["status"], "pruned");
    }
    let best = parsed(&output)["best"].clone();
    assert_eq!(lab.inspect(&id(&best, "node_id"))["node"]["status"], "sealed", "the best is kept");
    lab.text(["gc"]);
    lab.text(["gc"]);
    let after = lab.json(["df"])["hot"].as_u64().unwrap();
    assert!(after < before, "{after} of {before} bytes are left");
    let kept = puzzle.tree(&search);
    assert_eq!(kept["search"]["accepted"], wanted, "statistics stay");
    assert_eq!(kept["positions"][0]["mean"], tree["positions"][0]["mean"]);
}

#[test]
fn ctrl_c_gives_back_what_runs_and_the_next_run_goes_on() {
    needs_root!();
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    puzzle.file("own/score.sh", &format!("sleep 0.2\n{SCORE}"));
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 12 }}"), "parallel = 2");
    let mut command = lab.esf(["-o", "json", "search", "run", "g", "--config", &settings]);
    command.stdin(Stdio::null());
    let driver = Running::start(command);
    wait_until("two rollouts are accepted", || {
        puzzle.only_search().is_some_and(|search| puzzle.show(&search)["accepted"].as_u64().unwrap() >= 2)
    });
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(driver.pid()).unwrap()).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let asked = Instant::now();
    let output = driver.wait();
    assert!(asked.elapsed() < Duration::from_secs(5), "it ends at once");
    let refused = refusal(&output).unwrap();
    assert_eq!(refused.code(), "cancelled", "{refused:?}");
    let search = puzzle.only_search().unwrap();
    assert!(refused.error["remediation"].as_str().unwrap().contains(&search), "{refused:?}");
    let tree = puzzle.tree(&search);
    assert_eq!(tree["in_flight"], json!([]));
    assert_eq!(tree["search"]["status"], "open");
    let closed =
        tree["positions"][0]["edges"].as_array().unwrap().iter().filter(|edge| edge["status"] != "open");
    assert_eq!(closed.count(), 0, "what was given back closes nothing");
    let output = puzzle.run(&search, &settings);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(parsed(&output)["search"]["accepted"], 12);
    assert_eq!(puzzle.tree(&search)["search"]["in_flight"], Value::Null);
}

#[test]
fn bad_proposers_end_the_run_with_their_fault_and_the_search_stays() {
    needs_root!();
    let puzzle = Puzzle::new();
    let answer = r#"{\"id\":1,\"actions\":[{\"action\":{\"run\":[\"true\"]}}]}"#;
    let run = |name: &str| {
        format!("proposer = [\"sh\", \"{name}\"]\nproposer_timeout = \"400ms\"\nproposer_tries = 2")
    };
    for (name, script, code) in [
        ("dies", "read line; exit 3", "proposer_died"),
        ("hangs", "sleep 600", "proposer_timeout"),
        ("deaf", "exec sleep 600 < /dev/null", "proposer_timeout"),
        ("babbles", "read line; echo hello; sleep 600", "proposer_bad_answer"),
        (
            "long",
            "read line; head -c 10000000 /dev/zero | tr '\\0' x; echo; sleep 600",
            "proposer_bad_answer",
        ),
        ("endless", "yes '' | tr -d '\\n' ; head -c 10000000 /dev/zero", "proposer_timeout"),
        (
            "stranger",
            &format!(
                "read line; while true; do echo \"{}\"; sleep 0.01; done",
                answer.replace(":1,", ":99,")
            ),
            "proposer_bad_answer",
        ),
        (
            "nobody",
            &format!("read line; echo \"{}\"; sleep 600", answer.replace("]}}]", "]}}],\\\"to_move\\\":1")),
            "proposer_bad_answer",
        ),
        ("flood", &format!("read line; yes \"{}\"", answer.replace(":1,", ":99,")), "proposer_bad_answer"),
        (
            "refuses",
            "while read -r line; do echo \"$line\" | sed 's/^{\"id\":\\([0-9]*\\).*/{\"id\":\\1,\"error\":\"no model\"}/'; done",
            "proposer_error",
        ),
    ] {
        puzzle.file(name, script);
        let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 5 }}"), &run(name));
        let begun = Instant::now();
        let refused = refusal(&puzzle.run("g", &settings)).unwrap();
        assert_eq!((refused.exit, refused.code()), (125, code), "{name}: {refused:?}");
        assert!(refused.text().len() < 2000, "{name}: what is quoted is bounded");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}");
        assert_eq!(running(&["sleep", "600"]), 0, "{name}: nothing of it is left");
        let held = puzzle.lab.json(["search", "ls"])["searches"].clone();
        let of = |search: &Value, field: &str| search[field].as_u64().unwrap();
        for search in held.as_array().unwrap() {
            assert_eq!(
                of(search, "selected"),
                of(search, "accepted") + of(search, "void"),
                "{name}: {search}"
            );
        }
    }
    let searches = || puzzle.lab.json(["search", "ls"])["searches"].as_array().unwrap().len();
    let before = searches();
    // A proposer that cannot be started at all.
    let settings = puzzle.settings(SEARCH, "proposer = [\"./nothing\"]");
    assert_eq!(refusal(&puzzle.run("g", &settings)).unwrap().code(), "proposer_not_found");
    assert_eq!(searches(), before, "nothing is made for it");
    // Each left a search that another proposer can take to its end.
    let search = puzzle.only_search().unwrap();
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 5 }}"), "");
    let output = puzzle.run(&search, &settings);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(puzzle.tree(&search)["search"]["accepted"], 5);
}

/// However a driver ends, its proposer ends with it.
#[test]
fn a_killed_driver_leaves_no_proposer_behind() {
    needs_root!();
    let puzzle = Puzzle::new();
    puzzle.file("hangs", "exec sleep 601");
    let settings = puzzle.settings(SEARCH, "proposer = [\"sh\", \"hangs\"]");
    let driver = Running::start(puzzle.lab.esf(["search", "run", "g", "--config", &settings]));
    wait_until("the proposer hangs", || running(&["sleep", "601"]) == 1);
    drop(driver);
    wait_until("it is gone", || running(&["sleep", "601"]) == 0);
}

/// An evaluator that always breaks, at the root or where a leaf is visited again, ends the run.
#[test]
fn an_evaluator_that_always_breaks_ends_the_run() {
    needs_root!();
    let puzzle = Puzzle::new();
    for (evaluator, search) in [
        ("exit 1".to_owned(), "budget = { rollouts = 20 }"),
        // Only the root can be judged.
        (
            format!("[ \"$(cat digits)\" = 000 ] || exit 3\n{SCORE}"),
            "max_depth = 1\nedge_retries = 0\nbudget = { rollouts = 20 }",
        ),
    ] {
        puzzle.file("own/score.sh", &evaluator);
        let settings = puzzle.settings(search, "parallel = 2");
        let begun = Instant::now();
        let refused = refusal(&puzzle.run("g", &settings)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(refused.exit, 125, "{refused:?}");
        let expected = if evaluator == "exit 1" { "evaluator_failed" } else { "nothing_found" };
        assert_eq!(refused.code(), expected, "{refused:?}");
        if expected == "evaluator_failed" {
            let remedy = refused.error["remediation"].as_str().unwrap();
            assert!(remedy.contains(&format!("esf evaluate {} --evaluator", puzzle.node)), "{refused:?}");
        } else {
            assert!(refused.text().contains("of 9 actions failed with"), "{refused:?}");
        }
    }
    for search in puzzle.lab.json(["search", "ls"])["searches"].as_array().unwrap() {
        let tree = puzzle.tree(&id(search, "search_id"));
        assert_eq!(tree["in_flight"], json!([]), "nothing stays held");
        assert!(search["void"].as_u64().unwrap() <= 20, "{search}");
    }
}

/// Where nothing can be found the run says so.
#[test]
fn a_search_that_finds_nothing_fails_and_says_why() {
    needs_root!();
    let puzzle = Puzzle::new();
    puzzle.file("propose.sh", PROPOSE_FILE);
    for (actions, why) in [
        ("[]", "the proposer offered no action"),
        (
            r#"[{"action":{"run":["false"]}},{"action":{"run":["sh","-c","exit 1"]}}]"#,
            "2 of 2 actions failed with",
        ),
    ] {
        puzzle.file("actions", actions);
        let settings = puzzle.settings("leaf_value = \"first\"\nbudget = { rollouts = 4 }", "");
        let refused = refusal(&puzzle.run("g", &settings)).unwrap();
        assert_eq!((refused.exit, refused.code()), (125, "nothing_found"), "{refused:?}");
        assert!(refused.text().contains(why), "{refused:?}");
    }
    let settings = puzzle.settings("budget = { cost = 1.0 }", "");
    assert_eq!(refusal(&puzzle.run("g", &settings)).unwrap().code(), "not_supported");
}

/// An evaluator of a search of two players gives a value for each.
#[test]
fn a_run_of_two_values_takes_both_from_its_evaluator() {
    needs_root!();
    let puzzle = Puzzle::new();
    puzzle.file(
        "own/score.sh",
        "echo '{\"reward\": 0.5, \"verdict\": \"scored\", \"values\": [0.5, 0.25]}' > $ESF_RESULT",
    );
    let settings =
        puzzle.settings("leaf_value = \"first\"\nvalues = 2\nbudget = { rollouts = 3 }", "parallel = 1");
    let output = puzzle.run("g", &settings);
    assert!(output.status.success(), "{}", said(&output));
    let tree = puzzle.tree(&id_of(&parsed(&output)));
    assert_eq!(tree["positions"][0]["mean"], json!([0.5, 0.25]));
}

/// Repetitions are one edge; a proposer that ends after each answer is started again.
#[test]
fn a_proposer_that_repeats_itself_adds_nothing() {
    needs_root!();
    let puzzle = Puzzle::new();
    puzzle.file(
        "propose.sh",
        &PROPOSE
            .replace("${a#,}", "${a#,}$a$a")
            .replace("while read -r line; do", "read -r line\n{")
            .replace("\ndone\n", "\n}\n"),
    );
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 6 }}"), "parallel = 3");
    let output = puzzle.run("g", &settings);
    assert!(output.status.success(), "{}", said(&output));
    let search = puzzle.only_search().unwrap();
    let tree = puzzle.tree(&search);
    assert_eq!(tree["positions"][0]["edges"].as_array().unwrap().len(), 9);
}

/// What an action and an evaluation do wrong closes the edge; a reward of zero comes of none of it.
#[test]
fn actions_and_evaluators_that_fail_close_their_edges() {
    needs_root!();
    let puzzle = Puzzle::new();
    let offers = json!([
        { "action": { "run": ["false"] }, "name": "fails" },
        { "action": { "run": ["sleep", "60"] }, "name": "hangs" },
        { "action": { "run": ["no such program"] }, "name": "missing" },
        { "action": { "write": { "no/such/directory": "x" } }, "name": "nowhere" },
        { "action": { "write": { "digits": "hang\n" } }, "name": "evaluator hangs" },
        { "action": { "write": { "digits": "null\n" } }, "name": "no reward" },
        { "action": { "write": { "digits": "023\n", "new": "n" } }, "name": "good" },
        { "action": "append", "name": "applied" },
    ]);
    puzzle.file("propose.sh", PROPOSE_FILE);
    puzzle.file("actions", &offers.to_string());
    puzzle.file(
        "own/score.sh",
        &format!("case $(cat digits) in hang) sleep 60;; null) echo '{{\"verdict\":\"odd\"}}' > $ESF_RESULT; exit 0;; esac\n{SCORE}"),
    );
    let evaluator = fs::read_to_string(puzzle.path("evaluator.toml")).unwrap().replace("20s", "1s");
    puzzle.file("evaluator.toml", &evaluator);
    let settings = puzzle.settings(
        // Every edge once before any twice; what is left of the budget are visits of what is known.
        "policy = { kind = \"ucb1\", c = 1.0 }\nmax_depth = 1\nleaf_value = \"first\"\nedge_retries = 0\nbudget = { rollouts = 20 }",
        "parallel = 4\napply_timeout = \"1s\"\napply = [\"sh\", \"-c\", \"read -r a; [ \\\"$a\\\" = '\\\"append\\\"' ] && echo 1 >> digits\"]",
    );
    let output = puzzle.run("g", &settings);
    assert!(output.status.success(), "{}", said(&output));
    let reply = parsed(&output);
    assert_eq!(
        (&reply["search"]["stopped"], &reply["best"]["names"]),
        (&json!("rollouts"), &json!(["good"]))
    );
    let search = id_of(&reply);
    let tree = puzzle.tree(&search);
    let edges = tree["positions"][0]["edges"].as_array().unwrap();
    let of = |name: &str| edges.iter().find(|edge| edge["name"] == name).unwrap().clone();
    // An evaluator that says nothing of the action proves nothing of it.
    for (name, status, why) in [
        ("fails", "closed", "exit 1"),
        ("hangs", "closed", "no end"),
        ("missing", "closed", "127"),
        ("nowhere", "closed", "no/such"),
        ("evaluator hangs", "closed", "time"),
        ("no reward", "lost", "no reward"),
    ] {
        let edge = of(name);
        assert_eq!((&edge["status"], &edge["visits"]), (&json!(status), &json!(0)), "{edge}");
        let said = edge["closed_because"].as_str().unwrap_or_default();
        assert!(said.contains(why), "{name}: {said}");
    }
    for name in ["good", "applied"] {
        assert_eq!(of(name)["status"], "open", "{name}");
        assert!(of(name)["visits"].as_u64().is_some_and(|visits| visits > 0), "{name}");
    }
    assert_eq!(tree["positions"].as_array().unwrap().len(), 3, "the root, and what went well");
    assert_eq!(tree["search"]["void"], 6);
    let good = puzzle.lab.cat(reply["best"]["node_id"].as_str().unwrap(), "new");
    assert_eq!(good, b"n");
    // Drafts of what failed do not stay behind.
    let nodes = puzzle.lab.json(["ls", "g"]);
    let drafts = nodes["nodes"].as_array().unwrap().iter().filter(|node| node["status"] == "draft");
    assert_eq!(drafts.count(), 0, "{nodes}");
}

fn id_of(reply: &Value) -> String {
    id(&reply["search"], "search_id")
}

#[test]
fn a_run_needs_the_settings_of_its_search_and_a_driver_of_its_own() {
    needs_root!();
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 3 }}"), "");
    let search = id_of(&parsed(&puzzle.run("g", &settings)));
    // Raising the budget opens it again.
    let output =
        lab.output(["-o", "json", "search", "run", &search, "--config", &settings, "--budget-rollouts", "5"]);
    assert_eq!(parsed(&output)["search"]["accepted"], 5, "{}", said(&output));
    let other = puzzle.settings("seed = 9", "");
    assert_eq!(refusal(&puzzle.run(&search, &other)).unwrap().code(), "config_differs");
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 3 }}"), "");
    puzzle.file("own/score.sh", "exit 1");
    let refused = refusal(&puzzle.run(&search, &settings)).unwrap();
    assert_eq!(refused.code(), "config_differs", "another evaluator gives other values");
    puzzle.file("own/score.sh", SCORE);

    puzzle.file("slow.sh", "sleep 5");
    let slow = puzzle.settings(SEARCH, "proposer = [\"sh\", \"slow.sh\"]");
    let driver = Running::start(lab.esf(["search", "run", "g", "--config", &slow, "--idempotency-key", "k"]));
    wait_until("the second search is there", || {
        lab.json(["search", "ls"])["searches"].as_array().unwrap().len() == 2
    });
    let both = lab.json(["search", "ls"])["searches"].clone();
    let second = id(&both[1], "search_id");
    wait_until("it is run", || lab.store().join(format!("run-{second}.lock")).exists());
    assert_eq!(refusal(&puzzle.run(&second, &slow)).unwrap().code(), "search_is_run");
    drop(driver);

    puzzle.file("search.toml", "[search]\n");
    assert_eq!(refusal(&puzzle.run("g", &slow)).unwrap().code(), "bad_config");
    for bad in ["[run]\nproposer = []\nevaluator = \"evaluator.toml\"", "[search]\npolicy = 1", "x"] {
        puzzle.file("search.toml", bad);
        assert_eq!(refusal(&puzzle.run("g", &slow)).unwrap().exit, 2, "{bad}");
    }
    assert!(Path::new(&slow).exists());
}

/// An open search holds its nodes; those of a stopped one may be pruned, and when it goes on it does without them.
#[test]
fn a_pruned_node_in_the_frontier_is_done_without() {
    needs_root!();
    let puzzle = Puzzle::new();
    let lab = &puzzle.lab;
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 5 }}"), "");
    let output = puzzle.run("g", &settings);
    assert!(output.status.success(), "{}", said(&output));
    let search = id_of(&parsed(&output));
    let tree = puzzle.tree(&search);
    let leaf = tree["positions"].as_array().unwrap().last().unwrap().clone();
    let node = id(&leaf, "node_id");
    assert_eq!(leaf["expansion"], "unasked", "it is in the frontier");
    lab.json(["prune", &node]);
    let more = ["-o", "json", "search", "run", &search, "--config", &settings, "--budget-rollouts", "30"];
    let output = lab.output(more);
    assert!(output.status.success(), "{}", said(&output));
    let tree = puzzle.tree(&search);
    let there =
        tree["positions"].as_array().unwrap().iter().find(|position| position["node_id"] == leaf["node_id"]);
    assert_eq!(there.map(|position| &position["edges"]), Some(&json!([])), "nothing was begun there");
    assert_eq!(tree["search"]["accepted"], 30);

    // While the search is open its nodes stay.
    let settings = puzzle.settings(&format!("{SEARCH}budget = {{ rollouts = 1000 }}"), "");
    puzzle.file("propose.sh", "exit 1");
    assert_eq!(refusal(&puzzle.run("g", &settings)).unwrap().code(), "proposer_died");
    let refused = lab.refused(["prune", &puzzle.node]);
    assert_eq!(refused.exit, 4, "{refused:?}");
}
