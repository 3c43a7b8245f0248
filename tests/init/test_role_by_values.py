"""Roles: given ones, those of planted values where names say nothing, and of names in any spelling."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.drafts import drafted, init, write_logs
from support.depth import some

from pipeline.files.find import named
from pipeline.init.columns import role_by_name
from pipeline.init.look import look_at_files
from pipeline.init.roles import choose_roles


def often(rng, values, rows, skew=1.1):
    """Some of the values more often than others, in any order."""
    share = 1 / np.arange(1, len(values) + 1) ** skew
    return rng.choice(values, rows, p=share / share.sum())


def drawn(rng, end, num):
    return rng.choice(end, num, replace=False)


PLANTED = {
    "ids without gaps": ("category", lambda r, n: often(r, r.permutation(2000), n)),
    "few ids without gaps": ("category", lambda r, n: often(r, r.permutation(60), n)),
    "ids by frequency": ("category", lambda r, n: often(r, np.arange(300), n)),
    "ids with gaps": ("category", lambda r, n: often(r, drawn(r, 10**6, 5000), n)),
    "few ids with gaps": ("category", lambda r, n: often(r, drawn(r, 10**5, 30), n)),
    "ids as often as each other": ("category", lambda r, n: r.integers(0, 1200, n) * 37 + r.integers(0, 3, n)),
    "ids or 0 for none": ("category", lambda r, n: often(r, drawn(r, 10**6, 500), n) * (r.random(n) < 0.4)),
    "hashes": ("category", lambda r, n: often(r, r.integers(0, 1 << 62, 4000), n)),
    "hashes of 32 bits": ("category", lambda r, n: often(r, drawn(r, (1 << 31) - 1, 4000), n)),
    "zip codes": ("category", lambda r, n: often(r, 501 + drawn(r, 99400, 3000), n, 0.7)),
    "hours": ("category", lambda r, n: r.normal(14, 5, n).clip(0, 23)),
    "ratings": ("category", lambda r, n: r.integers(1, 6, n)),
    "zeros and ones": ("category", lambda r, n: r.integers(0, 2, n)),
    "ages": ("number", lambda r, n: r.normal(38, 14, n).clip(13, 95)),
    "counts": ("number", lambda r, n: r.geometric(0.02, n)),
    "counts of a long tail": ("number", lambda r, n: r.pareto(1.1, n) * 5),
    "counts that are mostly 0": ("number", lambda r, n: r.lognormal(3, 1.5, n) * (r.random(n) < 0.2)),
    "prices in cents": ("number", lambda r, n: r.lognormal(7.5, 1, n)),
    "rounded sums": ("number", lambda r, n: (r.lognormal(10.5, 0.6, n) // 500) * 500),
    "milliseconds": ("number", lambda r, n: r.lognormal(9.5, 1.3, n)),
    "differences": ("number", lambda r, n: r.normal(5, 10, n)),
    "seconds since 1970": ("time", lambda r, n: np.sort(r.integers(17 * 10**8, 17 * 10**8 + 10**6, n))),
    "milliseconds since 1970": ("time", lambda r, n: np.sort(r.integers(17 * 10**11, 17 * 10**11 + 10**9, n))),
    "days": ("time", lambda r, n: 2026_01_20 + np.sort(r.integers(0, 60, n)) % 12 + 81 * (np.arange(n) > n // 2)),
    "days with hours": ("time", lambda r, n: 2026_01_20_00 + r.integers(0, 9, n) * 100 + r.integers(0, 24, n)),
    "hours of two-digit years": ("time", lambda r, n: 26_01_20_00 + r.integers(0, 9, n) * 100 + r.integers(0, 24, n)),
    "digits to seconds": ("time", lambda r, n: 2026_01_20_13_00_00 + r.integers(0, 60, n) * 100 + r.integers(0, 60, n)),
    "keys": ("skip", lambda r, n: drawn(r, n * 20, n)),
}
"""Kind of values -> the right role, and how to draw them."""


@pytest.mark.parametrize("form", ["whole numbers", "floats with nulls"])
@pytest.mark.parametrize("rows", some((20_000, 60_000, 200_000), 20_000))
def test_values_say_the_role_where_names_say_nothing(tmp_path, rows, form):
    """A category and the ages decide the label."""
    rng = np.random.default_rng(rows)
    drawn = {kind: np.asarray(draw(rng, rows)).astype(np.int64) for kind, (_, draw) in PLANTED.items()}
    chance = 0.1 + 0.4 * (drawn["ids without gaps"] % 3 == 0) + drawn["ages"] / 300
    log = pa.table({"click": (rng.random(rows) < chance).astype(np.int8), "c0": drawn["few ids with gaps"] + 1})
    for number, values in enumerate(drawn.values(), 1):
        mask = rng.random(rows) < 0.1
        log = log.append_column(
            f"c{number}", pa.array(values) if form == "whole numbers" else pa.array(values.astype(float), mask=mask)
        )
    pq.write_table(log, tmp_path / "log.parquet", row_group_size=rows // 10)
    found = choose_roles(look_at_files([named(tmp_path / "log.parquet")]), ["click"])[2:]
    wrong = {
        kind: (choice.role, choice.why)
        for (kind, (role, _)), choice in zip(PLANTED.items(), found, strict=True)
        # Doubles of this size have merged the ids.
        if choice.role != ("skip" if (kind, form) == ("hashes", "floats with nulls") else role)
    }
    assert not wrong


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("category", "user_id userId movieId adID UserID userIDs USERID deviceid uid zipcode C_id campaign.id shop-id"),
        ("category", "page.id HTTPHost.id model_number age_level siteCategory PUBLISHER user-id userid"),
        ("number", "itemPrice user_id_count wagePerHour price2 numClicks AGE shop-distance bidPrice"),
        (None, "c1 paid grid android x fluid"),
    ],
)
def test_names_in_any_spelling_say_the_same(role, names):
    assert {name: role_by_name(name) for name in names.split()} == dict.fromkeys(names.split(), role)


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
