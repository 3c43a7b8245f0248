"""The three tiers, the key map, and the policies that choose victims.

`plan` works on `Places` (key map, free slots, uses, the end of the log) and moves no bytes; the other stages move rows
between `Slab` (device and host) and `Log` (disk) at the places that `plan` chose. A single stage writes each tier, so
there are no locks (DESIGN.md).

A row of the log has a checksum in its last word, which every read verifies. Two rows share one read if the disk
streams over the gap between them in less time than another read costs (`Reader`; both constants are measured,
`DiskSpeed`). A commit deletes chunks without live rows, and copies the live rows out of chunks that are less than half
live.

All columns have one width, `model.embedding_dim`. A width per table would need a layout per table in `Setup`, a table
number for each key (the hash has none), slabs, rings and chunks by size class, a log of several arrays per shard, and
an exchange of workers per class. It would save memory for tables of few keys, which are small anyway. A column that
needs more width can be given twice, under two table names.
"""
