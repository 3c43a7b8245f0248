"""Applications of a trained model: scoring of files, lookup of rows, export, serving.

All of them read commits. None uses driver, cluster or worker, except scoring, which runs the evaluation stages and
therefore gives bit-identical results. After a kill, scoring resumes at the batch that contains the first row of the
first missing file, so the batches, and therefore the output bytes, are unchanged.

A servable is a folder: rows of weights in pages, sorted by key and caught up to the commit's step; the dense part; the
features. Its manifest, written last, contains the checksum of every other file. A page is a multiple of 4 KiB, and no
row crosses its boundary. RAM holds the top 32 bits of the first key of each page, and keys that share these bits share
a page, so looking up a key costs one read. The tag of a page is a checksum of the whole page and its number. A key
without a row gets its initial row, as in an evaluation.
"""
