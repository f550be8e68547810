"""State resolution: several states of a room into one."""
