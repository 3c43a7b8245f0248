"""The class in a workflow is the one that is trained, in every process, whatever happened to its file or name since."""

import pickle
import subprocess
import sys

import pytest
import torch
from conftest import make_workflow

from pipeline.own_code.code import code_digest, is_other_code
from pipeline.own_code.modules import ClassText, run_file, text_of
from pipeline.settings.changes import override
from pipeline.workflow import Workflow, kind_name, load

FILE = """
from pathlib import Path
from conftest import make_workflow
from torch import nn
import mine_inner.more
from mine_layers import FACTOR

class Mine(nn.Module):
    def value(self):
        from mine_inner import more
        return FACTOR * more.BASE + mine_inner.more.BASE

workflow = make_workflow(Path({root!r}), kind=Mine, args={{}})
"""
WORKER = """
import pickle, sys
for line in sys.stdin:
    print(pickle.loads(bytes.fromhex(line)).make()().value(), flush=True)
"""


def written(folder, factor, base=1):
    """A workflow's file that imports a module and a package of its folder."""
    (folder / "mine_inner").mkdir(parents=True, exist_ok=True)
    (folder / "mine_inner" / "__init__.py").write_text("")
    (folder / "mine_inner" / "more.py").write_text(f"from .base import BASE\nassert BASE == {base}\n")
    (folder / "mine_inner" / "base.py").write_text(f"BASE = {base}\n")
    (folder / "mine_layers.py").write_text(f"FACTOR = {factor}\n")
    (folder / "my.py").write_text(FILE.format(root=str(folder)))
    return folder / "my.py"


def value_of(workflow):
    return workflow.model.kind().value()


def test_two_files_of_one_name_keep_a_class_each(tmp_path):
    first, second = load(written(tmp_path / "a", 2)), load(written(tmp_path / "b", 5))
    assert (value_of(first), value_of(second)) == (3, 6)
    assert override(first, ["seed=3"]).model.kind is first.model.kind
    assert kind_name(first.model.kind) == kind_name(second.model.kind) == "workflow_my.Mine"


def test_an_edited_neighbour_counts_and_changes_no_older_class(tmp_path):
    first = load(written(tmp_path, 2))
    second = load(written(tmp_path, 2, base=7))
    assert (value_of(first), value_of(second)) == (3, 21)
    assert is_other_code(*(code_digest(workflow.model.kind) for workflow in (first, second)))


def test_a_worker_that_lives_on_trains_the_class_of_each_run(tmp_path):
    kinds = []
    for factor in (2, 5):
        file = written(tmp_path, factor)
        file.write_text("import mine_layers\nclass Mine:\n    def value(self): return mine_layers.FACTOR\n")
        kinds.append(run_file("workflow_my", file).Mine)
    texts = [text_of(kinds[n]) for n in (0, 1, 0)]
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input="".join(f"{pickle.dumps(text).hex()}\n" for text in texts),
        capture_output=True, text=True, timeout=60, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["2", "5", "2"], done.stderr


def defined(value):
    class Mine(torch.nn.Module):
        def value(self):
            return value

    return Mine


def test_a_class_defined_again_changes_no_workflow_made_before(tmp_path):
    one, other = (make_workflow(tmp_path, kind=defined(value), args={}) for value in (1, 2))
    assert [value_of(override(each, ["seed=3"])) for each in (one, other)] == [1, 2]


def test_a_module_that_fails_in_a_worker_is_named_by_its_file():
    failing = ClassText(
        "fails_text_0123456789abcdef",
        "Mine",
        {"fails_text_0123456789abcdef": ("mine.py", "raise KeyError('rows')")},
        "",
    )
    with pytest.raises(ValueError, match=r"mine\.py: KeyError: 'rows'"):
        failing.make()


def test_a_class_without_text_is_refused_for_other_processes():
    with pytest.raises(ValueError, match=r"Mine is defined in a function.*write it to a file, such as my_model\.py"):
        text_of(defined(1))


def test_a_worker_refuses_a_class_that_is_not_the_drivers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "imported_by_name.py"
    file.write_text("class Mine:\n    def value(self):\n        return 1\n")
    from imported_by_name import Mine

    assert text_of(Mine).make()().value() == 1
    file.write_text(file.read_text().replace("1", "2"))
    with pytest.raises(ValueError, match=r"imported_by_name\.py was edited after"):
        text_of(Mine).make()


BEFORE = (
    "NAMES = {'a', 'b', 'c'}\ndef help(x): return x in {'a', 'b', 'c'}\nclass Mine:\n    def value(self, x=1): %s\n"
)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (BEFORE % "return help(x) in NAMES  # a comment", True),
        (BEFORE % "\n        'A docstring.'\n\n        return help(x) in NAMES", True),
        (BEFORE.replace("'c'}\nd", "'d'}\nd") % "return help(x) in NAMES", False),
        (BEFORE.replace("return x in", "return x not in") % "return help(x) in NAMES", False),
        (BEFORE.replace("x=1", "x=2") % "return help(x) in NAMES", False),
    ],
    ids=["comment", "docstring", "constant", "function that it calls", "default"],
)
def test_a_digest_changes_with_what_a_class_runs(text, same):
    one, other = {"__name__": "one"}, {"__name__": "other"}
    exec(BEFORE % "return help(x) in NAMES", one)
    exec(text, other)
    assert is_other_code(code_digest(one["Mine"]), code_digest(other["Mine"])) is not same


def test_a_digest_is_the_same_in_every_process():
    program = (
        f"from pipeline.own_code.code import code_digest\n{BEFORE % 'return help(x) in NAMES'}print(code_digest(Mine))"
    )
    ran = (
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True)
        for seed in ("1", "2")
    )  # fmt: skip
    assert len({done.stdout for done in ran}) == 1


def test_a_workflows_text_names_the_class_without_a_digest(tmp_path):
    workflow = load(written(tmp_path, 2))
    text = workflow.model_dump_json()
    assert '"workflow_my.Mine"' in text
    known = {"workflow_my.Mine": workflow.model.kind}
    assert Workflow.model_validate_json(text, context=known) == workflow
