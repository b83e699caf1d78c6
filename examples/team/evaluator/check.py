"""Runs the judges, which are plain functions, and imports every module of the tree; says what passed, as TAP."""

import importlib
import importlib.util
import os
import pathlib
import sys

# The tree comes last, so that nothing in it passes for a module of Python's.
sys.path.append(os.getcwd())


def functions():
    """Each test of the published package, by name."""
    for place in sorted((pathlib.Path(__file__).parent / "judges").glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(place.stem, place)
        judges = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(judges)
        for name, test in vars(judges).items():
            if name.startswith("test_"):
                yield f"{place.stem}.{name}", test


def imports():
    """One test for each module of the tree: that it imports."""
    for place in sorted(pathlib.Path("toolz").rglob("*.py")):
        if "tests" not in place.parts:
            name = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
            yield f"import {name}", lambda name=name: importlib.import_module(name)


tests = [*functions(), *imports()]
print(f"1..{len(tests)}")
for number, (name, test) in enumerate(tests, 1):
    try:
        test()
        print(f"ok {number} - {name}", flush=True)
    except Exception as error:
        print(f"not ok {number} - {name}: {error!r:.80}", flush=True)
