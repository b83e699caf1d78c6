"""Generates, answers and scores; kills the trainer once; then counts everything again. See `run`."""

import concurrent.futures
import hashlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import pathlib

import puzzles

GROUPS, SIBLINGS, AT_ONCE = 64, 8, 6
ESF = os.environ["ESF"]
work = pathlib.Path(sys.argv[1])
here = pathlib.Path(__file__).parent
data = puzzles.dataset(work / "library", GROUPS, 2026)


def esf(*args, given=None):
    done = subprocess.run([ESF, *args], input=given, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def rollout(*args, lines=None):
    given = None if lines is None else "".join(json.dumps(line) + "\n" for line in lines).encode()
    return json.loads(esf("-o", "json", "rollout", *args, given=given))


def is_lost(seed):
    """About every fifth sandbox, whatever the order in which they run."""
    return hashlib.sha256(f"lost {seed}".encode()).digest()[0] < 51


def answer(begun):
    """One trial: an answer by a policy of the sibling's skill, written in a sandbox, read back from what was sealed."""
    name = {"sibling_id": begun["sibling_id"], "trial": begun["trial"]}
    if is_lost(begun["seed"]):
        return None, {**name, "outcome": {"failure": "infra_lost", "stop_reason": "injected"}}, None
    puzzle = data[begun["prompt_index"]]
    skill = (begun["index"] + 1) / SIBLINGS
    text, tokens, probabilities = puzzles.attempt(puzzle, skill, random.Random(begun["seed"]))
    node = esf("-q", "run", "-i", begun["node_id"], "--", "sh", "-c", "cat > answer", given=text.encode()).strip()
    left = esf("cat", f"{node}:answer")
    score = data.score_answer(left, puzzle)
    logprobs = [math.log(p) for p in probabilities]
    arrays = {"completion_token_ids": tokens, "logprobs": logprobs, "loss_mask": [1] * len(tokens)}
    step = {**name, "index": 0, "node_after": node, "action": text, "observation": "written", "arrays": arrays}
    return step, {**name, "outcome": {"rewards": {"score": score}, "terminated": True}}, score


def generate(run):
    """Begins, answers and ends trials until nothing waits; the last score of each sibling, and how many were lost."""
    scores, lost = {}, 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            begun = rollout("start", run, "-n", "64", "--lease", "10m")["begun"]
            if not begun:
                return scores, lost
            steps, ends = [], []
            for one, (step, end, score) in zip(begun, pool.map(answer, begun)):
                steps += [] if step is None else [step]
                ends.append(end)
                if score is None:
                    lost += 1
                else:
                    scores[one["sibling_id"]] = (one["prompt_index"], one["revision"], score)
            rollout("step", "--from", "-", lines=steps)
            # Said twice, as after an answer that was lost on the way: it counts once.
            for _ in range(2):
                rollout("finish", "--from", "-", lines=ends)
            print(f"  {len(scores)} of {GROUPS * SIBLINGS} answered, {lost} sandboxes lost", flush=True)


def kill_a_trainer(run, log):
    trainer = subprocess.Popen([sys.executable, here / "trainer.py", run, log, "die"], stdout=subprocess.PIPE)
    held = trainer.stdout.readline().decode().strip()
    trainer.kill()
    trainer.wait()
    print(f"  the trainer was killed {held} prompts")


run = esf("-q", "rollout", "create", "puzzles:@", "--name", "puzzles", "--policy", "scripted", "--sampler",
          '{"scripted":true}', "--group-size", str(SIBLINGS), "--reward", "score=1", "--refill", "sibling",
          "--max-refills", "1000").strip()
rollout("prompts", run, "--add", "-", lines=[
    {"task": {"id": f"mini_sudoku/{n}", "split": "train"}, "seed": n, "extra": {"prompt": data[n]["question"]}}
    for n in range(GROUPS)])
print(f"{run}: {GROUPS} prompts of {SIBLINGS}")
scores, lost = generate(run)
rollout("close", run)
log = work / "trained.jsonl"
kill_a_trainer(run, log)
subprocess.run([sys.executable, here / "trainer.py", run, log], check=True)

# Counted again, from what this program saw itself.
expected = {n: [score for place, _, score in scores.values() if place == n] for n in range(GROUPS)}
for prompt in rollout("ls", run)["prompts"]:
    rewards, stats = expected[prompt["index"]], prompt["stats"]
    assert prompt["status"] == "complete" and stats["count"] == len(rewards) == SIBLINGS, prompt
    assert math.isclose(stats["mean"], statistics.fmean(rewards), rel_tol=1e-12, abs_tol=1e-15), prompt
    assert math.isclose(stats["std"], statistics.stdev(rewards), rel_tol=1e-9, abs_tol=1e-12), prompt
trained = [json.loads(line) for line in log.read_text().splitlines()]
assert sorted(entry["prompt"] for entry in trained) == list(range(GROUPS)), "a prompt was lost, or trained twice"
members = [tuple(member) for entry in trained for member in entry["members"]]
assert sorted(members) == sorted((who, revision, score) for who, (_, revision, score) in scores.items())
record = rollout("show", run)["run"]
assert (record["results"], record["errors"], record["refills"]) == (len(scores), lost, lost), record
assert len(scores) == GROUPS * SIBLINGS and record["late"] == record["running"] == record["waiting"] == 0, record
share = lost / (len(scores) + lost)
assert 0.1 < share < 0.3, share
for format in ["jsonl", "messages", "parquet", "atif"]:
    exported = rollout("export", run, "--format", format, "--only", "usable", "--to", str(work / f"puzzles.{format}"))
    assert exported["export"]["trajectories"] == GROUPS * SIBLINGS, exported
print(f"{len(scores)} answers trained on, each once; {lost} lost sandboxes ({share:.0%}) count nowhere")
rows = [json.loads(line) for line in (work / "puzzles.jsonl").read_text().splitlines()]
assert len({attempt for row in rows for attempt in row["attempt_ids"]}) == GROUPS * SIBLINGS, "a sandbox each"
by_skill = [statistics.fmean(row["reward"] for row in rows if row["sibling_index"] == n) for n in range(SIBLINGS)]
print("mean reward by skill: " + " ".join(f"{mean:.2f}" for mean in by_skill))
