"""Pages, timelines and states of rooms for those who may see them."""
