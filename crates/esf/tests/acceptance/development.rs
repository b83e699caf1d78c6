//! Many agents on one project: tasks, reviews and the merge queue (M05), and that no work is lost by the way (P39).
//! P38 is in `concurrency.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::needs_root;
use crate::support::*;

/// What one of the sixty-four does, and what must become of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Writes a file of its own.
    Alone,
    /// Rewrites one of the shared files; another agent rewrites it too.
    Shared(usize),
    /// Leaves what the check does not let through.
    Bad,
    /// Writes a file of its own, which a reviewer rejects.
    Rejected,
}

const AGENTS: usize = 64;

fn part(agent: usize) -> Part {
    match agent % 8 {
        0 | 1 | 4 | 5 => Part::Alone,
        2 | 6 => Part::Shared(agent / 8),
        3 => Part::Bad,
        _ => Part::Rejected,
    }
}

fn script(agent: usize) -> String {
    match part(agent) {
        Part::Alone | Part::Rejected => format!("echo {agent} > own/{agent}"),
        Part::Shared(at) => format!("echo {agent} > shared/{at}"),
        Part::Bad => format!("echo {agent} > own/bad{agent}"),
    }
}

fn check(lab: &Lab) -> PathBuf {
    let path = lab.path("check.toml");
    let text = "name = \"check\"\nversion = \"1\"\ncommand = [\"sh\", \"-c\", \"! ls own | grep -q bad\"]\n";
    fs::write(&path, text).unwrap();
    path
}

/// A group whose policy trusts one reviewer.
fn project(lab: &Lab, script: &str) -> String {
    let policy = lab.path("policy.toml");
    fs::write(&policy, "trusted_actors = [\"reviewer\"]\n").unwrap();
    let tree = lab.tree("t", script).display().to_string();
    let policy = policy.display().to_string();
    let made = lab.json(["group", "create", "g", "--from", &tree, "--policy", &policy]);
    id(&made["group"], "canonical_node_id")
}

/// A task; gives its draft.
fn task(lab: &Lab, name: &str) -> String {
    id(&lab.json(["task", "create", "g", "--name", name, "--goal", "g"])["task"], "first_node_id")
}

/// A task whose agent has run `script` and submitted; gives the sealed node.
fn submitted(lab: &Lab, name: &str, script: &str) -> String {
    let draft = task(lab, name);
    let node = id(&lab.json(["run", &draft, "--", "sh", "-c", script])["node"], "node_id");
    lab.json(["task", "submit", &format!("g:{name}")]);
    node
}

/// Every entry there ever was, by the name of its task.
fn entries(lab: &Lab) -> BTreeMap<String, Value> {
    let tasks = lab.json(["task", "ls", "g"]);
    let tasks = tasks["tasks"].as_array().unwrap().iter();
    let names: BTreeMap<_, _> = tasks.map(|task| (id(task, "task_id"), id(task, "name"))).collect();
    let all = lab.json(["queue", "ls", "g", "--all"]);
    let all = all["entries"].as_array().unwrap().iter();
    all.map(|entry| (names[&id(entry, "task_id")].clone(), entry.clone())).collect()
}

fn ended(lab: &Lab) -> usize {
    entries(lab).values().filter(|entry| entry["status"] != "queued").count()
}

