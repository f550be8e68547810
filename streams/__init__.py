"""The log engine: ordered change streams with several writers on PostgreSQL. Knows nothing of rooms or events."""
