"""Stores incoming events, one batch at a time, under the locks of the batch's rooms."""
