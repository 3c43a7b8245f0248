"""Stand-ins for answers of Dask's scheduler and futures, for tests that need no cluster."""

from types import SimpleNamespace


def client_of(*addresses, status="running", **more):
    """A client whose scheduler has these workers. None of them ever runs a task or sends a second heartbeat."""
    workers = {
        address: SimpleNamespace(last_seen=1.0, name=address, status=SimpleNamespace(name=status), executing={})
        for address in addresses
    }
    scheduler = SimpleNamespace(workers=workers, clients={}, task_metadata={})

    def run(function, *args):
        return function(*args, dask_scheduler=scheduler)

    return SimpleNamespace(run_on_scheduler=run, id="client", **more)


class Pending:
    """A future that ends only if it has an error from the start."""

    def __init__(self, error=None):
        self.key, self.status, self._error = "train-3-0-abc", "error" if error else "pending", error

    def done(self):
        return self._error is not None

    def add_done_callback(self, heard):
        if self._error:
            heard(self)

    def exception(self):
        return self._error

    def result(self, timeout=None):
        raise self._error
