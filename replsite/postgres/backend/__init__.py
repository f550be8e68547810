"""Django's database backend for the embedded PostgreSQL: ``ENGINE = "replsite.postgres.backend"``."""
