"""Parts that both ends of the protocol share, apart from the protocol itself."""
