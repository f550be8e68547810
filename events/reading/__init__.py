"""Pages, timelines and states of rooms, read for users who may see them."""
