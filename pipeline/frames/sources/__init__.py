"""The sources of an import: files of lines, Parquet files, and the database of a Synapse server."""
