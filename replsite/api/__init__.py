"""Serves rooms, jobs, streams and the actions of operators as JSON over HTTP, for programs with a token (app `replsite.api`)."""
