"""The embedded PostgreSQL: runs if ``DATABASE_URL`` is unset, from the first connection until it is stopped."""
