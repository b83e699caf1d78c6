"""Offers every single swap of an operator in toolz/itertoolz.py. No model: what an agent would think of goes here.

Reads one JSON object a line, a position of the search, and answers with one line: the actions to try there."""

import ast
import json
import os
import subprocess
import sys

FILE = "toolz/itertoolz.py"
SWAPS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


def operators(tree):
    """Each operator with what is on its left and on its right."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from zip(node.ops, [node.left, *node.comparators], node.comparators)
        elif isinstance(node, ast.BinOp):
            yield node.op, node.left, node.right
        elif isinstance(node, ast.AugAssign):
            yield node.op, node.target, node.value
        elif isinstance(node, ast.BoolOp):
            yield from ((node.op, left, right) for left, right in zip(node.values, node.values[1:]))


def swaps(source):
    lines = source.splitlines()
    found = []
    for operator, left, right in operators(ast.parse(source)):
        if type(operator) not in SWAPS or left.end_lineno != right.lineno:
            continue
        old, new = SWAPS[type(operator)]
        line = lines[left.end_lineno - 1]
        column = line.find(old, left.end_col_offset, right.col_offset)
        if column >= 0:
            found.append((left.end_lineno, column, old, new, line.strip()))
    return sorted(found)


def action(line, column, old, new, text):
    script = f"{line}s/^\\(.\\{{{column}\\}}\\){old.replace('*', '[*]')}/\\1{new}/"
    return {"action": {"run": ["sed", "-i", script, FILE]}, "name": f"line {line}: {old} -> {new} in `{text}`"}


for line in sys.stdin:
    asked = json.loads(line)
    cat = [os.environ.get("ESF", "esf"), "cat", f"{asked['node_id']}:{FILE}"]
    source = subprocess.run(cat, check=True, stdout=subprocess.PIPE).stdout.decode()
    actions = [action(*swap) for swap in swaps(source)]
    print(json.dumps({"id": asked["id"], "actions": actions, "exhausted": True}), flush=True)
