"""The shop with pgmq, its SQL functions on Django's connection."""
