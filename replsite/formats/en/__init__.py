"""Defines how the admin writes dates and times in English."""
