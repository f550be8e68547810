"""The wire: what is said on the replication port, who says it, and what a follower makes of it."""