/// M05. The runner is killed three times on its way, which must change nothing.
#[test]
fn m05_sixty_four_agents_on_one_project() {
    needs_root!();
    let lab = Lab::new();
    let base = project(
        &lab,
        "mkdir own shared; : > own/.keep; for i in 0 1 2 3 4 5 6 7; do echo b > shared/$i; done",
    );
    let generation = lab.inspect("g")["group"]["generation"].as_u64().unwrap();
    let work = |agent: usize| {
        submitted(&lab, &format!("a{agent}"), &script(agent));
        if part(agent) == Part::Rejected {
            let name = format!("g:a{agent}");
            lab.json(["--actor", "reviewer", "review", "add", &name, "--verdict", "reject"]);
        }
    };
    std::thread::scope(|scope| {
        for lane in 0..8 {
            scope.spawn(move || (lane..AGENTS).step_by(8).for_each(work));
        }
    });
    let check = check(&lab).display().to_string();
    let run = ["-o", "json", "queue", "run", "g", "--evaluator", &check];
    let mut killed = 0;
    for after in [3, 20, 40] {
        let mut runner = Running::start(lab.esf(run));
        wait_until("some entries have ended", || runner.is_over() || ended(&lab) >= after);
        kill(runner.pid());
        killed += usize::from(runner.wait().status.code().is_none());
    }
    assert!(killed > 0, "each was over before it could be killed");
    lab.json(&run[2..]);

    let entries = entries(&lab);
    assert_eq!(entries.len(), AGENTS);
    let line = lab.json(["log", "g:@"]);
    let integrated = |agent: usize| entries[&format!("a{agent}")]["status"] == "integrated";
    let mut accepted = 0;
    for agent in 0..AGENTS {
        let entry = &entries[&format!("a{agent}")];
        let outcome = &entry["outcome"];
        let reason = outcome["why"]["reason"].as_str();
        let file = match part(agent) {
            Part::Shared(at) => format!("g:@:shared/{at}"),
            Part::Bad => format!("g:@:own/bad{agent}"),
            Part::Alone | Part::Rejected => format!("g:@:own/{agent}"),
        };
        let there = lab.output(["cat", &file]);
        assert_eq!(there.stdout == format!("{agent}\n").as_bytes(), integrated(agent), "{agent}: {entry}");
        match part(agent) {
            Part::Alone => assert!(integrated(agent), "{entry}"),
            Part::Bad => {
                assert_eq!((reason, &outcome["why"]["failed"][0]), (Some("checks"), &"check".into()))
            }
            Part::Rejected => assert_eq!(reason, Some("reviews"), "{entry}"),
            Part::Shared(at) => {
                let other = if agent % 8 == 2 { agent + 4 } else { agent - 4 };
                assert_ne!(integrated(agent), integrated(other), "one of {agent} and {other}");
                if !integrated(agent) {
                    let conflict = &outcome["why"]["conflicts"][0];
                    assert_eq!(
                        (reason, &conflict["path"]),
                        (Some("conflicts"), &format!("shared/{at}").into())
                    );
                    assert_eq!(conflict["integrated_by"][0]["task"], format!("a{other}"), "{entry}");
                }
            }
        }
        if integrated(agent) {
            accepted += 1;
            let task = lab.json(["task", "show", &format!("g:a{agent}")])["task"].clone();
            assert_eq!(task["integrated_as"], outcome["result_node_id"]);
        } else {
            assert!(outcome["remedy"].as_str().is_some_and(|remedy| remedy.contains("esf ")), "{entry}");
            let against = id(outcome, "against");
            assert!(against == base || line.to_string().contains(&against), "{against} was never canonical");
        }
    }
    assert_eq!(accepted, 32 + 8);
    assert_eq!(lab.inspect("g")["group"]["generation"], generation + accepted, "each was promoted once");
    lab.json(["fsck"]);
}

