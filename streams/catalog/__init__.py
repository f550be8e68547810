"""The app of the streams of a homeserver besides events: their declarations, tables and pages."""
