"""`pipeline init`: a user's files become a workflow that trains, and every choice is reported."""

import gzip
import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from support.data.drafts import drafted, init, splits_of, write_logs
from support.depth import some

from pipeline.files.find import named
from pipeline.init.columns import described_column
from pipeline.init.look import look_at_files
from pipeline.init.main import PIECE_BYTES, main, table_of
from pipeline.init.roles import choose_roles
from pipeline.machine import limits
from pipeline.prepare.arguments import read_arguments
from pipeline.prepare.main import main as prepare
from pipeline.run import main as run

ROWS = 4000
N = np.arange(ROWS)


def table(rows=ROWS, seed=0, **more):
    """A log whose clicks depend on its users."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 50, rows)
    click = (rng.random(rows) < np.where(user % 2, 0.8, 0.1)).astype(np.int8)
    columns = {"click": click, "user_id": user, "price": rng.random(rows) * 100, "colour": list("rgb" * rows)[:rows]}
    return pa.table({name: pa.array(values) for name, values in (columns | more).items()})


def roles_of(found, folder, labels=()):
    look = look_at_files([named(write_logs(folder, all=found) / "all.parquet")])
    return {choice.column.name: choice for choice in choose_roles(look, labels)}


@pytest.mark.parametrize("form", some(["named", "Parquet", "a header", "none", "a time"], "a header"))
def test_a_log_becomes_a_workflow_that_learns_at_the_first_try(tmp_path, capsys, form):
    log = table(date=[f"2026-01-{1 + n * 28 // ROWS:02}" for n in N]) if form == "a time" else table()
    if form == "none":
        pa_csv.write_csv(log, tmp_path / "log.csv", pa_csv.WriteOptions(include_header=False))
    elif form == "named":
        write_logs(tmp_path, **{name: table(seed=seed) for seed, name in enumerate(("train", "valid", "test"))})
    else:
        write_logs(tmp_path, "parquet" if form == "Parquet" else "csv", log=log)
    found, said = drafted(tmp_path), capsys.readouterr().out
    assert found.data.validation
    assert found.data.test
    assert ("by the time in date, by whole weeks: validation from 2026-01-19" in said) == (form == "a time")
    folder = tmp_path / "run"
    assert run([str(tmp_path / "my.py"), "--serial", "--run-dir", str(folder), "--set", "device=cpu"]) == 0
    assert json.loads((folder / "result.json").read_bytes())["auc"] > 0.8


@pytest.mark.parametrize("form", ["folders", "Delta"])
def test_a_workflow_names_folders_and_tables_never_parts(tmp_path, form):
    """Folders of days are named one by one. A Delta table is copied, since its files change."""
    log = pa.concat_tables([table(200, day, day=[f"2026-11-{day:02}"] * 200) for day in range(1, 7)])
    place = tmp_path / "log"
    if form == "Delta":
        pytest.importorskip("deltalake").write_deltalake(str(place), log, partition_by=["day"])
    else:
        for part in (log.slice(0, 700), log.slice(700)):
            pq.write_to_dataset(part, place, partition_cols=["day"])
    assert drafted(tmp_path, source=place).data.test == (("test",) if form == "Delta" else ("day=2026-11-06",))
    assert ".parquet" not in (tmp_path / "my.py").read_text()
    if form == "Delta":
        days = {split: {*pq.read_table(tmp_path / "my_data" / split)["day"].to_pylist()} for split in ("train", "test")}
        assert (len(days["train"]), days["test"]) == (4, {"2026-11-06"})


@pytest.mark.parametrize(
    ("name", "values", "role", "why"),
    [
        ("seen", np.zeros(ROWS), "skip", "one value"),
        ("nothing", pa.nulls(ROWS, pa.int64()), "skip", "all values are null"),
        ("session_id", N, "skip", "unique per row"),
        ("text", [f"t{n}" for n in N], "skip", "unique per row"),
        ("hashed", N // 2 * 7 + (1 << 40), "category", "as of a hash"),
        ("age", N % 90, "number", "its name"),
        ("size", N % 3, "category", "3 different"),
        ("either", (N // 3) ** 2, "category", "with gaps"),
        ("numbered", N // 3, "category", "without gaps from 0 on"),
        ("wage_per_hour", (N // 3) ** 2, "number", "its name"),
        ("item_price", (N // 3) ** 2, "number", "its name"),
        ("age_level", N % 9, "category", "its name"),
        ("ts", N + 1_700_000_000, "time", "clock"),
        ("ts", np.where(N % 500 == 7, 0, N + 1_700_000_000), "time", "clock"),
        ("at", pa.array(N, pa.timestamp("s")), "time", "timestamp"),
        ("tags", [[n % 7, n % 5] for n in N], "category", "lists of integers"),
        ("vectors", [[0.5]] * ROWS, "skip", "no workflow reads"),
        ("weight", N % 5 + 0.5, "skip", "weight"),
        ("rated", table()["click"].to_numpy() * 5 + N % 5, "skip", "alone predicts"),
        ("liked", N % 2, "category", "2 different"),
        ("distance", N * -1e36, "skip", "too large for float32"),
        ("Unnamed: 0", N // 3, "skip", "number of the row"),
        ("row", N * 3 + 5, "skip", "number of the row"),
        ("shop", N * 3 + 5, "skip", "unique per row"),
        ("position", N % 200, "category", "its name"),
        ("big_id", pa.array([2.0**53 + 2 * (n % 9) if n else None for n in N]), "skip", "beyond what double"),
        ("code", (N % 9).astype(np.float16), "category", "its name"),
        ("visit", np.append(N[:-1], 0), "category", "without gaps"),
    ],
)
def test_a_column_is_taken_for_what_its_values_are(tmp_path, name, values, role, why):
    found = roles_of(table().append_column(name, pa.array(values)), tmp_path, ["click"])[name]
    assert (found.role, why in found.why) == (role, True), found.why


def test_few_rows_show_no_leak(tmp_path):
    clicks = [n % 2 for n in range(30)]
    log = pa.table({"click": clicks, "user": [n // 2 for n in range(30)], "price": clicks, "city": [*map(str, clicks)]})
    found = roles_of(log, tmp_path, ["click"])
    assert {found[name].role for name in ("user", "city")} == {"category"}
    assert not any(choice.warning for choice in found.values())


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_without_the_label_are_left_for_score(tmp_path, capsys, suffix):
    """As Kaggle has them, with a form for predictions; the way that is said makes Parquet that has no label."""
    names, data = ["won", "user_id", "price", "colour"], tmp_path / "data"
    train, test = table(300).rename_columns(names), table(99, seed=1).rename_columns(names).drop(["won"])
    form = pa.table({"user_id": [1] * 9, "won": [0.5] * 9})
    write_logs(data, suffix, train=train, test=test, sampleSubmission=form)
    assert init([str(data), "--out", str(tmp_path / "my.py")]) == 2
    assert "--label" in capsys.readouterr().err
    assert drafted(tmp_path, "--label", "won", source=data).data.labels == ("won",)
    said = re.sub(".*is missing.*\n", "", capsys.readouterr().out)
    assert f"left out: sampleSubmission.{suffix}\nleft out, since they have no label: test.{suffix}" in said
    if suffix == "csv":
        way = re.search("pipeline prepare (csv .*--no-label.*)\n", said)[1].replace("FOLDER", str(tmp_path / "t"))
        assert prepare(shlex.split(way)) == 0
        assert pq.read_table(tmp_path / "t" / "test").column_names == names[1:]
    else:
        assert f"then score them: pipeline score RUN {data / 'test.parquet'} --out SCORES" in said


@pytest.mark.parametrize("form", ["null", "nan", "csv"])
def test_rows_without_a_label_are_left_out_on_request(tmp_path, capsys, form):
    known = [None, 0, 1, 1, 0] if form != "nan" else [float("nan"), 0.0, 1.0, 1.0, 0.0]
    found = table().set_column(0, "click", pa.array((known * ROWS)[:ROWS]))
    write_logs(tmp_path, "csv" if form == "csv" else "parquet", log=found)
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 2
    share = re.search(r"nulls; .* --skip-bad with a share such as ([\d.]+)", capsys.readouterr().err)[1]
    assert drafted(tmp_path, "--skip-bad", share).data.labels == ("click",)
    assert sum(split["rows"] for split in splits_of(tmp_path).values()) == ROWS * 4 // 5


def test_bad_rows_are_left_out_on_request(tmp_path, capsys):
    """Infinite numbers of Parquet, which training refuses, and broken lines; otherwise it is said how."""
    price = np.where(np.arange(300) == 7, np.inf, 1.5)
    write_logs(tmp_path, train=table(300, price=price), test=table(300, 1, price=price))
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 2
    assert "price has infinite values, which are refused: --skip-bad 0.01" in capsys.readouterr().out
    drafted(tmp_path, "--skip-bad", "0.01")
    assert [splits_of(tmp_path)[split]["rows"] for split in ("train", "test")] == [299, 299]
    lines = ["click,user,price", *(f"{n % 2},u{n % 7},{n}" for n in range(300)), "1,2"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    order = [str(tmp_path / "log.csv"), "--out", str(tmp_path / "other.py")]
    assert init(order) == 2
    assert "line 302: expected 3 columns, got 2; correct it, or leave bad lines out" in capsys.readouterr().err
    assert init([*order, "--skip-bad", "0.01"]) == 0
    assert "skipped as bad: 1 of 301 lines" in capsys.readouterr().out


DOUBTS = {
    "ids": (N // 3 * 7, "note: x: treated as ids; if they are amounts, --as x=number"),
    "amounts": (N * 7 % ROWS - 9, "note: x: treated as amounts; if they are ids, --as x=category"),
    "outcome": (N % 2, "note: x: 0 and 1, like an outcome, and kept as a category; if it is one more label, --label"
                " click --label x; if known only after the label, --as x=nothing"),
    "JSON lists": ([f'["a{n % 9}", "b"]' for n in N], "note: x: its texts are JSON lists or objects, each read as one"),
    "objects": ([f'{{"a": {n % 9}}}' for n in N], "note: x: its texts are JSON lists or objects, each read as one"),
    "VARIANT": ([{"metadata": b"\1\0", "value": b"\4a"}] * ROWS, "warning: x is a VARIANT, whose bytes no workflow"),
    "rows": (N % (ROWS // 2), "warning: x is left out as a number of the row, of which nothing can be learned"),
}  # fmt: skip
"""Values of a column, and the line that names it with what to do."""


@pytest.mark.parametrize("case", DOUBTS)
def test_a_column_in_doubt_is_named_with_what_to_do(tmp_path, case):
    values, said = DOUBTS[case]
    halves = (table(x=values).slice(begin, ROWS // 2) for begin in (0, ROWS // 2))
    write_logs(tmp_path, **dict(zip("ab", halves, strict=True)))
    look = look_at_files([named(tmp_path / "a.parquet"), named(tmp_path / "b.parquet")])
    assert said in table_of(look, choose_roles(look, ["click"]))


@pytest.mark.parametrize(
    ("ends", "seen"),
    [((float("nan"), 1.0), (0.5, 2.0)), ((0.6, float("nan")), (0.5, 2.0)), ((0.25, 4.0), (0.25, 4.0))],
)
def test_statistics_with_nan_do_not_narrow_a_range(ends, seen):
    found = described_column("x", pa.chunked_array([[0.5, float("nan"), 2.0]]), ends)
    assert (found.minimum, found.maximum) == seen


@pytest.mark.parametrize(
    ("values", "label", "suffix"),
    [
        (("No", "Yes"), "click", "csv"), (("-1", "1"), "click", "csv"), (("False", "True"), "click", "csv"),
        (("1", "2"), "click=2", "csv"), ((" n", "y "), "click", "csv"), (("-1 ", "1 "), "click", "csv"),
        (("0", "1"), "click", "parquet"),
    ],
)  # fmt: skip
def test_a_label_of_two_other_values_becomes_0_and_1(tmp_path, capsys, values, label, suffix):
    clicks = table(300)["click"].to_pylist()
    write_logs(tmp_path, suffix, log=table(300).set_column(0, "click", pa.array([values[value] for value in clicks])))
    drafted(tmp_path, "--label", label)
    shown = [value.strip().lower() for value in values]
    assert f"{shown[0]} becomes 0 and {shown[1]} 1" in capsys.readouterr().out
    assert sum(split["positives"]["click"] for split in splits_of(tmp_path).values()) == sum(clicks)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_column_may_have_any_name_and_is_left_out_without_one(tmp_path, kind):
    """Patterns of other columns and of none, an option, a name with a role. The folder is to be made."""
    rng, categories = np.random.default_rng(0), ["user", "*", "--out", "a \"b\" 'c'", "at:time", "ü\n"]
    columns = {name: rng.integers(0, 9, 300) for name in ["", *categories]}
    columns |= {"price [USD]": rng.random(300), "pric?": rng.random(300), "click": rng.integers(0, 2, 300)}
    log = pa.table({name: pa.array(values) for name, values in columns.items()})
    if kind == "parquet":
        pq.write_table(log, tmp_path / "log.parquet")
    else:
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log.to_pylist()))
    data = drafted(tmp_path / "new", source=tmp_path / f"log.{kind}").data
    assert {"price [USD]", "pric?", "", *categories} & {c.name for c in data.categories} == {*categories}
    made = pq.read_table(tmp_path / "new" / "my_data" / "train")
    assert {*made.column_names} == {*columns} - {""}
    assert made.schema.field("price [USD]").type == made.schema.field("pric?").type == pa.float32()


def test_another_label_needs_only_fresh(tmp_path, capsys):
    log, out = write_logs(tmp_path, "csv", log=table(300, won=np.arange(300) % 2)) / "log.csv", tmp_path / "my.py"
    drafted(tmp_path, "--label", "click", source=log)
    order = [str(log), "--out", str(out), "--label", "won"]
    assert init(order) == 2
    assert "--fresh moves it aside" in capsys.readouterr().err
    assert drafted(tmp_path, "--label", "won", "--fresh", source=log).data.labels == ("won",)
    assert all((tmp_path / f"my{end}.1").exists() for end in (".py", "_data", "_schema.json"))
    out.unlink()
    assert init(order) == 2
    assert "my_schema.json already exists; --fresh moves it aside" in capsys.readouterr().err


@pytest.mark.parametrize(("free", "workers"), [(1, 1), (16, 1), (32, 4), (64, 9), (1024, 40)])
def test_a_preparation_takes_1_gib_or_a_sixteenth_of_what_is_free(tmp_path, monkeypatch, free, workers):
    given = []
    monkeypatch.setattr("pipeline.init.main.prepare_main", lambda argv: given.append(read_arguments(argv)) or 1)
    monkeypatch.setattr(limits, "free_memory", lambda: free << 30)
    monkeypatch.setattr(limits, "cpus", lambda: 40)
    assert init([str(write_logs(tmp_path, log=table())), "--out", str(tmp_path / "my.py")]) == 1
    assert [(one.workers, one.piece_size) for one in given] == [(workers, PIECE_BYTES)]


def test_fresh_leaves_a_folder_of_data_in_its_place(tmp_path):
    data = write_logs(tmp_path / "my_data", **{f"day_{n}": table(300, seed=n) for n in range(5)})
    drafted(tmp_path, "--fresh", source=data)
    assert (data / "day_0.parquet").exists()


def test_a_column_that_no_file_of_a_split_has_is_left_out(tmp_path, capsys):
    write_logs(tmp_path, train=table(99), test=table(99, seed=1).drop(["price"]))
    assert drafted(tmp_path).data.numbers == ()
    said = "warning: price is in no file of test, so it is left out; to use it, add it to one"
    assert said in capsys.readouterr().out
    write_logs(tmp_path, test=table(99, seed=1).drop(["user_id", "colour"]))
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py"), "--fresh"]) == 2
    assert "none of the columns click, price, user_id, colour is a category" in capsys.readouterr().err


ALONE = table().select(["click", "price"])
TWO = table(b=N % 2).rename_columns(["a", "user_id", "price", "colour", "b"])


@pytest.mark.parametrize(
    ("log", "labels", "said"),
    [
        (table(), ["clik"], "there is no such column; there are click"),
        (table(), ["colour"], "a label holds only 0 and 1, and this column has 3 different values such as r, g, b"),
        (table(size=N % 2 + 1), ["size"], "such as 1, 2; name the value that is to be 1: --label size=2"),
        (table(), ["price"], r"add a column .* whether price is above some limit.*Task\(label=\"price\", loss=\"squa"),
        (table(size=N % 2 + 1), ["size=3"], "the values of this column are 1 and 2"),
        (table(click=N % 2 + 1), [], "such as 1, 2; name the value that is to be 1: --label click=2"),
        (table(click=N * 0), [], "has 1 different values such as 0"),
        (table(click=([None, 1] * ROWS)[:ROWS]), [], "nulls; write 0 or 1 instead of null; or leave these rows out"),
        (table(click=([0, 1, None] * ROWS)[:ROWS]), [], "nulls; write 0 or 1 instead of null"),
        (TWO, [], "which column is the label.*columns of 0 and 1 are a, b"),
        (ALONE, [], "none of the columns click, price is a category, and a model needs one"),
    ],
)  # fmt: skip
def test_a_log_without_a_label_is_refused_with_what_there_is(tmp_path, log, labels, said):
    with pytest.raises(ValueError, match=said):
        roles_of(log, tmp_path, labels)


def test_columns_of_csv_are_looked_at_by_name(tmp_path):
    files = [named(tmp_path / "a.csv"), named(tmp_path / "b.csv")]
    moved = table(99, seed=1).select(["colour", "price", "user_id", "click"])
    look = write_logs(tmp_path, "csv", a=table(99), b=moved) and look_at_files(files)
    assert look.sample.column("colour").to_pylist() == table(99)["colour"].to_pylist() * 2
    assert look.sample.schema.names == table(9).schema.names
    write_logs(tmp_path, "csv", b=table(99).rename_columns(["click", "user_id", "cost", "colour"]))
    with pytest.raises(ValueError, match=r"b\.csv: line 1 .* lacks 'price', and has 'cost'"):
        look_at_files(files)


REFUSED = {
    "columns": ([b"click,n\n1,2\n", b"click,n,m\n0,1,2\n"], "b.csv: line 1 should name the columns of csv, but has"),
    "widths": ([b"7,1\n1,2\n", b"7,1,2\n"], "expected 2 columns, got 3"),
    "header": ([b"click,n\n1,2\n", b"1,2\n"], "b.csv: has no header, "),
    "bytes": ([b"\0\1\n"], "a.csv is neither Parquet nor text: write it as Parquet"),
    "packed": ([gzip.compress(b"click,n\n")], "a.csv is compressed as .gz, which its name does not say"),
    "ragged": ([b"click,n\n1,2\n1,2,3\n"], "a.csv: line 3: expected 2 columns, got 3"),
    "Vowpal": ([b"1 |user 5 |item 7:0.5\n-1 'tag |user 6 |item 8 9\n"], "a.csv is text of Vowpal Wabbit; write a"),
    "empty": (table(0), "there are no rows"),
    "twice": (table(9).rename_columns(["click", "a", "price", "a"]), "a.parquet: column 'a' is there 2 times; rename"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_looked_at_is_refused_with_the_file(tmp_path, capsys, case):
    content, said = REFUSED[case]
    if isinstance(content, pa.Table):
        write_logs(tmp_path, a=content)
    else:
        for name, text in zip("ab", content, strict=False):
            (tmp_path / f"{name}.csv").write_bytes(text)
    before = sorted(tmp_path.rglob("*"))
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("my.txt", "my.txt: a workflow is a Python file; give a name such as my.py"), ("my.py", "already exists"),
        ("shut/w.py", "shut; name a file in another folder"),
    ],
)  # fmt: skip
def test_a_workflow_that_cannot_be_written_is_said_before_reading(tmp_path, monkeypatch, capsys, out, said):
    (tmp_path / "my.py").touch()
    (tmp_path / "shut").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path / "shut")
    assert main(["missing.csv", "--out", str(tmp_path / out)]) == 2
    assert said in capsys.readouterr().err


def test_the_bias_is_the_rate_of_the_training_files(tmp_path):
    clicks = [pa.array((np.arange(1000) % every == 0).astype(np.int8)) for every in (5, 2)]
    write_logs(tmp_path, train=table(1000, click=clicks[0]), test=table(1000, click=clicks[1]))
    assert drafted(tmp_path).model.initial_bias == round(np.log(0.2 / 0.8), 2)


def test_the_range_of_large_numbers_is_shown_whole(tmp_path, capsys):
    ids = np.array([2.1175e11, 6.18572e14]).repeat(20) + np.arange(40)
    drafted(write_logs(tmp_path, log=table(40, click=np.arange(40) % 2, price=ids)))
    assert "2.12e+11 to 6.19e+14 " in capsys.readouterr().out
