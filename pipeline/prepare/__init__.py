"""From raw logs to the Parquet files that workflows read, in bounded memory."""
