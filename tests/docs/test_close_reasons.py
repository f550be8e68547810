"""Every reason why a connection ends or is refused has its line in the reference, and nothing else has one."""

import re
from pathlib import Path

from streams.replication.protocol import CloseReason
from streams.replication.tls import Refusal

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "close-reasons.md").read_text()
HTTP_REASONS = {"HTTP connection limit", "HTTP body too long", "WebSocket client too slow"}


def reasons(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def test_every_close_reason_is_explained() -> None:
    assert reasons("Replication connections that ended") == {reason.value for reason in CloseReason}


def test_every_refusal_is_explained() -> None:
    from streams.replication import http_limits

    assert {http_limits.CONNECTION_LIMIT, http_limits.BODY_LIMIT, http_limits.TOO_SLOW} == HTTP_REASONS
    assert reasons("Connections that were refused") == {reason.value for reason in Refusal} | HTTP_REASONS