/// A conflict tells where the work goes on; what is resolved there is integrated.
#[test]
fn m05_a_loser_resolves_where_it_is_told_to() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; echo b > f");
    let first = submitted(&lab, "first", "echo 1 > f; echo 1 > own/1");
    let second = submitted(&lab, "second", "echo 2 > f; echo 2 > own/2");
    let refused = lab.refused(["prune", &second]);
    assert_eq!(refused.code(), "queued", "{refused:?}");
    let check = check(&lab).display().to_string();
    let run = ["queue", "run", "g", "--evaluator", &check];
    lab.json(run);
    let group = lab.inspect("g")["group"].clone();
    assert_eq!(group["canonical_node_id"], first.as_str(), "nothing had moved: the node itself");
    let shown = lab.json(["task", "show", "g:second"]);
    let outcome = &shown["entries"][0]["outcome"];
    let draft = id(&outcome["why"], "draft_node_id");
    let conflict = &outcome["why"]["conflicts"][0];
    assert_eq!(
        (&conflict["path"], &conflict["kind"], &conflict["integrated_by"][0]["task"]),
        (&"f".into(), &"content".into(), &"first".into())
    );
    assert_eq!((shown["task"]["status"].as_str(), id(outcome, "against")), (Some("open"), first.clone()));
    let refused = lab.refused(["promote", &draft, "--expect", "1"]);
    assert_eq!(refused.exit, 4, "{refused:?}");
    lab.json(["run", &draft, "--", "sh", "-c", "echo 12 > f"]);
    lab.json(["task", "submit", "g:second"]);
    lab.json(run);
    for (path, text) in [("f", "12\n"), ("own/1", "1\n"), ("own/2", "2\n")] {
        assert_eq!(lab.cat("g:@", path), text.as_bytes(), "{path}");
    }
    assert_eq!(lab.json(["task", "show", "g:second"])["task"]["status"], "integrated");
}

/// Two edits of one file, on different lines: they conflict, unless lines are to be merged.
#[test]
fn m05_lines_are_merged_when_that_is_said() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; seq 9 > f");
    submitted(&lab, "top", "sed -i 1s/1/one/ f");
    submitted(&lab, "end", "sed -i 9s/9/nine/ f");
    let check = check(&lab).display().to_string();
    let refused = lab.output(["queue", "run", "g", "--text", "--unchecked"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    lab.json(["queue", "run", "g", "--text", "--evaluator", &check]);
    assert_eq!(lab.cat("g:@", "f"), b"one\n2\n3\n4\n5\n6\n7\n8\nnine\n");
    let canonical = lab.inspect("g:@");
    assert_eq!(canonical["integrated_tasks"][0]["name"], "end", "{canonical}");
    assert_eq!(canonical["evaluations"][0]["verdict"], "pass", "{canonical}");
}

/// An evaluator that broke and was mended under the same name is another one, and what waits behind it is looked at.
#[test]
fn m05_a_mended_evaluator_takes_up_what_waits() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; echo b > own/b");
    submitted(&lab, "first", "echo 1 > own/1");
    let path = lab.path("tests.toml");
    let write = |lines: &str| {
        fs::write(&path, format!("name = \"tests\"\nversion = \"1\"\n{lines}\n")).unwrap();
    };
    let file = path.display().to_string();
    let run = ["queue", "run", "g", "--evaluator", &file];
    write("timeout = \"300ms\"\ncommand = [\"sleep\", \"60\"]");
    let waits = lab.json(run);
    assert_eq!(waits["waiting"][0]["task"], "first", "{waits}");
    submitted(&lab, "innocent", "echo 2 > own/2");
    write("command = [\"true\"]");
    let ran = lab.json(run);
    assert_eq!(ran["entries"].as_array().unwrap().len(), 2, "{ran}");
    assert!(entries(&lab).values().all(|entry| entry["status"] == "integrated"), "{ran}");
}

/// What is wrong with one entry is said at the end, and stops none of the others.
#[test]
fn m05_one_entry_that_fails_stops_no_other() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; echo b > own/b");
    let names = ["first", "second", "third"];
    let nodes = names.map(|name| submitted(&lab, name, &format!("echo {name} > own/{name}")));
    lab.json(["queue", "run", "g", "--unchecked", "--max", "1"]);
    // Another request has the key under which the second is going to be merged.
    let generation = lab.inspect("g")["group"]["generation"].to_string();
    let key = format!("queue/{}/{generation}/merge", id(&entries(&lab)["second"], "entry_id"));
    lab.json(["--idempotency-key", &key, "merge", &nodes[1], &nodes[2], "--expect", &generation]);
    let refused = lab.refused(["queue", "run", "g", "--unchecked"]);
    assert_eq!((refused.code(), refused.exit), ("idempotency_conflict", 4), "{refused:?}");
    let status = |name: &str| entries(&lab)[name]["status"].as_str().unwrap().to_owned();
    assert_eq!(names.map(status), ["integrated", "queued", "integrated"]);
    lab.json(["queue", "run", "g", "--unchecked"]);
    assert_eq!(entries(&lab)["second"]["status"], "integrated", "at another generation");
}

