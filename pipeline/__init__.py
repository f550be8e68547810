"""Bulk and streaming work on Spark.

Executors never import Django. Of the other packages of the site they import only modules without it.
"""
