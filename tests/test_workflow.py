"""A workflow validates itself: a typo is an error with the field's path."""

import json
import os
import re
import sys

import pytest
from conftest import make_workflow
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pipeline.messages.sizes import MemoryShare, format_size, parse_size
from pipeline.models import DeepFM
from pipeline.settings.caps import Size
from pipeline.settings.changes import override
from pipeline.settings.optimizer import Adagrad, Plateau
from pipeline.settings.problems import REMOVED
from pipeline.workflow import Category, Data, Number, Workflow, load, without_removed


def make_fields():
    return {
        "name": "tiny",
        "data": {"train": ("train.parquet",), "labels": ("label",), "categories": ({"name": "c0"}, {"name": "c1"})},
        "model": {"kind": DeepFM, "embedding_dim": 4, "args": {"hidden": [8]}},
        "storage": {"device": "1 MiB", "host": "1.5 MiB", "disk": 1 << 30},
        "schedule": {"batch_size": 32, "threads": 2},
    }


@pytest.fixture
def workflow():
    return Workflow.model_validate(make_fields())


def changed(path, *value):
    """Fields with a value at a path or, without a value, without the field."""
    fields = make_fields()
    *parents, last = path.split(".")
    at = fields
    for parent in parents:
        at = at.setdefault(parent, {})
    if value:
        (at[last],) = value
    else:
        del at[last]
    return fields


def errors_of(fields):
    with pytest.raises(ValidationError) as caught:
        Workflow.model_validate(fields)
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.integers(0, 2**62), st.integers(0, 2**12).flatmap(lambda n: st.sampled_from([n << 30, n << 40]))))
@example(2**53 + 1)
def test_a_size_is_read_back_as_it_was_written(num_bytes):
    assert parse_size(format_size(num_bytes)) == num_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0 B", 0), ("7B", 7), ("512 MiB", 512 << 20), (" 1.5 KiB ", 1536), ("2GiB", 2 << 30), ("0.5 TiB", 1 << 39)],
)
def test_a_size_is_read_in_its_unit(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 10, "1 KiB"), (3 << 30, "3 GiB"), (5 << 50, "5120 TiB")]
)
def test_a_size_is_written_in_its_largest_whole_unit(num_bytes, text):
    assert format_size(num_bytes) == text


@pytest.mark.parametrize("text", ["", "8", "8 GB", "8 gib", "-1 GiB", "GiB", "1,5 GiB", "1 GiB 2", "0x10 B", "nan B"])
def test_a_malformed_size_is_refused(text):
    with pytest.raises(ValidationError, match="expected a size such as"):
        TypeAdapter(Size).validate_python(text)
    assert "expected a size such as" in errors_of(changed("storage.host", text))["storage.host"]


@pytest.mark.parametrize(("text", "share"), [("80 %", 0.8), ("12.5%", 0.125), (" 100 % ", 1.0), ("33.3 %", 0.333)])
def test_a_share_of_device_memory_survives_json(text, share):
    workflow = Workflow.model_validate(changed("storage.device", text))
    assert workflow.storage.device == MemoryShare(share)
    assert Workflow.model_validate_json(workflow.model_dump_json()) == workflow


@pytest.mark.parametrize("text", ["0 %", "101 %", "-5 %", "% 5", "5 percent"])
def test_an_invalid_share_of_memory_is_refused(text):
    assert any(where.startswith("storage.device") for where in errors_of(changed("storage.device", text)))
    assert errors_of(changed("storage.host", "50 %")), "the host's cap is a size"


