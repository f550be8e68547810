"""Stores incoming events: one batch at a time, under the locks of its rooms."""
