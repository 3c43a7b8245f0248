"""Data that arrive: which files of a folder are complete, and waiting for more of them (`pipeline run --watch`).

Rules of completeness (`Rule`); the producer of the files must follow one of them:

rename    A file is written under another name (one that begins with "_" or ".", or does not end as Parquet does), and
          renamed once it is whole. As a safeguard against producers that write in place, a file without a valid
          Parquet footer is incomplete, and a local file must have the same size and modification time in two checks.
success   Files of a folder are complete once it, or a folder above it within the watched one, has a file `_SUCCESS`.
manifest  A text file in the watched folder names one complete file per line, relative to the folder. A last line
          without a line end is not read yet.

Files are taken in the order of names. An incomplete file holds back the files after it, so that no day is skipped.
"""
