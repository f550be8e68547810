"""The shop with eventsourcing, an application and a projection on PostgreSQL."""
