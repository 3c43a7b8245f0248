"""--explain as a user calls it: the prediction in words and as JSON."""

import json
from pathlib import Path

import pytest
from conftest import make_workflow

from pipeline.machine.memory import resident_bytes
from pipeline.run import main


@pytest.fixture
def explained(data_root, tmp_path, monkeypatch, capsys):
    """Runs `--explain` on a small workflow; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.json"
    path.write_text(make_workflow(data_root).model_copy(update={"device": "auto"}).model_dump_json())

    def run(*argv):
        code = main([str(path), "--explain", *map(str, argv)])
        return code, *capsys.readouterr()

    return run


def test_the_prediction_follows_the_explanation(explained, tmp_path):
    code, out, err = explained()
    assert (code, err) == (0, "")
    assert out.index("\nfits") < out.index("\nmeasuring the workflow") < out.index("\npredicted for this machine (")
    for line in ("stage  ", "read  ", "train  ", "together ", "speed: ", "hits: ", "commits: ", "at most: "):
        assert f"\n{line}" in out
    assert out.count("<- binds") <= 1
    assert {path.name for path in tmp_path.iterdir()} == {"small.json"}


def test_json_has_the_same_values_and_nothing_else_on_stdout(explained):
    code, out, err = explained("--json", "--price", "2.5")
    value = json.loads(out)
    assert (code, value["no_prediction"]) == (0, None)
    assert "replaying the plans" in err
    p = value["prediction"]
    assert p["examples_per_second"] > 0
    assert p["price"] == pytest.approx(2.5 * p["run_seconds"] / 3600)
    assert set(p["block"]["stages"]) == {"read", "dedup", "plan", "prefetch", "train", "write_back"}
    assert p["replay"]["replayed"] == 1.0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--price", "-1"), "--price -1.0: expected the price of an hour, at least 0"),
        (("--price", "nan"), "--price nan: expected the price of an hour"),
    ],
)
def test_a_price_that_is_none_is_one_message(explained, argv, said):
    code, _, err = explained(*argv)
    assert code == 2
    assert said in err
    assert err.startswith("error: ")


def test_a_price_without_explain_is_refused(explained, tmp_path, capsys):
    assert main([str(tmp_path / "small.json"), "--price", "1"]) == 2
    assert "--price needs a prediction; add --explain" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_what_cannot_be_tried_is_explained_without_a_prediction(explained, monkeypatch):
    code, out, _ = explained("--set", "storage.map=704 KiB", "--scheduler", "tcp://localhost:1")
    assert code == 0
    assert "\nno prediction: the workers of --scheduler are on machines that are not known here" in out
    monkeypatch.setattr("pipeline.planner.command.measure_work", lambda *a: (_ for _ in ()).throw(ValueError("bad")))
    code, out, _ = explained("--json")
    assert (code, json.loads(out)["prediction"], json.loads(out)["no_prediction"]) == (0, None, "bad")


def test_chosen_sizes_are_predicted_with_half_and_twice_memory(explained):
    """Also where the half does not fit."""
    chosen = ("--set", 'storage={"chunk_rows": 1024}')
    code, out, err = explained("--json", *chosen)
    assert code == 0, err
    others = json.loads(out)["prediction"]["other_memory"]
    assert [other["prediction"]["examples_per_second"] > 0 for other in others.values()] == [True, True]
    assert others["twice"]["memory"] == pytest.approx(4 * others["half"]["memory"], rel=0.1)
    # What other tests have loaded is a part of what this process takes.
    half = (resident_bytes() >> 21) + 256
    code, out, err = explained(*chosen, "--set", f"storage.memory={2 * half} MiB")
    assert code == 0, err
    assert f"\nhalf:     with {half} MiB of memory " in out
    assert f"\ntwice:    with {4 * half} MiB of memory " in out
