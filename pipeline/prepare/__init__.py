"""Conversion of raw logs to the Parquet files that workflows read, part by part: `pipeline prepare`."""
