"""A column that surely gives the label away is left out, a doubtful one is kept and named; honest ones stay."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from support.data.drafts import drafted, write_logs

from pipeline.init.look import look_at_files
from pipeline.init.main import table_of
from pipeline.init.roles import choose_roles

ROWS, BEGIN = 20_000, 1_790_000_000


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


def looked_at(columns, folder, labels=("click",)):
    look = look_at_files([write_logs(folder, all=pa.table(columns)) / "all.parquet"])
    choices = choose_roles(look, labels)
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


def or_nothing(click, values, nothing=None, type=None):
    """Values where there was a click."""
    return pa.array([value if one else nothing for one, value in zip(click, values, strict=True)], type)


def iso(seconds):
    return [str(datetime.datetime.fromtimestamp(int(s), datetime.UTC))[:19] for s in seconds]


EXACT = {
    "seconds or null": lambda c, t, r: or_nothing(c, t.tolist()),
    "seconds or 0": lambda c, t, r: np.where(c, t, 0),
    "milliseconds or -1": lambda c, t, r: np.where(c, t * 1000, -1),
    "float seconds or NaN": lambda c, t, r: np.where(c, t + 0.5, np.nan),
    "timestamps or null": lambda c, t, r: or_nothing(c, t.tolist(), None, pa.timestamp("s")),
    "timestamps of a zone or 1970": lambda c, t, r: or_nothing(c, t.tolist(), 0, pa.timestamp("s", "Asia/Tokyo")),
    "dates or null": lambda c, t, r: or_nothing(c, (t // 86400).tolist(), None, pa.date32()),
    "texts of times or null": lambda c, t, r: or_nothing(c, iso(t)),
    "days of digits or null": lambda c, t, r: or_nothing(c, (20260101 + t % 28).tolist()),
    "dwell time or 0": lambda c, t, r: np.where(c, r.exponential(9, len(c)), 0.0),
    "bought items": lambda c, t, r: or_nothing(c, [[n % 50, n % 7] for n in t.tolist()], []),
    "copy": lambda c, t, r: c.astype(bool),
    "the other way round": lambda c, t, r: np.where(c, 0, 1 + t % 500),
}
"""Null, 0, -1 or empty in exactly the rows of one value of the label."""
NEAR = {
    "id by number": lambda c, t, r: np.where(c, 7_000_000, 3_000_000) + t % 9000,
    "id by group": lambda c, t, r: 2 * (t % 40) + c,
    "id by text": lambda c, t, r: [f"{'AB'[one]}{n % 9000}" for one, n in zip(c, t, strict=True)],
    "score": lambda c, t, r: r.normal(0, 1, len(c)) + 6 * c,
    "dwell time, 1 % noise": lambda c, t, r: noisy(np.where(c, r.exponential(9, len(c)), 0.0), 0.01, r),
}
"""An AUC above .98."""
DOUBTFUL = {
    "dwell time, 4 % noise": lambda c, t, r: noisy(np.where(c, r.exponential(9, len(c)), 0.0), 0.04, r),
    "a fair number of AUC .97": lambda c, t, r: r.normal(0, 1, len(c)) + 2.66 * c,
    "a fair category of AUC .97": lambda c, t, r: np.rint(8 * (r.normal(0, 1, len(c)) + 2.66 * c)).clip(0, 40),
}


def noisy(values, share, rng):
    """Values, of which a share are those of other rows."""
    return np.where(rng.random(len(values)) < share, rng.permutation(values), values)


@pytest.mark.parametrize(("rows", "rate"), [(100, 0.9), (ROWS, 0.002), (ROWS, 0.03), (ROWS, 0.4)])
def test_what_surely_gives_the_label_away_is_left_out(tmp_path, rows, rate):
    """A column that is less sure is kept, with a warning."""
    columns, rng = log_of(rate, rows)
    click, times = columns["click"], BEGIN + rng.integers(0, 86400 * 30, rows)
    # Of a few clicks, an AUC says little.
    out, kept = (EXACT | NEAR, DOUBTFUL) if click.sum() > 200 else (EXACT, {})
    made = {f"c{n}": draw(click, times, rng) for n, draw in enumerate([*out.values(), *kept.values()])}
    choices, lines = looked_at(columns | made, tmp_path)
    for kind, name in zip([*out, *kept], made, strict=True):
        said = "".join(line for line in lines if f"warning: {name} " in line)
        assert (choices[name].role == "skip") == (kind in out), (kind, said)
        assert (" is left out: it alone predicts the label (AUC " in said) == (kind in out), kind
        assert (f"--as {name}=" if kind in out else f"--as {name}=nothing") in said, kind


def test_no_candidate_and_no_split_reads_a_leak(tmp_path, capsys):
    """Unless the user says that it is known before."""
    columns, _ = log_of(0.3, 2000)
    times = or_nothing(columns["click"], (BEGIN + np.arange(2000) * 600).tolist(), 0, pa.timestamp("s"))
    source = write_logs(tmp_path / "data", log=pa.table(columns | {"at": times}))
    drafted(tmp_path, source=source)
    assert "drawn at random" in capsys.readouterr().out
    assert '"at"' not in (tmp_path / "my.py").read_text()
    drafted(tmp_path, "--fresh", "--as", "at=time", source=source)
    assert "is left out" not in capsys.readouterr().out


def test_names_of_outcomes_are_warned_of_first(tmp_path):
    columns, rng = log_of(0.03)
    c = columns["click"]
    suspects = {"x1": c * 7, "x2": rng.normal(0, 1, ROWS) + 2.4 * c, "play_time": c * 0.5, "rated": noisy(c, 0.2, rng)}
    _, lines = looked_at({"click": c, **suspects, "site": columns["site"]}, tmp_path)
    assert [line.split()[1] for line in lines] == ["play_time", "rated", "x1", "x2"]
    assert "rated seems, by its name, to be known only after the label, and it alone predicts" in lines[1]
    assert "if it is one more label, --label click --label rated" in lines[1]


def test_the_auc_is_not_that_of_rows_it_was_counted_on(tmp_path):
    """Each of many rare values has its own rate, which says nothing of other rows."""
    columns, rng = log_of(0.03)
    choices, lines = looked_at(columns | {"device": rng.integers(0, ROWS // 3, ROWS) * 7 + (1 << 33)}, tmp_path)
    assert choices["device"].role == "category"
    assert not any("device" in line for line in lines)


def test_the_worst_of_several_labels_decides(tmp_path):
    columns, rng = log_of(0.3)
    bought = (rng.random(ROWS) < 0.2).astype(np.int8)
    found, _ = looked_at(columns | {"won": bought, "x1": bought * 7 + 1}, tmp_path, ["won", "click"])
    assert "x1 is left out: it alone predicts the label (AUC 1.000" in found["x1"].warning


@pytest.mark.parametrize("form", ["files", "one file"])
def test_categories_with_new_values_in_held_out_rows_stay(tmp_path, capsys, form):
    """Also those that are named by folders."""
    days = []
    for day in range(10):
        columns, _ = log_of(0.3, 300, day)
        days.append(pa.table(columns | {"day_id": np.full(300, day), "ts": np.full(300, 1_772_323_200 + day * 86_400)}))
    if form == "files":
        for n, day in enumerate(days):
            write_logs(tmp_path / "data" / f"batch=b{n}", **{str(n): day})
    else:
        write_logs(tmp_path / "data", all=pa.concat_tables(days))
    workflow, said = drafted(tmp_path, "--label", "click", source=tmp_path / "data"), capsys.readouterr().out
    for name in ("day_id", "batch") if form == "files" else ("day_id",):
        assert f"warning: {name} has different values in the held-out rows" in said
        assert f"to leave it out, --as {name}=nothing" in said
        assert name in {category.name for category in workflow.data.categories}
