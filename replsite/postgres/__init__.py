"""The embedded PostgreSQL, which is used if ``DATABASE_URL`` is unset.

It is started at the first connection, and stopped when the last process that uses it has ended.
"""
