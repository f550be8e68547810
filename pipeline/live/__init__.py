"""The live pipeline: a streaming query that keeps a table current, each fact once."""
