"""The site's recorded past: sampling, storage, charts."""
