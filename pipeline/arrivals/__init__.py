"""Data that arrive: which files of a folder are complete, and waiting for more of them (`pipeline run --watch`).

Rules of completeness (`Rule`), of which the producer of the files keeps one:

rename    A file is written under another name (one that begins with "_" or ".", or does not end as Parquet does), and
          renamed once it is whole. Should a producer write in place: Parquet has its footer at the end, so a file
          without a valid end is not whole, and a local file must have the same size and time of change at two looks.
success   Files of a folder are complete once it, or a folder above it within the watched one, has a file `_SUCCESS`.
manifest  A text file in the watched folder names one complete file per line, relative to the folder. A last line
          without an end is not read yet.

Files are taken in the order of names. One that is there and not complete holds back those after it, so that no day is
passed over.
"""
