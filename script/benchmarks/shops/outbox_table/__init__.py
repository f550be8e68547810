"""The shop with an outbox table of its own: SELECT … FOR UPDATE SKIP LOCKED, woken by LISTEN."""
