"""The embedded PostgreSQL: started when ``DATABASE_URL`` is unset and someone connects, stopped after the last user."""
