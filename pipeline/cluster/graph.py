"""Tasks of stages, sent to Dask in one graph: a message for each would take its event loop, and Python's lock, several
times as long."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed import Client, Future


class StageGraph:
    """Tasks whose keys are STAGE-BLOCK-RANK-RUN. The dashboard groups them by stage; each runs on the worker of its
    rank, in the thread of its stage. Keys are global to a scheduler."""

    def __init__(self, client: Client, addresses: Sequence[str]) -> None:
        """`addresses`: addresses of the workers, by rank."""
        self._client, self._unsent = client, dict[str, Task]()
        self.futures: dict[str, Future] = {}
        """Futures of the tasks that were sent, by key. Dask drops a task that neither a future nor a task needs."""

        # Nested functions are pickled by value, so another scheduler's process need not have this package.
        def stage_of(key: str) -> str:
            return key.split("-")[0]

        def worker_of(key: str) -> list[str]:
            return [addresses[int(key.split("-")[2])]]

        self._annotations = {"executor": stage_of, "workers": worker_of}

    def add(self, key: str, run: Callable[..., object], *args: Any, after: Sequence[str]) -> str:
        """Add a task that calls `run`, with the results of the tasks `after` as last arguments. Returns its key."""
        self._unsent[key] = Task(key, run, *args, *map(TaskRef, after))
        return key

    def send(self) -> None:
        """Send the tasks that were added since the last call."""
        unsent, self._unsent = self._unsent, {}
        if unsent:
            # With a token Dask does not hash the graph.
            graph = LLGExpr(unsent, _determ_token=uuid.uuid4().hex)
            with dask.annotate(**self._annotations):
                self.futures |= zip(unsent, self._client.get(graph, list(unsent), sync=False, retries=0), strict=True)
