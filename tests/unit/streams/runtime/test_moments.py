"""Points in time on command lines, and how they are told."""

from datetime import UTC, datetime

import pytest

from streams.runtime.moments import bounded, moment_ms, moment_text

NOW = 1_795_312_800_000  # 22 Nov 2026 02:00 UTC


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("9223372036854775807", 2**63 - 1),
        ("2026-11-22", NOW - 2 * 3_600_000),
        ("2026-11-22T02:00", NOW),
        ("2026-11-22 02:00", NOW),
        ("2026-11-22T02:00Z", NOW),
        ("2026-11-22T03:00:00+01:00", NOW),
        ("2026-11-22T02:00:00.25Z", NOW + 250),
        ("12h", NOW - 12 * 3_600_000),
        ("30d", NOW - 30 * 86_400_000),
        (" 1w ", NOW - 7 * 86_400_000),
    ],
)
def test_dates_ages_and_milliseconds(text, ms):
    assert moment_ms(text, NOW) == ms


@pytest.mark.parametrize(
    "text", ["", "-1", "yesterday", "9223372036854775808", "2026-13-01", "30y", "99999d", "1969-12-31", "1e3", "٣d"]
)
def test_what_is_no_time_is_told_with_all_forms(text):
    with pytest.raises(
        ValueError, match=r"is no time: write a date \(2026-01-31\), a time in UTC .* an age \(30d, 12h\) or millis"
    ):
        moment_ms(text, NOW)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (NOW, "22 Nov 2026 02:00 UTC"),
        (NOW + 1_000, "22 Nov 2026 02:00:01 UTC"),
        (0, "1 Jan 1970 00:00 UTC"),
        (2**63 - 1, "9,223,372,036,854,775,807 ms after 1970"),
    ],
)
def test_a_time_is_told_as_a_date(ms, text):
    assert moment_text(ms) == text


@pytest.mark.parametrize(
    ("text", "year"),
    [
        ("2026-11-22 02:00:00+00", 2026), ("0044-03-15 00:00:00+00 BC", 1000), ("-infinity", 1000), ("infinity", 9000),
        ("0001-01-01 00:00:00+00", 1000), ("9999-12-31 23:59:59+00", 9000), ("294276-12-31 00:00:00+00", 9000),
        ("2026-11-22 02:00:00", 9000),
    ],
)  # fmt: skip
def test_a_time_of_the_database_is_one_with_which_python_computes(text, year):
    found = bounded(text, lambda: datetime.fromisoformat(text))
    assert (found.year == year and found.tzinfo is UTC) or found.utcoffset().total_seconds() == 0
