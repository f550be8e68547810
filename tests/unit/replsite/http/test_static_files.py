"""Static files that change while the site runs are sent as they are."""

from __future__ import annotations

import gzip

import pytest
from django.test import RequestFactory

from replsite.http.static_files import StaticFiles


@pytest.fixture
def sent(tmp_path, settings):
    """``sent(**headers)``: (announced length, content) of the file ``a.css`` in the folder; None: it is not there."""
    settings.STATIC_ROOT = str(tmp_path)
    (tmp_path / "a.css").write_text("a { }")
    files = StaticFiles(lambda request: None)

    def ask(**headers):
        answer = files.process_request(RequestFactory().get(f"{settings.STATIC_URL}a.css", headers=headers))
        return None if answer is None else (int(answer["Content-Length"]), b"".join(answer.streaming_content))

    return ask


def test_a_file_that_became_longer_or_shorter_is_sent_whole(tmp_path, sent):
    for text in ("a { color: red }", "", "b { }"):
        (tmp_path / "a.css").write_text(text)
        assert sent() == (len(text), text.encode())
        assert sent() == (len(text), text.encode())


def test_compressed_forms_are_those_of_the_file(tmp_path, sent):
    for text in ("c { }" * 9, "longer { }" * 9):
        packed = gzip.compress(text.encode())
        (tmp_path / "a.css").write_text(text)
        (tmp_path / "a.css.gz").write_bytes(packed)
        assert sent(accept_encoding="gzip") == (len(packed), packed)
        assert sent() == (len(text), text.encode())


def test_a_file_that_is_removed_is_missing_until_it_is_back(tmp_path, sent):
    (tmp_path / "a.css").unlink()
    assert sent() is None
    (tmp_path / "a.css").write_text("back { }")
    assert sent() == (8, b"back { }")
