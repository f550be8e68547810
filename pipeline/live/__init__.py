"""The live pipeline: a streaming query that keeps statistics current."""
