"""Trains CTR models whose embedding tables are larger than GPU memory and RAM."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.notebook.train import train_workflow as train
    from pipeline.serving.open_servable import open_servable
    from pipeline.serving.opened import open_run

__all__ = ["open_run", "open_servable", "train"]

if sys.platform != "linux":
    # A command ends with a sentence, a program that imports the package gets an exception.
    raise (SystemExit if sys.argv[:1] == ["-m"] or sys.argv[0].endswith("pipeline") else ImportError)(
        f"pipeline runs on Linux, and this is {sys.platform}: it needs direct I/O, file locks and affinity as "
        "Linux has them. On macOS and Windows run it in a container or a virtual machine (on Windows: WSL 2)."
    )

from pipeline.machine.signals import end_at_interrupt

# A command of this package was started with `python -m`, and its imports take seconds. At this point sys.argv[0] is
# still "-m": Python imports the package before it knows the script's name.
if sys.argv[:1] == ["-m"] and any(arg.removeprefix("-m").split(".")[0] == __name__ for arg in sys.orig_argv):
    from pipeline.machine.stuck import watch_process

    end_at_interrupt()
    watch_process()

from pipeline.machine.memory import share_one_arena

# torch's OpenMP threads spin while they wait for each other. With other stages on the same cores that costs more than
# it gains: measured on two cores, a training step beside one busy thread is 2.2 times as fast with short spinning, and
# no slower alone. The variable is read once, when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Must come before other libraries start threads; Arrow starts some when it is imported.
share_one_arena()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Load the Python API at its first use: it imports torch and Arrow, which commands load when they need them."""
    if name == "open_run":
        from pipeline.serving.opened import open_run

        return open_run
    if name == "train":
        from pipeline.notebook.train import train_workflow

        return train_workflow
    if name == "open_servable":
        from pipeline.serving.open_servable import open_servable

        return open_servable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
