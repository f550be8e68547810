"""Status words with their rules, lag, trends."""
