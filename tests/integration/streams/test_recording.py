"""The recorder of a foreign server: rows, positions, gaps and lives, each batch once and whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from streams.models import RecordedFact, RecordedGap, RecordedPosition, RecordedServer
from streams.replication.protocol.cursors import MissingRange, Reset
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.recording.recorder import Batch, Recorder, RecorderBusy
from tests.support.waiting import wait_until
from tests.support.writing import cut

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder("main", "foreign.example", "tcp://there", "default")
    assert opened(recorder) == {}
    yield recorder
    recorder.close()


def opened(recorder: Recorder) -> dict[str, dict[str, int]]:
    """Positions, once the server has noticed the end of a session that had the name before."""

    def positions() -> list[dict[str, dict[str, int]]]:
        try:
            return [recorder.open()]
        except RecorderBusy:
            return []

    return wait_until(positions)[0]


def refusal(recorder: Recorder) -> str:
    with pytest.raises(RecorderBusy) as refused:
        recorder.open()
    return str(refused.value)


def rows(*tokens: int, stream: str = "events", instance: str = "master") -> list[FollowedRow]:
    return [FollowedRow(stream, instance, token, [token, "\u2615\0"]) for token in tokens]


def facts(**of: str) -> list[tuple]:
    return list(RecordedFact.objects.filter(**of).order_by("id").values_list("writer", "token", "index"))


def positions() -> dict[tuple, int]:
    return {(one.stream, one.writer): one.position for one in RecordedPosition.objects.all()}


def known_after(recorder: Recorder) -> dict:
    """What the next run would go on with."""
    recorder.close()
    again = Recorder("main", "foreign.example", "tcp://there", "default")
    try:
        return again.open()
    finally:
        again.close()


def test_rows_and_positions_are_stored_together(recorder):
    recorder.store(Batch(rows=[*rows(5, 5, 7), *rows(6, instance="worker")]))
    assert facts() == [("master", 5, 0), ("master", 5, 1), ("master", 7, 0), ("worker", 6, 0)]
    assert RecordedFact.objects.first().row == '[6,"\\u2615\\u0000"]'
    assert known_after(recorder) == {"events": {"master": 7, "worker": 6}}


def test_the_same_batch_again_changes_nothing(recorder):
    batch = Batch(rows=rows(5, 5, 7))
    recorder.store(batch)
    recorder.store(batch)
    assert len(facts()) == 3
    assert positions() == {("events", "master"): 7}


def test_a_batch_that_cannot_be_stored_leaves_nothing_behind(recorder):
    bad = MissingRange("events", "\ud800", 5, 9)  # no text of a database
    with pytest.raises(UnicodeEncodeError):
        recorder.store(Batch(rows=rows(5), gaps=[(bad, "gone")]))
    assert facts() == []
    recorder.store(Batch(rows=rows(7)))
    assert facts() == [("master", 7, 0)]


def test_positions_move_without_rows_and_never_back(recorder):
    recorder.store(Batch(rows=rows(5)))
    recorder.store(Batch(positions={"events": {"master": 9, "worker": 3}}))
    recorder.store(Batch(positions={"events": {"master": 7}}))
    assert positions() == {("events", "master"): 9, ("events", "worker"): 3}


def test_gaps_are_kept_with_their_reason_and_counted(recorder):
    recorder.store(Batch(rows=rows(5)))
    recorder.store(Batch(gaps=[(MissingRange("events", "master", 5, 9), "gone")], rows=rows(10)))
    gap = RecordedGap.objects.get()
    assert (gap.stream, gap.writer, gap.after, gap.upto, gap.reason) == ("events", "master", 5, 9, "gone")
    assert RecordedPosition.objects.get().ranges_missed == 1


def test_a_writer_that_begins_anew_has_another_life(recorder):
    """Its tokens come again: without lives the second 1 would be taken for the first."""
    recorder.store(Batch(rows=rows(1, 5, stream="typing")))
    recorder.store(Batch(resets=[Reset("typing", "master", 0)], rows=rows(1, stream="typing")))
    assert facts() == [("master", 1, 0), ("master", 5, 0), ("master~2", 1, 0)]
    assert positions() == {("typing", "master"): 5, ("typing", "master~2"): 1}
    assert [one.writer for one in RecordedPosition.objects.filter(is_current=True)] == ["master~2"]
    assert known_after(recorder) == {"typing": {"master": 1}}


def test_a_writer_that_begins_anew_twice_before_anything_could_be_stored_has_one_present_life(recorder):
    """The database may be away meanwhile; the next run must not go on in the life between."""
    recorder.store(Batch(rows=rows(5, stream="typing")))
    recorder.store(Batch(resets=[Reset("typing", "master", 3), Reset("typing", "master", 0)]))
    current = RecordedPosition.objects.filter(is_current=True).values_list("writer", flat=True)
    assert list(current) == ["master~3"]
    assert known_after(recorder) == {"typing": {"master": 0}}


def test_what_fails_is_not_stored_in_part(recorder):
    recorder.store(Batch(rows=rows(5)))
    with pytest.raises(Exception, match=r"bigint|integer|range"):
        recorder.store(Batch(rows=[*rows(6), FollowedRow("events", "master", 2**70, [])]))
    assert facts() == [("master", 5, 0)]
    recorder.store(Batch(rows=rows(6)))
    assert positions() == {("events", "master"): 6}


def test_who_lost_the_name_does_not_end_the_record_of_who_has_it(recorder):
    recorder.store(Batch(rows=rows(5)))
    assert cut("replsite record main") == 1
    with closing(Recorder("main", "foreign.example", "tcp://there", "default")) as other:
        other.open()
        with pytest.raises(Exception, match=r"terminat|closed"):
            recorder.store(Batch())
        with pytest.raises(RecorderBusy):
            recorder.store(Batch())
        recorder.close()
        assert RecordedServer.objects.get().ended_at is None
    assert RecordedServer.objects.get().ended_at is not None


def test_a_lost_connection_loses_nothing(recorder):
    recorder.store(Batch(rows=rows(5)))
    assert cut("replsite record main") == 1
    with pytest.raises(Exception, match=r"terminat|closed"):
        recorder.store(Batch(rows=rows(6)))
    recorder.store(Batch(rows=rows(6)))
    assert facts() == [("master", 5, 0), ("master", 6, 0)]


def test_two_processes_cannot_record_under_one_name(recorder):
    with pytest.raises(RecorderBusy, match="process"):
        Recorder("main", "foreign.example", "tcp://there", "default").open()


def test_a_name_is_that_of_one_server(recorder):
    recorder.close()
    other = Recorder("main", "another.example", "tcp://elsewhere", "default", "mirror other")
    wait_until(lambda: "foreign.example" in refusal(other))  # when the server has noticed the end of the session
    record = RecordedServer.objects.get()
    assert (record.address, record.command, record.ended_at is None) == ("tcp://there", "", False)
    opened(recorder)  # the other one keeps no lock


def test_names_with_nul_do_no_harm(recorder):
    recorder.store(Batch(rows=rows(5, stream="e\0", instance="m\0")))
    assert RecordedFact.objects.get().writer == "m\ufffd"


def test_names_that_look_like_later_lives_are_writers_of_their_own(recorder):
    """The batch could never be stored, and nothing else after it."""
    recorder.store(Batch(rows=rows(9, instance="a")))
    recorder.store(Batch([Reset("events", "a", 0)], [*rows(1, instance="a"), *rows(1, instance="a~2")]))
    assert positions() == {("events", "a"): 9, ("events", "a~2"): 1, ("events", "a~2~1"): 1}
    assert known_after(recorder) == {"events": {"a": 1, "a~2": 1}}


def test_the_end_is_shown(recorder):
    recorder.close()
    assert RecordedServer.objects.get().ended_at is not None


# --- bounded ------------------------------------------------------------------------------------------------------


def test_too_many_rows_are_trimmed_oldest_first_and_told(recorder):
    recorder.store(Batch(rows=rows(*range(1, 101))))
    assert recorder.trim(days=7, facts_kept=30) == 70
    assert [token for _, token, _ in facts()] == list(range(71, 101))
    assert RecordedPosition.objects.get().trimmed_upto == 70
    assert recorder.trim(days=7, facts_kept=30) == 0


def test_old_rows_and_gaps_are_trimmed(recorder):
    recorder.store(Batch(rows=rows(1, 2, 3), gaps=[(MissingRange("events", "master", 5, 9), "gone")]))
    RecordedFact.objects.filter(token__lt=3).update(received_at="2020-01-01T00:00:00Z")
    RecordedGap.objects.update(recorded_at="2020-01-01T00:00:00Z")
    assert recorder.trim(days=7, facts_kept=1_000) == 2
    assert [token for _, token, _ in facts()] == [3]
    assert not RecordedGap.objects.exists()


def test_trimming_is_bounded_at_a_time(recorder, monkeypatch):
    monkeypatch.setattr("streams.replication.recording.recorder.TRIM_ROWS", 10)
    recorder.store(Batch(rows=rows(*range(1, 101))))
    assert [recorder.trim(7, 80) for _ in range(3)] == [10, 10, 0]
