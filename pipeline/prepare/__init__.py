"""Preparation of raw logs as the Parquet files that workflows read, part by part: `python -m pipeline.prepare`."""
