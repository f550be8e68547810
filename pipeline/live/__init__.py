"""The live pipeline: streaming queries that keep statistics and feeds current."""
