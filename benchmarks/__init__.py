"""Benchmarks. `python -m benchmarks.NAME [--quick]` prints a table and, as its last line, one JSON object."""

import os

from pipeline.machine.process import SPIN, SPIN_COUNT, share_one_arena

# As in the commands, before libraries start threads.
os.environ.setdefault(SPIN, SPIN_COUNT)
share_one_arena()
