"""Answers syncs with everything that is new for a user since a token."""
