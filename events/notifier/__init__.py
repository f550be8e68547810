"""Remembers the latest changes of the streams in memory, answers what is new for a user, and wakes callers that wait."""
