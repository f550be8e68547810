"""The form of the constraint in a migration."""

from __future__ import annotations

from django.db.migrations.writer import MigrationWriter

from streams.holds.constraint import StreamHolds


def test_a_migration_names_only_what_is_unusual():
    assert (
        MigrationWriter.serialize(StreamHolds(stream="orders"))[0]
        == "streams.holds.constraint.StreamHolds(stream='orders')"
    )
    holds = StreamHolds(
        stream="backfill", sequence="events_seq", id_field="stream_ordering", backward=True, shared=True
    )
    _, _, given = holds.deconstruct()
    assert given == {
        "stream": "backfill", "sequence": "events_seq", "id_field": "stream_ordering", "backward": True, "shared": True
    }  # fmt: skip
    assert StreamHolds(**given) == holds


def test_a_change_is_noticed():
    one = StreamHolds(stream="orders")
    assert one == StreamHolds(stream="orders")
    assert hash(one) == hash(StreamHolds(stream="orders"))
    assert one not in (StreamHolds(stream="orders", shared=True), StreamHolds(stream="others"), "orders")
    assert one.name == "orders_stream_holds"


def test_a_second_table_of_a_stream_has_a_constraint_of_another_name():
    second = StreamHolds(stream="orders", name="orders_more_holds")
    _, _, given = second.deconstruct()
    assert given == {"stream": "orders", "name": "orders_more_holds"}
    assert StreamHolds(**given) == second != StreamHolds(stream="orders")
