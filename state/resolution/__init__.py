"""State resolution: several states of a room become one."""
