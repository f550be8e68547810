"""A large site as rows: many streams and writers, and 2,000 readers, all alive and a little behind, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

from django.db import connection
from django.utils import timezone

from streams import registry
from streams.core.declaration import StreamDeclaration
from streams.db.sequences import move_forward
from streams.models import Reader, StreamPosition

__all__ = ["READERS", "Site", "move"]

READERS, FACTS = 2_000, 3_000
#: Readers that follow every stream. The others follow two streams each.
OF_ALL = 20


@dataclass(frozen=True, slots=True)
class Site:
    """A size of a site."""

    streams: int
    writers: int

    def _declarations(self) -> list[StreamDeclaration]:
        """So many streams. Those beyond the declared ones share the table of ``caches``."""
        declared = [stream.declaration for stream in registry.all_streams()]
        caches = registry.get("caches").declaration
        more = [replace(caches, name=f"extra-{number:02}") for number in range(max(self.streams - len(declared), 0))]
        return [*declared, *more][: self.streams]

    def registry(self) -> SimpleNamespace:
        """Stands for ``streams.registry`` in a snapshot of the site."""
        streams = [SimpleNamespace(declaration=one) for one in self._declarations()]
        return SimpleNamespace(all_streams=lambda: streams)

    def fill(self) -> None:
        """Inserts the rows."""
        names = [one.name for one in self._declarations()]
        who, alive = [f"web-{number}" for number in range(self.writers)], timezone.now()
        with connection.cursor() as cursor:
            for stream in registry.all_streams():
                move_forward(cursor, stream.declaration.sequence, FACTS)
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, received_at, cache_name, keys) SELECT n, "
                "'web-' || n %% %s, clock_timestamp() - (%s - n) * interval '20 ms', 'get_user', ARRAY['@a:b'] "
                "FROM generate_series(2, %s) n",
                [self.writers, FACTS, FACTS],
            )
        StreamPosition.objects.bulk_create(
            StreamPosition(
                stream=stream,
                instance_name=name,
                position=FACTS - at,
                last_write_position=FACTS - at,
                facts_written=10,
                last_fact_at=alive,
            )
            for stream in names
            for at, name in enumerate(who)
        )
        Reader.objects.bulk_create(
            Reader(
                key=f"k{at}", name=f"follower-{at:04}", kind="connection" if at % 2 else "follower", heartbeat_at=alive,
                positions={
                    stream: {name: FACTS - number - at % 40 for number, name in enumerate(who)}
                    for stream in (names if at < OF_ALL else {names[at % len(names)], names[at * 7 % len(names)]})
                },
            )
            for at in range(READERS)
        )  # fmt: skip
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE streams_reader, streams_streamposition, streams_cacheinvalidation")


def move() -> None:
    """Everybody goes on by one step."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE streams_streamposition SET position = position + 7, facts_written = facts_written + 7, last_advance_at = "
            "clock_timestamp()"
        )
        cursor.execute("UPDATE streams_reader SET heartbeat_at = clock_timestamp(), bytes_out = bytes_out + 1000")
