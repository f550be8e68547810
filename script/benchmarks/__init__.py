"""Benchmarks: each compares with a limit or a peer measured in the same run and prints the ratio."""
