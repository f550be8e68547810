"""The table of positions without our migrations, for clients that load no Django."""

#: The table of positions, in a database without our migrations.
POSITIONS = """
CREATE TABLE streams_streamposition (
    id bigserial PRIMARY KEY, stream text NOT NULL, instance_name text NOT NULL, position bigint NOT NULL,
    last_write_position bigint, last_advance_at timestamptz DEFAULT now(), last_fact_at timestamptz,
    updated_at timestamptz DEFAULT now(), facts_written bigint NOT NULL DEFAULT 0, generation bigint NOT NULL DEFAULT 0,
    state text NOT NULL DEFAULT 'active', UNIQUE (stream, instance_name))
"""
