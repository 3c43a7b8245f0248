"""`init --as COLUMN=ROLE`: the user's word is taken, or refused with what the column holds."""

import numpy as np
import pyarrow as pa
import pytest
from support.data.drafts import drafted, init, write_logs
from support.depth import some

ROWS = 600


def log(seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "won": rng.integers(0, 2, ROWS), "click": rng.integers(0, 2, ROWS), "x": rng.integers(0, 90, ROWS) * 7,
            "a=b": rng.integers(0, 9, ROWS), "w": rng.random(ROWS), "tags": [[n % 7, n % 5] for n in range(ROWS)],
            "at": np.arange(ROWS), "site": rng.choice(["a", "b", "c"], ROWS),
        }
    )  # fmt: skip


def written(folder, form, *roles):
    """Workflow of the log, in files of Parquet that are taken as they are, or of one that is divided, or of text."""
    tables = {f"day_{number}": log(number) for number in range(6 if form == "whole files" else 1)}
    if form == "text":
        tables = {"log": log().drop(["tags"])}
    write_logs(folder, "csv" if form == "text" else "parquet", **tables)
    return drafted(folder, *(word for role in roles for word in ("--as", role)))


@pytest.mark.parametrize("form", some(["whole files", "one file", "text"], "whole files", "one file"))
def test_each_role_of_a_user_reaches_the_workflow(tmp_path, capsys, form):
    roles = ["won=label", "x=number", "a=b=category", "w=weight", "at=nothing", "site=group"]
    found = written(tmp_path, form, *roles, *(["tags=list"] if form != "text" else []))
    data = found.data
    assert (data.labels, data.weight, found.metrics.group) == (("won",), "w", "site")
    assert {number.name for number in data.numbers} == {"x_scaled"}
    wanted = {"click", "a=b", "site", "x_bucket", *(["tags"] if form != "text" else [])}
    assert {category.name for category in data.categories} == wanted
    said = capsys.readouterr().out
    assert (" weight " in said, " group " in said) == (True, True)


def test_a_label_that_is_taken_for_something_else_is_none(tmp_path):
    assert written(tmp_path, "whole files", "click=nothing", "x=category").data.labels == ("won",)


@pytest.mark.parametrize("role", ["at=time", "x=time"])
def test_a_given_time_divides_the_rows(tmp_path, capsys, role):
    written(tmp_path, "one file", role, "click=label")
    assert f"by the time in {role[:-5]}: validation from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("y=number", "--as y=number: there is no such column; there are won, click, x, a=b, w, tags, at, site; write"),
        ("x=id", "--as x=id: there is no such role; there are label, number, category, list, time, group, weight, no"),
        ("x", "there is no such column"),
        ("site=number", "--as site=number: this column has type string, and a number holds integers or numbers"),
        ("w=category", "--as w=category: this column has type double, and a category holds integers or text or whole"),
        ("tags=time", "--as tags=time: this column has type list"),
        ("click=label w=weight x=weight", "--as: x and w are given as weight; a workflow has one weight"),
        ("site=label", "a label holds only 0 and 1, and this column has 3 different values"),
    ],
)
def test_a_role_that_does_not_fit_is_refused_at_once(tmp_path, capsys, role, said):
    options = [word for one in role.split() for word in ("--as", one)]
    assert init([str(write_logs(tmp_path, log=log())), "--out", str(tmp_path / "my.py"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "my.py").exists()
