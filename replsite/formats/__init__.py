"""Defines how the admin writes dates and times (Django's ``FORMAT_MODULE_PATH``). Times have seconds."""
