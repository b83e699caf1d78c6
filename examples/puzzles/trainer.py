"""A trainer that trains nothing: takes whole prompts, writes down which, acknowledges them.
trainer.py RUN LOG [DIE]: with DIE it takes a batch and waits for its end."""

import json
import os
import subprocess
import sys
import time


def esf(*args):
    done = subprocess.run([os.environ["ESF"], "-o", "json", "rollout", *args], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


run, log = sys.argv[1:3]
step = 0
while True:
    batch = esf("consume", run, "--consumer", "trainer", "--unit", "group", "--max", "8", "--lease", "3s")
    if batch["drained"]:
        break
    if batch["batch"] is None:
        time.sleep(0.2)
        continue
    if sys.argv[3:]:
        print("holding", len(batch["deliveries"]), flush=True)
        time.sleep(600)
    step += 1
    acked = esf("ack", run, "--consumer", "trainer", "--batch", str(batch["batch"]), "--trainer-step", str(step))
    with open(log, "a") as out:
        for entry in batch["deliveries"]:
            members = [[one["sibling_id"], one["revision"], one["outcome"]["reward"]] for one in entry["siblings"]]
            out.write(json.dumps({"sequence": entry["sequence"], "prompt": entry["prompt_index"],
                                  "stats": entry["stats"], "members": members, "trained": acked["acked"]["trained"]}) + "\n")
