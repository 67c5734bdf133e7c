"""A trace as Arrow, Parquet, CSV, JSON lines and SQL. Imports `read` and `format`."""
