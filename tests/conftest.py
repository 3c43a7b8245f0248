"""What many tests use: small workflows on data made on the spot."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

# As commands do, before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from support import depth, scratch
from support.compile_once import compile_once

from pipeline.models import DeepFM
from pipeline.optim import rates
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Workflow

# Of a run of some tens of steps, the rates of 4,096 steps would take a twentieth of the time.
rates.STEPS_AHEAD = 256
# Numba's simulator is chosen before Numba is imported: those tests run by themselves.
collect_ignore = [] if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["simulated"]


def make_table(rng: np.random.Generator, num_examples: int, num_keys: int, with_nulls: bool = True) -> pa.Table:
    """Columns of every kind: two integer fields (two shared by a list), a string field, two lists, numbers."""

    def maybe_null(values: list[Any], share: float = 0.1) -> list[Any]:
        return [None if with_nulls and rng.random() < share else value for value in values]

    def lists() -> list[list[int]]:
        return [rng.integers(0, num_keys, rng.integers(0, 4)).tolist() for _ in range(num_examples)]

    integers = rng.integers(0, num_keys, (2, num_examples)).tolist()
    click = rng.integers(0, 2, num_examples)
    return pa.table({
        "click": pa.array(click, pa.int8()),
        "bought": pa.array(click * (np.arange(num_examples) % 3 > 0), pa.int8()),
        "importance": pa.array(rng.random(num_examples) + 0.5, pa.float32()),
        **{f"x{n}": pa.array(rng.standard_normal(num_examples), pa.float32()) for n in range(5)},
        "price": pa.array(maybe_null(rng.random(num_examples).tolist()), pa.float32()),
        "age": pa.array(maybe_null(rng.integers(0, 9, num_examples).tolist()), pa.int32()),
        "item": pa.array(maybe_null(integers[0]), pa.int64()),
        "user": pa.array(maybe_null(integers[1]), pa.int32()),
        "country": pa.array(maybe_null([f"c{n}" for n in rng.integers(0, num_keys, num_examples)]), pa.string()),
        "history": pa.array(maybe_null(lists()), pa.list_(pa.int64())),
        "tags": pa.array(maybe_null(lists()), pa.list_(pa.int64())),
    })  # fmt: skip


CATEGORIES = (
    Category(name="history", table="item", pooling="mean"),
    Category(name="item"),
    Category(name="country"),
    Category(name="tags"),
    Category(name="user"),
)
WIDTHS = {"history": 2, "item": 2, "country": 1, "tags": 2}
NARROW = tuple(category.model_copy(update={"width": WIDTHS.get(category.name)}) for category in CATEGORIES)
"""The same fields, of which only `user` uses all three weights of a row."""


def make_workflow(root: Path, **changes: Any) -> Workflow:
    """A small DeepFM on `make_table`'s columns; `changes` are fields of data, model or schedule, or `storage`."""
    data = Data(
        root=root,
        train=("train*.parquet",),
        validation=("validation*.parquet",),
        test=("test*.parquet",),
        labels=changes.pop("labels", ("click",)),
        weight=changes.pop("weight", None),
        numbers=(
            Number(name="price", fill=0.5),
            Number(name="age", log1p=True),
            *(Number(name=f"x{n}") for n in range(5)),
        ),
        categories=changes.pop("categories", CATEGORIES),
        shuffle_window=changes.pop("shuffle_window", 16),
    )
    small = {"device": "16 MiB", "host": "16 MiB", "disk": "1 GiB", "read": "64 MiB", "map": "64 MiB"}
    storage = Storage(**(small | {"chunk_rows": 1024} | changes.pop("storage", {})))
    kind = changes.pop("kind", DeepFM)
    model = Model(kind=kind, embedding_dim=changes.pop("embedding_dim", 3), args=changes.pop("args", {"hidden": (5,)}))
    schedule = Schedule(**({"batch_size": 6, "epochs": 2, "block_batches": 2, "threads": 1} | changes))
    return Workflow(
        name="small",
        data=data,
        model=model,
        optimizer=Optimizer(rows=Adam(lr=0.05), dense=DenseAdam(lr=0.01)),
        storage=storage,
        schedule=schedule,
        device="cpu",
        seed=7,
    )


def write_data(root: Path, seed: int = 0, num_train: int = 50, num_keys: int = 20, with_nulls: bool = True) -> Path:
    """Two training files of several row groups, one of validation and one of test data."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    half = num_train // 2
    for name, count in (("train-0", half), ("train-1", num_train - half), ("validation", 13), ("test", 9)):
        if count:
            pq.write_table(make_table(rng, count, num_keys, with_nulls), root / f"{name}.parquet", row_group_size=8)
    return root


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), num_train=90, num_keys=60)


@pytest.fixture(scope="session")
def trained(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of the small workflow, and what its evaluation has. Nothing may change it."""
    from support.runs.evaluated_runs import train_and_evaluate

    return train_and_evaluate(make_workflow(data_root), tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def client() -> Generator[Any]:
    """Client of a Dask cluster in this process."""
    from pipeline.cluster.local import local_client

    with local_client() as client:
        yield client


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Path]:
    """Folder of a test, in memory where that is large enough; on a disk, if the test is marked `disk`."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=os.environ[scratch.DISK]) as name:
        yield Path(name)


@pytest.fixture
def small_workflow(data_root: Path) -> Callable[..., Workflow]:
    return lambda **changes: make_workflow(data_root, **changes)


@pytest.fixture
def workflow_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid workflow and its data; the run directory, too, lies in the test's own folder."""
    from support.runs.tiny_workflow import write_tiny

    monkeypatch.chdir(tmp_path)
    return write_tiny(tmp_path)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Run a workflow, expect exit code 2 and one message on stderr, and return that; no run directory may be left."""
    from pipeline.run import main

    def run(*argv: object) -> str:
        assert main([str(arg) for arg in argv]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert "Traceback" not in out + err
        assert len(err.removeprefix("error: ").strip()) > 10
        assert all(line.startswith("       ") for line in err.splitlines()[1:]), "a second message"
        assert not (tmp_path / "runs" / "tiny").exists()
        return err

    return run


def pytest_configure(config: pytest.Config) -> None:
    scratch.use_memory()
    depth.PROVES = "deep" in config.getoption("markexpr")
    depth.ALL = config.getoption("all_forms")
    # Only `make prove-all` and --hypothesis-seed draw other examples each time: a change is judged by the same ones as
    # the commit before it.
    drawn = depth.ALL or config.getoption("--hypothesis-seed") is not None
    # The first example of a test may compile a kernel.
    settings.register_profile("project", derandomize=not drawn, deadline=None)
    settings.load_profile("project")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if depth.PROVES and not depth.ALL:
        left = set(depth.one_in_share(items))
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    # Whole processes are killed again and again there, which takes longest.
    items.sort(key=lambda item: item.path.parent.name != "proofs")


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        compile_once()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips", action="store_true", help="a test that is skipped fails: nothing may be left unshown"
    )
    parser.addoption("--all-forms", action="store_true", help="every form of each proof, as `make prove-all` runs them")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and --no-skips forbids it: {report.longrepr}"
    return report
