"""Who leaves a slab. A policy is one small file; `POLICIES` names what `storage.policy` may say."""

from pipeline.storage.policies.clock import Clock
from pipeline.storage.policies.policy import Policy

POLICIES: dict[str, type[Policy]] = {"clock": Clock}

__all__ = ["POLICIES", "Clock", "Policy"]
