"""Policies that choose which rows leave a slab. Each is one small file; `POLICIES` has its class by the name that
`storage.policy` gives it (`pipeline.workflow`, a layer below, lists the same names)."""

from pipeline.storage.policies.clock import Clock
from pipeline.storage.policies.policy import Policy

POLICIES: dict[str, type[Policy]] = {"clock": Clock}

__all__ = ["POLICIES", "Clock", "Policy"]
