//! `esf rollout run`: a scripted policy over real sandboxes, and what goes wrong on the way.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::needs_root;
use crate::support::{Lab, id, wait_until};

/// Writes the parity of its seed, looks at it, and is done. `SLOW` makes it think, `MUTE` keeps it silent.
const POLICY: &str = r#"
import json, os, sys, time
for line in sys.stdin:
    q = json.loads(line)
    time.sleep(float(os.environ.get("SLOW", "0")))
    if "MUTE" in os.environ and q["index"] == 1:
        continue
    if q["step"] == 0:
        answer = {"exec": ["sh", "-c", "cat > answer; cat question"], "stdin": str(q["seed"] % 2),
                  "arrays": {"completion_token_ids": [1, 2], "logprobs": [-0.5, -0.25], "loss_mask": [1, 1]}}
    elif q["step"] == 1:
        assert q["observation"]["stdout"] == "what?\n", q
        answer = {"exec": ["cat", "answer"]}
    else:
        answer = {"finish": {"rewards": {"said": int(q["observation"]["stdout"])}, "stop_reason": "done"}}
    print(json.dumps(answer), flush=True)
"#;

const EVALUATOR: &str = "name = \"right\"\nversion = \"1\"\ncommand = [\"sh\", \"-c\", \"test $(cat answer) = 1\"]\ntimeout = \"20s\"\n";

struct World {
    lab: Lab,
    run: String,
}

impl World {
    /// Two prompts of four siblings.
    fn new() -> Self {
        let lab = Lab::new();
        let base = lab.group("g", &lab.tree("t", "echo 'what?' > question"));
        fs::write(lab.path("policy.py"), POLICY).expect("write");
        fs::write(lab.path("right.toml"), EVALUATOR).expect("write");
        fs::write(lab.path("prompts.jsonl"), "{\"task\":\"a\",\"seed\":1}\n{\"task\":\"b\",\"seed\":2}\n")
            .expect("write");
        let made = lab.json([
            "rollout",
            "create",
            &base,
            "--name",
            "r",
            "--policy",
            "toy",
            "--group-size",
            "4",
            "--reward",
            "right=1",
            "--reward",
            "said=0.5",
        ]);
        let run = id(&made["run"], "run_id");
        lab.json(["rollout", "prompts", &run, "--add", lab.path("prompts.jsonl").to_str().expect("text")]);
        Self { lab, run }
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let file = |name: &str| self.lab.path(name).to_str().expect("text").to_owned();
        let mut all: Vec<String> =
            ["rollout", "run", &self.run, "-j", "2", "--evaluator"].map(str::to_owned).into();
        all.push(file("right.toml"));
        all.extend(more.iter().map(|&text| text.to_owned()));
        all.extend(["--".to_owned(), "python3".to_owned(), file("policy.py")]);
        all
    }

    fn spawn(&self) -> Child {
        let mut command = self.lab.esf(self.arguments(&[]));
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().expect("spawn")
    }

    fn siblings(&self) -> Vec<Value> {
        let prompts = self.lab.json(["rollout", "ls", &self.run])["prompts"].clone();
        let all =
            |prompt: &Value| self.lab.json(["rollout", "show", &id(prompt, "prompt_id")])["siblings"].clone();
        prompts
            .as_array()
            .expect("prompts")
            .iter()
            .flat_map(|prompt| all(prompt).as_array().cloned().expect("siblings"))
            .collect()
    }

    /// Every sibling ended once, with the score that its seed gives.
    fn assert_all_right(&self) {
        let siblings = self.siblings();
        assert_eq!(siblings.len(), 8);
        for sibling in &siblings {
            assert_eq!(sibling["status"], "result", "{sibling}");
            let wanted = (sibling["seed"].as_u64().expect("a seed") % 2) as f64;
            let rewards = &sibling["outcome"]["rewards"];
            let scores = (rewards["right"]["score"].as_f64(), rewards["said"]["score"].as_f64());
            assert_eq!(scores, (Some(wanted), Some(wanted)), "{sibling}");
            assert_eq!(sibling["steps"], 2);
        }
        let run = self.lab.json(["rollout", "show", &self.run])["run"].clone();
        // Eight ends and two groups.
        assert_eq!(
            (&run["results"], &run["running"], &run["sequence"]),
            (&8.into(), &0.into(), &10.into()),
            "{run}"
        );
        assert_eq!(self.lab.json(["ps"])["attempts"], serde_json::json!([]));
        self.lab.json(["fsck"]);
    }
}

