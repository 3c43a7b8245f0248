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
from support.data.drafts import init
from support.depth import some

from pipeline.files.find import named
from pipeline.init.columns import described_column
from pipeline.init.look import look_at_files
from pipeline.init.main import PIECE_BYTES, main, table_of
from pipeline.init.roles import choose_roles, shared_table
from pipeline.machine import limits
from pipeline.models import SharedBottom
from pipeline.prepare.arguments import read_arguments
from pipeline.prepare.main import main as prepare
from pipeline.run import main as run
from pipeline.workflow import load

ROWS = 4000


def table(rows=ROWS, seed=0, **more):
    """A log whose clicks depend on its users."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 50, rows)
    click = (rng.random(rows) < np.where(user % 2, 0.8, 0.1)).astype(np.int8)
    columns = {"click": click, "user_id": user, "price": rng.random(rows) * 100, "colour": list("rgb" * rows)[:rows]}
    return pa.table({name: pa.array(values) for name, values in (columns | more).items()})


def roles_of(found, folder, labels=()):
    pq.write_table(found, folder / "all.parquet")
    return {c.column.name: c for c in choose_roles(look_at_files([folder / "all.parquet"]), labels)}


def trained_auc(workflow, folder):
    """AUC of the test split after a run."""
    assert run([str(workflow), "--serial", "--run-dir", str(folder), "--set", "device=cpu"]) == 0
    return json.loads((folder / "result.json").read_bytes())["auc"]


def write_texts(folder, *texts):
    """Files of text in place of what is there."""
    (folder / "a.parquet").unlink()
    for name, text in zip(("a.csv", "b.csv"), texts, strict=False):
        (folder / name).write_bytes(text)


FORMS = ["named", "one Parquet file", "CSV with a header", "CSV without", "a time in text"]


@pytest.mark.parametrize("form", some(FORMS, "CSV with a header"))
def test_a_log_becomes_a_workflow_that_learns_at_the_first_try(tmp_path, capsys, form):
    data, out = tmp_path / "data", tmp_path / "my.py"
    data.mkdir()
    if form == "named":
        for seed, name in enumerate(("train", "valid", "test")):
            pq.write_table(table(seed=seed), data / f"{name}.parquet")
    elif form == "one Parquet file":
        pq.write_table(table(), data / "all.parquet")
    else:
        times = [f"2026-01-{1 + n * 28 // ROWS:02}" for n in range(ROWS)]
        log = table(date=times) if form == "a time in text" else table()
        pa_csv.write_csv(log, data / "log.csv", pa_csv.WriteOptions(include_header=form != "CSV without"))
    assert init([str(data), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{out} is written" in said
    found = load(out)
    assert found.data.validation
    assert found.data.test
    if form == "a time in text":
        assert "by the time in date, by whole weeks: validation from 2026-01-19" in said
    assert trained_auc(out, tmp_path / "run") > 0.8


def test_several_labels_become_a_model_with_as_many_outputs(tmp_path):
    for seed, name in enumerate(("train", "test")):
        bought = np.random.default_rng(seed).integers(0, 2, 99)
        pq.write_table(table(99, seed, bought=bought), tmp_path / f"{name}.parquet")
    labels = ["--label", "click", "--label", "bought"]
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py"), *labels]) == 0
    assert run([str(tmp_path / "my.py"), "--explain"]) == 0
    found = load(tmp_path / "my.py")
    assert (found.data.labels, found.model.kind, found.model.args["num_labels"]) == (
        ("click", "bought"), SharedBottom, 2
    )  # fmt: skip


def test_files_in_order_hold_out_the_last_ones(tmp_path):
    for day in range(1, 13):
        pq.write_table(table(100, seed=day), tmp_path / f"day_{day}.parquet")
    (tmp_path / "README.md").write_text("days")
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 0
    data = load(tmp_path / "my.py").data
    assert (data.validation, data.test) == (("day_9.parquet", "day_10.parquet"), ("day_11.parquet", "day_12.parquet"))
    assert data.train == tuple(f"day_{day}.parquet" for day in range(1, 9))


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
    assert init([str(place), "--out", str(tmp_path / "my.py")]) == 0
    data = load(tmp_path / "my.py").data
    assert data.test == (("test",) if form == "Delta" else ("day=2026-11-06",))
    assert ".parquet" not in (tmp_path / "my.py").read_text()
    if form == "Delta":
        days = {split: {*pq.read_table(tmp_path / "my_data" / split)["day"].to_pylist()} for split in ("train", "test")}
        assert (len(days["train"]), days["test"]) == (4, {"2026-11-06"})


@pytest.mark.parametrize(
    ("name", "values", "role", "why"),
    [
        ("seen", np.zeros(ROWS), "skip", "one value"),
        ("nothing", pa.nulls(ROWS, pa.int64()), "skip", "all values are null"),
        ("session_id", np.arange(ROWS), "skip", "unique per row"),
        ("text", [f"t{n}" for n in range(ROWS)], "skip", "unique per row"),
        ("hashed", np.arange(ROWS) // 2 * 7 + (1 << 40), "category", "as of a hash"),
        ("age", np.arange(ROWS) % 90, "number", "its name"),
        ("size", np.arange(ROWS) % 3, "category", "3 different"),
        ("either", (np.arange(ROWS) // 3) ** 2, "category", "with gaps"),
        ("numbered", np.arange(ROWS) // 3, "category", "without gaps from 0 on"),
        ("wage_per_hour", (np.arange(ROWS) // 3) ** 2, "number", "its name"),
        ("item_price", (np.arange(ROWS) // 3) ** 2, "number", "its name"),
        ("age_level", np.arange(ROWS) % 9, "category", "its name"),
        ("ts", np.arange(ROWS) + 1_700_000_000, "time", "clock"),
        ("at", pa.array(np.arange(ROWS), pa.timestamp("s")), "time", "timestamp"),
        ("tags", [[n % 7, n % 5] for n in range(ROWS)], "category", "lists of integers"),
        ("vectors", [[0.5]] * ROWS, "skip", "no workflow reads"),
        ("weight", np.arange(ROWS) % 5 + 0.5, "skip", "weight"),
        ("rated", table()["click"].to_numpy() * 5 + np.arange(ROWS) % 5, "skip", "alone predicts"),
        ("liked", np.arange(ROWS) % 2, "category", "2 different"),
        ("distance", np.arange(ROWS) * -1e36, "skip", "too large for float32"),
        ("Unnamed: 0", np.arange(ROWS) // 3, "skip", "number of the row"),
        ("row", np.arange(ROWS) * 3 + 5, "skip", "number of the row"),
        ("shop", np.arange(ROWS) * 3 + 5, "skip", "unique per row"),
        ("position", np.arange(ROWS) % 200, "category", "its name"),
        ("big_id", pa.array([2.0**53 + 2 * (n % 9) if n else None for n in range(ROWS)]), "skip", "beyond what double"),
        ("code", (np.arange(ROWS) % 9).astype(np.float16), "category", "its name"),
        ("visit", np.append(np.arange(ROWS - 1), 0), "category", "without gaps"),
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
    names = ["won", "user_id", "price", "colour"]
    form = {"user_id": [1] * 9, "won": [0.5] * 9}
    files = {"train": table(300), "test": table(99, seed=1), "sampleSubmission": pa.table(form)}
    (tmp_path / "data").mkdir()
    for name, content in files.items():
        content = content.rename_columns(names if len(names) == content.num_columns else [*form])
        content = content.drop(["won"]) if name == "test" else content
        write = pa_csv.write_csv if suffix == "csv" else pq.write_table
        write(content, tmp_path / "data" / f"{name}.{suffix}")
    order = [str(tmp_path / "data"), "--out", str(tmp_path / "my.py")]
    assert init(order) == 2
    assert "--label" in capsys.readouterr().err
    assert init([*order, "--label", "won"]) == 0
    said = capsys.readouterr().out
    assert f"left out: sampleSubmission.{suffix}\nleft out, since they have no label: test.{suffix}" in "".join(
        line for line in said.splitlines(keepends=True) if "is missing" not in line
    )
    assert load(tmp_path / "my.py").data.labels == ("won",)
    if suffix == "csv":
        way = shlex.split(
            re.search("pipeline prepare (csv .*--no-label.*)\n", said)[1].replace("FOLDER", str(tmp_path / "t"))
        )
        assert prepare(way) == 0
        assert pq.read_table(tmp_path / "t" / "test").column_names == names[1:]
    else:
        assert f"then score them: pipeline score RUN {tmp_path / 'data' / 'test.parquet'} --out SCORES" in said


@pytest.mark.parametrize("form", ["null", "nan", "csv"])
def test_rows_without_a_label_are_left_out_on_request(tmp_path, capsys, form):
    known = [None, 0, 1, 1, 0] if form != "nan" else [float("nan"), 0.0, 1.0, 1.0, 0.0]
    found = table().set_column(0, "click", pa.array((known * ROWS)[:ROWS]))
    if form == "csv":
        pa_csv.write_csv(found, tmp_path / "log.csv")
    else:
        pq.write_table(found, tmp_path / "log.parquet")
    order = [str(tmp_path), "--out", str(tmp_path / "my.py"), "--no-try"]
    assert init(order) == 2
    share = re.search(r"nulls; .* --skip-bad with a share such as ([\d.]+)", capsys.readouterr().err)[1]
    assert init([*order, "--skip-bad", share]) == 0
    splits = json.loads((tmp_path / "my_data" / "_prepared.json").read_bytes())["splits"]
    assert sum(split["rows"] for split in splits.values()) == ROWS * 4 // 5
    assert load(tmp_path / "my.py").data.labels == ("click",)


def test_bad_rows_are_left_out_on_request(tmp_path, capsys):
    """Infinite numbers of Parquet, which training refuses, and broken lines; otherwise it is said how."""
    price = np.where(np.arange(300) == 7, np.inf, 1.5)
    for seed, name in enumerate(("train", "test")):
        pq.write_table(table(300, seed, price=price), tmp_path / f"{name}.parquet")
    order = [str(tmp_path), "--out", str(tmp_path / "my.py")]
    assert init(order) == 2
    assert "price has infinite values, which are refused: --skip-bad 0.01" in capsys.readouterr().out
    assert init([*order, "--skip-bad", "0.01"]) == 0
    splits = json.loads((tmp_path / "my_data" / "_prepared.json").read_bytes())["splits"]
    assert [splits[split]["rows"] for split in ("train", "test")] == [299, 299]
    lines = ["click,user,price", *(f"{n % 2},u{n % 7},{n}" for n in range(300)), "1,2"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    order = [str(tmp_path / "log.csv"), "--out", str(tmp_path / "other.py")]
    assert init(order) == 2
    assert "line 302: expected 3 columns, got 2; correct it, or leave bad lines out" in capsys.readouterr().err
    assert init([*order, "--skip-bad", "0.01"]) == 0
    assert "skipped as bad: 1 of 301 lines" in capsys.readouterr().out


def test_a_doubtful_role_is_reported_with_its_option(tmp_path):
    more = {"a": np.arange(ROWS) // 3 * 7, "b": np.arange(ROWS) * 7 % ROWS - 9, "won": np.arange(ROWS) % 2}
    pq.write_table(table(**more), tmp_path / "all.parquet")
    look = look_at_files([tmp_path / "all.parquet"])
    said = table_of(look, choose_roles(look, ["click"]))
    assert "note: a: treated as ids; if they are amounts, --as a=number" in said
    assert "note: b: treated as amounts; if they are ids, --as b=category" in said
    assert "note: won: 0 and 1, like an outcome, and kept as a category; if it is one more label, --label click" in said
    assert "--label click --label won; if known only after the label, --as won=nothing" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([f'["a{n % 9}", "b"]' for n in range(ROWS)], "note: x: its texts are JSON lists or objects, each read as one"),
        ([f'{{"a": {n % 9}}}' for n in range(ROWS)], "note: x: its texts are JSON lists or objects, each read as one"),
        (
            [{"metadata": b"\1\0", "value": b"\4a"}] * ROWS,
            "warning: x is a VARIANT, whose bytes no workflow reads: write",
        ),
        (
            np.arange(ROWS) % (ROWS // 2),
            "warning: x is left out as a number of the row, of which nothing can be learned",
        ),
    ],
    ids=["JSON lists", "JSON objects", "VARIANT", "rows of each file"],
)
def test_a_column_without_use_is_named_with_what_to_do(tmp_path, values, said):
    for part in range(2):
        pq.write_table(table(x=values).slice(part * ROWS // 2, ROWS // 2), tmp_path / f"{part}.parquet")
    look = look_at_files([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert said in table_of(look, choose_roles(look, ["click"]))


def test_statistics_with_nan_do_not_narrow_a_range():
    values = pa.chunked_array([[0.5, float("nan"), 2.0]])
    for ends, seen in [
        ((float("nan"), 1.0), (0.5, 2.0)),
        ((0.6, float("nan")), (0.5, 2.0)),
        ((0.25, 4.0), (0.25, 4.0)),
    ]:
        found = described_column("x", values, {"x": ends})
        assert (found.minimum, found.maximum) == seen


@pytest.mark.parametrize(
    ("values", "label"),
    [
        (("No", "Yes"), "click"),
        (("-1", "1"), "click"),
        (("False", "True"), "click"),
        (("1", "2"), "click=2"),
        ((" n", "y "), "click"),
        (("-1 ", "1 "), "click"),
    ],
)
def test_a_label_of_two_other_values_becomes_0_and_1(tmp_path, capsys, values, label):
    log, out = table(300), tmp_path / "my.py"
    log = log.set_column(0, "click", pa.array([values[value] for value in log["click"].to_pylist()]))
    pa_csv.write_csv(log, tmp_path / "log.csv", pa_csv.WriteOptions(quoting_style="none"))
    assert init([str(tmp_path / "log.csv"), "--out", str(out), "--label", label]) == 0
    shown = [value.strip().lower() for value in values]
    assert f"{shown[0]} becomes 0 and {shown[1]} 1" in capsys.readouterr().out
    made = json.loads((tmp_path / "my_data" / "_prepared.json").read_bytes())["splits"]
    assert sum(split["positives"]["click"] for split in made.values()) == sum(table(300)["click"].to_pylist())


def test_texts_0_and_1_of_a_label_become_numbers(tmp_path):
    log = table(300).set_column(0, "click", pa.array(map(str, table(300)["click"].to_pylist())))
    pq.write_table(log, tmp_path / "log.parquet")
    assert init([str(tmp_path / "log.parquet"), "--out", str(tmp_path / "my.py")]) == 0
    made = json.loads((tmp_path / "my_data" / "_prepared.json").read_bytes())["splits"]
    assert sum(split["positives"]["click"] for split in made.values()) == sum(table(300)["click"].to_pylist())


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
    assert init([str(tmp_path / f"log.{kind}"), "--out", str(tmp_path / "new" / "my.py")]) == 0
    data = load(tmp_path / "new" / "my.py").data
    assert {"price [USD]", "pric?", "", *categories} & {c.name for c in data.categories} == {*categories}
    made = pq.read_table(tmp_path / "new" / "my_data" / "train")
    assert {*made.column_names} == {*columns} - {""}
    assert made.schema.field("price [USD]").type == made.schema.field("pric?").type == pa.float32()


def test_another_label_needs_only_fresh(tmp_path, capsys):
    log, out = table(300, won=np.arange(300) % 2), tmp_path / "my.py"
    pa_csv.write_csv(log, tmp_path / "log.csv")
    order = [str(tmp_path / "log.csv"), "--out", str(out), "--label"]
    assert init([*order, "click"]) == 0
    assert init([*order, "won"]) == 2
    assert "--fresh moves it aside" in capsys.readouterr().err
    assert init([*order, "won", "--fresh"]) == 0
    assert load(out).data.labels == ("won",)
    assert (tmp_path / "my.py.1").exists()
    assert (tmp_path / "my_data.1").exists()
    assert (tmp_path / "my_schema.json.1").exists()
    (tmp_path / "my.py").unlink()
    assert init([*order, "won"]) == 2
    assert "my_schema.json already exists; --fresh moves it aside" in capsys.readouterr().err


@pytest.mark.parametrize(("free", "workers"), [(1, 1), (16, 1), (32, 4), (64, 9), (1024, 40)])
def test_a_preparation_takes_1_gib_or_a_sixteenth_of_what_is_free(tmp_path, monkeypatch, free, workers):
    pq.write_table(table(), tmp_path / "log.parquet")
    given = []
    monkeypatch.setattr("pipeline.init.main.prepare_main", lambda argv: given.append(read_arguments(argv)) or 1)
    monkeypatch.setattr(limits, "free_memory", lambda: free << 30)
    monkeypatch.setattr(limits, "cpus", lambda: 40)
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 1
    assert [one.workers for one in given] == [workers]
    assert given[0].piece_size == PIECE_BYTES


def test_fresh_leaves_a_folder_of_data_in_its_place(tmp_path):
    (tmp_path / "my_data").mkdir()
    for n in range(5):
        pq.write_table(table(300, seed=n), tmp_path / "my_data" / f"day_{n}.parquet")
    assert init([str(tmp_path / "my_data"), "--out", str(tmp_path / "my.py"), "--fresh"]) == 0
    assert (tmp_path / "my_data" / "day_0.parquet").exists()


def test_a_column_that_no_file_of_a_split_has_is_left_out(tmp_path, capsys):
    pq.write_table(table(99), tmp_path / "train.parquet")
    pq.write_table(table(99, seed=1).drop(["price"]), tmp_path / "test.parquet")
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 0
    assert (
        "warning: price is in no file of test, so it is left out; to use it, add it to one" in capsys.readouterr().out
    )
    assert load(tmp_path / "my.py").data.numbers == ()
    pq.write_table(table(99, seed=1).drop(["user_id", "colour"]), tmp_path / "test.parquet")
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py"), "--fresh"]) == 2
    assert "none of the columns click, price, user_id, colour is a category" in capsys.readouterr().err


def test_a_list_shares_the_table_of_the_column_of_its_values(tmp_path):
    found = table().append_column("hist_users", pa.array([[n % 50, n % 49] for n in range(ROWS)]))
    pq.write_table(found, tmp_path / "all.parquet")
    look = look_at_files([tmp_path / "all.parquet"])
    choices = {c.column.name: c for c in choose_roles(look, ())}
    assert shared_table(choices["hist_users"], list(choices.values()), look) == "user_id"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["clik"], "there is no such column; there are click"),
        (["colour"], "a label holds only 0 and 1, and this column has 3 different values such as r, g, b"),
        (["size"], "different values such as 1, 2; name the value that is to be 1: --label size=2"),
        (["price"], r"add a column .* whether price is above some limit.*Task\(label=\"price\", loss=\"squared\"\)"),
        (["size=3"], "the values of this column are 1 and 2"),
    ],
)
def test_a_wrong_label_is_refused_with_what_there_is(tmp_path, labels, said):
    with pytest.raises(ValueError, match=said):
        roles_of(table(size=np.arange(ROWS) % 2 + 1), tmp_path, labels)


def test_the_label_must_be_named_if_several_columns_could_be(tmp_path):
    found = table().rename_columns(["a", "user_id", "price", "colour"])
    moved = found.append_column("b", pa.array(np.arange(ROWS) % 2))
    with pytest.raises(ValueError, match=r"which column is the label.*columns of 0 and 1 are a, b"):
        roles_of(moved, tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 2], "such as 1, 2; name the value that is to be 1: --label click=2"),
        ([0, 0], "has 1 different values such as 0"),
        ([None, 1], "nulls; write 0 or 1 instead of null; or leave these rows out of a copy, by --skip-bad"),
        ([0, 1, None], "nulls; write 0 or 1 instead of null"),
    ],
)
def test_a_label_by_its_name_alone_is_refused_with_its_values(tmp_path, values, said):
    column = pa.array((values * ROWS)[:ROWS], pa.int64())
    with pytest.raises(ValueError, match=said):
        roles_of(table().set_column(0, "click", column), tmp_path)


def test_columns_of_csv_are_looked_at_by_name(tmp_path):
    pa_csv.write_csv(table(99), tmp_path / "a.csv")
    pa_csv.write_csv(table(99, seed=1).select(["colour", "price", "user_id", "click"]), tmp_path / "b.csv")
    look = look_at_files([named(tmp_path / "a.csv"), named(tmp_path / "b.csv")])
    assert look.sample.column("colour").to_pylist() == table(99)["colour"].to_pylist() * 2
    assert look.sample.schema.names == table(9).schema.names
    pa_csv.write_csv(table(99).rename_columns(["click", "user_id", "cost", "colour"]), tmp_path / "b.csv")
    with pytest.raises(ValueError, match=r"b\.csv: line 1 .* lacks 'price', and has 'cost'"):
        look_at_files([named(tmp_path / "a.csv"), named(tmp_path / "b.csv")])


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda f: (f / "my.py").write_text(""), "already exists"),
        (lambda f: pq.write_table(table(0), f / "data" / "a.parquet"), "there are no rows"),
        (
            lambda f: write_texts(f / "data", b"click,n\n1,2\n", b"click,n,m\n0,1,2\n"),
            "b.csv: line 1 should name the columns of csv, but has 'm'",
        ),
        (lambda f: write_texts(f / "data", b"7,1\n1,2\n", b"7,1,2\n"), "expected 2 columns, got 3"),
        (lambda f: write_texts(f / "data", b"click,n\n1,2\n", b"1,2\n"), "b.csv: has no header, "),
        (lambda f: write_texts(f / "data", b"\0\1\n"), "a.csv is neither Parquet nor text: write it as Parquet"),
        (
            lambda f: write_texts(f / "data", gzip.compress(b"click,n\n")),
            "a.csv is compressed as .gz, which its name does not say",
        ),
        (lambda f: write_texts(f / "data", b"click,n\n1,2\n1,2,3\n"), "a.csv: line 3: expected 2 columns, got 3"),
        (
            lambda f: write_texts(f / "data", b"1 |user 5 |item 7:0.5\n-1 'tag |user 6 |item 8 9\n"),
            "a.csv is text of Vowpal Wabbit; write a column for each namespace, as CSV",
        ),
        (
            lambda f: pq.write_table(table(9).rename_columns(["click", "a", "price", "a"]), f / "data" / "a.parquet"),
            "a.parquet: column 'a' is there 2 times; rename all but one",
        ),
    ],
    ids=["file", "empty", "columns", "widths", "header", "bytes", "packed", "ragged", "Vowpal", "twice"],
)
def test_what_cannot_be_looked_at_is_refused_with_the_file(tmp_path, capsys, write, said):
    (tmp_path / "data").mkdir()
    pq.write_table(table(9), tmp_path / "data" / "a.parquet")
    write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert init([str(tmp_path / "data"), "--out", str(tmp_path / "my.py")]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_workflow_is_written_to_a_python_file_alone(tmp_path, capsys):
    assert init([str(tmp_path), "--out", str(tmp_path / "my.txt")]) == 2
    assert "my.txt: a workflow is a Python file; give a name such as my.py" in capsys.readouterr().err


def test_columns_without_a_category_are_refused(tmp_path):
    with pytest.raises(ValueError, match="none of the columns click, price is a category, and a model needs one"):
        roles_of(table().select(["click", "price"]), tmp_path)


def test_the_bias_is_the_rate_of_the_training_files(tmp_path):
    for name, every in (("train", 5), ("test", 2)):
        click = pa.array((np.arange(1000) % every == 0).astype(np.int8))
        pq.write_table(table(1000).set_column(0, "click", click), tmp_path / f"{name}.parquet")
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 0
    assert load(tmp_path / "my.py").model.initial_bias == round(np.log(0.2 / 0.8), 2)


def test_a_folder_that_takes_no_file_is_named_before_reading(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert main(["missing.csv", "--out", str(tmp_path / "new" / "w.py")]) == 2
    assert f"cannot write to {tmp_path}; name a file in another folder" in capsys.readouterr().err


def test_the_range_of_large_numbers_is_shown_whole(tmp_path, capsys):
    ids = np.array([2.1175e11, 6.18572e14]).repeat(20) + np.arange(40)
    pq.write_table(
        pa.table({"click": np.arange(40) % 2, "price": ids, "user_id": np.arange(40) % 4}), tmp_path / "log.parquet"
    )
    assert main([str(tmp_path / "log.parquet"), "--out", str(tmp_path / "w.py"), "--no-try"]) == 0
    assert "2.12e+11 to 6.19e+14 " in capsys.readouterr().out
