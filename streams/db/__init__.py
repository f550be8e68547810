"""The database as the engine uses it: driver, clock, sequences, consistent reads."""
