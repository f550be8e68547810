"""What the history records of the whole site."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from replsite.history.site_changes import AWAY, BACK, outage, version_change
from replsite.status.words import Severity

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_an_outage_has_a_begin_and_an_end():
    away, back = outage(NOW - timedelta(seconds=70), NOW)
    assert (away.at, away.now.word, away.now.severity) == (NOW - timedelta(seconds=70), AWAY, Severity.WRONG)
    assert (back.at, back.was, back.now.word, back.now.severity) == (NOW, AWAY, BACK, Severity.FINE)
    assert "1 min 10 s" in away.now.sentence


def test_a_version_is_news_once():
    assert version_change("version 1.2", "1.2") is None
    news = version_change("version 1.2", "1.3")
    assert (news.was, news.now.word) == ("version 1.2", "version 1.3")
    assert "after version 1.2" in news.now.sentence
    assert "none is recorded before" in version_change("", "1.3").now.sentence
