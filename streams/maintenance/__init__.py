"""Trims streams, and checks their sequences and those of tables."""
