"""What a study tries: derived from the workflow's types, or given by `tune` in its file; mistakes are named."""

import pyarrow.parquet as pq
import pytest
from conftest import make_workflow
from support.runs.studies import make_up, tune

from pipeline.api import FM, Between, Bucket, Rare, Tune
from pipeline.preflight.check_model import check_model
from pipeline.training.build import row_layout
from pipeline.tune.main import main
from pipeline.tune.space import derived, other_kinds, own_values, settings_of, space_of

pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    return make_workflow(tmp_path_factory.mktemp("data"), embedding_dim=8)


@pytest.fixture(scope="module")
def featured(workflow):
    bucket = Bucket(name="price_bucket", column="price", edges=tuple(float(n) for n in range(11)))
    rare = Rare(column="item", at_least=3, counts="counts.parquet")
    return workflow.with_settings({"data.features": [bucket, rare]})


def test_the_space_comes_from_the_types_of_the_workflow(workflow, featured):
    space = derived(workflow)
    assert space["model.kind"][0] == "DeepFM"
    assert {"DCNv2", "FM"} < {*space["model.kind"]}
    assert space["optimizer.rows.lr"] == Between(low=0.005, high=0.5, log=True)
    assert space["optimizer.rows.semantics"] == ("lazy", "dense")
    assert space["model.embedding_dim"] == (8, 2, 4, 16)
    assert space["schedule.batch_size"] == (6, 1, 3, 12, 24)
    assert {*derived(featured)} - {*space} == {"buckets", "rare"}
    assert "optimizer.rows.semantics" not in derived(
        workflow.with_settings({"model.init_std": 0.0, "optimizer.rows.kind": "ftrl"})
    )


LINEAR = {"model.kind": "LR", "model.embedding_dim": 0, "model.args": {}}


def test_a_linear_model_is_tried_for_a_deep_one_and_the_reverse(workflow):
    linear = workflow.with_settings(LINEAR)
    for own, other, dim in ((workflow, "LR", 0), (linear, "DeepFM", 16)):
        space = derived(own)
        assert {own.model.kind.__name__, other} < {*space["model.kind"]}
        params = own_values(own, space)
        assert own.with_settings(settings_of(own, params, space)).model.embedding_dim == own.model.embedding_dim
        trial = own.with_settings(settings_of(own, params | {"model.kind": other}, space))
        assert (trial.model.kind.__name__, trial.model.embedding_dim) == (other, dim)
        check_model(trial, row_layout(trial))
    assert derived(linear)["model.embedding_dim"] == (16, 4, 8, 32)
    assert "model.args.dropout" in derived(linear)
    # Ftrl's weights begin at 0, and a linear model has no embeddings for a width to be of.
    ftrl = linear.with_settings({"optimizer.rows.kind": "ftrl"})
    assert not {"model.kind", "model.embedding_dim"} & {*derived(ftrl)}
    wide = workflow.with_settings(
        {"data.categories": [c.model_copy(update={"width": 4}) for c in workflow.data.categories]}
    )
    assert "LR" not in derived(wide)["model.kind"]


def test_another_kind_keeps_the_values_but_for_the_scale_of_a_linear_model(workflow):
    workflow = workflow.with_settings({"optimizer.rows.l2": 3e-4})
    space = derived(workflow)
    own, found = own_values(workflow, space), other_kinds(workflow, space, 0)
    assert {values["model.kind"] for values in found} == {*space["model.kind"]} - {"DeepFM"}
    scaled = {"optimizer.rows.lr": 0.5, "optimizer.rows.l2": 3e-5}
    for values in found:
        kind = values["model.kind"]
        assert values == own | {"model.kind": kind} | (scaled if kind == "LR" else {})
    linear = workflow.with_settings(LINEAR)
    own, found = own_values(linear, derived(linear)), other_kinds(linear, derived(linear), 0)
    scaled = {"optimizer.rows.lr": 0.005, "optimizer.rows.l2": 3e-3}
    assert all(values == own | {"model.kind": values["model.kind"]} | scaled for values in found)
    assert len(found) == 5


def test_l2_that_the_workflow_has_is_varied_around_it_with_its_semantics(workflow):
    known = workflow.with_settings({"optimizer.rows.l2": 3e-4, "optimizer.rows.semantics": "dense"})
    assert derived(workflow)["optimizer.rows.l2"] == Between(low=1e-7, high=1e-1, log=True)
    space = derived(known)
    assert space["optimizer.rows.l2"] == Between(low=3e-4 / 30, high=3e-4 * 30, log=True)
    assert "optimizer.rows.semantics" not in space


def test_every_value_of_a_derived_space_fits_the_workflow(featured, tmp_path):
    assert space_of(featured, tmp_path / "any.json") == derived(featured)


def test_a_trial_has_only_the_arguments_of_its_model(workflow):
    space = derived(workflow)
    params = own_values(workflow, space) | {"model.kind": "FM"}
    settings = settings_of(workflow, params, space)
    assert "model.args.dropout" not in settings
    assert workflow.with_settings(settings).model.kind is FM
    with pytest.raises(ValueError, match="'os:system', which is not in its space"):
        settings_of(workflow, params | {"model.kind": "os:system"}, space)


