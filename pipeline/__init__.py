"""Training of CTR models whose embedding tables are larger than GPU memory and RAM. `pipeline.api` is the Python
interface; its most common names can also be imported from `pipeline`."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.api import Workflow, explain, export, load, open_run, open_servable, rewind, score, train

__all__ = ["Workflow", "explain", "export", "load", "open_run", "open_servable", "rewind", "score", "train"]

# If this process was started by `python -m pipeline...`, it runs a command, whose imports take seconds. At this point
# sys.argv[0] is still "-m", since Python imports the package before it finds the script.
if sys.argv[:1] == ["-m"] and any(arg.removeprefix("-m").split(".")[0] == __name__ for arg in sys.orig_argv):
    from pipeline.machine.process import begin_command

    begin_command()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import the Python interface on first use: commands import only what they need."""
    if name in __all__:
        from pipeline import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
