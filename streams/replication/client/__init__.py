"""The following end of the protocol: a connection, the follower, catch-up by table and by HTTP."""
