"""Applications of a trained model: scoring of files, lookup of rows, export, serving.

All of them read commits. They do not use driver, cluster or worker, except for scoring, which runs the stages of the
evaluation and so gives the same bits. After a kill, scoring resumes at the batch with the first row of the first
missing file, so that batches, and with them the bytes of the output, stay the same.

A servable is a folder: rows of weights in pages, sorted by key and caught up to the commit's step; the dense part; the
features. Its manifest, written last, has the checksum of every other file. A page is a multiple of 4 KiB that no row
crosses. RAM holds the top 32 bits of the first key of each page, and keys that share these bits share a page, so any
key costs one read. The tag of a page is a checksum of the whole page and its number. A key without a row gets its
initial row, as in an evaluation.
"""
