"""The stream engine: ordered change streams with several writers on PostgreSQL. It has no notion of rooms or events."""
