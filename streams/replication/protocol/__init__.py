"""The replication protocol without sockets: commands, connection rules, cursors and the order of delivery."""
