"""The interpreter as a WASI 0.2 command: `python.wasm SCRIPT ARGS...` or `python.wasm -c TEXT ARGS...`.

A component of this kind can only end with 0 or 1: every other code becomes 1.
"""

import os
import runpy
import sys

import componentize_py_types
from wit_world import exports
from wit_world.imports import monotonic_clock, poll, preopens, streams, types

# Modules that scripts use: what is imported now is in the component, its library is not at hand later.
import argparse, base64, collections, dataclasses, functools, hashlib, itertools, json, math, pathlib
import gettext, locale, pkgutil, random, re, shutil, stat, string, struct, textwrap, time, traceback, unittest


class Run(exports.Run):
    def run(self) -> None:
        words = sys.argv[1:]
        try:
            if words[:1] == ["-c"]:
                sys.argv = ["-c", *words[2:]]
                exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
            elif words:
                sys.argv = words
                sys.path.insert(0, os.path.dirname(words[0]))
                runpy.run_path(words[0], run_name="__main__")
            else:
                print(f"Python {sys.version}")
            code = None
        except SystemExit as leaving:
            code = leaving.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        if code not in (None, 0):
            if isinstance(code, str):
                print(code, file=sys.stderr)
            raise componentize_py_types.Err(None)
