"""State resolution: computes one state of a room out of several, where the room forked."""