def test_a_size_beyond_the_range_of_a_float_is_refused():
    assert errors_of(changed("storage.host", "9" * 400 + " B")).keys() == {"storage.host"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nmae", "x"), ("data.lables", ("a",)),
        ("data.synthetic", {"train_examples": 1, "keys_per_field": (3,), "zip": 1}),
        ("model.dim", 3), ("optimizer", {"rows": {"learning_rate": 1.0}}), ("storage.hots", "1 GiB"),
        ("schedule.blocks", 3),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_by_its_path(path, value):
    deepest = {"data.synthetic": "data.synthetic.zip", "optimizer": "optimizer.rows.adam.learning_rate"}.get(path, path)
    assert errors_of(changed(path, value)) == {deepest: "Extra inputs are not permitted"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", 5), ("name", "a/b"), ("name", ""), ("name", "../x"), ("seed", 1.0), ("seed", -1), ("seed", 1 << 63),
        ("data.train", "train.parquet"), ("data.train", ()), ("data.labels", ()), ("data.shuffle_window", -1),
        ("data.shuffle_window", "5"), ("data.numbers", ({"name": "i0", "log1p": 1},)),
        ("data.categories", ({"name": "c0", "pooling": "max"},)), ("model.kind", "pipeline.models.NoSuchModel"),
        ("model.embedding_dim", -1), ("model.init_std", -0.1), ("optimizer", {"rows": {"lr": 0.0}}),
        ("optimizer", {"dense": {"beta1": 1.0}}), ("storage.device", -1), ("storage.device", 1.5),
        ("storage.device", True), ("storage.chunk_rows", 1000), ("storage.chunk_rows", 0),
        ("storage.host_policy", "mru"), ("schedule.batch_size", 0), ("schedule.batch_size", "32"),
        ("schedule.batch_size", True), ("schedule.look_ahead", 0), ("schedule.block_batches", 0),
        ("schedule.threads", 0), ("schedule.epochs", 0), ("device", "gpu"), ("model.precision", "float16"),
    ],
)  # fmt: skip
def test_a_wrong_type_or_value_is_refused_by_its_path(path, value):
    assert any(where.startswith(path) for where in errors_of(changed(path, value)))


@pytest.mark.parametrize("path", ["name", "data", "data.train", "model.kind", "schedule.batch_size"])
def test_a_missing_field_is_named(path):
    assert errors_of(changed(path)) == {path: "Field required"}


def test_a_column_with_two_meanings_is_refused():
    names = {"labels": ("a",), "weight": "w", "numbers": ({"name": "a"},), "categories": ({"name": "w"}, {"name": "c"})}
    with pytest.raises(ValidationError, match=r"named more than once: a, w;"):
        Data.model_validate({"train": ("x",)} | names)


def rich_fields():
    fields = make_fields()
    fields["data"] |= {
        "root": "somewhere", "validation": ("v",), "test": ("t1", "t2"), "weight": "w", "shuffle_window": 0,
        "numbers": ({"name": "i0", "fill": -1.5, "shift": 2.0, "log1p": True},),
        "categories": ({"name": "c0", "table": "shared"}, {"name": "c1", "pooling": "mean"}),
        "synthetic": {"train_examples": 10, "keys_per_field": (5, 7)},
    }  # fmt: skip
    fields["optimizer"] = {"rows": {"lr": 0.1}, "dense": {"eps": 1e-3}}
    fields["storage"] |= {"read": (1 << 40) + 1, "map": "3 MiB", "chunk_rows": 2048}
    fields["seed"] = (1 << 63) - 1
    return fields


@pytest.mark.parametrize("fields", [make_fields(), rich_fields()])
def test_a_workflow_survives_json(fields):
    workflow = Workflow.model_validate(fields)
    assert Workflow.model_validate_json(workflow.model_dump_json()) == workflow