def test_fewer_buckets_and_other_counts_are_features_of_the_workflow(featured):
    space = derived(featured)
    own = own_values(featured, space)
    assert (own["buckets"], own["rare"]) == (1, 3)
    assert featured.with_settings(settings_of(featured, own, space)).data.features == featured.data.features
    changed = featured.with_settings(settings_of(featured, own | {"buckets": 4, "rare": 10}, space)).data.features
    assert changed[0].edges == (3.0, 7.0)
    assert changed[1].at_least == 10


def test_own_values_outside_of_the_space_are_the_nearest_ones(workflow):
    space = Tune(
        space={
            "optimizer.rows.lr": Between(low=1e-3, high=1e-2),
            "model.args.hidden": [[8], [5, 5]],
            "model.kind": [FM, "DeepFM"],
        }
    ).space
    assert own_values(workflow, space) == {
        "optimizer.rows.lr": 0.01,
        "model.args.hidden": "[8]",
        "model.kind": "DeepFM",
    }
    settings = settings_of(workflow, {"model.args.hidden": "[5, 5]"}, space)
    assert settings == {"model.args.hidden": [5, 5]}


def test_a_space_in_the_file_replaces_the_derived_one(workflow_file, tmp_path, monkeypatch, capsys):
    make_up(monkeypatch)
    space = '{"optimizer.rows.lr": [1e-3, 2e-3], "model.embedding_dim": [2]}'
    workflow_file.write_text(f"{workflow_file.read_text()}\nfrom pipeline.api import Tune\ntune = Tune(space={space})")
    tune(workflow_file, tmp_path / "out", "--trials", 2)
    assert '"optimizer.rows.lr": 0.00' in (tmp_path / "out" / "best.py").read_text()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("{}", "space"),
        ('{"optimizer.lr": [1e-3]}', ["the space of optimizer.lr: optimizer.lr", "did you mean 'optimizer.rows.lr'"]),
        ('{"schedule.batch_size": [0, 8]}', "the space of schedule.batch_size: schedule.batch_size: expected at least"),
        ('{"optimizer.rows.lr": Between(low=2, high=1)}', "low is 2 and high is 1; low must be less"),
        ('{"optimizer.rows.lr": Between(low=0, high=1, log=True)}', "needs a number above 0"),
        ('{"model.embedding_dim": [2, 2]}', "has a choice twice"),
        ('{"model.kind": ["DeepFMM"]}', "did you mean 'pipeline.models.DeepFM'"),
    ],
)
def test_a_mistake_in_the_space_is_named(workflow_file, capsys, space, said):
    text = f"{workflow_file.read_text()}\nfrom pipeline.api import Between, Tune\ntune = Tune(space={space})\n"
    workflow_file.write_text(text)
    assert main([str(workflow_file), "--out", "study"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert all(part in err for part in ([said] if isinstance(said, str) else said)), err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trials", "0"], "expected a whole number, 1 or more, got 0"),
        (["--hours", "-1"], "expected hours, above 0"),
        (["--set", "data.validation=[]"], "data.validation names no files; name some"),
        (["--set", "shedule.epochs=2"], "the workflow has no shedule"),
        (["--out", "s3://bucket/study"], "must be on a disk of this machine"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(workflow_file, capsys, options, said):
    try:
        code = main([str(workflow_file), "--out", "study", *options])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert said in capsys.readouterr().err
    assert not (workflow_file.parent / "study").exists()


def test_another_study_in_the_folder_is_refused(workflow_file, tmp_path, monkeypatch, capsys):
    make_up(monkeypatch)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    tune(workflow_file, tmp_path / "taken", code=2)
    assert "is not empty and holds no study" in capsys.readouterr().err
    tune(workflow_file, tmp_path / "study", "--trials", 1)
    tune(workflow_file, tmp_path / "study", "--parallel", 2, "--set", "schedule.epochs=3", code=2)
    err = capsys.readouterr().err
    assert "schedule.epochs was 1, is 3" in err
    assert "parallel was 1, is 2" in err
    assert "--fresh moves it aside" in err
    tune(workflow_file, tmp_path / "study", "--trials", 1, "--set", "storage.disk=1 GiB")
    (tmp_path / "study/records").rename(tmp_path / "elsewhere")
    (tmp_path / "study/records").symlink_to(tmp_path / "elsewhere")
    tune(workflow_file, tmp_path / "study", "--trials", 2, code=2)
    assert "study/records is a symbolic link" in capsys.readouterr().err
    table = pq.read_table(tmp_path / "train.parquet")
    pq.write_table(table.take(list(range(len(table)))[::-1]), tmp_path / "train.parquet")
    tune(workflow_file, tmp_path / "study", "--trials", 1, code=2)
    assert "content.data.train was" in capsys.readouterr().err
    tune(workflow_file, tmp_path / "study", "--trials", 1, "--parallel", 2, "--fresh")
    assert (tmp_path / "study.1").is_dir()
