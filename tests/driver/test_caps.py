"""A cap that runs out while training: the message has the size to set, and with it the same command resumes to the same
bits."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.depth import some

from pipeline.run import main

WORKFLOW = """
from pipeline.models import DeepFM
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

workflow = Workflow(
    name="growing",
    data=Data(
        root="{root}", train=("train.parquet",), labels=("label",), categories=(Category(name="items"),),
        shuffle_window=0,
    ),
    model=Model(kind=DeepFM, embedding_dim=2, args={{"hidden": [4]}}),
    storage=Storage(device="4 MiB", host="4 MiB", disk="64 MiB", read="8 MiB", map="4 MiB", chunk_rows=1024),
    schedule=Schedule(batch_size=100, block_batches=2, look_ahead=1, threads=1),
)
"""


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """Command of a workflow whose first 400 examples have one key, and whose other 800 have 20 new keys each; and the
    fingerprint that it ends with."""
    root = tmp_path_factory.mktemp("growing")
    items = [[0]] * 400 + np.arange(1, 16_001).reshape(800, 20).tolist()
    pq.write_table(pa.table({"label": np.arange(1200) % 2, "items": items}), root / "train.parquet")
    (root / "growing.py").write_text(WORKFLOW.format(root=root))
    command = [str(root / "growing.py"), "--serial"]
    return command, trained(command, root / "undisturbed")


def trained(command, run_dir, *flags):
    assert main([*command, "--run-dir", str(run_dir), *flags]) == 0
    result = json.loads((run_dir / "result.json").read_text())
    assert result["stopped"] is None
    return result["fingerprint"]


def cap_in(message):
    """Name and size of the cap that the message says to raise."""
    assert re.search(r" is kept, up to epoch 1, .*: the same command with a larger storage\.\w+ resumes", message), (
        message
    )
    name, size = re.search(r"; raise (storage\.\w+) from .* to at least (\S+ \w+)", message).groups()
    return name, size


MOST_RAISES = 8
CASES = [
    ("storage.map=650 KiB", "the key map would need "),
    ("storage.host=128 KiB", "a staging buffer would need "),
    ("storage.device=64 KiB", "an outgoing buffer would need "),
    ("storage.device=117 KiB", "the device slab would need "),
    ("storage.read=594 KiB", "its examples would need "),
]


@pytest.mark.parametrize(("small", "said"), some(CASES, CASES[0], CASES[2], several=True))
def test_a_run_goes_on_with_the_cap_that_its_message_names(growing, tmp_path, capsys, small, said):
    """The message names what the refused block needs; a later block may need more again."""
    command, fingerprint = growing
    name, _, size = small.partition("=")
    messages = []
    for _ in range(MOST_RAISES):
        if main([*command, "--run-dir", str(tmp_path), "--set", f"{name}={size}"]) == 0:
            break
        messages.append(message := capsys.readouterr().err[-1000:].partition("error: ")[2].strip())
        assert not re.search(r"\d{8}|\d,\d{3},\d{3}", message), "sizes are in the units of settings"
        raised, size = cap_in(message)
        assert raised == name
    assert said in messages[0]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["stopped"], result["fingerprint"]) == (None, fingerprint)
