"""Loads the frames of rooms into the site's tables. Tasks copy the rows of packs. The job's process reserves stream IDs."""
