"""The rows of the live page, of ``manage.py streams`` and of metrics: their queries, columns, and the rules of their status.

A table is a file: ``streams`` (with its writers), ``readers`` (with followers), ``workers``, ``jobs``, ``storage``.
"""
