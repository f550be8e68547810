"""Bulk and streaming work on Spark. Executors import only the pure modules of the other rooms, never Django."""
