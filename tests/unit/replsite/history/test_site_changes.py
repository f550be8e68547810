"""What the history records of the whole site."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from replsite.history.site_changes import AWAY, BACK, outage, version_change
from replsite.status.words import Severity

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_an_outage_has_a_begin_and_an_end():
    away, back = outage(NOW - timedelta(seconds=70), NOW)
    assert (away.at, away.word, away.severity) == (NOW - timedelta(seconds=70), AWAY, Severity.WRONG)
    assert (back.at, back.was, back.word, back.severity) == (NOW, AWAY, BACK, Severity.FINE)
    assert "1 min 10 s" in away.sentence


def test_a_version_is_news_once():
    assert version_change(NOW, "version 1.2", "1.2") is None
    news = version_change(NOW, "version 1.2", "1.3")
    assert (news.was, news.word) == ("version 1.2", "version 1.3")
    assert "after version 1.2" in news.sentence
    assert "none is recorded before" in version_change(NOW, "", "1.3").sentence
