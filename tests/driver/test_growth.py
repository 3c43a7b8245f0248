"""Caps that do not hold a later block: those that the run chose grow, and change no bit; of given ones the message has
the size to set, with which the same command resumes to the same bits."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from support.depth import some
from support.runs.harness import setup_of

from pipeline.data.source import Source
from pipeline.driver import growth
from pipeline.preflight.checked import Budget
from pipeline.records import Block, Refusal
from pipeline.run import main
from pipeline.serving import score

WORKFLOW = """
from pipeline.models import DeepFM
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

workflow = Workflow(
    name="growing",
    data=Data(
        root="{root}", train=("both.parquet",), labels=("label",), categories=(Category(name="items"),),
        shuffle_window=0,
    ),
    model=Model(kind=DeepFM, embedding_dim=2, args={{"hidden": [4]}}),
    storage=Storage({storage}chunk_rows=1024),
    schedule=Schedule(batch_size=100, block_batches=2, look_ahead=1, threads=1),
)
"""
AMPLE = ["--set", "storage.device=8 MiB", "--set", "storage.host=8 MiB", "--set", "storage.disk=64 MiB"]
FEW = 'data.train=["few.parquet"]'
EVALUATED = [FEW, 'data.validation=["both.parquet"]']
TESTED = [FEW, 'data.validation=["more.parquet"]', 'data.test=["both.parquet"]', "schedule.plateau={}"]
ALL = {"map", "read", "host", "device"}


def write_growing(root, num_few, num_many, storage=""):
    """Workflow file. The first examples have one key, and the later ones 16,000 others, each of them in one example."""
    few, many = [[0]] * num_few, np.arange(1, 16_001).reshape(num_many, -1).tolist()
    for name, items in (("few", few), ("more", few), ("both", [*few, *many])):
        pq.write_table(pa.table({"label": np.arange(len(items)) % 2, "items": items}), root / f"{name}.parquet")
    (root / "growing.py").write_text(WORKFLOW.format(root=root, storage=storage))
    return str(root / "growing.py")


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    return write_growing(tmp_path_factory.mktemp("growing"), 1100, 100)


def trained(command, run_dir):
    assert main([*command, "--run-dir", str(run_dir)]) == 0
    result = json.loads((run_dir / "result.json").read_text())
    assert result["stopped"] is None
    return result["fingerprint"], [(one["split"], one["logloss"]) for one in result["epochs"]]


GIVEN = 'device="4 MiB", host="4 MiB", disk="64 MiB", read="8 MiB", map="4 MiB", '


@pytest.fixture(scope="module")
def with_given_caps(tmp_path_factory):
    """Command of a workflow with all caps, and what it ends with."""
    root = tmp_path_factory.mktemp("given")
    command = [write_growing(root, 400, 800, GIVEN), "--serial"]
    return command, trained(command, root / "undisturbed")


def cap_in(message):
    """Name and size of the cap that the message says to raise."""
    kept = r" is kept, up to epoch 1, .*: the same command with a larger storage\.\w+ resumes"
    assert re.search(kept, message), message
    return re.search(r"; raise (storage\.\w+) from .* to at least (\S+ \w+)", message).groups()


MOST_RAISES = 8
TOO_SMALL = [
    ("storage.map=650 KiB", "the key map would need "),
    ("storage.host=128 KiB", "a staging buffer would need "),
    ("storage.device=64 KiB", "an outgoing buffer would need "),
    ("storage.device=117 KiB", "the device slab would need "),
    ("storage.read=594 KiB", "its examples would need "),
]


@pytest.mark.parametrize(("small", "said"), some(TOO_SMALL, TOO_SMALL[0], TOO_SMALL[2], several=True))
def test_a_run_goes_on_with_the_cap_that_its_message_names(with_given_caps, tmp_path, capsys, small, said):
    """The message names what the refused block needs; a later block may need more again."""
    command, expected = with_given_caps
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
    # The same command, which has ended, has the result.
    assert trained([*command, "--set", f"{name}={size}"], tmp_path) == expected


CASES = [
    (["--serial"], [], ALL), (["--serial"], EVALUATED, {"read", "host"}), (["--serial"], TESTED, {"read", "host"}),
    (["--workers", "2"], [], ALL),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "settings", "grow"), some(CASES, *CASES[:2], several=True))
def test_chosen_caps_that_grow_change_no_bit(growing, tmp_path, capsys, flags, settings, grow):
    command = [growing, *flags, *(word for one in settings for word in ("--set", one))]
    expected = trained([*command, *AMPLE], tmp_path / "ample")
    assert " raised from " not in capsys.readouterr().err
    assert trained(command, tmp_path / "chosen") == expected
    said = capsys.readouterr().err
    assert {name for name in ALL if f"storage.{name} raised from " in said} == grow


def test_a_resumed_run_chooses_room_for_the_keys_that_it_has(growing, tmp_path):
    """The first window of the second session has one key again, and the commit has 16,001."""
    command, more = [growing, "--serial"], ["--set", "schedule.epochs=2"]
    trained(command, tmp_path / "chosen")
    assert trained([*command, *more], tmp_path / "chosen") == trained([*command, *AMPLE, *more], tmp_path / "ample")


def test_scoring_raises_the_caps_that_it_chose(growing, tmp_path, capsys):
    scores = {}
    for name, flags in (("ample", AMPLE), ("chosen", [])):
        trained([growing, "--serial", *flags, "--set", FEW], tmp_path / name)
        log = growing.replace("growing.py", "both.parquet")
        assert score.main([str(tmp_path / name), log, "--out", str(tmp_path / f"of-{name}")]) == 0
        scores[name] = pq.read_table(tmp_path / f"of-{name}")
        assert ("storage.host raised from " in capsys.readouterr().err) == (name == "chosen")
    assert scores["ample"].equals(scores["chosen"])


MIB = 1 << 20
MUCH, LITTLE, TAKEN = (99 * MIB, 100 * MIB), (9 * MIB, 100 * MIB), (99 * MIB, 8 * MIB)
"""Limits at the start, and memory that is free now; 8 MiB are planned, and 4 MiB resident."""


@pytest.mark.parametrize(
    ("cap", "needed", "given", "memory", "grown_by"),
    [
        ("map_bytes", 4 * MIB + 1, {}, MUCH, MIB),
        ("map_bytes", 6 * MIB, {}, MUCH, 2 * MIB),
        ("map_bytes", 4 * MIB + 1, {}, LITTLE, MIB),
        ("map_bytes", 6 * MIB, {}, LITTLE, None),
        ("map_bytes", 6 * MIB, {}, TAKEN, None),
        ("map_bytes", 6 * MIB, {"memory": 99 * MIB}, TAKEN, 2 * MIB),
        ("map_bytes", 4 * MIB + 1, {"map": 4 * MIB}, MUCH, None),
        ("map_bytes", 4 * MIB + 1, {}, None, None),
        ("read_ring_bytes", 2 * MIB, {}, MUCH, 3 * MIB),
        ("disk_chunks", 1 << 30, {}, MUCH, None),
    ],
)
def test_only_chosen_caps_grow_and_only_within_the_limit(tmp_path, monkeypatch, cap, needed, given, memory, grown_by):
    """The map has 4 MiB. The read ring has 7 MiB; with a look-ahead of 2 it has five buffers."""
    monkeypatch.setattr(growth, "free_memory", lambda: memory[1])
    workflow = make_workflow(write_data(tmp_path))
    setup = setup_of(workflow, Source(workflow.data, workflow.seed), map_bytes=4 * MIB)
    free = setup.workflow.storage.model_copy(update={"map": None, "read": None, **given})
    sizes = replace(setup.fit.sizes, read_ring_bytes=7 * MIB)
    setup = replace(
        setup,
        workflow=workflow.model_copy(update={"storage": free}),
        storage=setup.storage.model_copy(update={"map": 4 * MIB, "read": 8 * MIB}),
        fit=replace(setup.fit, sizes=sizes),
        budget=memory and Budget(memory[0], 8 * MIB),
    )
    block = Block(0, "train", 0, 0, 1, 0, 6, 6, 6, True)
    grown = growth.with_larger_cap(setup, Refusal(block, "map", "too small", needed, cap), 2, lambda: 4 * MIB)
    assert (grown and getattr(grown.setup.fit.sizes, cap) - getattr(sizes, cap)) == grown_by
    if grown:
        assert grown.setup.budget.planned == 8 * MIB + grown_by
