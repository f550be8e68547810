"""Support for a process of the site: logs, text for people, command lines, systemd, the program's version."""
