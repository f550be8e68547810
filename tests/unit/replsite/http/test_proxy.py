"""What is believed of a proxy's headers, and of whom."""

from __future__ import annotations

import pytest
from django.test import override_settings

from replsite.http.proxy import Forwarded, client_of
from streams.replication.protocol.access import networks_of

PROXIES = networks_of(["127.0.0.1/32", "10.0.0.0/8", "::1/128"])


@pytest.mark.parametrize(
    ("said", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("1.2.3.4, 203.0.113.7", "203.0.113.7"),  # the client wrote the first one itself
        ("203.0.113.7, 10.1.1.1", "203.0.113.7"),  # by two proxies
        ("10.1.1.2, 10.1.1.1", "10.1.1.2"),
        ("2001:db8::1", "2001:db8::1"),
        ("", "127.0.0.1"),
        ("<script>", "127.0.0.1"),
        ("203.0.113.7, nonsense", "127.0.0.1"),
        ("203.0.113.7:4711", "127.0.0.1"),
        ("203.0.113.7" + ", 10.1.1.1" * 19, "203.0.113.7"),
        ("203.0.113.7" + ", 10.1.1.1" * 21, "10.1.1.1"),  # no request comes through so many
    ],
)
def test_the_last_address_that_is_no_proxy_counts(said, client):
    assert client_of("127.0.0.1", said, PROXIES) == client


async def passed_on(networks: list[str], **scope):
    """The scope that the application gets."""
    seen = []

    async def application(scope, receive, send):
        seen.append(scope)

    with override_settings(REPLSITE_PROXY_NETWORKS=networks):
        await Forwarded(application)({"type": "http", "scheme": "http", **scope}, None, None)
    return seen[0]


HEADERS = [(b"x-forwarded-for", b"203.0.113.7"), (b"x-forwarded-proto", b"https")]


@pytest.mark.parametrize("client", [["127.0.0.1", 5], ["::ffff:127.0.0.1", 5], ["::1", 5], ["10.0.0.1", 5], None])
async def test_this_machine_and_a_named_proxy_are_believed(client):
    """Through a socket file there is no address."""
    scope = await passed_on(["10.0.0.0/8"], client=client, headers=HEADERS)
    assert (scope["client"], scope["scheme"]) == (["203.0.113.7", 0], "https")


@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"]])
async def test_nobody_else_is(networks):
    scope = await passed_on(networks, client=["192.0.2.1", 5], headers=HEADERS)
    assert (scope["client"], scope["scheme"]) == (["192.0.2.1", 5], "http")


async def test_a_proxy_that_says_nothing_is_the_client_itself():
    scope = await passed_on([], client=["127.0.0.1", 5], headers=[])
    assert (scope["client"], scope["scheme"]) == (["127.0.0.1", 5], "http")


# --- a proxy that nobody named ------------------------------------------------------------------------------------------


async def ask(application, peer, headers=tuple(HEADERS)):
    await application({"type": "http", "scheme": "http", "client": [peer, 5], "headers": headers}, None, None)


def told(caplog):
    return [record.getMessage() for record in caplog.records if "proxy.not_named" in record.getMessage()]


@pytest.fixture
def of_nobody():
    """Everything is passed on, and only 10.0.0.0/8 is believed, of other machines."""

    async def application(scope, receive, send): ...

    with override_settings(REPLSITE_PROXY_NETWORKS=["10.0.0.0/8"]):
        yield Forwarded(application)


@pytest.mark.parametrize("is_https_only", [True, False])
async def test_a_proxy_that_is_not_named_is_told_once_with_what_to_do(of_nobody, caplog, is_https_only):
    with override_settings(SECURE_SSL_REDIRECT=is_https_only):
        for _ in range(3):
            await ask(of_nobody, "192.0.2.1")
    (line,) = told(caplog)
    assert "192.0.2.1" in line and "REPLSITE_PROXY_NETWORKS" in line
    assert ("in a circle" in line) == is_https_only


async def test_each_proxy_is_told_but_no_flood_of_them(of_nobody, caplog):
    for number in range(50):
        await ask(of_nobody, f"192.0.2.{number}")
    assert len(told(caplog)) == 10
    assert "192.0.2.9" in told(caplog)[-1]


@pytest.mark.parametrize("said", [b"http", b"", b"ftp"])
async def test_who_does_not_claim_https_is_not_told_of(of_nobody, caplog, said):
    await ask(of_nobody, "192.0.2.1", [(b"x-forwarded-proto", said)])
    await ask(of_nobody, "192.0.2.1", [])
    await ask(of_nobody, "10.0.0.1")
    assert told(caplog) == []
