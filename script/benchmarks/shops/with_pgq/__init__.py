"""The shop with PgQ in PL/pgSQL, its SQL functions on Django's connection."""
