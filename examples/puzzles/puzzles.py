"""Sudokus of 4 by 4 from reasoning-gym: made from a seed, scored by the library's own scorer."""

import importlib
import pathlib
import sys
import types


def dataset(library, size, seed):
    """The puzzles, from an unpacked wheel. Its packages import every puzzle there is, with all they depend on, so only
    the modules that are needed are loaded."""
    place = pathlib.Path(library) / "reasoning_gym"
    for name in ["reasoning_gym", "reasoning_gym.games", "reasoning_gym.coaching"]:
        module = types.ModuleType(name)
        module.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    coaching = sys.modules["reasoning_gym.coaching"]
    for part in ["attributes", "base_curriculum"]:
        vars(coaching).update(vars(importlib.import_module(f"reasoning_gym.coaching.{part}")))
    games = importlib.import_module("reasoning_gym.games.mini_sudoku")
    return games.MiniSudokuDataset(games.MiniSudokuConfig(size=size, seed=seed))


def attempt(puzzle, skill, chance):
    """An answer in which each empty cell is right with probability `skill`; the digits that were chosen, and how
    probable each was."""
    given, solution = puzzle["metadata"]["puzzle"], puzzle["metadata"]["solution"]
    rows, tokens, probabilities = [], [], []
    for given_row, right_row in zip(given, solution):
        row = []
        for cell, right in zip(given_row, right_row):
            if cell == 0:
                knows = chance.random() < skill
                cell = right if knows else chance.choice([digit for digit in (1, 2, 3, 4) if digit != right])
                tokens.append(cell)
                probabilities.append(skill if knows else (1 - skill) / 3)
            row.append(str(cell))
        rows.append(" ".join(row))
    return "\n".join(rows), tokens, probabilities
