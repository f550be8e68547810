"""One consistent snapshot of the whole site, shared by the page, commands, metrics and health checks."""
