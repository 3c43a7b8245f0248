"""Benchmarks. `python -m benchmarks.NAME [--quick]` prints a table and, as its last line, one JSON object."""
