"""The followers' side of the protocol: the connection, the follower, and catch-up from tables or over HTTP."""
