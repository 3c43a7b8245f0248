"""Arriving data: detects the complete files of a folder, and waits for more (`pipeline run --watch`).

Completeness rules (`Rule`); the producer of the files must follow one of them:

rename    A file is written under another name (one that starts with "_" or ".", or lacks a Parquet suffix), and
          renamed when it is complete. As a safeguard against producers that write in place, a file without a valid
          Parquet footer is incomplete, and a local file must have the same size and modification time in two checks.
success   Files are complete when their folder, or a parent within the watched folder, contains a file `_SUCCESS`.
manifest  A text file in the watched folder names one complete file per line, relative to the folder. A last line
          without a newline is not read yet.

Files are taken in order of their names. An incomplete file holds back all later files, so that no day is skipped.
"""
