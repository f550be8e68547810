"""Formats of moments in the admin: to the second, as on the live page (Django's ``FORMAT_MODULE_PATH``)."""
