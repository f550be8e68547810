"""The site's history: sampling, storage, charts, and how long it is kept."""
