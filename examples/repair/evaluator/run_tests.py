"""Runs the tests of toolz.itertoolz and says what passed, as TAP: they are plain functions."""

import importlib.util
import os
import pathlib
import sys

# The tree comes last, so that nothing in it passes for a module of Python's.
sys.path.append(os.getcwd())
place = pathlib.Path(__file__).with_name("judges") / "test_itertoolz.py"
spec = importlib.util.spec_from_file_location("judges", place)
judges = importlib.util.module_from_spec(spec)
spec.loader.exec_module(judges)

tests = [(name, test) for name, test in vars(judges).items() if name.startswith("test_")]
print(f"1..{len(tests)}")
for number, (name, test) in enumerate(tests, 1):
    try:
        test()
        print(f"ok {number} - {name}", flush=True)
    except Exception as error:
        print(f"not ok {number} - {name}: {error!r:.80}", flush=True)
