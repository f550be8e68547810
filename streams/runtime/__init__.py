"""Support for processes: logs, safe text for pages and terminals, command lines, systemd, and the program's version."""
