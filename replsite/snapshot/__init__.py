"""Reads the state of the whole site in one consistent snapshot, which the page, commands, metrics and health checks share."""
