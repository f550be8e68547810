"""Settings that are more than a plain value."""

import os
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from replsite import settings
from replsite.settings import _secret_key
from replsite.site_settings import StartSettings


@pytest.mark.parametrize("closed", ["folder", "key"])
def test_another_users_data_folder_is_a_clear_error(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root ran the site once; an ordinary user comes later."""
    monkeypatch.setattr(settings, "_START", StartSettings())
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
