"""Commands of the pipeline, for Django to find."""
