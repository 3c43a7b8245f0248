"""Caps on memory and disk: as a user sets them, and with all sizes known."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)  # fmt: skip

from pipeline.messages.sizes import MemoryShare, format_size, format_size_or_share, parse_size, parse_size_or_share
from pipeline.settings import Omitting
from pipeline.settings.run import MAX_KEPT

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    Field(ge=0, le=1 << 60),
    WithJsonSchema({"type": "string", "examples": ["512 MiB"]}),
]
SizeOrShare = Annotated[
    Annotated[int, Field(ge=0, le=1 << 60)] | InstanceOf[MemoryShare],
    BeforeValidator(parse_size_or_share),
    PlainSerializer(format_size_or_share, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["512 MiB", "80 %"]}),
]

CAP_NAMES = ("device", "host", "disk", "read", "map")

PolicyName = Literal["clock", "lru", "lfu", "lfu_aged", "foresight"]


class Storage(Omitting):
    """Hard caps on memory and disk. `device` and `host` each cover the tier's slab and its ring of buffers. Caps that
    are omitted are chosen when a run starts, within `memory`."""

    later = ("keep_spans",)

    memory: Size | None = None
    """RAM that a worker's process may use, from which omitted caps are chosen; by default 70 % of free memory."""
    device: SizeOrShare | None = None
    """A size, or a share of the memory that is free when the run starts: GPU memory or, without a GPU, the RAM that
    this process may use. Each of several workers computes the share from the whole memory, so give a size if they have
    no GPUs."""
    host: Size | None = None
    """Covers the rows in RAM behind the device."""
    disk: Size | None = None
    """Covers the chunks of all kept commits, the chunks written since, the dense models, and the space reserved for one
    whole commit."""
    read: Size | None = None
    """Covers the read ring and the shuffle window. By default 1 GiB, if device, host and disk are given."""
    map: Size | None = None
    """Covers the key map. By default 1 GiB, if device, host and disk are given."""
    chunk_rows: Annotated[int, Field(ge=1024, multiple_of=1024)] = 8192
    """Number of rows per chunk file of the log."""
    log_multiple: Annotated[float, Field(ge=1.1)] = 2.0
    """Maximum number of log rows, including stale ones, that a commit keeps per live row (plus one chunk)."""
    log_growth: Annotated[float, Field(ge=0.0)] = 1.0
    """Growth of the log since the last commit, as a share of the live rows, that triggers an early commit."""
    direct: bool = False
    """Read the log with direct I/O, and drop written pages from the page cache. Otherwise the page cache acts as
    another tier, which no cap covers."""
    device_policy: PolicyName = "clock"
    """Policy that chooses which rows leave the device: "clock" evicts rows that were not used recently, "lru" the least
    recently used rows, "lfu" the rows used by the fewest blocks ("lfu_aged": recent blocks count more), "foresight" the
    rows whose next use is farthest away. It affects speed, but no bit of the result."""
    host_policy: PolicyName = "clock"
    """Policy that chooses which rows leave the host for disk. HierPS uses "lru" on the device and "lfu" here."""
    known_examples: Annotated[int, Field(ge=0)] = 1 << 23
    """Number of coming examples whose keys the policy "foresight" knows. It requires reading them twice."""
    known: Size = 512 << 20
    """Covers the keys that the policy "foresight" knows. If they need more, it knows fewer examples."""
    keep_spans: Annotated[int, Field(ge=0, le=MAX_KEPT)] = 0
    """Number of commits before spans to keep for `pipeline run --rewind`: the newest two, older ones in distances that
    double. The oldest is deleted first if `disk` becomes too small."""

    @property
    def foresees(self) -> bool:
        """True if a policy needs the keys of coming blocks."""
        return "foresight" in (self.device_policy, self.host_policy)

    @property
    def known_bytes(self) -> int:
        """Bytes of RAM for the keys of coming blocks."""
        return self.known if self.foresees else 0

    @model_validator(mode="before")
    @classmethod
    def _by_hand(cls, given: Any) -> Any:
        """Complete caps that are set manually."""
        if isinstance(given, dict) and all(given.get(name) is not None for name in ("device", "host", "disk")):
            return given | {name: 1 << 30 for name in ("read", "map") if given.get(name) is None}
        return given

    @model_validator(mode="after")
    def _memory_divides_something(self) -> Storage:
        if self.memory is not None and not self.leaves_out:
            raise ValueError(
                "storage.memory is the RAM for omitted caps, but no cap is omitted; omit, for example, device and "
                "host, or omit memory"
            )
        return self

    @property
    def leaves_out(self) -> bool:
        """True if a cap has to be chosen."""
        return any(getattr(self, name) is None for name in CAP_NAMES)


class CapSizes(Storage):
    """Caps that are all numbers of bytes."""

    device: int
    host: int
    disk: int
    read: int
    map: int


def caps_of(storage: Storage, **sizes: int) -> CapSizes:
    """Return the caps with these sizes in place of caps that are omitted or are shares."""
    return CapSizes.model_construct(**dict(storage) | sizes)
