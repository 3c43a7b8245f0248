"""The command `pipeline run --extend`, its guard and its table, as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.days import day_table, write_days

import pipeline
from pipeline.monitor.runs import main as runs
from pipeline.run import main
from pipeline.spans.guard import EXIT_CODE, GuardStopped
from pipeline.spans.waiting import EXIT_CODE as SET_ASIDE
from pipeline.verify import main as verify

WORKFLOW = """
from pipeline.api import Category, Data, LR, Model, Schedule, Storage, Workflow

workflow = Workflow(
    name="days",
    data=Data(
        root="{root}", train=("train-0.parquet",), labels=("click",), categories=(Category(name="item"),), time="at",
    ),
    model=Model(kind=LR, embedding_dim=0),
    storage=Storage(device="1 MiB", host="1 MiB", disk="64 MiB", read="4 MiB", map="1 MiB"),
    schedule=Schedule(batch_size=8, block_batches=2, look_ahead=1, threads=1),
)
"""


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    files = write_days(tmp_path / "data", [20, 13, 31, 9])
    (tmp_path / "days.py").write_text(WORKFLOW.format(root=tmp_path / "data"))
    return files


def result_of(run):
    return json.loads(Path(run, "result.json").read_text())


def test_a_finished_run_goes_on_with_another_day(days, capsys):
    assert main(["days.py", "--serial"]) == 0
    assert main(["days.py", "--serial", "--extend", str(days[1]), str(days[2])]) == 0
    said = capsys.readouterr()
    assert [entry["span"] for entry in result_of("runs/days")["epochs"]] == ["2026-11-20", "2026-11-21", "2026-11-22"]
    assert "span 2026-11-22, before it is trained on: auc" in said.err
    assert "spans, each scored before it was trained on:" in said.out
    assert verify(["runs/days"]) == 0
    assert main(["days.py", "--serial"]) == 0
    assert "has ended after span 3" in (out := capsys.readouterr().out)
    assert "--extend DATA" in out
    with pipeline.open_run("runs/days", "last") as run:
        assert run.rows("item", range(20))["known"].to_pylist().count(True) > 10
        assert run.commits["span"].to_pylist() == [2, 3], "where training goes on from each of the kept commits"


def test_a_known_file_is_refused_by_name_or_left_out(days, capsys):
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 0
    before = Path("runs/days/result.json").read_bytes()
    assert main(["days.py", "--serial", "--extend", "data/train-1.parquet"]) == 2
    assert "train-1.parquet, which the run has already trained on" in capsys.readouterr().err
    assert main(["days.py", "--serial", "--extend", "data/train-1.parquet", "--known-ok"]) == 0
    assert Path("runs/days/result.json").read_bytes() == before
    assert main(["days.py", "--serial", "--extend", "data/train-*.parquet", "--known-ok"]) == 0
    assert len(result_of("runs/days")["epochs"]) == 4


def test_two_days_at_once_and_python_give_the_same_run(days):
    assert main(["days.py", "--serial", "--extend", *map(str, days[1:])]) == 0
    at_once = result_of("runs/days")
    with pipeline.train("days.py", "one-by-one", serial=True, verbose=False, extend=[days[1]]):
        pass
    with pipeline.train("days.py", "one-by-one", serial=True, verbose=False, extend=days[2:]):
        pass
    result = result_of("one-by-one")
    assert result["fingerprint"] == at_once["fingerprint"]
    assert [e["ne"] for e in result["epochs"]] == [e["ne"] for e in at_once["epochs"]]


def test_what_was_trained_may_be_deleted(days):
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 0
    days[1].unlink()
    assert main(["days.py", "--serial", "--extend", str(days[2])]) == 0
    days[0].unlink()
    assert main(["days.py", "--serial", "--extend", str(days[3])]) == 0
    with pipeline.train(
        "days.py", "at-once", serial=True, verbose=False, extend=write_days(Path("data"), [20, 13, 31, 9])[1:]
    ):
        pass
    found = [result_of(run)["fingerprint"] for run in ("runs/days", "at-once")]
    assert found[0] == found[1]


def test_a_day_of_another_type_is_refused_when_all_others_are_gone(days, capsys):
    assert main(["days.py", "--serial"]) == 0
    days[0].unlink()
    table = pq.read_table(days[1])
    texts = table["item"].cast(pa.string())
    pq.write_table(table.set_column(table.column_names.index("item"), "item", texts), days[1])
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 2
    assert "'item' (data.categories) holds text, expected integers as in the training data" in capsys.readouterr().err


def flipped(file: Path) -> None:
    """Invert the labels of a file."""
    table = pq.read_table(file)
    labels = pa.array(1 - table["click"].to_numpy(), pa.int8())
    pq.write_table(table.set_column(table.column_names.index("click"), "click", labels), file)


def learnable(file: Path) -> None:
    """Labels that the item gives away."""
    table = pq.read_table(file)
    items = np.array(table["item"].fill_null(0))
    labels = pa.array((items % 2).astype(np.int8))
    pq.write_table(table.set_column(table.column_names.index("click"), "click", labels), file)


LEARNS = ["--set", "optimizer.rows.lr=0.3", "--set", "schedule.batch_size=2"]


def test_the_guard_stops_before_a_bad_span_and_keeps_the_commit(days, capsys):
    write_days(days[0].parent, [200, 200, 200, 200])
    for file in days:
        learnable(file)
    flipped(days[2])
    guarded = ["days.py", "--serial", *LEARNS, "--set", "metrics.guard=0.1"]
    assert main([*guarded, "--extend", str(days[1])]) == 0
    good = result_of("runs/days")
    for again in ([*guarded, "--extend", str(days[2])], guarded):
        assert main(again) == EXIT_CODE
        said = capsys.readouterr().err
        assert "stopped by the guard: span 2026-11-22 has a normalized entropy of" in said
        assert f"Its mean label is {np.mean(pq.read_table(days[2])['click']):.4f} (before: " in said
    with pytest.raises(GuardStopped):
        pipeline.train("days.py", "runs/days", serial=True, verbose=False, settings={
            "optimizer.rows.lr": 0.3, "schedule.batch_size": 2, "metrics.guard": 0.1,
        })  # fmt: skip
    assert main(["days.py", "--serial", *LEARNS, "--set", "metrics.guard=null"]) == 0
    result = result_of("runs/days")
    assert [e["span"] for e in result["epochs"]] == ["2026-11-20", "2026-11-21", "2026-11-22"]
    assert result["epochs"][:2] == good["epochs"]


def test_a_corrected_day_is_scored_again_and_trained_on(days, capsys):
    write_days(days[0].parent, [200, 200, 200, 200])
    for file in days:
        learnable(file)
    corrected = days[2].read_bytes()
    flipped(days[2])
    guarded = ["days.py", "--serial", *LEARNS, "--set", "metrics.guard=0.1"]
    assert main([*guarded, "--extend", *map(str, days[1:3])]) == EXIT_CODE
    days[2].unlink()
    assert main(guarded) == SET_ASIDE
    assert "span 2026-11-22 has 0 rows and had 200" in capsys.readouterr().err
    assert main(guarded) == 0
    Path("data/corrected.parquet").write_bytes(corrected)
    assert main([*guarded, "--extend", "data/corrected.parquet"]) == 0
    result = result_of("runs/days")
    scores = [(e["span"], round(e["ne"], 1)) for e in result["epochs"]]
    assert [span for span, _ in scores] == ["2026-11-20", "2026-11-21", "2026-11-22", "2026-11-22"]
    assert scores[2][1] > scores[3][1]
    assert [e.get("scored_again") for e in result["epochs"]] == [None, None, True, None]
    assert verify(["runs/days"]) == 0
    alike = ["days.py", "--serial", *LEARNS, "--like", "runs/days", "--out", "alike"]
    assert main(alike) == 0
    assert result_of("alike")["fingerprint"] == result["fingerprint"]
    assert main(alike) == 0, "a finished one has nothing to do"
    Path("data/corrected.parquet").unlink()
    assert main([*alike, "--fresh"]) == 2
    assert "corrected.parquet, which it was trained on, is gone" in capsys.readouterr().err


def test_a_bad_day_is_held_while_later_ones_go_on(days, capsys):
    write_days(days[0].parent, [200, 200, 200, 200])
    for file in days:
        learnable(file)
    flipped(days[2])
    guarded = ["days.py", "--serial", *LEARNS, "--set", "metrics.guard=0.1", "--set", "metrics.guard_then=hold"]
    assert main([*guarded, "--extend", *map(str, days[1:])]) == SET_ASIDE
    assert "span 2026-11-22 has a normalized entropy of" in capsys.readouterr().err
    result = result_of("runs/days")
    assert (result["examples"], result["data"]["train"]["spans"]) == (600, ["2026-11-20", "2026-11-21", "2026-11-23"])
    assert main(guarded) == 0, "later commands only name it"
    assert "set aside: span 2026-11-22 (guard)" in capsys.readouterr().out
    assert main([*guarded, "--accept", "2026-11-22"]) == 0
    result = result_of("runs/days")
    assert (result["examples"], result["data"]["train"]["spans"][-1]) == (800, "2026-11-22")
    assert main([*guarded, "--like", "runs/days", "--out", "alike"]) == 0, "the guard judges no span of a list"
    assert result_of("alike")["fingerprint"] == result["fingerprint"]


def test_a_bad_day_in_a_file_with_a_trained_one_may_be_accepted(days, capsys):
    write_days(days[0].parent, [200, 200, 200, 1])
    for file in days[:3]:
        learnable(file)
    flipped(days[2])
    pq.write_table(pa.concat_tables(map(pq.read_table, days[1:3])), days[1])
    guarded = ["days.py", "--serial", *LEARNS, "--set", "metrics.guard=0.1"]
    nights = ["--extend", str(days[1])], ["--accept", "2026-11-22"], ["--accept", "2026-11-29"]
    assert [main([*guarded, *more]) for more in nights] == [EXIT_CODE, 0, 2]
    assert result_of("runs/days")["examples"] == 600
    assert "--as-is 2026-11-29: no such span waits" in capsys.readouterr().err


@pytest.mark.parametrize("nights", [
    ["late=take", "late=drop data.ahead=take data.gap=3h", "late=take data.ahead=drop"],
    ["close=next", "label_delay=1d metrics.score_arrivals=true", "complete=success data.label_delay=47h"],
    ["late=take metrics.guard=0.0 metrics.guard_then=hold", "late=drop storage.keep_spans=3", "late=take"],
])  # fmt: skip
def test_settings_may_change_by_night_and_a_list_has_their_effect(days, nights):
    Path("data/_SUCCESS").touch()
    before, far = pq.read_table(days[0]), day_table(np.random.default_rng(0), 40, 2)
    for night, day in zip(nights, days[1:], strict=True):
        pq.write_table(pa.concat_tables([before.slice(0, 3), before := pq.read_table(day), far]), day)
        settings = [word for one in f"data.late=take data.ahead=drop data.{night}".split() for word in ("--set", one)]
        argv = ["days.py", "--serial", *settings]
        assert main([*argv, "--extend", str(day)]) in (0, SET_ASIDE)
    assert main([*argv, "--like", "runs/days", "--out", "alike"]) == 0
    run, alike = [result_of(name) for name in ("runs/days", "alike")]
    listed = alike["data"]["train"]["files"]
    assert (alike["fingerprint"], listed) == (run["fingerprint"], run["data"]["train"]["files"][: len(listed)])


@pytest.mark.parametrize(("option", "examples"), [("--as-is", 20 + 31 + 4), ("--without", 20 + 31)])
def test_a_day_that_lost_rows_is_taken_or_given_up(days, capsys, option, examples):
    delayed = ["days.py", "--serial", "--set", "data.label_delay=1 d"]
    assert main([*delayed, "--extend", str(days[1])]) == 0
    pq.write_table(pq.read_table(days[1]).slice(0, 4), days[1])
    assert main([*delayed, "--extend", str(days[2])]) == SET_ASIDE
    assert main([*delayed, "--extend", str(days[3])]) == 0, "it is named once, and later days go on"
    assert main([*delayed, option, "2026-11-21"]) == 0
    assert result_of("runs/days")["examples"] == examples
    assert main([*delayed, option, "2026-11-20"]) == 2
    assert f"{option} 2026-11-20: no such span waits" in capsys.readouterr().err


def test_a_first_day_that_waits_may_come_again_by_another_name(days):
    delayed = ["days.py", "--serial", "--set", "data.label_delay=1 d", "--known-ok"]
    assert main(delayed) == 0
    days[0].rename("data/labels-known.parquet")
    for _ in range(2):
        assert main([*delayed, "--extend", "data/labels-known.parquet", str(days[1])]) == 0
    result = result_of("runs/days")
    given = [["train-0.parquet"], ["labels-known.parquet", "train-1.parquet"]]
    assert (result["examples"], result["data"]["train"]["given"]) == (20, given), "places are kept once"


def test_a_trained_day_stays_due_if_the_last_one_is_gone(days):
    delayed = ["days.py", "--serial", "--set", "data.label_delay=2 d", "--known-ok", "--extend", "data"]
    assert main(delayed) == 0
    days[3].rename("away")
    assert main(delayed) == SET_ASIDE
    Path("away").rename(days[3])
    assert main(delayed) == 0
    assert result_of("runs/days")["examples"] == 20 + 13


def test_the_delay_of_labels_may_change_between_nights(days):
    found = []
    for delay, day in (("null", days[1]), ("2 d", days[2]), ("2 d", days[3]), ("null", days[3])):
        extend = ["--extend", str(day), "--known-ok", "--set", f"data.label_delay={delay}"]
        assert main(["days.py", "--serial", *extend]) == 0
        found.append(result_of("runs/days"))
    assert [result["examples"] for result in found] == [33, 33, 33, 73]
    assert main(["days.py", "--serial", "--extend", *map(str, days[1:]), "--out", "whole"]) == 0
    assert result_of("whole")["fingerprint"] == found[-1]["fingerprint"]


def test_a_copy_of_a_file_is_named_and_left_out(days, capsys):
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 0
    before = result_of("runs/days")["fingerprint"]
    Path("data/copy.parquet").write_bytes(days[1].read_bytes())
    assert [main(["days.py", "--serial", "--extend", "data/copy.parquet"]) for _ in range(2)] == [0, 0]
    said = f"{Path('data/copy.parquet').absolute()} is a copy of {days[1]}, so it is left out"
    assert capsys.readouterr().err.count(said) == 1
    assert result_of("runs/days")["fingerprint"] == before


def test_the_last_day_waits_for_the_next_or_until_it_is_closed(days):
    found = []
    for more in ([], ["--extend", str(days[1])], ["--close"], ["--extend", str(days[2])]):
        assert main(["days.py", "--serial", "--set", "data.close=next", *more]) == 0
        found.append(result_of("runs/days")["examples"])
    assert found == [0, 20, 33, 33]


def test_a_trained_file_that_grew_is_named_and_not_read(days, capsys):
    log, rows = Path("data/log.parquet"), [pq.read_table(day) for day in days]
    again = ["days.py", "--serial", "--known-ok", "--extend", str(log)]
    for night in (1, 2):
        pq.write_table(pa.concat_tables(rows[1 : night + 1]), log)
        assert main(again) == 0
        assert result_of("runs/days")["examples"] == 33
        assert capsys.readouterr().err.count("log.parquet changed after it was trained on") == night - 1


def test_rows_trained_ahead_are_not_trained_again_when_merged(days, capsys):
    first, second, third = [pq.read_table(day) for day in days[:3]]
    pq.write_table(mixed := pa.concat_tables([first, third.slice(0, 3)]), days[0])
    found, command = [], ["days.py", "--serial", "--set", "data.ahead=take", "--extend"]
    assert main(command[:-1]) == 0
    days[0].unlink()
    pq.write_table(pa.concat_tables([mixed, second]), "data/merged.parquet")
    for file in ("data/merged.parquet", days[2]):
        assert main([*command, str(file)]) == 0
        found.append(result_of("runs/days")["examples"])
    assert found == [20 + 3 + 13, 20 + 3 + 13 + 31]
    assert "23 rows are rewritten (2026-11-20: 20, 2026-11-22: 3), and left out" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [True, False])
def test_a_row_after_midnight_waits_for_its_day(days, capsys, kept):
    tables = [pq.read_table(day) for day in write_days(Path("data"), [120, 120, 120, 4])]
    for day, today, tomorrow in zip(days, tables, tables[1:], strict=False):
        pq.write_table(pa.concat_tables([today.slice(1), tomorrow.slice(0, 1)]), day)
    found = []
    for night, more in enumerate(([], ["--extend", str(days[1])], ["--extend", str(days[2])], ["--close"])):
        assert main(["days.py", "--serial", *more]) == 0
        found.append(result_of("runs/days")["examples"])
        if not kept and night < 2:
            days[night].unlink()
    lost = 0 if kept else 1
    assert found == [119, 239 - lost, 359 - 2 * lost, 360 - 2 * lost]
    assert "span 2026-11-21 waits: 1 rows, under 1 %" in capsys.readouterr().err
    if kept:
        assert main(["days.py", "--serial", "--like", "runs/days", "--out", "alike"]) == 0
        assert result_of("alike")["fingerprint"] == result_of("runs/days")["fingerprint"]


def test_a_first_night_without_scores_trains_nothing(days):
    waits = ["days.py", "--serial", "--no-score", "--set", "data.label_delay=2 d"]
    assert main(waits) == 0
    assert result_of("runs/days")["examples"] == 0
    assert main([*waits, "--extend", *map(str, days[1:3])]) == 0
    assert result_of("runs/days")["examples"] == 20


def test_scores_can_be_switched_off(days, capsys):
    assert main(["days.py", "--serial", "--no-score"]) == 0
    out = capsys.readouterr().out
    assert "no metrics: there is no validation or test split, and no span was scored" in out
    assert "auc" not in out
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 0
    assert main(["days.py", "--serial", "--no-score", "--extend", str(days[2])]) == 0
    result = result_of("runs/days")
    assert [entry["span"] for entry in result["epochs"]] == ["2026-11-21"]
    assert result["examples"] == 64


def test_files_of_trained_spans_are_not_opened_again(days):
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 0
    days[0].write_bytes(b"no Parquet file")
    days[1].write_bytes(b"")
    assert main(["days.py", "--serial"]) == 0
    assert main(["days.py", "--serial", "--extend", str(days[2])]) == 0
    assert result_of("runs/days")["examples"] == 64


def test_an_earlier_day_is_refused_and_the_runs_last_span_is_named(days, capsys):
    assert main(["days.py", "--serial", "--set", 'data.train=["train-1.parquet"]']) == 0
    assert main(["days.py", "--serial", "--extend", str(days[0])]) == 2
    said = capsys.readouterr().err
    assert "train-0.parquet, row 0: span 2026-11-20 is late: the run has trained up to span 2026-11-21" in said
    assert main(["days.py", "--serial", "--set", "data.late=take", "--extend", str(days[0])]) == 0
    result = result_of("runs/days")
    assert [entry["span"] for entry in result["epochs"]] == ["2026-11-21", "2026-11-20"]
    counted = {"span": "2026-11-20", "kind": "late", "trained_with": "2026-11-20", "rows": 20}
    assert result["out_of_place"] == [counted]
    assert "  2026-11-20: 20 rows late, trained on with 2026-11-20" in capsys.readouterr().out
    assert main(["days.py", "--serial", "--set", "data.late=drop", "--extend", str(days[3])]) == 0
    pq.write_table(pq.read_table(days[3]).slice(2, 4), "data/again.parquet")
    again = ["days.py", "--serial", "--known-ok", "--extend", "data/again.parquet", "--set", "data.late=drop"]
    left_out = counted | {"span": "2026-11-23", "rows": 4, "trained_with": None}
    for _ in range(2):
        assert main(again) == 0
        assert result_of("runs/days")["out_of_place"][1:] == [left_out], "counted once, though nothing is trained"
    assert capsys.readouterr().err.count("4 rows are late (2026-11-23: 4), and left out (data.late)") == 1
    pq.write_table(pq.read_table(days[3]).slice(1, 4), "data/later.parquet")
    assert main(["days.py", "--serial", "--set", "data.late=take", "--extend", "data/later.parquet"]) == 0
    result = result_of("runs/days")
    assert result["out_of_place"][1:] == [left_out | {"trained_with": "2026-11-23 part 2"}, left_out]
    assert [entry["span"] for entry in result["epochs"]][2:] == ["2026-11-23"], "no span of its own rows"
    assert main(["days.py", "--serial"]) == 0


def test_runs_shows_the_scores_of_the_last_span(days, capsys):
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 0
    last = result_of("runs/days")["epochs"][-1]
    capsys.readouterr()
    assert runs(["runs"]) == 0
    said = capsys.readouterr().out
    assert "span 2026-11-21 of data, label click" in said
    assert f"{last['auc']:.5f}" in said


def test_a_workflow_without_spans_cannot_be_extended(days, capsys):
    Path("days.py").write_text(Path("days.py").read_text().replace(' time="at",', ""))
    assert main(["days.py", "--serial", "--extend", str(days[1])]) == 2
    assert "--extend needs training data with spans" in capsys.readouterr().err


def test_a_new_file_that_a_pattern_matches_is_named_and_not_trained(days, capsys):
    assert main(["days.py", "--serial"]) == 0
    settings = ["--set", 'data.train=["train-*.parquet"]']
    assert main(["days.py", "--serial", *settings]) == 0
    said = capsys.readouterr().out
    assert "data.train matches train-1.parquet, train-2.parquet, train-3.parquet, which the run does not have" in said
    assert result_of("runs/days")["examples"] == 20
