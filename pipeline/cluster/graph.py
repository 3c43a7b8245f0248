"""Tasks of stages, gathered and sent to Dask in one graph: a message of its own for each takes Dask's event loop, which
has Python's lock meanwhile, several times as long."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import dask
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed import Client, Future


class StageGraph:
    """Tasks whose keys are STAGE-BLOCK-RANK-ID: the dashboard groups them by the stage's name, and each runs in its
    stage's thread of the worker of its rank. Keys are global to a scheduler, so IDs must be unique there."""

    def __init__(self, client: Client, addresses: Mapping[str, str]) -> None:
        """`addresses`: addresses of the workers, by rank."""
        self._client, self._unsent = client, dict[str, Task]()

        # Nested functions are pickled by value, so another scheduler's process need not have this package.
        def stage_of(key: str) -> str:
            return key.split("-")[0]

        def worker_of(key: str) -> list[str]:
            return [addresses[key.split("-")[2]]]

        self._annotations = {"executor": stage_of, "workers": worker_of}

    def add(self, key: str, run: Callable[..., object], *args: Any, after: list[str]) -> str:
        """Add a task that calls `run`, with the results of the tasks `after` as last arguments. Returns its key."""
        self._unsent[key] = Task(key, run, *args, *map(TaskRef, after))
        return key

    def send(self) -> dict[str, Future]:
        """Send the tasks added since the last call. Returns their futures, by key: Dask drops a task that no future and
        no other task needs."""
        unsent, self._unsent = self._unsent, {}
        if not unsent:
            return {}
        with dask.annotate(**self._annotations):
            # A token, so that Dask does not hash the graph.
            graph = LLGExpr(unsent, _determ_token=uuid.uuid4().hex)
            return dict(zip(unsent, self._client.get(graph, list(unsent), sync=False, retries=0), strict=True))
