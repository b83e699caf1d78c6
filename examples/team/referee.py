"""Asks git whether it comes to the same: the same edits as branches, merged in the order of the queue.

referee.py DIR AGENTS: DIR as examples/team/run leaves it. Fails at the first difference.
"""

import json
import os
import pathlib
import subprocess
import sys

work, agents = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
repository = work / "repository"
identity = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "team"), ("EMAIL", "team@example.org"))}
environment = {**os.environ, **identity}


def git(*arguments, codes=(0,), **more):
    """What git says, without the last newline, and its exit code."""
    ran = subprocess.run(["git", "-C", repository, *arguments], stdout=subprocess.PIPE, text=True,
                         env={**environment, **more})
    assert ran.returncode in codes, (arguments, ran)
    return ran.stdout.rstrip("\n"), ran.returncode


def tree_of_node(node):
    """The id that git has for the tree of a node."""
    place = work / "nodes" / node
    subprocess.run([os.environ["ESF"], "-q", "export", node, "--format", "dir", "--to", place], check=True,
                   stdout=subprocess.DEVNULL)
    return written(place)


def written(place):
    """The id of the tree that a directory has."""
    index = {"GIT_INDEX_FILE": str(work / "index"), "GIT_WORK_TREE": str(place)}
    git("read-tree", "--empty", **index)
    git("add", "--all", "--force", ".", **index)
    return git("write-tree", **index)[0]


def edited(commit, name, *parents):
    """A commit of what the agent leaves of the tree of `commit`."""
    place = work / "branches" / name / commit
    place.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", repository, "archive", commit], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
    subprocess.run(["sh", agents / f"{name}.sh"], cwd=place, check=True)
    return commit_of(written(place), name, *parents)


def commit_of(tree, message, *parents):
    """A commit."""
    named = [word for parent in parents for word in ("-p", parent)]
    return git("commit-tree", tree, *named, "-m", message)[0]


(work / "nodes").mkdir()
subprocess.run(["git", "init", "--quiet", "--bare", repository], check=True)
begun = commit_of(written(work / "tree"), "toolz 1.0.0")
canonical, tried = begun, {}
names = {task["task_id"]: task["name"] for task in json.loads((work / "tasks.json").read_text())["tasks"]}
entries = json.loads((work / "queue.json").read_text())["entries"]
agreed = 0
for entry in sorted(entries, key=lambda entry: entry["ended_at"]):
    name, outcome = names[entry["task_id"]], entry["outcome"]
    if name in tried:
        # It went on where it was told to: from what was canonical then, with its own work in it.
        branch = edited(tried[name], name, tried[name])
    else:
        branch = edited(begun, name, begun)
    said, code = git("merge-tree", "--write-tree", "--name-only", "--no-messages", canonical, branch, codes=(0, 1))
    tree, *paths = said.split("\n")
    paths = {path for path in paths if path}
    if outcome["kind"] == "integrated":
        assert code == 0, (name, said)
        assert tree == tree_of_node(outcome["result_node_id"]), name
        canonical = commit_of(tree, name, canonical, branch)
        verdict = "merges"
    elif outcome["why"]["reason"] == "conflicts":
        ours = {conflict["path"] for conflict in outcome["why"]["conflicts"]}
        assert code == 1 and paths == ours, (name, paths, ours)
        tried[name] = canonical
        verdict = "conflicts at " + ", ".join(sorted(paths))
    else:
        assert outcome["why"]["reason"] == "checks", outcome
        assert code == 0 and tree == tree_of_node(outcome["why"]["result_node_id"]), name
        verdict = "merges; its tests fail"
    agreed += 1
    print(f"git agrees: {name} {verdict}")
assert git("rev-parse", f"{canonical}^{{tree}}")[0] == tree_of_node("toolz:@")
print(f"git agrees on {agreed} entries and on the tree at the end")
