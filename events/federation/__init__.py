"""Answers to the queries of other servers."""
