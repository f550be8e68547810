"""Settings that are more than a plain value."""

import os
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from replsite.settings import _days_or_never, _ports, _secret_key


@pytest.mark.parametrize(("text", "days"), [("7", 7.0), ("0", 0.0), ("0.5", 0.5), ("never", None)])
def test_days_are_a_number_or_never(text, days):
    assert _days_or_never(text) == days


@pytest.mark.parametrize("text", ["", "soon", "7d", "None"])
def test_anything_else_is_refused_with_the_words_that_will_do(text):
    with pytest.raises(ImproperlyConfigured, match="a number of days, or never"):
        _days_or_never(text)


@pytest.mark.parametrize(("text", "ports"), [("", []), ("9101", [9101]), ("9101-9103", [9101, 9102, 9103])])
def test_ports_are_one_or_from_the_first_to_the_last(text, ports):
    assert list(_ports(text)) == ports


@pytest.mark.parametrize("text", ["many", "9101-", "9103-9101", "0", "70000", "65535-65536", "-5"])
def test_ports_that_nobody_can_listen_on_are_refused(text):
    with pytest.raises(ImproperlyConfigured, match="REPLSITE_METRICS_PORTS"):
        _ports(text)


@pytest.mark.parametrize("closed", ["folder", "key"])
def test_another_users_data_folder_is_a_clear_error(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root ran the site once; an ordinary user comes later."""
    monkeypatch.delenv("REPLSITE_SECRET_KEY", raising=False)
    tmp_path.chmod(0o711)
    data = tmp_path / "data"
    assert _secret_key(data) == _secret_key(data), "it is made once"
    (data if closed == "folder" else data / "secret_key").chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ImproperlyConfigured, match="Run as the user that made the folder"):
            _secret_key(data)
    finally:
        os.seteuid(was)
        data.chmod(0o700)
