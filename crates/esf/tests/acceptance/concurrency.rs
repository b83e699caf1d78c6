//! One effect for each request, and one winner of each race (P28, P38).

use std::ffi::OsString;

use serde_json::Value;

use crate::needs_root;
use crate::support::*;

/// A mutation with two bodies: `same` is sent again and again, `other` must then conflict.
struct Mutation {
    name: &'static str,
    same: Vec<OsString>,
    other: Vec<OsString>,
}

fn words<S: AsRef<str>>(words: &[S]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().into()).collect()
}

fn mutation<S: AsRef<str>>(name: &'static str, same: &[S], other: &[S]) -> Mutation {
    Mutation { name, same: words(same), other: words(other) }
}

fn with_key(key: &str, args: &[OsString]) -> Vec<OsString> {
    let mut all = words(&["-o", "json", "--idempotency-key", key]);
    all.extend(args.iter().cloned());
    all
}

/// Five at once give one reply and one effect; another body under the key conflicts. What does not
/// hold is added to `broken`, so that one run shows all of it.
#[track_caller]
fn holds(lab: &Lab, mutation: &Mutation, broken: &mut Vec<String>) -> Value {
    let Mutation { name, same, other } = mutation;
    let key = format!("key-{name}");
    let send = |args: &[OsString]| Running::start(lab.esf(with_key(&key, args)));
    let before = lab.events();
    let race: Vec<_> = (0..5).map(|_| send(same)).collect();
    let replies: Vec<_> = race.into_iter().map(Running::wait).collect();
    let done = replies.iter().find(|reply| reply.status.success());
    let done = done.unwrap_or_else(|| panic!("{name}: {}", said(&replies[0])));
    for reply in replies.iter().filter(|reply| !reply.status.success() || parsed(reply) != parsed(done)) {
        broken.push(format!("{name}: of five at once one differs: {}\nfrom {}", said(reply), said(done)));
    }
    let after = lab.events();
    let again = send(same).wait();
    if !again.status.success() || parsed(&again) != parsed(done) {
        broken.push(format!("{name}: again: {}\nfirst: {}", said(&again), said(done)));
    }
    match refusal(&send(other).wait()) {
        Ok(refused) if (refused.exit, refused.code()) == (4, "idempotency_conflict") => {
            if !refused.error["expected"].is_string() || !refused.error["found"].is_string() {
                broken.push(format!("{name}: says neither what was expected nor found: {refused:?}"));
            }
        }
        other => broken.push(format!("{name}: another body: {other:?}")),
    }
    if (after > before, lab.events() == after) != (true, true) {
        broken.push(format!("{name}: {before} events before, {after} after, {} after replays", lab.events()));
    }
    parsed(done)
}

/// After everything was restarted the answers are the same still.
fn holds_after_restart(lab: &Lab, done: &[(Mutation, Value)], broken: &mut Vec<String>) {
    lab.stop_worker();
    let before = lab.events();
    for (Mutation { name, same, .. }, reply) in done {
        let again = lab.output(with_key(&format!("key-{name}"), same));
        if !again.status.success() || parsed(&again) != *reply {
            broken.push(format!("{name} after a restart: {}", said(&again)));
        }
    }
    if lab.events() != before {
        broken.push(format!("replays made {} events", lab.events() - before));
    }
}

