"""Who may speak what to the replication port, by address."""

from __future__ import annotations

import pytest

from streams.replication.errors import BadAddress
from streams.replication.protocol.access import Access, AllowedTransport


@pytest.mark.parametrize(
    ("host", "speech"),
    [
        ("127.0.0.1", AllowedTransport.PLAIN),
        ("::1", AllowedTransport.PLAIN),
        ("10.1.2.3", AllowedTransport.PLAIN),
        ("::ffff:10.1.2.3", AllowedTransport.PLAIN),
        ("fe80::1%eth0", AllowedTransport.NOTHING),
        ("10.2.0.1", AllowedTransport.NOTHING),
        ("", AllowedTransport.PLAIN),
    ],
)
def test_without_tls_loopback_and_named_networks_speak_plain_text(host, speech):
    assert Access(["10.1.0.0/16"]).transport_for(host) is speech


@pytest.mark.parametrize(
    ("host", "speech"),
    [("127.0.0.1", AllowedTransport.TLS), ("10.1.2.3", AllowedTransport.EITHER), ("192.0.2.1", AllowedTransport.TLS)],
)
def test_with_tls_only_named_networks_may_do_without(host, speech):
    assert Access(["10.1.0.0/16"], has_tls=True).transport_for(host) is speech


@pytest.mark.parametrize(
    ("host", "is_near"),
    [
        ("127.0.0.1", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("10.2.0.1", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_near_is_this_machine_or_a_named_network(host, is_near):
    assert Access(["10.1.0.0/16"]).is_near(host) is is_near


def test_a_setting_that_names_no_network_is_refused():
    with pytest.raises(BadAddress, match="REPLSITE_PLAIN_NETWORKS"):
        Access(["10.1.2.3/24"])
