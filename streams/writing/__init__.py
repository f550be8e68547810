"""Writing facts: the writer's process and lease, reservations, appends, what a commit sets off, dead writers."""
