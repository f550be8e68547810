"""Rights by certificate: patterns of names, streams and reports, and what is wrong with a setting."""

from __future__ import annotations

import pytest

from streams.replication.errors import BadRights
from streams.replication.protocol.commands import FederationAck, Name, Ping, Replicate, UserSync
from streams.replication.protocol.rights import EVERYTHING, RightsTable

ACK, SYNC = FederationAck("sender1", 5), UserSync("i", "@u:x", True, 1)
TABLE = RightsTable(
    {
        "sender1": {"names": ["{certificate}"], "streams": ["federation"], "reports": ["FEDERATION_ACK"]},
        "worker{n}": {"names": ["{certificate}", "spare"], "reports": []},
        "boss": {},
    }
)


def test_without_the_setting_everybody_may_do_everything():
    assert RightsTable({}).of("anybody") is EVERYTHING
    assert TABLE.of(None) is EVERYTHING, "plain text: its network was let in"


def test_a_certificate_without_rights_has_none():
    for stranger in ("worker", ""):
        assert TABLE.of(stranger).are_none
        assert TABLE.of(stranger).refusal(Name(stranger)) is not None
        assert TABLE.of(stranger).of_streams(["events"]) == frozenset()
    assert not any(TABLE.of(known).are_none for known in ("sender1", "worker7", "boss", None))


def test_rights_are_stored_with_the_name_in_the_certificate():
    assert TABLE.of("worker7").in_words() == {
        "certificate": "worker7", "names": ["worker7", "spare"], "streams": ["*"], "reports": []
    }  # fmt: skip


@pytest.mark.parametrize(
    ("certificate", "command", "allowed"),
    [
        ("sender1", Name("sender1"), True),
        ("sender1", Name("sender2"), False),
        ("sender1", ACK, True),
        ("sender1", SYNC, False),
        ("worker7", Name("worker7"), True),
        ("worker7", Name("worker8"), False),
        ("worker7", Name("spare"), True),
        ("worker7", SYNC, False),
        ("worker7", Ping("1"), True),
        ("worker7", Replicate(("events",)), True),
        ("boss", Name("anything"), True),
        ("boss", SYNC, True),
    ],
)
def test_each_command_is_checked(certificate, command, allowed):
    assert (TABLE.of(certificate).refusal(command) is None) == allowed


def test_a_certificate_cannot_widen_its_own_pattern():
    """``{n}`` in a certificate's name is text, not a pattern."""
    rights = RightsTable({"*": {"names": ["{certificate}"]}}).of("worker{n}")
    assert rights.refusal(Name("worker1")) is not None
    assert rights.refusal(Name("worker{n}")) is None
    assert rights.refusal(Name("{certificate}")) is not None


def test_streams_are_those_that_match():
    assert TABLE.of("sender1").of_streams(["events", "federation"]) == {"federation"}
    assert TABLE.of("boss").of_streams(["events"]) is None


@pytest.mark.parametrize(
    "given",
    [
        [],
        "x",
        {"w": []},
        {"w": {"stream": ["a"]}},
        {"w": {"streams": "events"}},
        {"w": {"names": [1]}},
        {"w": {"reports": ["USER"]}},
    ],
)
def test_a_setting_that_cannot_be_read_says_so(given):
    with pytest.raises(BadRights, match="REPLSITE_WIRE_RIGHTS"):
        RightsTable(given)
