"""Features that go with the label by themselves are kept and named in a warning; guesses leave no feature out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.drafts import init

from pipeline.init.look import look_at_files
from pipeline.init.main import table_of
from pipeline.init.roles import choose_roles
from pipeline.workflow import load

ROWS = 20_000


def log_of(rate, rows=ROWS, seed=0):
    """A log with a strong honest category, an honest number, and columns that say nothing of its clicks."""
    rng = np.random.default_rng(seed)
    strong = rng.integers(0, 60, rows)
    odds = np.where(strong < 3, 12 * rate, rate / 3)
    click = rng.random(rows) < np.minimum(odds, 0.97)
    columns = {
        "click": click.astype(np.int8), "app": strong, "site": rng.integers(0, 300, rows),
        "depth": rng.normal(0, 1, rows) + click,
    }  # fmt: skip
    return columns, rng


def looked_at(columns, folder):
    pq.write_table(pa.table(columns), folder / "all.parquet")
    look = look_at_files([folder / "all.parquet"])
    choices = choose_roles(look, ["click"])
    lines = [line for line in table_of(look, choices).splitlines() if line.startswith("warning: ")]
    return {choice.column.name: choice for choice in choices}, lines


@pytest.mark.parametrize("rate", [0.002, 0.03, 0.4])
def test_honest_strong_features_are_kept(tmp_path, rate):
    columns, _ = log_of(rate)
    choices, lines = looked_at(columns, tmp_path)
    assert {name: choice.role for name, choice in choices.items()} == {
        "click": "label", "app": "category", "site": "category", "depth": "number"
    }  # fmt: skip
    assert not any("site" in line or "only after the label" in line for line in lines)


def leaks(click, rng):
    """Columns that are known only after the click, with a name that says so, and with one that does not."""
    rows = len(click)
    return {
        "play_time": np.where(click > 0, rng.exponential(9, rows), 0.0),
        "conversions": click * rng.integers(1, 4, rows),
        "x1": np.where(click > 0, rng.integers(1, 40, rows), 0),
        "x2": np.where(click > 0, rng.normal(5, 1, rows), rng.normal(0, 1, rows)),
    }


@pytest.mark.parametrize("rate", [0.002, 0.03, 0.4])
def test_planted_leaks_are_kept_and_named(tmp_path, rate):
    columns, rng = log_of(rate)
    planted = leaks(columns["click"], rng)
    choices, lines = looked_at(columns | planted, tmp_path)
    for name in planted:
        assert choices[name].role in ("number", "category")
        (line,) = [line for line in lines if f"warning: {name} " in line]
        auc = float(line.split("AUC ")[1].split()[0])
        assert auc > 0.95
        assert f"--as {name}=nothing" in line


def test_names_of_outcomes_are_warned_of_first(tmp_path):
    columns, rng = log_of(0.03)
    planted = leaks(columns["click"], rng)
    order = {"click": columns["click"]} | {name: planted[name] for name in ("x1", "x2", "play_time", "conversions")}
    _, lines = looked_at(order | {"site": columns["site"]}, tmp_path)
    assert [line.split()[1] for line in lines] == ["play_time", "conversions", "x1", "x2"]
    assert all("seems, by its name, to be known only after the label" in line for line in lines[:2])


def test_the_auc_is_not_that_of_rows_it_was_counted_on(tmp_path):
    """Each of many rare values has its own rate, which says nothing of other rows."""
    columns, rng = log_of(0.03)
    choices, lines = looked_at(columns | {"device": rng.integers(0, ROWS // 3, ROWS) * 7 + (1 << 33)}, tmp_path)
    assert choices["device"].role == "category"
    assert not any("device" in line for line in lines)


def test_a_null_that_reveals_the_label_is_noticed(tmp_path):
    columns, rng = log_of(0.03)
    values = [
        f"c{n}" if clicked else None for n, clicked in zip(rng.integers(0, 9, ROWS), columns["click"], strict=True)
    ]
    choices, lines = looked_at(columns | {"campaign": pa.array(values)}, tmp_path)
    assert choices["campaign"].role == "category"
    assert "warning: campaign is kept, but it alone predicts the label" in lines[0]


def test_the_worst_of_several_labels_decides(tmp_path):
    columns, rng = log_of(0.3)
    bought = (rng.random(ROWS) < 0.2).astype(np.int8)
    pq.write_table(pa.table(columns | {"won": bought, "x1": bought * 7 + 1}), tmp_path / "all.parquet")
    look = look_at_files([tmp_path / "all.parquet"])
    (found,) = [c for c in choose_roles(look, ["won", "click"]) if c.column.name == "x1"]
    assert "x1 is kept, but it alone predicts the label (AUC 1.000" in found.warning


@pytest.mark.parametrize("form", ["files", "one file"])
def test_categories_with_new_values_in_held_out_rows_stay(tmp_path, capsys, form):
    days = []
    for day in range(10):
        columns, _ = log_of(0.3, 300, day)
        days.append(pa.table(columns | {"day_id": np.full(300, day), "ts": np.full(300, 1_772_323_200 + day * 86_400)}))
    files = {f"day_{n}": day for n, day in enumerate(days)} if form == "files" else {"all": pa.concat_tables(days)}
    for name, table in files.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py"), "--label", "click"]) == 0
    said = capsys.readouterr().out
    assert "warning: day_id has different values in the held-out rows" in said
    assert "to leave it out, --as day_id=nothing" in said
    assert "day_id" in {category.name for category in load(tmp_path / "my.py").data.categories}
