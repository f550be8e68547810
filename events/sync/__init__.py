"""The sync answers: everything that is new to a user since a token."""
