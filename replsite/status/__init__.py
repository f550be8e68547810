"""Rules for the snapshot: status words, lag, trends."""
