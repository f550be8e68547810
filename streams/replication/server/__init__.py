"""The server side of the protocol: broadcaster, consumer, relay, worker reports, catch-up over HTTP."""
