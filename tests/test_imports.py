"""The import graph: no cycles, arrows one way, and one door for each heavy dependency (DESIGN.md, Layout)."""

import ast
import functools
import re
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pipeline"
FILES = {
    ".".join(("pipeline", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

DOORS = {
    "cloudpickle": ("pipeline.cluster.run_plugin",),
    "dask": ("pipeline.cluster",),
    "distributed": ("pipeline.cluster",),
    "zarr": ("pipeline.storage.log",),
    "numba": ("pipeline.kernels",),
    "deltalake": ("pipeline.files.tables",),
    "pyarrow": ("pipeline.data", "pipeline.features", "pipeline.files", "pipeline.init",
                "pipeline.prepare", "pipeline.serving", "pipeline.spans", "pipeline.warm_start"),
    "cupy": ("pipeline.device.gpu",),
    "cupyx": ("pipeline.device.gpu",),
    "pynvml": ("pipeline.device.gpu",),
    "torch": ("pipeline.models", "pipeline.training", "pipeline.optim", "pipeline.comm", "pipeline.device.device",
              "pipeline.preflight", "pipeline.serving",
              "pipeline.monitor.track"),
    "psutil": ("pipeline.cluster",),
    "pydantic": ("pipeline.settings", "pipeline.features", "pipeline.workflow", "pipeline.serving.http"),
    "rich": ("pipeline.monitor",),
    "safetensors": ("pipeline.commits", "pipeline.serving"),
    "xxhash": ("pipeline.storage.files",),
    "starlette": ("pipeline.serving.http",),
    "uvicorn": ("pipeline.serving.http",),
    "prometheus_client": ("pipeline.serving.http",),
    "mlflow": ("pipeline.monitor.track",),
    "onnxruntime": ("pipeline.serving.onnx_model",),
    "duckdb": ("pipeline.prepare.sequences",),
    "optuna": ("pipeline.tune",),
}  # fmt: skip

LAYERS = (
    "pipeline.__main__", "pipeline.tune", "pipeline.api", "pipeline.init", "pipeline.run",
    "pipeline.verify", "pipeline.serving", "pipeline.prepare",
    "pipeline.driver", "pipeline.warm_start", "pipeline.cluster",
    "pipeline.monitor", "pipeline.worker", "pipeline.preflight",
    "pipeline.schedule", "pipeline.stages", "pipeline.training", "pipeline.commits", "pipeline.optim", "pipeline.comm",
    "pipeline.data", "pipeline.storage", "pipeline.metrics", "pipeline.device", "pipeline.models", "pipeline.spans",
    "pipeline.workflow", "pipeline.features", "pipeline.files", "pipeline.kernels",
    "pipeline.records", "pipeline.arguments",
    "pipeline.machine", "pipeline.settings", "pipeline.own_code", "pipeline.messages", "pipeline.errors",
)  # fmt: skip
"""From above to below, a folder or a file each; one imports from those below it."""
ROOT = {
    "__init__",
    "__main__",
    "api",
    "arguments",
    "errors",
    "records",
    "run",
    "schedule",
    "verify",
    "workflow",
}
"""Files of the root. A new capability is a folder."""


@functools.cache
def nodes(name):
    return list(ast.walk(ast.parse(FILES[name].read_text())))


def imported(name):
    """Every module that a file names in an import statement, wherever it stands in the file."""
    found = set()
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            # `from package import module` names the module, `from module import thing` the module before it.
            modules = {f"{node.module}.{alias.name}" for alias in node.names} & FILES.keys()
            found |= modules | ({node.module} if len(modules) < len(node.names) else set())
    return found


def bound(name):
    """Every name that a file binds, wherever it stands in the file."""
    found = set()
    for node in nodes(name):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


@functools.cache
def graph():
    return {name: imported(name) for name in FILES}


def belongs(module, to):
    return any(module == one or module.startswith(f"{one}.") for one in to)


def layer_of(module):
    return next(n for n, layer in enumerate(LAYERS) if belongs(module, (layer,)))


def test_the_package_root_has_exactly_the_listed_files():
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT


@pytest.mark.parametrize("package", DOORS)
def test_a_heavy_dependency_is_imported_only_where_listed(package):
    importers = {name for name, modules in graph().items() if any(belongs(m, (package,)) for m in modules)}
    assert importers, f"nothing imports {package}: take it from this list"
    assert not {name for name in importers if not belongs(name, DOORS[package])}


def test_a_module_imports_only_from_its_own_layer_and_below():
    upwards = {
        f"{name} imports {other}"
        for name, modules in graph().items()
        for other in modules & FILES.keys()
        if name != "pipeline" and layer_of(other) < layer_of(name)
    }
    assert not upwards


def test_serving_knows_nothing_of_a_run_but_for_scoring():
    running = ("pipeline.driver", "pipeline.cluster", "pipeline.worker")
    knowing = {
        name
        for name in FILES
        if belongs(name, ("pipeline.serving",))
        if any(belongs(m, running) for m in graph()[name])
    }
    assert knowing == {"pipeline.serving.scoring"}


def test_module_imports_have_no_cycle():
    """What imports nothing that is left leaves, until nothing is left."""
    left = {name: modules & FILES.keys() for name, modules in graph().items()}
    while leaves := [name for name, modules in left.items() if not modules & left.keys()]:
        for name in leaves:
            del left[name]
    assert not left


def test_every_module_and_name_imported_from_the_package_exists():
    ours = {module for modules in graph().values() for module in modules if belongs(module, ("pipeline",))}
    assert ours <= FILES.keys()
    names = {name: bound(name) for name in FILES}
    absent = {
        f"{name} imports {node.module}.{alias.name}"
        for name in FILES
        for node in nodes(name)
        if isinstance(node, ast.ImportFrom) and belongs(node.module, ("pipeline",))
        for alias in node.names
        if alias.name not in names[node.module] | {"*"} and f"{node.module}.{alias.name}" not in FILES
    }
    assert not absent


def test_every_imported_package_is_declared():
    """Also one that another dependency would bring. Packages that are not installed are not looked at."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    everything = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    declared = {re.match(r"[\w-]+", one)[0].replace("_", "-").lower() for one in everything}
    known = packages_distributions()
    undeclared = {
        f"{name} imports {top}"
        for name, modules in graph().items()
        for top in {module.split(".")[0] for module in modules} - {"pipeline"}
        if top in known and not {one.replace("_", "-").lower() for one in known[top]} & declared
    }
    assert not undeclared


IN_CONDA = {"torch": "pytorch-gpu", "xxhash": "python-xxhash", "dask": "dask-cuda", "distributed": "dask-cuda"}
"""Names of packages in environment.yml, where they differ."""


def test_conda_installs_every_dependency():
    root = PACKAGE.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", one)[0] for one in project["dependencies"]]
    given = re.findall(r"^  - ([\w-]+)", (root / "environment.yml").read_text(), re.M)
    assert not {IN_CONDA.get(name, name) for name in names} - {*given}


def test_constraints_pin_every_dependency_to_a_public_version():
    """So an installation today is the one that was tested. A local build (+cpu) would not exist elsewhere."""
    root = PACKAGE.parent
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needed = [
        *project["dependencies"],
        *chain.from_iterable(project["optional-dependencies"][n] for n in ("test", "dev")),
    ]
    pinned = {"ctr-pipeline", *(line.partition("==")[0] for line in lines)}
    assert not {re.match(r"[\w-]+", one)[0] for one in needed} - pinned
