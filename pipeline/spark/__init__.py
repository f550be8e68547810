"""Spark sessions of the site."""
