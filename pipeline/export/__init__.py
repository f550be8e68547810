"""Exports of tables to Parquet."""
