"""The site's recorded past: sampled, stored, drawn."""
