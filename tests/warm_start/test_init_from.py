"""A run that begins from another one, or from Parquet files, equals the plain trainer that begins with their rows."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from sklearn.metrics import roc_auc_score
from support.data.days import days_workflow, write_days
from support.depth import some
from support.oracle.optimizers import EXACT
from support.oracle.reference import Reference, key_of
from support.runs.crew_threads import crew_driver
from support.runs.harness import THREE_TIERS, make_driver, printed, run

from pipeline.api import FM, Bucket, Calendar, Cross, FromParquet, FromRun, Standardize, open_run, train
from pipeline.device.device import RAM
from pipeline.driver.loop import DueCommit
from pipeline.machine.threads import Whole
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.optim.slab_rows import WideRows
from pipeline.run import main
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer, RowStorage, Sgd
from pipeline.storage.layout import RowLayout
from pipeline.storage.shards import Shards
from pipeline.storage.tier import Slab
from pipeline.training.build import row_layout
from pipeline.verify import main as verify
from pipeline.warm_start.from_run import RunOrigin

L2 = Optimizer(rows=Adam(lr=0.05, l2=0.01, semantics="dense"), dense=DenseAdam(lr=0.01))


def begun_from(workflow, source, state=False, layers=True):
    """The plain trainer with the rows, and the layers of equal names and shapes, of another one."""
    found = Reference(workflow)
    for key, row in source.rows.items():
        weights = np.zeros(found.row.num_weights, np.float32)
        both = min(len(weights), len(row["w"]))
        weights[:both] = row["w"][:both]
        found.rows[key] = {"w": weights, "state": row["state"].copy() if state else _no_state(found)}
        found.store(found.rows[key], key, 0)
        found.counts[key] = (0, 0)
    taken = {
        name: value for name, value in source.model.state_dict().items()
        if layers and name in found.model.state_dict() and found.model.state_dict()[name].shape == value.shape
    }  # fmt: skip
    found.model.load_state_dict(found.model.state_dict() | taken)
    if state:
        there, here = dict(source.model.named_parameters()), dict(found.model.named_parameters())
        for name in taken.keys() & here.keys():
            found.optimizer.state[here[name]] = {
                key: value.clone() for key, value in source.optimizer.state[there[name]].items()
            }
    return found


def _no_state(found):
    row_wise = found.workflow.optimizer.rows.kind == "rowwise_adagrad"
    return np.zeros((2, 1) if row_wise else (2, found.row.num_weights), np.float32)


@pytest.fixture
def later_root(tmp_path):
    """Data of which a part of the keys is new."""
    return write_data(tmp_path / "later", seed=5, num_keys=30)


def source_of(workflow, folder):
    """The folder of a run of this workflow, and the plain trainer that equals it."""
    reference = Reference(workflow).train()
    with_tiers = make_driver(workflow, folder / "source", **THREE_TIERS)
    assert with_tiers.run()["fingerprint"] == reference.fingerprint()
    return folder / "source", reference


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("optimizer", some(sorted(EXACT), "adam", "dense, clipped norm"))
def test_a_run_begun_from_another_equals_the_plain_trainer(small_workflow, later_root, tmp_path, optimizer, state):
    if EXACT[optimizer].rows.kind == "ftrl" and not state:
        pytest.skip("weights alone are refused for Ftrl")
    dim = {"embedding_dim": 0} if EXACT[optimizer].rows.kind == "ftrl" else {}
    source = small_workflow(**dim).model_copy(update={"optimizer": EXACT[optimizer]})
    folder, reference = source_of(source, tmp_path)
    workflow = make_workflow(later_root, **dim).model_copy(update={
        "optimizer": EXACT[optimizer], "seed": 3,
        "init_from": (FromRun(run=folder, commit="last", optimizer_state=state),),
    })  # fmt: skip
    expected = begun_from(workflow, reference, state).train().fingerprint()
    assert run(workflow, **THREE_TIERS)["fingerprint"] == expected
    assert run(workflow, shards=Shards.all(3), **THREE_TIERS)["fingerprint"] == expected


def test_rows_absent_from_all_new_data_stay_in_the_table(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow().model_copy(update={"optimizer": L2}), tmp_path)
    changes = {"optimizer": L2, "init_from": (FromRun(run=folder, commit="last"),)}
    workflow = make_workflow(later_root).model_copy(update=changes)
    expected = begun_from(workflow, reference).train()
    result = run(workflow, **THREE_TIERS)
    assert result["rows"] == len(expected.rows) > len(reference.rows)
    assert result["fingerprint"] == expected.fingerprint()


def test_a_new_dense_part_and_another_model_take_rows_alone(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow(), tmp_path)
    begins = (FromRun(run=folder, commit="last", layers=False),)
    for changes in ({}, {"kind": FM, "args": {}}):
        workflow = make_workflow(later_root, **changes).model_copy(update={"init_from": begins})
        expected = begun_from(workflow, reference, layers=False).train().fingerprint()
        assert run(workflow)["fingerprint"] == expected


def test_layers_of_equal_names_and_shapes_are_taken_and_others_named(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow(args={"hidden": (5, 4)}), tmp_path)
    workflow = make_workflow(later_root, args={"hidden": (5, 3)}).model_copy(
        update={"init_from": (FromRun(run=folder, commit="last", optimizer_state=True),)}
    )
    driver = make_driver(workflow, tmp_path / "run", **THREE_TIERS)
    assert driver.run()["fingerprint"] == begun_from(workflow, reference, state=True).train().fingerprint()
    said = printed(driver)
    assert f"took {len(reference.rows)} rows of commit" in said
    assert "layers of another shape" in said
    assert "[4, 5] there, [3, 5] here" in said
    kept = json.loads((tmp_path / "run" / "init_from.json").read_text())["taken"]
    assert all(line in said for line in kept)
    assert verify([str(tmp_path / "run")]) == 0


BUCKET, CROSS, SCALE = (
    Bucket(column="age", name="age_bucket", edges=(2.0, 5.0)),
    Cross(columns=("country", "age_bucket"), name="both"),
    Standardize(column="price", name="price_scaled", mean=0.0, std=1.0),
)
OTHERWISE = {
    "alike": ((BUCKET, CROSS, SCALE), []),
    "edges": (
        (BUCKET.model_copy(update={"edges": (2.0, 6.0)}), CROSS, SCALE),
        ["table 'age_bucket' .*other edges", "table 'both' .*other inputs"],
    ),
    "inputs": ((BUCKET, Cross(columns=("age_bucket", "country"), name="both"), SCALE), ["table 'both' .*other inputs"]),
    "scale": ((BUCKET, CROSS, SCALE.model_copy(update={"std": 2.0})), ["the layers .*'price_scaled'.*other std"]),
    "another kind": (
        (Calendar(column="age", unit="s", take={"day": "age_bucket"}), CROSS, SCALE),
        ["table 'age_bucket' .*other kind, edges", "table 'both' "],
    ),
}


def test_columns_made_otherwise_than_in_the_source_are_named(data_root, tmp_path):
    def made(features):
        settings = {"data.categories": ["age_bucket", "both"], "data.numbers": ["price_scaled"]}
        return make_workflow(data_root).with_settings({"data.features": features} | settings)

    make_driver(made((BUCKET, CROSS, SCALE)), folder := tmp_path / "source", **THREE_TIERS).run()
    for features, expected in OTHERWISE.values():
        workflow = made(features)
        origin = RunOrigin(FromRun(run=folder), workflow, row_layout(workflow), {})
        said = origin.remarks()[1:]
        origin.close()
        assert len(said) == len(expected), said
        assert all(re.search(text, line) for text, line in zip(expected, said, strict=True)), said
    # A run of an earlier version has the keys of a UUID's bytes.
    train, types = origin._state.data["train"], {"both": "extension<arrow.uuid>"}
    for canonical, expected in ((None, ["UUIDs in 16 bytes"]), (True, [])):
        origin._state.data["train"] = train.model_copy(update={"canonical": canonical, "types": types})
        said = [line for line in origin._of_tables(workflow, {"both": "string"}) if "was made with other" not in line]
        assert [text in line for text, line in zip(expected, said, strict=True)] == [True] * len(expected)


def test_narrow_rows_are_rounded_as_first_rows_are(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow(), tmp_path)
    rows = Adam(lr=0.05, storage=RowStorage(weights="bfloat16", state="bfloat16"))
    narrow = Optimizer(rows=rows, dense=DenseAdam(lr=0.01))
    workflow = make_workflow(later_root).model_copy(
        update={"optimizer": narrow, "init_from": (FromRun(run=folder, commit="last", optimizer_state=True),)}
    )
    assert run(workflow, **THREE_TIERS)["fingerprint"] == begun_from(workflow, reference, True).train().fingerprint()


def test_after_the_first_commit_the_source_is_not_read_again(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow(), tmp_path)
    workflow = make_workflow(later_root).model_copy(update={"init_from": (FromRun(run=folder, commit="last"),)})
    make_driver(workflow, tmp_path / "run", **THREE_TIERS).close()
    shutil.rmtree(folder)
    result = make_driver(workflow, tmp_path / "run", device_rows=200, host_rows=40, chunk_rows=4).run()
    assert result["fingerprint"] == begun_from(workflow, reference).train().fingerprint()
    with pytest.raises(ValueError, match=r"init_from: was .*, is null"):
        make_driver(workflow.model_copy(update={"init_from": ()}), tmp_path / "run", **THREE_TIERS)


def test_a_beginning_that_was_interrupted_is_begun_again(small_workflow, later_root, tmp_path, monkeypatch):
    folder, reference = source_of(small_workflow(), tmp_path)
    workflow = make_workflow(later_root).model_copy(update={"init_from": (FromRun(run=folder, commit="last"),)})
    from pipeline.commits.manifest import Commits

    with monkeypatch.context() as patched:
        patched.setattr(Commits, "publish", lambda *_: (_ for _ in ()).throw(OSError("power failed")))
        with pytest.raises(OSError, match="power failed"):
            make_driver(workflow, tmp_path / "run", **THREE_TIERS)
    result = make_driver(workflow, tmp_path / "run", **THREE_TIERS).run()
    assert result["fingerprint"] == begun_from(workflow, reference).train().fingerprint()


def test_workers_and_a_stop_in_between_change_nothing(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow(), tmp_path)
    workflow = make_workflow(later_root).model_copy(update={"init_from": (FromRun(run=folder, commit="last"),)})
    # Three workers write and open the first commit; one trains from it, and is stopped within the first epoch.
    with crew_driver(workflow, tmp_path / "run", 3, **THREE_TIERS) as driver:
        assert sum(part.live_rows for part in driver.commits.all()) == len(reference.rows)
    driver = make_driver(workflow, tmp_path / "run", shards=Shards.all(6), **THREE_TIERS)
    blocks = [block for block in driver.agenda.blocks(1) if block.trains]
    driver.crew.run(blocks[:3], 2, driver.history.add)
    driver.commit(DueCommit(blocks[3]))
    driver.crew.close()
    result = make_driver(workflow, tmp_path / "run", shards=Shards.all(6), device_rows=200, chunk_rows=4).run()
    assert result["fingerprint"] == begun_from(workflow, reference).train().fingerprint()


def test_a_run_over_days_may_begin_from_another_one(tmp_path):
    write_days(tmp_path / "first", [20, 13])
    write_days(tmp_path / "second", [17, 0, 9], seed=1)
    folder, reference = source_of(days_workflow(tmp_path / "first"), tmp_path)
    workflow = days_workflow(tmp_path / "second").model_copy(update={"init_from": (FromRun(run=folder),)})
    expected = begun_from(workflow, reference).train()
    driver = make_driver(workflow, tmp_path / "run", **THREE_TIERS)
    result = driver.run()
    assert result["fingerprint"] == expected.fingerprint()
    # The first day is scored with what the run began with.
    assert result["epochs"][0]["auc"] == pytest.approx(roc_auc_score(*reversed(expected.scores[0][-2:])), abs=1e-12)


def vectors(folder, values, **columns):
    """A file of random vectors of these values; returns the vectors."""
    weights = np.random.default_rng(1).normal(size=(len(values), 3)).astype(np.float32)
    table = pa.table({"value": values, "vector": pa.FixedSizeListArray.from_arrays(weights.reshape(-1), 3), **columns})
    pq.write_table(table, folder / "vectors.parquet", row_group_size=7)
    return weights


def test_pretrained_embeddings_are_found_by_their_values(data_root, tmp_path):
    values = pa.array([3, 5, None, 7, 5], pa.int32())
    weights = vectors(tmp_path, values, bias=pa.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    given = FromParquet(files=(str(tmp_path / "vectors.parquet"),), value="value", table="item", first_order="bias")
    workflow = make_workflow(data_root).model_copy(update={"init_from": (given,)})
    expected = Reference(workflow)
    # Of two vectors of one value the last one counts.
    for at, value, bias in ((0, 3, 1.0), (3, 7, 4.0), (4, 5, 5.0)):
        key = key_of(value, "item", "item")
        expected.rows[key] = {"w": np.array([*weights[at], bias], np.float32), "state": np.zeros((2, 4), np.float32)}
        expected.counts[key] = (0, 0)
    driver = make_driver(workflow, tmp_path / "run", **THREE_TIERS)
    assert driver.run()["fingerprint"] == expected.train().fingerprint()
    assert "1 rows with a null were left out" in printed(driver)
    assert "1 rows had the key of a later one" in printed(driver)


def test_a_file_of_all_weights_is_found_by_its_keys(small_workflow, later_root, tmp_path):
    folder, reference = source_of(small_workflow(), tmp_path)
    with open_run(folder, "last") as opened:
        keys, weights = pa.Table.from_batches(opened.table_batches()).columns
    columns = {"key": keys, "vector": pc.list_slice(weights, 0, 3), "first_order": pc.list_element(weights, 3)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    given = FromParquet(files=(str(tmp_path / "rows.parquet"),), key="key", first_order="first_order")
    workflow = make_workflow(later_root).model_copy(update={"init_from": (given,)})
    assert run(workflow)["fingerprint"] == begun_from(workflow, reference, layers=False).train().fingerprint()


REFUSED = {
    "another width": ({"embedding_dim": 4}, {}, "has vectors of 3 numbers, and model.embedding_dim is 4; set"),
    "another optimizer's state": (
        {"optimizer": Optimizer(rows=Sgd(lr=0.1))}, {"optimizer_state": True}, "has the state of 'adam', and optim"
    ),
    "no such commit": ({}, {"commit": 77}, "has no commit 77"),
    "no run": ({}, {"run": Path("elsewhere")}, "holds no run"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_does_not_fit_is_refused_before_anything_is_written(trained, data_root, tmp_path, name):
    changes, given, said = REFUSED[name]
    optimizer = {"optimizer": changes.pop("optimizer")} if "optimizer" in changes else {}
    begins = {"init_from": (FromRun(**({"run": trained.run_dir} | given)),)}
    workflow = make_workflow(data_root, **changes).model_copy(update=optimizer | begins)
    with pytest.raises(ValueError, match=said):
        train(workflow, tmp_path / "run", serial=True, verbose=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "given", "said"),
    [
        (pa.array(["3"]), {"value": "value", "table": "item"}, "is text, and table 'item' holds integers"),
        (pa.array([3]), {"value": "valu", "table": "item"}, "no column 'valu'; did you mean 'value'"),
        (pa.array(["3"]), {"key": "value"}, "expected keys as 64-bit integers"),
        (pa.array([3]), {"value": "value", "table": "item", "vector": "value"}, "expected a list of numbers"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_before_anything_is_written(data_root, tmp_path, values, given, said):
    vectors(tmp_path, values)
    begins = (FromParquet(files=(str(tmp_path / "vectors.parquet"),), **given),)
    with pytest.raises(ValueError, match=said):
        train(make_workflow(data_root).model_copy(update={"init_from": begins}), tmp_path / "run", serial=True)
    assert not (tmp_path / "run").exists()


def test_caps_too_small_for_the_rows_are_named_before_they_are_written(small_workflow, later_root, tmp_path):
    folder, _ = source_of(small_workflow(), tmp_path)
    workflow = make_workflow(later_root).model_copy(update={"init_from": (FromRun(run=folder),)})
    with pytest.raises(ValueError, match=r"storage.disk has room for 12 chunks .* fill [45][0-9]; set storage.disk to"):
        make_driver(workflow, tmp_path / "run", device_rows=130, host_rows=24, chunk_rows=4, disk_chunks=12)
    assert not list((tmp_path / "run" / "commits").iterdir())


def test_the_lifespan_of_first_rows_is_not_that_of_rows_before():
    row = RowLayout(4, False)
    optimizer = RowOptimizer(L2, WideRows(Slab(0, row.num_words), row), 0.01, Whole(), RAM, False)
    optimizer.rates.through(3000, 0.05)
    rows_UW = np.zeros((1, row.num_words), np.uint32)
    rows_UW.view(np.float32)[:, 2:6] = 1000
    for has_rows_before, is_zero in ((False, True), (True, False)):
        optimizer.rates.has_rows_before, optimizer._lifespan, optimizer._probed = has_rows_before, 1 << 60, 0
        copy = rows_UW.copy()
        optimizer.catch_up_copy(copy, 3000)
        assert (not copy.view(np.float32)[:, 2:6].any()) == is_zero
    saved = optimizer.rates.save()
    again = RowOptimizer(L2, WideRows(Slab(0, row.num_words), row), 0.01, Whole(), RAM, False)
    again.rates.load(saved)
    assert again.rates.has_rows_before


def test_fresh_does_not_move_the_run_that_another_begins_from(tmp_path, small_workflow, capsys):
    workflow = small_workflow()
    folder, _ = source_of(workflow, tmp_path)
    path = tmp_path / "w.json"
    path.write_text(workflow.model_dump_json())
    again = [str(path), "--serial", "--out", str(folder), "--fresh", "--set", f"init_from={folder}"]
    assert main(again) == 2
    assert "--fresh would move" in capsys.readouterr().err
    assert (folder / "commits").is_dir()
