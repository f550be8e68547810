"""Purges history and whole rooms, applies retention, censors redacted events, restores archives, and compacts state groups."""
