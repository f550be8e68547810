"""What an import reads: files of lines, Parquet, a Synapse database."""
