"""Registration of a run with Prometheus: /metrics of this process, such as that of Dask's scheduler, tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def metrics_of(run_dir: Path) -> Iterator[None]:
    """Context in which `prometheus_client`'s default registry has the metrics of a run. Does nothing where that package
    is not installed. Other runs may be registered at the same time."""
    if find_spec("prometheus_client") is None:
        yield
        return
    from pipeline.monitor.tools.run_metrics import RUN_METRICS

    RUN_METRICS.add(run_dir)
    try:
        yield
    finally:
        RUN_METRICS.remove(run_dir)
