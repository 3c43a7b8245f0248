"""Policies that choose which rows leave a slab, one small file each. `POLICIES` maps the allowed values of
`storage.device_policy` and `storage.host_policy` to classes. `PolicyName` in `pipeline.settings.caps`, a lower layer,
lists the same names."""

from pipeline.storage.policies.clock import Clock
from pipeline.storage.policies.foresight import Foresight
from pipeline.storage.policies.lfu import LFU, AgedLFU
from pipeline.storage.policies.lru import LRU
from pipeline.storage.policies.policy import Policy
from pipeline.storage.policies.uses import UNKNOWN_USE, Uses

POLICIES: dict[str, type[Policy]] = {
    "clock": Clock, "lru": LRU, "lfu": LFU, "lfu_aged": AgedLFU, "foresight": Foresight,
}  # fmt: skip

__all__ = ["LFU", "LRU", "POLICIES", "UNKNOWN_USE", "AgedLFU", "Clock", "Foresight", "Policy", "Uses"]
