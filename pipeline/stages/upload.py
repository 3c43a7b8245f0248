"""upload: a block's arrivals from staging to the device. Submitted only where the device has memory of its own."""

from __future__ import annotations

from pipeline.records import Staged


def upload(staged: Staged) -> Staged:
    """The arrivals where `train` can reach them: where the device slab is RAM, that is the staging buffer itself."""
    return staged
