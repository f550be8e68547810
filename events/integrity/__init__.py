"""What a room's tables should hold, what they hold, and mending what differs."""
