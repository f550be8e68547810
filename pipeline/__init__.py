"""Bulk and streaming work on Spark.

Executors never import Django. Of the site's other packages they import only modules that do not need Django.
"""
