"""The Python interface: what it has, how it is described, and that importing it changes nothing in the process."""

import inspect
import json
import os
import pydoc
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data

import pipeline
from pipeline import api
from pipeline.arguments import train_arguments
from pipeline.machine import process
from pipeline.settings import Strict
from pipeline.workflow import Workflow

ROOT = Path(__file__).parents[2]


def test_each_option_of_the_command_is_there_in_python():
    named = {"set": "settings", "no_score": "settings", "track": "observers", "all": "explain", "json": "explain"}
    options = vars(train_arguments().parse_args(["my.py"])).keys() - {"held", "listed"}
    there = {*inspect.signature(api.train).parameters, *pipeline.__all__}
    assert {named.get(option, option) for option in options} <= there


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), num_train=60, num_keys=20)


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    api.train(make_workflow(root), folder, serial=True).close()
    return folder


def test_every_public_name_can_be_imported():
    assert all(getattr(api, name) is not None for name in api.__all__)
    assert {*pipeline.__all__} < {*api.__all__} <= {*dir(api)}
    assert all(getattr(pipeline, name) is getattr(api, name) for name in pipeline.__all__)
    assert {*pipeline.__all__} <= {*dir(pipeline)}


UNTOUCHED = """
import ctypes, os, signal, sys
calls, library = [], ctypes.CDLL
class Spy:
    def __init__(self, name, *args, **options):
        self._library = library(name, *args, **options)
    def __getattr__(self, name):
        calls.extend([name] * (name == "mallopt"))
        return getattr(self._library, name)
def state():
    return dict(os.environ), [signal.getsignal(n) for n in signal.valid_signals()], sys.unraisablehook
ctypes.CDLL, before = Spy, state()
import pipeline.api
import pipeline
light = [name for name in ("torch", "pyarrow", "numba", "dask") if name in sys.modules]
with pipeline.open_servable(sys.argv[1]) as servable:
    import pyarrow.parquet as pq
    servable.predict(pq.read_table(sys.argv[2]))
assert not calls and state() == before
assert not light, light
"""


def test_importing_and_serving_leave_the_process_as_it_is(run, root, tmp_path):
    manifest = api.export(run, tmp_path / "a", publish=True)
    assert (tmp_path / "current").read_text() == "a\n"
    assert api.export(run, tmp_path / "a").digest == manifest.digest
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    argv = [sys.executable, "-c", UNTOUCHED, str(tmp_path / "a"), str(root / "test.parquet")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("late", [True, False])
def test_a_late_spin_count_is_warned_about(late, monkeypatch):
    monkeypatch.delenv(process.SPIN, raising=False)
    monkeypatch.setattr(process, "_begun", False)
    if not late:
        monkeypatch.delitem(sys.modules, "torch")
    for warned in (late, False):
        with warnings_of(process.brief_spinning(), RuntimeWarning if warned else None):
            assert os.environ[process.SPIN] == process.SPIN_COUNT
        assert process.SPIN not in os.environ


def warnings_of(context, kind):
    """A context that expects a warning of this kind, or none."""
    stack = ExitStack()
    with pytest.warns(kind, match="set GOMP_SPINCOUNT=1000") if kind else ExitStack():
        stack.enter_context(context)
    return stack


def test_files_are_scored_as_by_the_command(run, root, tmp_path):
    said = api.score(run, str(root / "test.parquet"), tmp_path / "scored", keep=["item"])
    assert "auc" in said
    table = pq.read_table(tmp_path / "scored" / "test.parquet")
    assert {"item", "click.probability"} <= {*table.column_names}
    with api.open_run(run) as opened:
        assert opened.predict(pq.read_table(root / "test.parquet"))["click.logit"].equals(table["click.logit"])


def test_an_explanation_has_sizes_and_hit_rates(root, tmp_path):
    found = api.explain(make_workflow(root), tmp_path / "run", settings={"schedule.epochs": 1}, serial=True)
    assert 0 < found["hits"]["device"] <= found["hits"]["device_and_host"] < 1
    assert json.dumps(found)
    assert not (tmp_path / "run").exists()


class Commits(api.Observer):
    """Counts commits."""

    def __init__(self):
        self.numbers = []

    def on_commit(self, commit):
        self.numbers.append(commit.number)


def test_an_observer_is_called_for_each_event(root, tmp_path):
    commits = Commits()
    with api.train(make_workflow(root), tmp_path / "run", serial=True, observers=[commits]) as run:
        assert commits.numbers == sorted(commits.numbers)
        assert commits.numbers
        assert run.finished


@pytest.mark.prove
def test_a_type_checker_knows_the_type_of_each_result(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    program = tmp_path / "program.py"
    program.write_text(
        "import pipeline\nfrom pipeline import api\nreveal_type(pipeline.train('a.py'))\n"
        "reveal_type(api.open_servable('s'))\nreveal_type(api.DeepFM)\n"
    )
    # The cache is that of `make check`: without it, mypy takes a minute for the package.
    argv = [sys.executable, "-m", "mypy", program]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)
    for known in ("opened.OpenRun", "open_servable.OpenServable", "DeepFM"):
        assert known in done.stdout, done.stdout


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
