"""Conversion of raw logs to the Parquet files that workflows read, part by part: `pipeline prepare`.

Each task takes one piece: whole lines of a byte range of a plain file, row groups, or a compressed file as a stream. It
yields parts one after the other, so it holds one part per thread in memory, whatever the size of the input. Parts
and splits by ratio are functions of sources and options alone: any number of workers gives the same bytes.

A part is done once its record exists. The record is written after the files of the part; each of them is written under
a temporary name, fsynced and renamed. So a killed preparation resumes with the parts that have no record. A record has
checksums of itself and of the files of its part; a part that does not match is made again.

pyarrow.csv parses text with given types and guesses nothing. If it refuses a block, the bad lines are found by halving:
a line is bad if the parser refuses it alone. In each part, input lines equal output rows plus skipped lines.

The order of calls: `main` reads the command line (`arguments`, `command`), claims the folder (`manifest`) and calls
`run`, whose tasks make parts (`steps`): they read a piece (`pieces`, `read`), divide its rows (`splits`), and write
files and a record (`parts`). `resume` finds what is still to be made. `stretches` reads text part by part, and the
parser of its format (`text`, `json_lines`, `sparse`) parses it; `sequences` sorts events and makes histories of them.
"""
