"""What both ends of the protocol share beside the protocol itself."""
