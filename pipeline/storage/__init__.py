"""The three tiers, the key map, and the policies that choose victims.

`plan` works on `Places` (key map, free slots, uses, the end of the log) and moves no bytes; the other stages move rows
between `Slab` (device and host) and `Log` (disk) at the places that `plan` chose. A single stage writes each tier, so
there are no locks (DESIGN.md).

The last word of each row of the log is a checksum, which every read verifies. Two rows share one read if the disk can
stream the gap between them in less time than another read costs (`Reader`; `DiskSpeed` measures both constants). A
commit deletes chunks without live rows and copies the live rows out of chunks that are less than half live.

All columns have the same width, `model.embedding_dim`. A width per table would need a layout per table in `Setup`, a
table number for each key (the hash has none), slabs, rings and chunks by size class, a log of several arrays per shard,
and an exchange between workers per class. It would save memory only for tables with few keys, which are small anyway. A
column that needs more width can be listed twice, under two table names.
"""
