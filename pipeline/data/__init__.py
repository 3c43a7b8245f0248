"""Where examples come from: Parquet files, in a shuffled order that can be repeated, and synthetic data."""
