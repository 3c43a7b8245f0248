"""Conversion of raw logs to the Parquet files that workflows read, part by part: `python -m pipeline.prepare`."""