/// The same command under the same key is the same request, though the task has a newer node by now.
#[test]
fn m05_a_repeated_command_means_the_node_of_the_first_time() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; echo b > own/b");
    let node =
        id(&lab.json(["run", &task(&lab, "a"), "--", "sh", "-c", "echo 1 > own/1"])["node"], "node_id");
    let submit = ["--idempotency-key", "s", "task", "submit", "g:a"];
    let add = ["--idempotency-key", "r", "review", "add", "g:a", "--verdict", "comment"];
    let first = [lab.json(submit), lab.json(add)];
    lab.json(["task", "withdraw", "g:a"]);
    lab.json(["run", &node, "--", "sh", "-c", "echo 2 > own/2"]);
    assert_eq!([lab.json(submit), lab.json(add)], first);
    let other = [&submit[..], &["--priority", "7"]].concat();
    assert_eq!(lab.refused(other).code(), "idempotency_conflict");
    task(&lab, "b");
    assert_eq!(lab.refused(["--idempotency-key", "s", "task", "submit", "g:b"]).code(), "not_sealed");
}

/// Of several ends none is picked in silence; a merge joins them.
#[test]
fn m05_several_ends_are_told_and_joined() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; echo b > own/b");
    let run =
        |node: &str, script: &str| id(&lab.json(["run", node, "--", "sh", "-c", script])["node"], "node_id");
    let node = run(&task(&lab, "a"), "echo 1 > own/1");
    assert_eq!(lab.json(["task", "show", "g:a"])["goes_on_at"], node.as_str());
    let ends = ["2", "3"].map(|at| run(&node, &format!("echo {at} > own/{at}")));
    let shown = lab.json(["task", "show", "g:a"]);
    assert_eq!((&shown["goes_on_at"], &shown["ends"]), (&Value::Null, &ends.to_vec().into()), "{shown}");
    assert!(lab.text(["task", "show", "g:a"]).contains("2 ends: "));
    for asked in [&["-q", "task", "show", "g:a"][..], &["task", "submit", "g:a"]] {
        let refused = lab.refused(asked);
        assert_eq!(refused.code(), "several_ends", "{refused:?}");
        assert!(
            refused.text().contains(&format!("esf merge {} {} --expect", ends[0], ends[1])),
            "{refused:?}"
        );
    }
    let merged = id(&lab.json(["merge", &ends[0], &ends[1], "--expect", "0"])["node"], "node_id");
    assert_eq!(lab.text(["-q", "task", "show", "g:a"]).trim(), merged);
    lab.json(["task", "submit", "g:a"]);
}

/// Right alone, wrong together: what passed on the old base does not let the merge through.
#[test]
fn m05_evidence_of_an_old_base_lets_nothing_through() {
    needs_root!();
    let lab = Lab::new();
    project(&lab, "mkdir own; echo b > own/b");
    let path = lab.path("few.toml");
    fs::write(
        &path,
        "name = \"few\"\nversion = \"1\"\ncommand = [\"sh\", \"-c\", \"test $(ls own | wc -l) -le 2\"]\n",
    )
    .unwrap();
    let few = path.display().to_string();
    let first = submitted(&lab, "first", "echo 1 > own/1");
    let second = submitted(&lab, "second", "echo 2 > own/2");
    for node in [&first, &second] {
        assert_eq!(lab.json(["evaluate", node, "--evaluator", &few])["evaluation"]["verdict"], "pass");
    }
    let stale = |name: &str| {
        let shown = lab.json(["task", "show", name]);
        let nodes = shown["nodes"].as_array().unwrap().clone();
        let of_second = nodes.iter().find(|node| node["node"]["node_id"] == second.as_str()).unwrap().clone();
        of_second["evidence"][0]["stale"].clone()
    };
    assert_eq!(stale("g:second"), false);
    lab.json(["queue", "run", "g", "--evaluator", &few]);
    let entries = entries(&lab);
    assert_eq!(entries["first"]["outcome"]["evidence"][0]["reused"], true, "of just this node on this base");
    let outcome = &entries["second"]["outcome"];
    assert_eq!(
        (outcome["why"]["reason"].as_str(), &outcome["against"]),
        (Some("checks"), &first.as_str().into())
    );
    assert_eq!(stale("g:second"), true);
    assert_eq!(lab.inspect("g")["group"]["canonical_node_id"], first.as_str());
}

