"""Sources of examples: Parquet files, in a reproducible shuffled order, and synthetic data."""
