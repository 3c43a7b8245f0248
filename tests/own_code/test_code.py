"""The class in a workflow is the one that is trained, in every process, whatever happened to its file or name since."""

import importlib
import subprocess
import sys

import pytest
import torch
from conftest import make_workflow

from pipeline.cluster.run_plugin import from_bytes, to_bytes
from pipeline.own_code.code import code_digest, is_other_code, run_file
from pipeline.settings.changes import override
from pipeline.workflow import Workflow, kind_name, load

FILE = """
from pathlib import Path
from conftest import make_workflow
from torch import nn
import mine_inner.more
from mine_inner import more
from mine_layers import FACTOR

class Mine(nn.Module):
    def value(self):
        return FACTOR * more.BASE + mine_inner.more.BASE

workflow = make_workflow(Path({root!r}), kind=Mine, args={{}})
"""
WORKER = """
import pickle, sys
for line in sys.stdin:
    print(pickle.loads(bytes.fromhex(line))().value(), flush=True)
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

    class Mine:
        def value(self):
            return len(kinds)

    kinds += [kinds[0], Mine]
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input="".join(f"{to_bytes(kind).hex()}\n" for kind in kinds),
        capture_output=True, text=True, timeout=60, cwd="/",
    )  # fmt: skip
    assert done.stdout.split() == ["2", "5", "2", "4"], done.stderr


def defined(value):
    class Mine(torch.nn.Module):
        def value(self):
            return value

    return Mine


def test_a_class_defined_again_changes_no_workflow_made_before(tmp_path):
    one, other = (make_workflow(tmp_path, kind=defined(value), args={}) for value in (1, 2))
    assert [value_of(override(each, ["seed=3"])) for each in (one, other)] == [1, 2]


def test_a_class_that_cannot_be_sent_is_named():
    with pytest.raises(ValueError, match=r"model\.kind defined\.<locals>\.Mine cannot be sent to workers.*generator"):
        to_bytes(defined(n for n in range(3)))
    with pytest.raises(ValueError, match=r"model\.kind cannot be made in this worker: ModuleNotFoundError.*absent"):
        from_bytes(b"cabsent\nMine\n.")


def test_a_class_of_a_module_that_was_run_again_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_by_name.py").write_text("class Mine:\n    pass\n")
    module = importlib.import_module("imported_by_name")
    kind, before = module.Mine, code_digest(module.Mine)
    importlib.reload(module)
    assert (code_digest(kind), code_digest(module.Mine)) == ("", before)


BEFORE = """
class Mine:
    def value(self, x=1):
        return help(x) in NAMES

def help(x):
    return x + 1

NAMES = {1, 2, 3}
data = Category(name="a")
"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("in NAMES", "in NAMES  # a comment", True),
        ("\ndata = Category(name='a')", "\ndata = Category(name='b')", True),
        ("2, 3}", "2, 4}", False),
        ("x + 1", "x + 2", False),
        ("x=1", "x=2", False),
    ],
    ids=["comment", "setting", "constant", "function that it calls", "default"],
)
def test_a_digest_changes_with_the_file_of_a_class(tmp_path, before, after, same):
    text = f"from pipeline.workflow import Category\n{BEFORE}".replace('"', "'")
    assert before in text
    digests = []
    for name, content in {"one": text, "other": text.replace(before, after)}.items():
        (tmp_path / f"{name}.py").write_text(content)
        digests.append(code_digest(run_file(f"workflow_{name}", tmp_path / f"{name}.py").Mine))
    assert is_other_code(*digests) is not same


def test_a_digest_of_another_form_or_no_digest_is_no_edit():
    digest = code_digest(defined(1))
    assert is_other_code(f"{digest[:-1]}x", digest)
    assert not is_other_code(f"{sys.version_info[0]}.{sys.version_info[1]} 0123456789abcdef", digest)
    assert not is_other_code("", digest)


def test_a_workflows_text_names_the_class_without_a_number(tmp_path):
    workflow = load(written(tmp_path, 2))
    text = workflow.model_dump_json()
    assert '"workflow_my.Mine"' in text
    known = {"workflow_my.Mine": workflow.model.kind}
    assert Workflow.model_validate_json(text, context=known) == workflow
