"""The serving end of the protocol: broadcaster, consumer, relay, worker reports, catch-up by HTTP."""
