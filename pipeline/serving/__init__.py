"""Applications of a trained model: score files, look rows up, export, serve.

All of it reads commits and knows nothing of driver, cluster and worker, except for scoring, which runs the evaluation's
own stages, so its scores have the evaluation's bits. A killed scoring resumes at the batch that has the first row of
the first missing file: batches, and so bytes, stay the same.

A servable is a folder: rows of weights in pages, sorted by key and caught up to the commit's step; the dense part; the
features. Its manifest, written last, has the checksum of every other file. A page is a multiple of 4 KiB that no row
crosses. RAM holds the top 32 bits of the first key of each page, and keys that share these bits share a page, so any
key costs one read. A page's tag covers all of it and depends on its number. A key without a row gets its initial row,
as in an evaluation.
"""
