"""A model class for the processes of workers, which have neither its module nor its file."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle

from pipeline.own_code.code import is_own


def to_bytes(kind: Any) -> bytes:
    """Pickle a model class, with the code of all modules outside this package and the installed libraries. Raises
    ValueError if it refers to something that cannot be pickled."""
    left = sys.modules.keys() - cloudpickle.list_registry_pickle_by_value()
    own = {m.__name__: m for m in [*sys.modules.values()] if is_own(m) and m.__name__ in left}
    for module in own.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(kind))
    except Exception as error:
        raise ValueError(
            f"model.kind {kind.__qualname__} cannot be sent to workers, which are separate processes: {error}; train "
            "with one worker, in this process, or import what it uses within its methods"
        ) from error
    finally:
        for module in own.values():
            cloudpickle.unregister_pickle_by_value(module)


def from_bytes(pickled: bytes) -> Any:
    """Make a class of `to_bytes`. Raises ValueError if that fails in this process."""
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise ValueError(f"model.kind cannot be made in this worker: {type(error).__name__}: {error}") from error
