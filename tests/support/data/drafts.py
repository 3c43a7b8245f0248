"""The command `init` without a trial of candidates, since training these takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.init.main import main


def init(argv: Sequence[str]) -> int:
    return main([*argv, "--no-try"])
