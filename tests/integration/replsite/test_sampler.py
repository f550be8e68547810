"""History in the database: what a step writes, what is forgotten, who may write, and the page that shows it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from replsite.history import sampler
from replsite.history.retention import SPANS
from replsite.history.sampler import Sampler, last_statuses, write_step
from replsite.status.words import Severity, Verdict
from streams.db import driver
from streams.models import Sample, StatusChange
from tests.support.snapshots import NOW, STUCK, a_reader, a_snapshot, a_stream, a_writer, on_stream
from tests.support.waiting import wait_until
from tests.support.writing import cut

BLOCKED = Verdict("blocked", Severity.WRONG, "End it: manage.py streams abort master")
HOUR, DAY, MONTH = (SPANS[name].step_seconds for name in ("hour", "day", "month"))


def snapshot_at(seconds: float, *parts):
    return replace(a_snapshot(*parts), as_of=NOW + timedelta(seconds=seconds))


def step(seconds, *parts, before=None):
    with connection.cursor() as cursor:
        return write_step(cursor, snapshot_at(seconds, *parts), {} if before is None else before)


@pytest.mark.django_db
class TestSteps:
    def test_each_moment_is_written_for_every_span(self):
        step(0, a_stream(a_writer()), a_reader("sender"))
        assert set(Sample.objects.values_list("step_seconds", "stream", "reader")) == {
            (seconds, "events", reader) for seconds in (HOUR, DAY, MONTH) for reader in ("", "sender")
        }

    def test_a_longer_step_keeps_the_worst_and_the_last_position(self):
        lagging = on_stream(position=5, lag_facts=90, lag_seconds=8.0, status=STUCK)
        step(0, a_reader("sender", on_stream(position=1)))
        step(15, a_reader("sender", lagging))
        step(30, a_reader("sender", on_stream(position=9, lag_facts=1)))
        row = Sample.objects.get(step_seconds=DAY)
        assert (row.position, row.waiting, row.seconds, row.word, row.severity) == (9, 90, 8.0, "stuck", 3)
        assert Sample.objects.filter(step_seconds=HOUR).count() == 3

    def test_what_is_too_old_for_its_span_is_forgotten(self):
        for seconds in (0, 3_000, 4_000, 100_000):
            step(seconds, a_stream(a_writer()))
        kept = {span: Sample.objects.filter(step_seconds=span).count() for span in (HOUR, DAY, MONTH)}
        assert kept == {HOUR: 1, DAY: 1, MONTH: 3}

    def test_a_month_of_steps_stays_bounded(self):
        for hour in range(0, 24 * 40, 6):
            step(3_600 * hour, a_stream(a_writer()))
        assert Sample.objects.count() <= (30 * 4 + 1) + (4 + 1) + 1

    def test_changes_of_status_are_told_once(self):
        before = {}
        for seconds, status in ((0, STUCK), (15, STUCK), (30, Verdict("current", Severity.FINE, ""))):
            step(seconds, a_reader("sender", on_stream(status=status)), before=before)
        told = StatusChange.objects.order_by("id").values_list("reader", "was", "word", "severity")
        assert list(told) == [("sender", "", "stuck", 3), ("sender", "stuck", "current", 0)]

    def test_another_process_does_not_tell_again_what_was_told(self):
        step(0, a_stream(a_writer(status=BLOCKED)))
        with connection.cursor() as cursor:
            assert step(15, a_stream(a_writer(status=BLOCKED)), before=last_statuses(cursor)) == []

    def test_old_changes_are_forgotten_by_age_and_by_number(self, monkeypatch):
        monkeypatch.setattr(sampler, "CHANGES_KEPT", 3)
        for number in range(6):
            step(number, a_stream(a_writer(f"w{number}", status=BLOCKED)))
        assert set(StatusChange.objects.values_list("writer", flat=True)) == {"w3", "w4", "w5"}
        step(31 * 86_400, a_stream(a_writer("late", status=BLOCKED)))
        assert list(StatusChange.objects.values_list("writer", flat=True)) == ["late"]


@pytest.mark.django_db(transaction=True)
class TestSampler:
    def test_of_two_processes_one_writes_and_the_other_takes_over(self):
        taken = []

        def get(name):
            def snapshot():
                taken.append(name)
                return snapshot_at(len(taken), a_stream(a_writer()))

            return snapshot

        one, other = Sampler(get("one"), 0.02), Sampler(get("other"), 0.02)
        one.start()
        wait_until(lambda: taken.count("one") > 2)
        other.start()
        try:
            wait_until(lambda: taken.count("one") > 6)
            assert "other" not in taken
        finally:
            one.stop()
        wait_until(lambda: "other" in taken)
        other.stop()
        assert Sample.objects.exists()

    def test_it_goes_on_when_the_database_was_away(self):
        steps = []

        def get():
            steps.append(len(steps))
            return snapshot_at(len(steps), a_stream(a_writer()))

        running = Sampler(get, 0.02)
        running.start()
        try:
            wait_until(lambda: len(steps) > 2)
            assert cut("replsite history") == 1
            before = len(steps)
            wait_until(lambda: len(steps) > before + 3)
        finally:
            running.stop()

    def test_a_defect_in_one_step_is_told_once_and_does_not_end_the_history(self, caplog):
        caplog.set_level("INFO", "replsite.history.sampler")
        steps = []

        def get():
            steps.append(len(steps))
            if 1 < len(steps) < 5:
                raise KeyError("a stream that is no more")
            return snapshot_at(len(steps), a_stream(a_writer()))

        running = Sampler(get, 0.02)
        running.start()
        try:
            wait_until(lambda: len(steps) > 8)
        finally:
            running.stop()
        said = [record.msg["event"] for record in caplog.records if record.name == "replsite.history.sampler"]
        assert [event for event in said if event.startswith("history.")] == [
            "history.step_failed",
            "history.paused",
            "history.goes_on",
        ]

    def test_a_version_is_recorded_once_and_a_new_one_as_a_change(self, monkeypatch):
        versions = ["1.1", "1.1", "1.2"]
        for version in versions:
            monkeypatch.setattr(sampler, "program_version", lambda version=version: version)
            running = Sampler(lambda: snapshot_at(0, a_stream(a_writer())), 0.02)
            running.start()
            wait_until(lambda running=running: running._version_is_recorded)
            running.stop()
        found = StatusChange.objects.filter(stream="").order_by("id").values_list("was", "word")
        assert list(found) == [("", "version 1.1"), ("version 1.1", "version 1.2")]

    def test_an_outage_is_recorded_when_the_database_is_back_and_a_lost_connection_is_none(self, monkeypatch):
        steps, is_away = [], []
        connect = driver.direct_connection

        def get():
            steps.append(1)
            return replace(snapshot_at(0, a_stream(a_writer())), as_of=timezone.now())

        def direct_connection(*args, **kwargs):
            if is_away and kwargs.get("application_name") == "replsite history":
                is_away.append(1)
                raise driver.OperationalError("connection refused")
            return connect(*args, **kwargs)

        def told():
            return list(StatusChange.objects.filter(stream="", word__startswith="database").order_by("id"))

        monkeypatch.setattr(driver, "direct_connection", direct_connection)
        running = Sampler(get, 0.02)
        running.start()
        try:
            wait_until(lambda: len(steps) > 2)
            cut("replsite history")
            before = len(steps)
            wait_until(lambda: len(steps) > before + 2)
            assert told() == []
            is_away.append(1)
            cut("replsite history")
            wait_until(lambda: len(is_away) > 4)
            is_away.clear()
            wait_until(lambda: len(told()) == 2)
            before = len(steps)
            wait_until(lambda: len(steps) > before + 3)
        finally:
            running.stop()
        away, back = told()
        assert (away.word, back.was, back.word) == ("database away", "database away", "database back")
        assert away.at < back.at

    def test_a_restart_between_two_steps_is_recorded(self, monkeypatch):
        running = Sampler(lambda: snapshot_at(0, a_stream(a_writer())), 0.02)
        running._server_started_at = NOW
        running.start()
        wait_until(lambda: StatusChange.objects.filter(stream="", word="database restarted").exists())
        running.stop()
        assert StatusChange.objects.filter(word="database restarted").count() == 1

    def test_one_that_was_never_begun_can_be_stopped(self):
        Sampler().stop()


@pytest.mark.django_db
class TestPage:
    @pytest.fixture
    def page(self, client):
        client.force_login(User.objects.create_user("ann", is_staff=True))
        return lambda **query: client.get("/admin/history/", query)

    @pytest.fixture
    def recorded(self, monkeypatch):
        """A stream and two readers, one of them stuck, over the last minutes of the real clock."""
        from datetime import UTC, datetime

        begin = datetime.now(UTC) - timedelta(minutes=5)
        for number in range(5):
            readers = (
                a_reader("fine"),
                a_reader("<b>late</b>-1"),
                a_reader("late", on_stream(lag_facts=number, status=STUCK)),
            )
            taken = replace(
                a_snapshot(a_stream(a_writer(), linear_position=number * 60), *readers),
                as_of=begin + timedelta(minutes=number),
            )
            with connection.cursor() as cursor:
                write_step(cursor, taken, {})

    def test_it_shows_the_stream_and_its_readers_worst_first(self, page, recorded):
        text = page(stream="events").content.decode()
        assert text.index(">late<") < text.index(">fine<")
        assert text.count('class="plot"') == 4 + 3 * 3
        assert "stuck" in text
        assert "<b>late" not in text

    @pytest.mark.parametrize("span", SPANS)
    def test_every_span_can_be_looked_at(self, page, recorded, span):
        assert page(stream="events", span=span).status_code == 200

    def test_it_asks_a_fixed_number_of_questions(self, page, recorded, django_assert_max_num_queries):
        with django_assert_max_num_queries(8):
            page(stream="events")

    def test_who_shows_a_reader_on_all_its_streams_and_what_happened_to_it(self, page):
        now = timezone.now()
        for stream in ("events", "caches"):
            Sample.objects.create(step_seconds=HOUR, stream=stream, reader="sender", at=now, position=5, waiting=9, seconds=1,
                                  severity=3, word="stuck")  # fmt: skip
        StatusChange.objects.create(
            at=now, stream="caches", reader="sender", word="stuck", severity=3, sentence="Restart it."
        )
        StatusChange.objects.create(
            at=now, stream="caches", reader="other", word="stuck", severity=3, sentence="Not this."
        )
        answer = page(who="sender")
        text = answer.content.decode()
        assert "sender on events" in text
        assert "sender on caches" in text
        assert "Restart it." in text
        assert "Not this." not in text
        marked = [plot["title"] for plot in answer.context["plots"] if plot["marks"]]
        assert marked == [f"{title} of sender on caches" for title in ("Lag in facts", "Lag in time", "Position")]

    def test_a_writer_has_no_figures_of_its_own_and_the_page_says_where_they_are(self, page):
        sentence = "Figures are kept of streams and of readers"
        assert sentence in page(who="web-1").content.decode()
        Sample.objects.create(step_seconds=HOUR, stream="caches", reader="sender", at=timezone.now(), position=5, waiting=9,
                              seconds=1, severity=0, word="current")  # fmt: skip
        assert sentence not in page(who="sender").content.decode()

    def test_storage_shows_how_the_largest_tables_grew(self, page):
        for name, size in (("(database)", 5_000_000), ("events_<b>", 1_000_000)):
            Sample.objects.create(step_seconds=HOUR, stream="", reader=name, at=timezone.now(), position=size, waiting=7,
                                  seconds=0, severity=0, word="")  # fmt: skip
        text = page(stream="").content.decode()
        assert text.index("Database") < text.index("events_&lt;b&gt;")
        assert "Last 5.0 MB" in text

    def test_any_range_is_shown_with_the_finest_steps_that_are_kept(self, page):
        now = timezone.now()
        for step_seconds, ago, waiting in ((HOUR, 600, 7), (DAY, 600, 8), (DAY, 7_200, 9), (MONTH, 7_200, 10)):
            Sample.objects.create(step_seconds=step_seconds, stream="caches", reader="", at=now - timedelta(seconds=ago),
                                  position=5, waiting=waiting, seconds=1, severity=0, word="")  # fmt: skip

        def shown(begin, end):
            times = {
                name: (now - timedelta(seconds=ago)).isoformat() for name, ago in (("from", begin), ("until", end))
            }
            answer = page(stream="caches", **times)
            (plot,) = [one for one in answer.context["plots"] if one["title"] == "Open appends"]
            return plot["values"], answer.content.decode()

        assert shown(1_200, 60)[0] == [7.0]
        values, text = shown(10_000, 5_000)
        assert values == [9.0]
        assert "better or worse in this time" in text
        assert shown(900_000, 5_000)[0] == [10.0]

    def test_changes_of_the_site_are_marked_in_all_plots_and_an_outage_is_shaded(self, page, recorded):
        now = timezone.now()
        for ago, was, word in (
            (120, "", "database away"),
            (60, "database away", "database back"),
            (30, "version 1", "version 2"),
        ):
            StatusChange.objects.create(at=now - timedelta(seconds=ago), stream="", was=was, word=word, severity=0,
                                        sentence="<b>Why</b>.")  # fmt: skip
        answer = page(stream="events")
        assert len(answer.context["plots"]) == 4 + 3 * 3
        for plot in answer.context["plots"]:
            site = [mark for mark in plot["marks"] if "became" not in mark["text"]]
            assert [(mark["word"], mark["until"] is not None) for mark in site] == [("site", False), ("wrong", True)]
        text = answer.content.decode()
        assert "the site" in text and "<b>Why" not in text
        assert "version 2" in page(who="late").content.decode()

    def test_the_worst_reader_of_hundreds_is_shown(self, page):
        """Samples were cut by the reader's name: readers late in the alphabet were never shown."""
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO streams_sample (step_seconds, stream, reader, at, position, waiting, seconds, severity, word) "
                "SELECT 15, 'events', CASE r WHEN 0 THEN '' WHEN 450 THEN 'zoe' ELSE 'reader-' || r END, "
                "date_trunc('minute', statement_timestamp()) - step * interval '15 s', 1, 0, 0, (r = 450)::int * 2, 'word' "
                "FROM generate_series(0, 450) r, generate_series(0, 229) step"
            )
        text = page(stream="events").content.decode()
        assert ">zoe<" in text
        assert text.count('class="plot"') == 4 + 3 * 12

    def test_a_stream_without_history_says_so(self, page):
        text = page(stream="caches").content.decode()
        assert "Nothing was recorded" in text
        assert "No writer or reader" in text

    @pytest.mark.parametrize(
        "query",
        [
            {"stream": "clouds"},
            {"span": "year"},
            {"stream": "\x00"},
            {"from": "yesterday"},
            {"from": "9999-99-99"},
            {"from": "2026-11-21T12:00", "until": "2026-11-21T11:00"},
            {"from": "0001-01-01T00:00+14:00"},
        ],
    )
    def test_what_is_not_there_is_not_found(self, page, query):
        assert page(**query).status_code == 404

    def test_nobody_else_sees_it(self, client):
        assert client.get("/admin/history/").status_code == 302
        client.force_login(User.objects.create_user("eve"))
        assert client.get("/admin/history/").status_code == 302

    def test_it_is_only_read(self, page, client):
        page()
        assert client.post("/admin/history/").status_code == 405
