"""The site's history: sampling, storage, charts."""
