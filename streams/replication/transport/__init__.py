"""Listening, admission, TLS and limits below the protocol."""
