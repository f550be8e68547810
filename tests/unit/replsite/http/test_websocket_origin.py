"""Which pages may open a WebSocket."""

from __future__ import annotations

import pytest

from replsite.http.websocket_origin import is_same_origin


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://localhost", "localhost"),
        ("http://localhost:80", "localhost"),
        ("https://localhost", "localhost"),
        ("https://localhost", "localhost:443"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://localhost:8000", None),
    ],
)
def test_the_same_host_and_port_are_let_in(origin, host):
    scheme = origin.partition(":")[0]
    assert is_same_origin(origin, host, scheme)
    assert not is_same_origin(origin, host, {"http": "https", "https": "http"}[scheme])


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8001", "localhost:8000"),
        ("http://localhost", "localhost:8000"),
        ("http://evil.example", "localhost"),
        ("http://evil.example", "evil.example"),
        ("http://evil.example", None),
        ("http://localhost.evil.example:8000", "localhost:8000"),
        ("", "localhost"),
        ("null", "localhost"),
        ("file://localhost", "localhost"),
        ("http://localhost:port", "localhost"),
        ("http://[::1", "localhost"),
    ],
)
def test_other_origins_are_refused(origin, host):
    assert not is_same_origin(origin, host, "http")


@pytest.mark.parametrize("origin", ["https://admin.example", "https://a.b.example.org"])
def test_trusted_origins_are_let_in_whatever_the_host(settings, origin):
    settings.CSRF_TRUSTED_ORIGINS = ["https://admin.example", "https://*.example.org"]
    assert is_same_origin(origin, "inner:8000", "http")
    assert not is_same_origin(origin.replace("https", "http"), "inner:8000", "http")
    assert not is_same_origin(f"{origin}:444", "inner:8000", "https")
