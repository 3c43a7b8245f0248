"""Settings as people write and read them: lists for tuples, and what `help` shows."""

import pydoc

import pytest

from pipeline import api
from pipeline.settings import Strict
from pipeline.workflow import Workflow

SETTINGS = [
    kind
    for kind in map(api.__dict__.get, api.__all__)
    if isinstance(kind, type) and issubclass(kind, Strict) and kind.__module__ != "pipeline.serving.servable"
]
TUPLES = {
    "data": {
        "train": ("a", "b"), "validation": ("c",), "test": ("d",), "labels": ("click",),
        "tasks": (api.Task(label="click"),), "numbers": ("price", api.Number(name="age")),
        "categories": ("user", "item"),
        "sequences": (api.Sequence(name="past", items={"seen": "item"}, numbers=("gaps",)),),
        "features": (api.Bucket(column="x", name="b", edges=(1.0, 2.0)), api.Cross(columns=("user", "b"), name="c")),
        "synthetic": api.Synthetic(train_examples=1, keys_per_field=(3, 4)),
    },
    "init_from": (api.FromParquet(files=("v",), value="item"),),
}  # fmt: skip


def as_lists(value):
    """The same settings, with a list for each tuple."""
    if isinstance(value, Strict):
        return type(value)(**{name: as_lists(one) for name, one in value})
    if isinstance(value, dict):
        return {name: as_lists(one) for name, one in value.items()}
    return [as_lists(one) for one in value] if isinstance(value, tuple) else value


def test_lists_are_taken_as_tuples_everywhere():
    model = {"model": api.Model(kind="DIN"), "schedule": api.Schedule(batch_size=8), "name": "w"}
    of_tuples, of_lists = (
        Workflow(data=api.Data(**given["data"]), init_from=given["init_from"], **model)
        for given in (TUPLES, as_lists(TUPLES))
    )
    assert of_lists == of_tuples
    assert repr(of_lists) == repr(of_tuples)
    assert of_lists.model_dump_json() == of_tuples.model_dump_json()
    assert Workflow.model_validate_json(of_tuples.model_dump_json()) == of_tuples


@pytest.mark.parametrize("given", [{"a", "b"}, "a", iter("a"), {"a": 1}])
def test_what_has_no_order_or_is_text_is_no_tuple(given):
    with pytest.raises(ValueError, match="valid tuple"):
        api.Data(**TUPLES["data"] | {"train": given})


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_help_shows_each_field_with_a_sentence(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    assert len(text.splitlines()) < 120
    assert not any(name in text for name in ("model_dump", "__pydantic", "Annotated", "FieldInfo"))
    after = text.partition("Fields:\n")[2].partition(" |  \n")[0].splitlines()
    shown = [line[6:].partition(":")[0] for line in after if line[6] != " "]
    assert shown == [name for name in kind.model_fields if name != "kind" or kind is api.Model]
    assert after[-1][:8] == " |      ", "each field, or group of fields, has a sentence"
