"""Stand-ins for what Dask's scheduler and futures say, where no cluster is needed."""

from types import SimpleNamespace


def client_of(*addresses, **more):
    """A client whose scheduler has these workers, none of which ever sends a second heartbeat."""
    workers = {address: SimpleNamespace(last_seen=1.0, name=address) for address in addresses}
    scheduler = SimpleNamespace(workers=workers)
    return SimpleNamespace(run_on_scheduler=lambda function: function(scheduler), **more)


class Pending:
    """A future that ends only if it has an error from the beginning."""

    def __init__(self, error=None):
        self.status, self._error = "error" if error else "pending", error

    def done(self):
        return self._error is not None

    def add_done_callback(self, heard):
        if self._error:
            heard(self)

    def exception(self):
        return self._error

    def result(self, timeout=None):
        raise self._error
