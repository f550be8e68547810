"""Every reason why a connection ends or is refused has its line in the reference, and nothing else has one."""

import re
from pathlib import Path

from streams.replication.protocol.connection import CloseReason
from streams.replication.transport.http_server import BODY_LIMIT
from streams.replication.transport.tls import Refusal

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "close-reasons.md").read_text()


def reasons(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def test_every_close_reason_is_explained() -> None:
    assert reasons("Replication connections that ended") == {reason.value for reason in CloseReason}


def test_every_refusal_is_explained() -> None:
    assert reasons("Connections that were refused") == {reason.value for reason in Refusal} | {BODY_LIMIT}
