"""Verdicts on a snapshot: status words, lag, trends."""