#[test]
fn a_policy_is_carried_to_exact_rewards_whenever_it_is_sealed() {
    needs_root!();
    for checkpoint in ["end", "turn"] {
        let world = World::new();
        let reply = world.lab.json(world.arguments(&["--checkpoint", checkpoint]));
        assert_eq!(reply["ended"]["results"], 8, "{reply}");
        world.assert_all_right();
        let sibling = id(&world.siblings()[0], "sibling_id");
        let steps = world.lab.json(["rollout", "show", &sibling])["steps"].clone();
        let last = if checkpoint == "end" { &steps[1] } else { &steps[0] };
        assert_ne!(last["node_before"], last["node_after"], "{steps}");
        assert_eq!(steps[0]["arrays"]["logprobs"]["length"], 2);
        let again = world.lab.json(world.arguments(&[]));
        assert_eq!(again["ended"]["results"], 0, "nothing is left: {again}");
    }
}

#[test]
fn budgets_and_silence_have_names() {
    needs_root!();
    let world = World::new();
    let reply = world.lab.json(world.arguments(&["--max-turns", "1"]));
    assert_eq!(reply["ended"]["results"], 8, "{reply}");
    for sibling in world.siblings() {
        assert_eq!(sibling["outcome"]["truncated"], "turns", "{sibling}");
        assert_eq!(sibling["outcome"]["terminated"], false);
    }
    let mut world = World::new();
    world.lab.set("MUTE", "1");
    let reply = world.lab.json(world.arguments(&["--policy-timeout", "5s"]));
    assert_eq!(
        (&reply["ended"]["results"], &reply["ended"]["policy_faults"]),
        (&6.into(), &2.into()),
        "{reply}"
    );
    let faults: Vec<Value> =
        world.siblings().into_iter().filter(|sibling| sibling["status"] == "error").collect();
    assert_eq!(faults.len(), 2);
    for fault in faults {
        assert_eq!(fault["outcome"]["failure"]["stage"], "policy", "{fault}");
        assert_eq!((&fault["outcome"]["reward"], &fault["outcome"]["usable"]), (&Value::Null, &false.into()));
    }
    assert_eq!(world.lab.json(["ps"])["attempts"], serde_json::json!([]));
}

#[test]
fn a_killed_driver_and_a_killed_worker_lose_nothing() {
    needs_root!();
    let mut world = World::new();
    world.lab.set("SLOW", "0.2");
    for _ in 0..2 {
        let mut driver = world.spawn();
        let running = || world.lab.json(["rollout", "show", &world.run])["run"]["running"].as_u64() > Some(0);
        wait_until("siblings run", running);
        std::thread::sleep(Duration::from_millis(300));
        driver.kill().expect("kill");
        driver.wait().expect("wait");
    }
    let mut driver = world.spawn();
    wait_until("a sandbox lives", || {
        world.lab.json(["ps"])["attempts"].as_array().is_some_and(|all| !all.is_empty())
    });
    // The driver starts another at once, so nobody waits for it to be gone.
    let worker =
        i32::try_from(world.lab.worker().expect("a worker")).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(worker.expect("a pid"), rustix::process::Signal::KILL).expect("kill");
    assert!(driver.wait().expect("wait").success());
    world.assert_all_right();
    let tried_again = world
        .siblings()
        .iter()
        .filter(|one| one["trials"].as_array().is_some_and(|all| all.len() > 1))
        .count();
    assert!(tried_again > 0, "somebody was tried again");
}
