"""`run --explain`: the sizes of a run, warnings about its labels, and nothing written."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs.tiny_workflow import make_columns

from pipeline.messages.sizes import parse_size
from pipeline.preflight import setup
from pipeline.run import main


def test_explain_shows_the_bytes_and_trains_nothing(workflow_file, tmp_path, capsys):
    before = set(tmp_path.iterdir())
    assert main([str(workflow_file), "--explain", "--all", "--set", "seed=12345"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("tiny: DeepFM on ")
    assert "steps:    5 of 8 examples" in out
    assert "\nfits" in out
    assert "12 to 16 bytes a key" in out
    assert all(f"\n{name} " in out for name in ("disk log", "batch", "scores", "slot marks"))
    lines = [line for line in out.splitlines() if re.match(r"[\d.]+ [KMGT]?i?B   ", line[22:].strip())]
    num_bytes = {line[:22].strip(): parse_size(line[22:].strip().partition("   ")[0]) for line in lines}
    device, host = ("device slab", "device outgoing ring"), ("host slab", "host staging ring", "host chunk buffer")
    for names in (device, host):
        assert 0.9 * (1 << 20) < sum(num_bytes[name] for name in names) <= 1.01 * (1 << 20)
    assert num_bytes["read ring"] + num_bytes["shuffle window"] <= 4.1 * (1 << 20)
    assert num_bytes["key map"] == 1 << 20
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "__pycache__"}


def test_a_look_ahead_reduced_to_fit_is_reported_with_its_cap(workflow_file, capsys):
    """45 rows of 56 bytes: the window of the workflow does not fit, and less does."""
    assert main([str(workflow_file), "--explain", "--all", "--set", f"storage.device={56 * 45} B"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"look-ahead 0, blocks of 2 batches: storage.device is {56 * 45} B, 45 rows of 56 bytes; needed"
    )
    assert "\nlook-ahead 0, blocks of 2 batches\n" in out


def test_a_model_class_of_the_workflow_file_survives_json(workflow_file, capsys):
    text = workflow_file.read_text().replace("workflow = ", "class Mine(DeepFM):\n    pass\n\nworkflow = ", 1)
    workflow_file.write_text(text.replace("kind=DeepFM", "kind=Mine"))
    assert main([str(workflow_file), "--explain", "--json", "--set", "seed=1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["workflow"]["model"]["kind"], shown["workflow"]["seed"]) == ("workflow_tiny.Mine", 1)
    assert shown["bytes"]["key map"] == 1 << 20


def test_explain_shows_the_hit_rates_of_several_sizes(workflow_file, capsys, monkeypatch):
    def opened(*args):
        raise AssertionError("a worker was opened")

    monkeypatch.setattr("pipeline.worker.tiers.Tiers.__init__", opened)
    assert main([str(workflow_file), "--explain"]) == 0
    said, _, hits = capsys.readouterr().out.partition("\nhits: ")
    lines = hits.splitlines()
    assert len(said.splitlines()) <= 10
    assert len(lines) <= 8
    assert "are never hits" in lines[1]
    assert [line.split()[0] for line in lines[2:-1]] == ["chosen"], "all rows fit"
    assert "of the table\ndisk:" in said
    assert lines[-1].strip() == "looked at the first 100% of the examples to train"
    assert main([str(workflow_file), "--explain", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    rates = [point["hit_rate"] for point in hits["curve"]]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(1 - hits["first_uses"]) == pytest.approx(hits["device_and_host"])
    assert f"{hits['device']:.1%} in device alone" in lines[2]


def test_keys_are_read_also_for_the_workers_of_a_scheduler(workflow_file, capsys):
    assert main([str(workflow_file), "--explain", "--scheduler", "tcp://localhost:1"]) == 0
    assert "\nhits: " in capsys.readouterr().out


def test_a_batch_larger_than_the_data_is_accepted(workflow_file):
    assert main([str(workflow_file), "--explain", "--set", "schedule.batch_size=1000000"]) == 0


@pytest.mark.prove
def test_explain_counts_scores_of_groups_and_of_training(workflow_file, capsys):
    found = []
    for asked in ([], ["metrics.group=c0"], ["data.validation=[]"], ["data.validation=[]", "metrics.progressive=true"]):
        assert main([str(workflow_file), "--explain", "--all", *(f for a in asked for f in ("--set", a))]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("scores ")]
        found.append(line[22:].strip().partition("   ")[0])
    assert found == ["320 B", "1.6 KiB", "0 B", "320 B"]


def test_groups_that_do_not_fit_into_memory_are_refused(workflow_file, capsys, monkeypatch):
    """Without groups, the scores of as many examples fit."""
    monkeypatch.setattr(setup, "most_evaluated", lambda workflow, agenda: 10**11)
    assert main([str(workflow_file), "--explain"]) == 0
    assert main([str(workflow_file), "--explain", "--set", "metrics.group=c0"]) == 2
    said = capsys.readouterr().err
    assert "metrics.group keeps 32 bytes per label of every example of the largest evaluation: 100,000,000,000" in said
    assert "leave metrics.group out, name fewer files in data.validation and data.test, or lower the caps" in said


@pytest.mark.parametrize(
    ("values", "kind", "options", "warned"),
    [([1] * 40, pa.int8(), {}, "1"), ([0] * 40, pa.float32(), {}, "0"), ([1] * 40, pa.bool_(), {}, "1"),
     ([0] * 39 + [1], pa.int8(), {}, ""), ([1] * 40, pa.int8(), {"write_statistics": False}, ""),
     ([0] * 39 + [1], pa.float16(), {}, "")],
    ids=["ones", "zeros", "true", "both", "unknown", "bytes"],
)  # fmt: skip
def test_labels_that_are_all_the_same_are_warned_about(workflow_file, tmp_path, capsys, values, kind, options, warned):
    table = pa.table(make_columns() | {"label": pa.array(values).cast(kind)})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=7, **options)
    assert main([str(workflow_file), "--explain"]) == 0
    said = capsys.readouterr().err
    begin = f"warning: all training labels of 'label' are {warned}: there is nothing to learn; look at data.labels"
    assert [line.startswith(begin) for line in said.splitlines() if warned or line] == ([True] if warned else [])
