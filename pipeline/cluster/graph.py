"""Stage tasks, sent to Dask in one graph: with one message per task, Dask would occupy its event loop and the GIL
several times as long."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed import Client, Future


class StageGraph:
    """Tasks with keys STAGE-BLOCK-RANK-RUN. The dashboard groups them by stage; each runs on the worker of its rank, in
    the thread of its stage. Keys are global to a scheduler."""

    def __init__(self, client: Client, addresses: Sequence[str]) -> None:
        """`addresses`: addresses of the workers, by rank."""
        self._client, self._unsent = client, dict[str, Task]()
        self.futures: dict[str, Future] = {}
        """Futures of the tasks sent, by key. Dask drops a task that no future and no other task needs."""

        # Nested functions are pickled by value, so the process of an external scheduler does not need this package.
        def stage_of(key: str) -> str:
            return key.split("-")[0]

        def worker_of(key: str) -> list[str]:
            return [addresses[int(key.split("-")[2])]]

        self._annotations = {"executor": stage_of, "workers": worker_of}

    def add(self, key: str, run: Callable[..., object], *args: Any, after: Sequence[str]) -> str:
        """Add a task that calls `run`, with the results of the tasks `after` as its last arguments. Returns its key."""
        self._unsent[key] = Task(key, run, *args, *map(TaskRef, after))
        return key

    def send(self) -> None:
        """Send the tasks added since the last call."""
        unsent, self._unsent = self._unsent, {}
        if unsent:
            # With a token, Dask does not hash the graph.
            graph = LLGExpr(unsent, _determ_token=uuid.uuid4().hex)
            with dask.annotate(**self._annotations):
                self.futures |= zip(unsent, self._client.get(graph, list(unsent), sync=False, retries=0), strict=True)
