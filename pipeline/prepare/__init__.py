"""Conversion of raw logs to the Parquet files that workflows read, part by part: `pipeline prepare`.

Each task processes one piece: whole lines of a byte range of a plain file, row groups, or a compressed file as a
stream. It yields parts one by one, so each thread keeps one part in memory, regardless of input size. Parts and splits
by ratio depend only on the sources and options: the bytes are the same for any number of workers.

A part is done when its record exists. The part's files are written first, each under a temporary name, then fsynced and
renamed; the record follows. A killed preparation therefore resumes with the parts that have no record. A record
contains checksums of itself and of the part's files; a part that does not match is made again.

pyarrow.csv parses text with explicit types; nothing is inferred. If it rejects a block, the bad lines are found by
bisection: a line is bad if the parser rejects it alone. In each part, input lines equal output rows plus skipped lines.

Call order: `main` reads the command line (`arguments`, `command`), claims the folder (`manifest`) and calls `run`. The
tasks of `run` make parts (`steps`): they read a piece (`pieces`, `read`), split its rows (`splits`), and write files
and a record (`parts`). `resume` finds the unfinished parts. `stretches` reads text part by part, and the parser of its
format (`text`, `json_lines`, `sparse`) parses it; `sequences` sorts events and builds histories from them.
"""
