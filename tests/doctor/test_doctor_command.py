"""`pipeline doctor`: exit codes, what it prints, and what it takes."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.data.doctor_logs import changed, examined, sound_log
from support.runs.harness import make_driver

from pipeline.__main__ import main
from pipeline.doctor import diagnose as module
from pipeline.doctor.look_at_rows import look_at_rows
from pipeline.workflow import Category, Data, Workflow

REAL = Path(__file__).parents[3] / "shared" / "data"


def file_of(workflow: Workflow, path: Path) -> Path:
    path.write_text(workflow.model_dump_json())
    return path


def test_a_sound_workflow_ends_with_0_and_names_its_sample(tmp_path, capsys):
    path = file_of(examined(tmp_path / "log", sound_log()), tmp_path / "w.json")
    assert main(["doctor", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("read all rows: ")
    assert "no fault found" in said


def test_a_fault_ends_with_1_and_is_printed_as_lines_or_json(tmp_path, capsys):
    log = sound_log()
    changed(log, "city", 1.0, 5)
    path = file_of(examined(tmp_path / "log", log), tmp_path / "w.json")
    assert main(["doctor", str(path)]) == 1
    said = capsys.readouterr().out
    assert "1 fault:\n  constant_column: city is 5 in all 18,000 rows" in said
    assert main(["doctor", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(one["kind"], one["level"], one["columns"]) for one in found] == [("constant_column", "fault", ["city"])]


def test_settings_are_changed_before_it_looks(tmp_path, capsys):
    log = sound_log()
    changed(log, "price", 1.0, lambda columns: columns["price"] * 100)
    path = file_of(examined(tmp_path / "log", log), tmp_path / "w.json")
    assert main(["doctor", str(path)]) == 0
    assert main(["doctor", str(path), "--set", 'data.numbers=[{"name": "price"}]']) == 1
    assert "unscaled_number: price goes from" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["none.py", "none", "none.json"])
def test_what_is_no_workflow_and_no_run_ends_with_2(tmp_path, capsys, missing):
    assert main(["doctor", str(tmp_path / missing)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_folder_without_run_or_fitting_files_ends_with_2(tmp_path, capsys):
    assert main(["doctor", str(tmp_path)]) == 2
    path = file_of(examined(tmp_path / "log", sound_log(), ("user", "nobody")), tmp_path / "w.json")
    assert main(["doctor", str(path)]) == 2
    assert "column 'nobody' (data.categories) is missing" in capsys.readouterr().err
    assert main(["doctor", str(path), "--workflow", str(path)]) == 2
    assert "--workflow is for a run" in capsys.readouterr().err


def test_a_run_is_looked_at_with_its_own_workflow_and_metrics(tmp_path, capsys):
    workflow = examined(tmp_path / "log", sound_log(files={"train": 1000, "test": 600}))
    make_driver(workflow, tmp_path / "run").run()
    assert main(["doctor", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "scoring 600 rows of test 6 times" in said
    assert "importance: the AUC, 0." in said


def real_workflow(name: str) -> Workflow:
    from pipeline.settings.changes import override
    from pipeline.workflow import load

    root = REAL / {"frappe": "frappe_x1", "criteo": "criteo_1tb_sample"}[name]
    if not root.is_dir():
        pytest.skip(f"the real data is not at {root}")
    file = {"frappe": "frappe.py", "criteo": "criteo.py:sample"}[name]
    return override(load(Path(__file__).parents[2] / "workflows" / file), [f"data.root={root}"])


@pytest.mark.prove
@pytest.mark.parametrize("name", ["frappe", "criteo"])
def test_real_data_has_no_fault(name):
    found = module.diagnose(real_workflow(name), None, lambda line: None)
    assert [finding for finding in found if finding.level == "fault"] == []


def test_lists_and_texts_and_booleans_are_looked_at(tmp_path):
    """Columns of every kind that a workflow may have."""
    from conftest import write_data

    root = write_data(tmp_path, num_train=300, num_keys=20)
    categories = tuple(Category(name=name) for name in ("history", "item", "country", "tags", "user"))
    data = Data(root=root, train=("train*",), test=("test*",), labels=("click",), categories=categories)
    workflow = examined(tmp_path / "log", sound_log(files={"train": 10})).model_copy(update={"data": data})
    seen = look_at_rows(workflow)
    assert seen.num_rows > 300
    assert all(column.num_values > 10 for column in seen.features.values())
    assert all(column.null_N.any() for column in seen.features.values())
    ends_N, codes_V = seen.features["tags"].lists
    # A null counts as one value, the missing one.
    lengths = [1 if values is None else len(values) for values in seen.table.column("tags").to_pylist()]
    assert (ends_N == [sum(lengths[: n + 1]) for n in range(len(lengths))]).all()
    assert len(codes_V) == sum(lengths)


def test_files_without_rows_are_refused(tmp_path):
    workflow = examined(tmp_path / "log", sound_log())
    for path in (tmp_path / "log").rglob("*.parquet"):
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(ValueError, match=r"data\.train: no file of .* has rows; name files that have"):
        look_at_rows(workflow)


def test_a_file_that_ends_early_is_named(tmp_path):
    workflow = examined(tmp_path / "log", sound_log())
    path = next((tmp_path / "log").rglob("train*.parquet"))
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read, is the file complete"):
        look_at_rows(workflow)
