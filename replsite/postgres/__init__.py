"""The embedded PostgreSQL: started at the first connection if ``DATABASE_URL`` is unset, stopped after its last user."""
