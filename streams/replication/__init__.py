"""The replication protocol: its commands, its server, its followers, and the recording of foreign servers."""
