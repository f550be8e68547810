"""The sources of an import: files of lines, Parquet files, the database of a Synapse server."""