#[test]
fn p39_unsealed_changes_are_not_dropped_in_silence() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a; echo b > b"));
    let attempt = lab.activate(&base);
    lab.sh(&attempt, "echo x > a; echo n > new; rm b");
    let refused = lab.refused(["release", &attempt]);
    assert_eq!((refused.code(), &refused.error["context"]["unsealed"]), ("unsealed_changes", &3.into()));
    assert_eq!(lab.sh(&attempt, "cat a new"), "x\nn\n", "it lives on");
    let sealed = lab.suspend(&attempt);
    let diff = lab.text(["diff", &sealed, "--name-status"]);
    for path in ["a", "b", "new"] {
        assert!(diff.lines().any(|line| line.split_whitespace().last() == Some(path)), "{path}: {diff}");
    }
    assert!(lab.json(["log", &sealed]).to_string().contains(&sealed), "the log has it at once");

    // A draft whose worker is gone: its changes are counted, too.
    let lost = lab.activate(&sealed);
    let draft = id(&lab.inspect(&lost)["attempt"], "node_id");
    lab.sh(&lost, "echo y > y; echo z > z");
    assert_eq!(lab.refused(["prune", &draft]).code(), "leased");
    lab.kill_worker();
    lab.text(["recover"]);
    let refused = lab.refused(["prune", &draft]);
    assert_eq!((refused.code(), &refused.error["context"]["unsealed"]), ("unsealed_changes", &2.into()));
    let pruned = lab.json(["prune", &draft, "--discard"]);
    assert_eq!(pruned["pruned"][0], draft.as_str());
    lab.release(&lab.activate(&sealed));
}

/// What `docs/development.md` tells a newcomer to type, typed.
#[test]
fn the_page_does_what_it_says() {
    needs_root!();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/development.md");
    let page = fs::read_to_string(page).unwrap();
    let typed = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let typed: String = typed
        .flat_map(str::lines)
        .fold("set -eu\n".to_owned(), |all, line| all + line.strip_prefix("$ ").unwrap_or(line) + "\n");
    let lab = Lab::new();
    let place = lab.path("page");
    fs::create_dir(&place).unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &typed]).current_dir(&place).env("ESF_STORE", lab.store()).env_remove("ESF_API_URL");
    let binaries = std::path::Path::new(env!("CARGO_BIN_EXE_esf")).parent().unwrap().display().to_string();
    shell.env("PATH", format!("{binaries}:{}", std::env::var("PATH").unwrap()));
    let output = shell.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stderr);
    for line in
        ["esf: polite: integrated", "esf: loud: refused: conflicts at greet.sh", "esf: readme: integrated"]
    {
        assert!(told.contains(line), "{line}: {told}");
    }
    let read = |name: &str| fs::read_to_string(place.join(name)).unwrap();
    assert_eq!(read("words.new/greet.sh"), "greet() { echo \"GOOD DAY, $1\"; }\n");
    assert_eq!(read("words.new/README"), "It greets.\n");
    sh_in(&place, "cd words && git apply ../words.patch && diff -r . ../words.new");
}
