//! The evaluator (P29, P30): what a tree plants and what its code does while it runs change no reward;
//! what fails is an error with a class and can be evaluated again; many nodes, many runs, many evaluators.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::needs_root;
use crate::support::{Lab, Running, holds_within, id, parsed, running, said};

/// Writes the evaluator `name`, its lines after name and version, and its own files; gives its path.
fn evaluator(lab: &Lab, name: &str, lines: &str, files: &[(&str, &str)]) -> String {
    let directory = lab.path(&format!("evaluator-{name}"));
    for (path, text) in files {
        let path = directory.join("own").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir_all(&directory).unwrap();
    let own = if files.is_empty() { "" } else { "files = \"own\"\n" };
    let path = directory.join("evaluator.toml");
    fs::write(&path, format!("name = \"{name}\"\nversion = \"1\"\ntimeout = \"20s\"\n{own}{lines}\n"))
        .unwrap();
    path.display().to_string()
}

#[track_caller]
fn evaluate(lab: &Lab, node: &str, evaluator: &str) -> Value {
    lab.json(["evaluate", node, "--evaluator", evaluator])["evaluation"].clone()
}

#[track_caller]
fn is(evaluation: &Value, verdict: &str, reward: Option<f64>) {
    assert_eq!(
        (evaluation["verdict"].as_str(), evaluation["reward"].as_f64()),
        (Some(verdict), reward),
        "{evaluation:#}"
    );
}

#[track_caller]
fn is_error(evaluation: &Value, class: &str) {
    is(evaluation, "error", None);
    assert_eq!(evaluation["failure"]["class"], class, "{evaluation:#}");
}

/// A tree whose program is wrong, and which does all it can to hide that: before it runs, and while it does.
fn cheating_tree(lab: &Lab) -> PathBuf {
    let tree = lab.tree("cheat", "mkdir -p tests bin reports elsewhere");
    let write = |path: &str, text: &str| fs::write(tree.join(path), text).unwrap();
    let good = r#"{"reward":1,"verdict":"pass"}"#;
    for path in ["result.json", "esf-result.json", "reward.txt", "planted.json"] {
        write(path, good);
    }
    let passes = "<testsuite tests='2'><testcase name='a'/><testcase name='b'/></testsuite>";
    write("report.xml", passes);
    write("elsewhere/junit.xml", passes);
    std::os::unix::fs::symlink("elsewhere", tree.join("linked")).unwrap();
    write("tests/run.sh", "echo the tests were replaced; exit 0\n");
    for path in ["python", "python3", "sh", "awk", "cat", "bin/python3"] {
        write(path, "#!/bin/sh\nexit 0\n");
    }
    write("conftest.py", "import os\nos._exit(0)\n");
    write("sitecustomize.py", "import os\nos._exit(0)\n");
    write("evil.pth", "import os; os._exit(0)\n");
    write(
        "program.sh",
        &format!(
            r#"
plant() {{
    mkdir -p /run/esf
    ln -sf "$PWD/planted.json" /run/esf/result.json || echo '{good}' > /run/esf/result.json
    echo '{good}' > "${{ESF_RESULT:-/run/esf/result.json}}"
}}
plant 2>/dev/null
echo '{passes}' > report.xml
echo 'exit 0' > tests/run.sh
rm -rf tests; mkdir -p tests; echo 'exit 0' > tests/run.sh
mount --bind /workspace/bin /run/esf/files
for python in /usr/lib/python3*; do
    site=/root/.local/lib/${{python##*/}}/site-packages
    mkdir -p "$site"; cp evil.pth "$site"; cp sitecustomize.py "$site/usercustomize.py"
done
echo 'exit 0' > /root/.profile; cp sh awk cat /tmp
(setsid sh -c 'exec >/dev/null; while :; do {background}; done' cheat-in-background &)
echo wrong
"#,
            background = "echo \"{\\\"reward\\\":1}\" > /run/esf/result.json; rm -f /run/esf/command.stdout"
        ),
    );
    sh(&tree, "chmod +x python python3 sh awk cat bin/python3");
    tree
}

fn sh(directory: &Path, script: &str) {
    crate::support::sh_in(directory, script);
}

const HIDE: &str = "hide = [\"conftest.py\", \"sitecustomize.py\", \"*.pth\"]";

#[test]
fn p30_a_tree_that_cheats_is_given_its_true_reward() {
    needs_root!();
    let lab = Lab::new();
    let cheat = lab.group("cheat", &cheating_tree(&lab));
    let honest = lab.group("honest", &lab.tree("honest", "echo 'echo right' > program.sh"));
    let run = "found=$(sh ./program.sh 2>/dev/null)\n[ \"$found\" = right ]\n";
    let tap = "echo 1..2; echo ok 1 - it runs\nif [ \"$(sh ./program.sh 2>/dev/null)\" = right ]; then echo ok 2; else echo not ok 2; fi\n";
    let junit = "bad=; [ \"$(sh ./program.sh 2>/dev/null)\" = right ] || bad='<failure/>'\n\
        rm -rf out.xml; echo \"<testsuite tests='2'><testcase name='a'/><testcase name='b'>$bad</testcase></testsuite>\" > out.xml\n";
    let score = "[ \"$ESF_COMMAND_OUTCOME\" = exit ] || exit 1\n\
        [ ! -e /root/.profile ] && [ ! -e /tmp/sh ] && [ -s \"$ESF_COLLECTED/found\" ] || exit 2\n\
        grep -q planted tests/run.sh && exit 3\n\
        if [ \"$(cat \"$ESF_COLLECTED/found\")\" = right ]; then reward=1 verdict=pass; else reward=0 verdict=fail; fi\n\
        printf '{\"reward\":%s,\"verdict\":\"%s\",\"metrics\":{\"code\":%s}}' $reward $verdict $ESF_COMMAND_CODE > $ESF_RESULT\n";
    let scored = "rm -rf found; sh ./program.sh 2>/dev/null > found; exit 7\n";
    let result = "out=$ESF_RESULT; unset ESF_RESULT\n\
        found=$(setpriv --reuid 1000 --regid 1000 --clear-groups sh ./program.sh 2>/dev/null)\n\
        if [ \"$found\" = right ]; then reward=1; else reward=0; fi\necho \"{\\\"reward\\\":$reward}\" > $out\n";
    // Without `collect` a scorer finds the tree as the command left it, but for what is hidden.
    let workspace = format!("echo forged > conftest.py; {scored}");
    let score_workspace = format!("[ ! -e conftest.py ] || exit 4\nESF_COLLECTED=.\n{score}");
    let command = format!("command = [\"sh\", \"tests/run.sh\"]\n{HIDE}\n");
    let rows = [
        ("exit", String::new(), vec![("tests/run.sh", run)], ("fail", 0.0), ("pass", 1.0)),
        (
            "tap",
            "report = { format = \"tap\" }".to_owned(),
            vec![("tests/run.sh", tap)],
            ("fail", 0.5),
            ("pass", 1.0),
        ),
        (
            "junit",
            "report = { format = \"junit\", path = \"out.xml\" }".to_owned(),
            vec![("tests/run.sh", junit)],
            ("fail", 0.5),
            ("pass", 1.0),
        ),
        (
            "score",
            "score = [\"sh\", \"/run/esf/files/score.sh\"]\ncollect = { found = \"found\" }".to_owned(),
            vec![("tests/run.sh", scored), ("score.sh", score)],
            ("fail", 0.0),
            ("pass", 1.0),
        ),
        (
            "workspace",
            "score = [\"sh\", \"score.sh\"]".to_owned(),
            vec![("tests/run.sh", &*workspace), ("score.sh", &*score_workspace)],
            ("fail", 0.0),
            ("pass", 1.0),
        ),
        ("result", String::new(), vec![("tests/run.sh", result)], ("scored", 0.0), ("scored", 1.0)),
    ];
    for (name, lines, files, cheated, true_one) in rows {
        if name == "result" && !Path::new("/usr/bin/setpriv").exists() {
            println!("left out: no setpriv here");
            continue;
        }
        let file = evaluator(&lab, name, &format!("{command}{lines}"), &files);
        is(&evaluate(&lab, &cheat, &file), cheated.0, Some(cheated.1));
        is(&evaluate(&lab, &honest, &file), true_one.0, Some(true_one.1));
    }
    assert_eq!(running(&["cheat-in-background"]), 0);
}

/// What is sealed at the place of a report is never taken for one, and nor is anything behind a link.
#[test]
fn p30_a_planted_report_is_no_report() {
    needs_root!();
    let lab = Lab::new();
    let cheat = lab.group("cheat", &cheating_tree(&lab));
    let junit = |path: &str| format!("report = {{ format = \"junit\", path = \"{path}\" }}\n");
    let write = "echo '<testsuite><testcase/></testsuite>' >";
    let rows = [
        ("planted", "report.xml", "true".to_owned(), "there is none"),
        ("no-directory", "none/report.xml", "true".to_owned(), "there is none"),
        ("linked-directory", "linked/junit.xml", "true".to_owned(), "symlink"),
        ("through-a-link", "linked/junit.xml", format!("{write} linked/junit.xml"), "symlink"),
        ("link", "new.xml", "ln -s elsewhere/junit.xml new.xml".to_owned(), "symlink"),
        ("fifo", "new.xml", "mkfifo new.xml".to_owned(), "fifo"),
        ("directory", "new.xml", "mkdir new.xml".to_owned(), "directory"),
        ("endless", "new.xml", "truncate -s 1T new.xml".to_owned(), "at most"),
        ("cut", "new.xml", "echo '<testsuite><testcase/>' > new.xml".to_owned(), "cut short"),
        ("entities", "new.xml", "echo '<!DOCTYPE a><testsuite/>' > new.xml".to_owned(), "document type"),
        ("nan", "new.xml", "echo '<testsuite tests=\"NaN\"/>' > new.xml".to_owned(), "count"),
        ("none", "new.xml", "echo '<testsuite/>' > new.xml".to_owned(), "none"),
    ];
    for (name, path, command, said) in rows {
        let lines = format!("command = [\"sh\", \"-c\", '''{command}''']\n{}", junit(path));
        let evaluation = evaluate(&lab, &cheat, &evaluator(&lab, name, &lines, &[]));
        is_error(&evaluation, "evaluator_error");
        assert!(evaluation["failure"]["detail"].as_str().unwrap().contains(said), "{name}: {evaluation:#}");
    }
    let lines = format!("command = [\"sh\", \"-c\", '''{write} report.xml''']\n{}", junit("report.xml"));
    is(&evaluate(&lab, &cheat, &evaluator(&lab, "own", &lines, &[])), "pass", Some(1.0));
    let taken =
        evaluator(&lab, "taken", &format!("command = [\"true\"]\n{}", junit("r/a.xml")), &[("r/a.xml", "x")]);
    let refused = lab.refused(["evaluate", &cheat, "--evaluator", &taken]);
    assert_eq!(refused.code(), "bad_evaluator", "{refused:?}");
}

/// Nobody but an evaluator that speaks of a result writes one; two, odd ones and none are refused.
#[test]
fn p30_a_result_is_one_finite_file_of_the_evaluators() {
    needs_root!();
    let lab = Lab::new();
    let forge = "mkdir -p /run/esf; echo '{\"reward\":100}' > /run/esf/result.json; exit 1";
    let tree = lab.tree("t", &format!("cat > test.sh <<'END'\n{forge}\nEND\necho 1 > one"));
    let node = lab.group("g", &tree);
    // The evaluator has files, but none of its words is about a result.
    let exit = evaluator(&lab, "exit", "command = [\"sh\", \"test.sh\"]", &[("own.txt", "cases")]);
    is(&evaluate(&lab, &node, &exit), "fail", Some(0.0));
    let never = evaluator(
        &lab,
        "never",
        "result = false\ncommand = [\"sh\", \"-c\", \"[ -z \\\"$ESF_RESULT\\\" ]\"]",
        &[],
    );
    is(&evaluate(&lab, &node, &never), "pass", Some(1.0));
    let rows = [
        ("two", "echo '{\"reward\":1}{\"reward\":0}' > $ESF_RESULT"),
        ("twice", "echo '{\"reward\":1,\"reward\":0}' > $ESF_RESULT"),
        ("nan", "echo '{\"reward\":NaN}' > $ESF_RESULT"),
        ("infinite", "echo '{\"reward\":1e999}' > $ESF_RESULT"),
        ("metric", "echo '{\"reward\":1,\"metrics\":{\"a\":-Infinity}}' > $ESF_RESULT"),
        ("empty", ": > $ESF_RESULT"),
        ("missing", ": $ESF_RESULT"),
        ("broke", ": $ESF_RESULT; exit 3"),
        ("link", "echo '{\"reward\":1}' > a; ln -s $PWD/a $ESF_RESULT"),
        ("endless", "truncate -s 1G $ESF_RESULT"),
    ];
    for (name, script) in rows {
        let lines = format!("command = [\"sh\", \"-c\", '''{script}''']");
        is_error(&evaluate(&lab, &node, &evaluator(&lab, name, &lines, &[])), "evaluator_error");
    }
    let late = "(setsid sh -c 'sleep 0.3; echo \"{\\\"reward\\\":9}\" > /run/esf/result.json' &); echo '{\"reward\":0.25}' > $ESF_RESULT";
    let lines = format!("command = [\"sh\", \"-c\", '''{late}''']");
    is(&evaluate(&lab, &node, &evaluator(&lab, "late", &lines, &[])), "scored", Some(0.25));
    let user =
        evaluator(&lab, "user", "user = \"1000\"\ncommand = [\"sh\", \"-c\", \"[ $(id -u) = 1000 ]\"]", &[]);
    is(&evaluate(&lab, &node, &user), "pass", Some(1.0));
}

#[test]
fn p29_what_fails_is_an_error_and_is_evaluated_again_without_the_agent() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    let node = lab.step(&base, "echo b > b");
    let work = || {
        let all = lab.json(["ps", "--all"]);
        let attempts = all["attempts"].as_array().unwrap().clone();
        attempts.iter().filter(|attempt| attempt["purpose"] == "work").count()
    };
    let before = work();
    let score = "score = [\"sh\", \"-c\", \"echo '{}' > $ESF_RESULT\"]\n";
    let eat = "x=a; while :; do x=$x$x; done";
    let rows = [
        ("oom", format!("limits = {{ memory = \"24m\" }}\ncommand = [\"sh\", \"-c\", \"{eat}\"]"), "user_oom"),
        ("slow", "timeout = \"300ms\"\ncommand = [\"sleep\", \"60\"]".to_owned(), "user_timeout"),
        ("killed", "command = [\"sh\", \"-c\", \"kill -9 $$\"]".to_owned(), "user_exit"),
        ("absent", "command = [\"no-such-program\"]".to_owned(), "evaluator_error"),
        ("mute", "command = [\"true\"]\nscore = [\"true\"]".to_owned(), "evaluator_error"),
        ("odd", format!("command = [\"true\"]\n{score}"), "evaluator_error"),
        ("bail", "report = { format = \"tap\" }\ncommand = [\"sh\", \"-c\", \"echo 1..2; echo ok; echo 'Bail out! no'\"]".to_owned(), "evaluator_error"),
        ("unsaid", "report = { format = \"tap\" }\ncommand = [\"sh\", \"-c\", \"echo 1..1; echo ok; exit 3\"]".to_owned(), "evaluator_error"),
    ];
    for (name, lines, class) in rows {
        let file = evaluator(&lab, name, &lines, &[]);
        if name == "slow" {
            // The helper's own time-out comes first.
            let text = fs::read_to_string(&file).unwrap().replacen("timeout = \"20s\"\n", "", 1);
            fs::write(&file, text).unwrap();
        }
        is_error(&evaluate(&lab, &node, &file), class);
    }
    // The worker is killed while it runs; the same evaluator under a new key then does it.
    let flag = lab.path("go");
    let slow =
        evaluator(&lab, "worker", "command = [\"sh\", \"-c\", \"[ -e a ] && [ -e b ] && sleep 2.71\"]", &[]);
    let running_one = Running::start(lab.esf(["-o", "json", "evaluate", &node, "--evaluator", &slow]));
    assert!(holds_within(crate::support::PATIENCE, || running(&["sleep", "2.71"]) > 0));
    lab.kill_worker();
    let output = running_one.wait();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    is_error(&parsed(&output)["evaluation"], "infra_lost");
    is(&evaluate(&lab, &node, &slow), "pass", Some(1.0));
    assert_eq!(work(), before, "no agent ran again");
    assert!(!flag.exists());
    // All of them are on record, apart from each other.
    let evaluations = lab.inspect(&node)["evaluations"].as_array().unwrap().clone();
    let mut digests: Vec<_> = evaluations.iter().map(|one| id(one, "evaluator_digest")).collect();
    digests.sort();
    digests.dedup();
    assert_eq!((evaluations.len(), digests.len()), (10, 9));
}

/// A plan of three of which one came, by whatever end of the command's own: two failed.
#[test]
fn a_test_that_was_planned_and_never_came_has_failed() {
    needs_root!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo 'exit 0' > exits.sh"));
    let lines = "report = { format = \"tap\" }\ncommand = [\"sh\", \"-c\", \"echo 1..3; echo ok 1; . ./exits.sh; echo ok 2; echo ok 3\"]";
    let evaluation = evaluate(&lab, &node, &evaluator(&lab, "tap", lines, &[]));
    is(&evaluation, "fail", Some(1.0 / 3.0));
    assert_eq!(
        (&evaluation["metrics"]["missing"], &evaluation["metrics"]["tests"]),
        (&2.0.into(), &3.0.into())
    );
}

#[test]
fn a_frontier_is_evaluated_at_once_and_what_fails_stops_nothing() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo 0 > n"));
    let draft = lab.fork(&base);
    let sealed = [1, 2, 3].map(|n| lab.step(&base, &format!("echo {n} > n")));
    let lines = "command = [\"sh\", \"-c\", '''printf '{\"reward\":%s,\"metrics\":{\"n\":%s}}' $(cat n) $(cat n) > $ESF_RESULT''']";
    let file = evaluator(&lab, "n", lines, &[]);
    let attempts = || lab.json(["ps", "--all"])["attempts"].as_array().unwrap().len();
    let words = |parallel| {
        let mut words = vec!["-o", "json", "--idempotency-key", "batch", "evaluate"];
        words.extend([sealed[0].as_str(), &draft, &sealed[1], "nod_none", &sealed[2], &sealed[0]]);
        words.extend(["--evaluator", &file, "--parallel", parallel]);
        words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>()
    };
    let output = lab.output(words("3"));
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let told = parsed(&output);
    let rewards: Vec<_> =
        told["evaluations"].as_array().unwrap().iter().map(|one| one["reward"].as_f64()).collect();
    assert_eq!(rewards, [Some(1.0), Some(2.0), Some(3.0)], "in the order of the nodes");
    let failed: Vec<_> =
        told["failed"].as_array().unwrap().iter().map(|one| id(&one["error"], "code")).collect();
    assert_eq!(failed, ["not_sealed", "not_found"], "{told:#}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("3/3"), "{}", said(&output));
    // The same request again runs nothing.
    let before = attempts();
    assert_eq!(parsed(&lab.output(words("1"))), told);
    assert_eq!(attempts(), before);
    assert_eq!(lab.json(["ps"])["attempts"].as_array().unwrap().len(), 0, "every sandbox is gone");
}

#[test]
fn repeated_runs_are_kept_and_their_numbers_aggregated() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo 0 > n"));
    let other = lab.step(&base, "echo 1 > n");
    let lines = "command = [\"sh\", \"-c\", '''n=$(printf %s $ESF_ATTEMPT | cksum | cut -c1-3); printf '{\"reward\":%s,\"metrics\":{\"twice\":%s,\"one\":1}}' $n $((n * 2)) > $ESF_RESULT''']";
    let file = evaluator(&lab, "n", lines, &[]);
    let told = lab.json(["evaluate", &base, "--evaluator", &file, "--repeat", "4", "--parallel", "2"]);
    let rewards: Vec<f64> =
        told["evaluations"].as_array().unwrap().iter().map(|one| one["reward"].as_f64().unwrap()).collect();
    let mean = rewards.iter().sum::<f64>() / 4.0;
    let variance = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / 4.0;
    let close = |value: &Value, expected: f64| {
        assert!((value.as_f64().unwrap() - expected).abs() < 1e-6 * expected.max(1.0), "{value} {expected}");
    };
    assert!(variance > 0.0, "{rewards:?}");
    close(&told["reward_mean"], mean);
    close(&told["reward_variance"], variance);
    close(&told["metrics"]["twice"]["mean"], 2.0 * mean);
    close(&told["metrics"]["twice"]["variance"], 4.0 * variance);
    assert_eq!(told["metrics"]["one"]["variance"], 0.0);
    assert_eq!(told["evaluation"], told["evaluations"][3]);
    assert_eq!(lab.inspect(&base)["evaluations"].as_array().unwrap().len(), 4, "kept as records");
    let both =
        lab.json(["evaluate", &base, &other, "--evaluator", &file, "--repeat", "2", "--parallel", "4"]);
    assert_eq!(both["evaluations"].as_array().unwrap().len(), 4);
    let nodes: Vec<_> = both["nodes"].as_array().unwrap().iter().map(|node| id(node, "node_id")).collect();
    assert_eq!(nodes, [base, other]);
    assert_eq!(both["nodes"][1]["rewards"], 2);
}

/// An interrupted evaluation leaves no record, and the same key runs it anew, in a sandbox of its own.
#[test]
fn an_interrupted_evaluation_is_run_anew() {
    needs_root!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo 0 > n"));
    let slow = evaluator(
        &lab,
        "slow",
        "command = [\"sh\", \"-c\", \"[ ! -e dirty ] && touch dirty && exec sleep 2.72\"]",
        &[],
    );
    let words = ["-o", "json", "--idempotency-key", "k", "evaluate", &node, "--evaluator", &slow];
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let child = Running::start(lab.esf(words));
        assert!(holds_within(crate::support::PATIENCE, || running(&["sleep", "2.72"]) > 0));
        let pid = rustix::process::Pid::from_raw(child.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        let output = child.wait();
        assert_ne!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(lab.inspect(&node)["evaluations"].as_array().unwrap().len(), 0);
        assert!(holds_within(crate::support::PATIENCE, || running(&["sleep", "2.72"]) == 0));
    }
    let output = lab.output(words);
    is(&parsed(&output)["evaluation"], "pass", Some(1.0));
}

/// A runner of the evaluator's own, apart from the tree: modules that the tree plants are not what it loads.
#[test]
fn p30_planted_modules_are_not_what_a_runner_loads() {
    needs_root!();
    let lab = Lab::new();
    let forged = "import os; print('1..1'); print('ok 1', flush=True); os._exit(0)";
    let tree = lab.tree(
        "t",
        "mkdir importlib && echo 'def f(): return 1' > code.py && echo 'def f(): return 2' > right.py",
    );
    for module in
        ["importlib/__init__.py", "unittest.py", "ast.py", "sitecustomize.py", "usercustomize.py", "os.py"]
    {
        fs::write(tree.join(module), forged).unwrap();
    }
    let runner = "import os, sys\nsys.path.append(os.getcwd())\nimport importlib.util, unittest, ast\nimport code as taken\n\
        spec = importlib.util.spec_from_file_location('tried', os.environ['TRIED'])\n\
        tried = importlib.util.module_from_spec(spec); spec.loader.exec_module(tried)\n\
        print('1..1')\nprint('ok 1' if tried.f() == 2 else 'not ok 1')\n";
    let node = lab.group("g", &tree);
    for (tried, reward) in [("code.py", 0.0), ("right.py", 1.0)] {
        let lines = format!(
            "command = [\"python3\", \"-I\", \"-B\", \"/run/esf/files/run.py\"]\nreport = {{ format = \"tap\" }}\n\
             environment = {{ TRIED = \"{tried}\" }}"
        );
        let path = evaluator(&lab, tried.trim_end_matches(".py"), &lines, &[("run.py", runner)]);
        is(&evaluate(&lab, &node, &path), if reward == 1.0 { "pass" } else { "fail" }, Some(reward));
    }
}

/// What a broken evaluator said last is in the failure.
#[test]
fn a_failure_repeats_what_the_program_said() {
    needs_root!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo a > a"));
    let lines = "command = [\"sh\", \"-c\", \"echo no module foo >&2\"]\nreport = { format = \"tap\" }";
    let evaluation = evaluate(&lab, &node, &evaluator(&lab, "broken", lines, &[]));
    is_error(&evaluation, "evaluator_error");
    assert!(evaluation["failure"]["detail"].as_str().unwrap().contains("no module foo"), "{evaluation:#}");
}