@pytest.mark.parametrize("name", ["fill", "shift"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_hold_is_refused(name, value):
    """It would make every missing value an error when read, and workflow.json unreadable."""
    errors = errors_of(changed("data.numbers", ({"name": "i0", name: value},)))
    assert errors.keys() == {f"data.numbers.0.{name}"}


def test_a_validated_workflow_is_immutable():
    workflow = Workflow.model_validate(make_fields())
    with pytest.raises(ValidationError, match="frozen"):
        workflow.storage.device = 5
    with pytest.raises(ValidationError, match="frozen"):
        workflow.name = "other"


def test_a_column_has_its_own_table_unless_one_is_named():
    first, second = Workflow.model_validate(rich_fields()).data.categories
    assert (first.table_name, second.table_name) == ("shared", "c1")


def test_settings_that_cannot_go_together_are_refused_by_name(tmp_path):
    workflow = make_workflow(tmp_path)

    def refused(**changes):
        with pytest.raises(ValidationError) as error:
            Workflow.model_validate(workflow.model_dump() | changes)
        return str(error.value)

    plateau = {"metric": "auc", "lr_factor": 0.1}
    schedule, data = workflow.schedule.model_dump(), workflow.data.model_dump()
    rows = {"kind": "adam", "semantics": "dense"}
    assert "keep_best" in refused(schedule=schedule | {"plateau": plateau}, commit={"keep_best": False})
    assert "data.validation" in refused(schedule=schedule | {"plateau": plateau}, data=data | {"validation": ()})
    assert "lower l2" in refused(optimizer={"rows": rows | {"clip": {"r": 0.01}, "l2": 0.02}})
    assert "beta1 * beta1" in refused(optimizer={"rows": rows | {"beta1": 0.9, "beta2": 0.5}})
    assert "leave one out" in refused(optimizer={"rows": rows | {"clip": {}}, "max_grad_norm": 1.0})
    assert "init_std" in refused(optimizer={"rows": {"kind": "ftrl"}})
    still = workflow.model.model_dump() | {"init_std": 0.0}
    ftrl = {"optimizer": {"rows": {"kind": "ftrl"}}, "model": still}
    assert "lr_factor" in refused(**ftrl, schedule=schedule | {"plateau": plateau})
    Workflow.model_validate(workflow.model_dump() | ftrl)


def test_a_frozen_denominator_with_too_small_an_eps_is_refused(tmp_path):
    workflow = make_workflow(tmp_path)

    def with_merge(eps, **merge):
        optimizer = {"dense": {"eps": eps}, "merge": {"k": 20} | merge}
        return Workflow.model_validate(workflow.model_dump() | {"optimizer": optimizer})

    with pytest.raises(ValidationError, match="set eps to at least 1e-06"):
        with_merge(1e-8)
    for taken in (with_merge(1e-4), with_merge(1e-8, k=1), with_merge(1e-8, denominator="local")):
        assert taken.optimizer.merge


def test_a_file_that_changed_within_a_second_is_read_as_it_is(tmp_path, monkeypatch):
    """Bytecode is kept for a file's size and second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "changed.py"
    for name in ("one", "two"):
        written = make_workflow(tmp_path).model_copy(update={"name": name}).model_dump_json()
        path.write_text(
            f"from pipeline.workflow import Workflow\nworkflow = Workflow.model_validate_json({written!r})\n"
        )
        os.utime(path, (1, 1))
        assert load(path).name == name


def test_a_stored_workflow_opens_without_settings_that_are_gone(tmp_path):
    workflow = make_workflow(tmp_path)
    stored = json.loads(workflow.model_dump_json())
    for setting in REMOVED:
        part, name = setting.split(".")
        stored[part][name] = ["site"]
    opened = Workflow.model_validate_json(json.dumps(without_removed(stored)))
    assert opened.model_dump_json() == workflow.model_dump_json()
    (tmp_path / "stored.json").write_text(json.dumps(stored | {"metrics": stored["metrics"] | {"slices": []}}))
    assert load(tmp_path / "stored.json").metrics == workflow.metrics, "what was not set is no mistake"
    for nothing in ({}, {"metrics": 5}, {"metrics": None}, [], 5, "text"):
        assert without_removed(nothing) == nothing


@pytest.mark.parametrize("setting", REMOVED)
def test_a_setting_that_is_gone_is_refused_with_what_to_do(tmp_path, setting):
    workflow, (part, name) = make_workflow(tmp_path), setting.split(".")
    said = re.escape(f"{setting} is gone: {REMOVED[setting]}")
    with pytest.raises(ValueError, match=said):
        override(workflow, [f'{setting}=["site"]'])
    for where, content in {
        "text.json": json.dumps(json.loads(workflow.model_dump_json()) | {part: {name: ["site"]}}),
        "python.py": f"from pipeline.api import {part.title()}\n{part.title()}({name}=('site',))\n",
    }.items():
        (tmp_path / where).write_text(content)
        with pytest.raises(ValueError, match=said):
            load(tmp_path / where)


def test_a_name_alone_is_a_column_with_default_settings():
    columns = {"numbers": (Number(name="x"),), "categories": (Category(name="a"), Category(name="b", table="a"))}
    found = Data(train=("t",), labels=("c",), numbers=("x",), categories=("a", columns["categories"][1]))
    assert found == Data(train=("t",), labels=("c",), **columns)


def test_a_copy_has_no_setting_of_a_wrong_name(workflow):
    with pytest.raises(ValueError, match="Workflow has no nonsense; it has name, data, "):
        workflow.model_copy(update={"nonsense": 1})


def test_columns_that_are_named_alone_keep_their_settings(workflow):
    kept = workflow.data.categories[-1]
    changed = override(workflow, [f'data.categories=["{kept.name}", "another"]'])
    assert changed.data.categories == (kept, Category(name="another"))
    assert workflow.with_settings({"data.categories": [kept.name]}).data.categories == (kept,)


def test_changed_settings_are_those_of_a_new_workflow(workflow):
    rows, plateau = Adagrad(lr=0.5), Plateau(stop_after=1)
    values = {"optimizer.rows": rows, "schedule.epochs": 3, "data.validation": ("v",), "schedule.plateau": plateau}
    changed = workflow.with_settings(values)
    assert changed.optimizer.rows == rows
    assert changed.schedule == workflow.schedule.model_copy(update={"epochs": 3, "plateau": plateau})
    assert changed.data.validation == ("v",)
    assert changed.model.kind is workflow.model.kind
    assert changed.with_settings({}) == changed


def test_a_change_leaves_fields_that_nobody_gave_as_defaults(workflow):
    changed = workflow.with_settings({"seed": 1, "optimizer.rows.l2": 0.5})
    assert changed.optimizer.rows.model_fields_set == {"kind", "l2"}
    assert changed.with_settings({"optimizer.rows.kind": "adagrad"}).optimizer.rows == Adagrad(l2=0.5)


def test_a_changed_model_may_be_a_class_of_a_function(workflow):
    class Mine(DeepFM):
        pass

    assert workflow.with_settings({"model.kind": Mine}).model.kind is Mine
    model = workflow.model.model_copy(update={"kind": Mine})
    assert workflow.with_settings({"model": model, "seed": 1}).model == model


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"optimizer.rows.lr": -1}, "settings: optimizer.rows.lr: expected more than 0.0 (got -1)"),
        ({"optimizer.row.lr": 1}, "settings: optimizer.row.lr: the workflow has no optimizer.row; did you mean "
         "'optimizer.rows.lr'?"),
        ({"optimizer.rows.lrr": 1}, "settings: optimizer.rows.lrr: Adam has no field 'lrr'; did you mean 'lr'?"),
        ({"lr": 1}, "settings: lr: the workflow has no lr; did you mean 'optimizer.rows.lr' or 'optimizer.dense.lr'?"),
        ({"schedule.epochs": 2.5}, "settings: schedule.epochs: expected a whole number; write 2 (got 2.5)"),
        ({"model.args": {"hidden": {1}}}, "settings: model.args: {1} is a set; give a number, text or list"),
        ({"schedule.plateau": Plateau()}, "Workflow: schedule.plateau needs data.validation; name the files"),
    ],
)  # fmt: skip
def test_a_wrong_change_names_path_value_and_rule(workflow, values, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        workflow.with_settings(values)
