"""The tables of a run: their schemas, and the only writer of Parquet."""
