"""Runs the tests of toolz.itertoolz and says what passed, as TAP: they are plain functions."""

import importlib.util

spec = importlib.util.spec_from_file_location("judges", "judges/test_itertoolz.py")
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
