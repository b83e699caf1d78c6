"""Reads exports with the public readers of their formats:
rollouts_readers.py PACKAGES PARQUET ATIF-DIRECTORY MESSAGES ROWS TRAINED-TOKENS"""

import pathlib
import sys
import types
import zipfile

packages, parquet, atif, messages = map(pathlib.Path, sys.argv[1:5])
rows, trained_tokens = map(int, sys.argv[5:])
sys.path.insert(0, str(packages))

import pyarrow.json
import pyarrow.parquet

table = pyarrow.parquet.read_table(parquet)
assert table.num_rows == rows, table.num_rows
trained = 0
for row in table.to_pylist():
    tokens = len(row["completion_token_ids"])
    assert tokens == len(row["logprobs"]) == len(row["loss_mask"]) == sum(row["completion_lengths"]), row
    assert len(row["prompt_token_ids"]) == sum(row["prompt_lengths"]), row
    assert all(abs(p + 0.5) < 1e-6 for p in row["logprobs"]), row
    assert row["messages"][0] == {"role": "system", "content": "be brief", "tool_calls": None, "tool_call_id": None}
    assert row["reward"] == 1.0 and row["usable"] is True and row["truncated"] is None, row
    trained += sum(row["loss_mask"])
assert trained == trained_tokens, trained

said = pyarrow.json.read_json(messages).to_pylist()
assert len(said) == rows
for row in said:
    assert [message["role"] for message in row["prompt"]] == ["system", "user"], row
    assert [message["role"] for message in row["completion"]] == ["assistant", "user"] * 3, row
    assert row["reward"] == 1.0 and row["policy_version_start"] == 0 and row["root_id"].startswith("b3:"), row

# Harbor's model alone: its package imports far more than the format needs.
wheel = next(packages.glob("harbor-*.whl"))
zipfile.ZipFile(wheel).extractall(packages / "harbor-wheel")
for name in ["harbor", "harbor.models"]:
    module = types.ModuleType(name)
    module.__path__ = [str((packages / "harbor-wheel").joinpath(*name.split(".")))]
    sys.modules[name] = module
from harbor.models.trajectories.trajectory import Trajectory

documents = [Trajectory.model_validate_json(path.read_text()) for path in sorted(atif.iterdir())]
assert len(documents) == rows
owned = 0
for document in documents:
    assert document.schema_version == "ATIF-v1.8"
    assert [step.source for step in document.steps[:3]] == ["system", "user", "agent"]
    for step in document.steps[2:]:
        assert step.observation.results[0].content.startswith('{"seen":')
        assert step.metrics.completion_token_ids and step.llm_call_count == 1
        owned += 0 if step.is_copied_context else len(step.metrics.completion_token_ids)
assert owned == trained_tokens, owned
