"""The replication protocol without any socket: commands, one connection, cursors, the order of delivery."""
