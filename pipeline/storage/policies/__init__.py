"""Policies that choose which rows leave a slab. Each is one small file; `POLICIES` has the values that `storage.policy`
may take."""

from pipeline.storage.policies.clock import Clock
from pipeline.storage.policies.policy import Policy

POLICIES: dict[str, type[Policy]] = {"clock": Clock}

__all__ = ["POLICIES", "Clock", "Policy"]