#[test]
fn p28_same_key_same_body_is_one_effect() {
    needs_root!();
    let lab = Lab::new();
    let tree = lab.tree("t", "echo a > a").display().to_string();
    let (mut done, mut broken) = (Vec::new(), Vec::new());
    let mut check = |mutation: Mutation| {
        let reply = holds(&lab, &mutation, &mut broken);
        done.push((mutation, reply.clone()));
        reply
    };

    let made = check(mutation(
        "create",
        &["group", "create", "g", "--from", &tree],
        &["group", "create", "h", "--from", &tree],
    ));
    let base = id(&made["group"], "canonical_node_id");
    let generation = made["group"]["generation"].to_string();
    check(mutation("fork", &["fork", &base, "-n", "2"], &["fork", &base, "-n", "3"]));
    let sealed =
        [("one", "echo 1 > x1"), ("two", "echo 2 > x2"), ("loser", "echo 3 > x3")].map(|(name, script)| {
            let draft = lab.fork(&base);
            let activate = check(mutation(
                leak(format!("activate-{name}")),
                &["activate", &draft],
                &["activate", &base],
            ));
            let attempt = id(&activate["attempt"], "attempt_id");
            lab.sh(&attempt, script);
            let suspend = mutation(
                leak(format!("suspend-{name}")),
                &["suspend", &attempt, "--message", "m"],
                &["suspend", &attempt, "--message", "other"],
            );
            id(&check(suspend)["node"], "node_id")
        });
    let [one, two, loser] = &sealed;
    check(mutation(
        "attach",
        &["evaluate", one, "--version", "1", "--verdict", "pass", "--reward", "1"],
        &["evaluate", one, "--version", "1", "--verdict", "pass", "--reward", "0"],
    ));
    check(mutation(
        "merge",
        &["merge", one, two, "--expect", &generation],
        &["merge", two, one, "--expect", &generation],
    ));
    check(mutation(
        "promote",
        &["promote", one, "--expect", &generation],
        &["promote", two, "--expect", &generation],
    ));
    check(mutation("tag", &["tag", two, "name"], &["tag", two, "other"]));
    check(mutation("prune", &["prune", loser], &["prune", two]));
    let doomed = lab.activate(&base);
    lab.sh(&doomed, "echo x > x");
    check(mutation("release", &["release", &doomed, "--discard"], &["release", &doomed]));
    check(mutation("retry", &["retry", &doomed], &["retry", &lab.activate(&base)]));
    holds_after_restart(&lab, &done, &mut broken);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn p28_an_evaluation_that_is_sent_again_runs_once() {
    needs_root!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", "echo a > a"));
    let sealed = lab.step(&node, "echo b > b");
    let file = |name: &str, reward: &str| {
        let path = lab.path(name);
        let text = format!(
            "name = \"n\"\nversion = \"{name}\"\ncommand = [\"sh\", \"-c\", '''echo '{{\"reward\":{reward},\"verdict\":\"pass\"}}' > $ESF_RESULT''']\n"
        );
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let [same, other] = [file("1", "0.5"), file("2", "0.7")];
    let evaluate = mutation(
        "evaluate",
        &["evaluate", &sealed, "--evaluator", &same],
        &["evaluate", &sealed, "--evaluator", &other],
    );
    let mut broken = Vec::new();
    let reply = holds(&lab, &evaluate, &mut broken);
    assert_eq!(reply["evaluation"]["reward"], 0.5);
    holds_after_restart(&lab, &[(evaluate, reply)], &mut broken);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn p28_an_exec_with_a_key_runs_at_most_once() {
    needs_root!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", ": > count"));
    let attempt = lab.activate(&node);
    let exec =
        words(&["exec", &attempt, "--", "sh", "-c", "echo ran >> count; sleep 0.2; echo done; exit 5"]);
    let send = || Running::start(lab.esf(with_key("k", &exec)));
    for output in (0..5).map(|_| send()).collect::<Vec<_>>().into_iter().map(Running::wait) {
        assert_eq!(output.status.code(), Some(5), "{}", said(&output));
        assert_eq!(parsed(&output)["stdout"], "done\n");
    }
    assert_eq!(lab.sh(&attempt, "wc -l < count").trim(), "1");
    let other = lab.output(with_key("k", &words(&["exec", &attempt, "--", "true"])));
    let refused = refusal(&other).unwrap();
    assert_eq!((refused.exit, refused.code()), (4, "idempotency_conflict"), "{refused:?}");
}

/// The client is killed at many moments of one fork and one run; the same key then settles it.
#[test]
fn p28_kill_between_leaves_one_effect() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo a > a"));
    lab.step(&base, "echo warm > worker");
    let nodes = || lab.json(["ls", "g"])["nodes"].as_array().unwrap().len();
    for delay in [0, 1, 2, 4, 8, 16, 32, 64, 128] {
        for (name, args) in [
            ("fork", vec!["fork", &base]),
            ("run", vec!["run", &base, "--", "sh", "-c", "echo once >> once"]),
        ] {
            let before = nodes();
            let key = format!("{name}-{delay}");
            let child = Running::start(lab.esf(with_key(&key, &words(&args))));
            std::thread::sleep(std::time::Duration::from_millis(delay));
            kill(child.pid());
            child.wait();
            let again = lab.output(with_key(&key, &words(&args)));
            assert_eq!(again.status.code(), Some(0), "{key}: {}", said(&again));
            assert_eq!(nodes(), before + 1, "{key}: one node");
            if name == "run" {
                assert_eq!(lab.cat(&id(&parsed(&again)["node"], "node_id"), "once"), b"once\n", "{key}");
            }
        }
    }
}

#[test]
fn p38_of_sixty_four_promotes_one_wins() {
    let lab = Lab::new();
    let made = lab.json([
        "group".as_ref(),
        "create".as_ref(),
        "g".as_ref(),
        "--from".as_ref(),
        lab.tree("t", "echo a > a").as_os_str(),
    ]);
    let base = id(&made["group"], "canonical_node_id");
    let generation = made["group"]["generation"].as_u64().expect("an integer");
    needs_root!();
    let clean = lab.step(&base, "echo x > x");
    let clashing = lab.step(&base, "echo b > a");
    let other = lab.step(&base, "echo c > a");
    let expect = generation.to_string();
    let candidates = [&clean, &clashing, &other];
    let race: Vec<_> = (0..64)
        .map(|at| Running::start(lab.esf(["-o", "json", "promote", candidates[at % 3], "--expect", &expect])))
        .collect();
    let outputs: Vec<_> = race.into_iter().map(Running::wait).collect();
    let won: Vec<_> = outputs.iter().filter(|output| output.status.success()).collect();
    assert_eq!(won.len(), 1, "one wins");
    let group = parsed(won[0])["group"].clone();
    assert_eq!(group["generation"], generation + 1);
    let winner = id(&group, "canonical_node_id");
    for output in outputs.iter().filter(|output| !output.status.success()) {
        let refused = refusal(output).unwrap();
        assert_eq!((refused.exit, refused.code()), (4, "stale_generation"), "{refused:?}");
        let context = &refused.error["context"];
        assert_eq!(context["generation"], generation + 1, "{refused:?}");
        assert_eq!(context["canonical_node_id"], winner.as_str(), "{refused:?}");
    }
    assert_eq!(lab.inspect("g")["group"]["canonical_node_id"], winner.as_str());
    // Whether a clean merge exists: x and a touch different paths, two edits of a do not.
    for (node, clean_merge) in
        [(&clean, winner != clean), (&clashing, winner == clean), (&other, winner == clean)]
    {
        if *node != winner {
            let refused = lab.refused(["promote", node, "--expect", &expect]);
            assert_eq!(refused.error["context"]["clean_merge"], clean_merge, "{refused:?}");
        }
    }
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}
