"""Tables of several shards, all or only some of which a process has open."""

from pipeline.storage.shards import ONE_SHARD, Shards

SOME = Shards(4, (1, 3))
TABLES = [ONE_SHARD, SOME, Shards.all(3)]


def in_shards(number, shards):
    """Key of an owned shard, distinct for each `number`; in a table of one shard, the number itself."""
    shard = shards.owned[number % len(shards.owned)]
    return -(-(shard << 32) // shards.num) << 32 | number
