"""Files of TLS: what cannot be used is named, and new ones are taken without a restart."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from streams.conf import StreamSettings
from streams.replication.errors import BadCertificate
from streams.replication.transport import tls
from streams.replication.transport.tls import Certificates, TlsFiles, client_context, server_context
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_all_three_files_are_wanted(authority):
    certificate, key = authority.sign("server", server=True)
    for files, option in (
        (TlsFiles("", key, "ca"), "--tls-certificate"),
        (TlsFiles(certificate, "", "ca"), "--tls-key"),
        (TlsFiles(certificate, key, ""), "REPLSITE_TLS_CLIENT_CA"),
    ):
        with pytest.raises(BadCertificate, match=option):
            Certificates(files)


def test_files_that_are_not_there_or_no_certificates_are_named(authority, tmp_path):
    certificate, key = authority.sign("server", server=True)
    (tmp_path / "empty").write_text("")
    for files, name in (
        (TlsFiles("nowhere.crt", key, str(authority.file)), "nowhere.crt"),
        (TlsFiles(certificate, certificate, str(authority.file)), "server.crt"),
        (TlsFiles(certificate, key, str(tmp_path / "empty")), "empty"),
        (TlsFiles(certificate, key, "nowhere.pem"), "nowhere.pem"),
    ):
        with pytest.raises(BadCertificate, match=name):
            Certificates(files)


def test_a_key_of_another_certificate_is_refused(authority):
    certificate, _ = authority.sign("server", server=True)
    _, key = authority.sign("other", server=True)
    with pytest.raises(BadCertificate, match="key values mismatch"):
        Certificates(TlsFiles(certificate, key, str(authority.file)))


def test_options_win_over_settings():
    given = StreamSettings(tls_certificate="c", tls_key="k", tls_client_ca="a")
    assert TlsFiles.of_server(given) == TlsFiles("c", "k", "a")
    assert TlsFiles.of_server(given, {"tls_key": "other", "tls_client_ca": None}) == TlsFiles("c", "other", "a")


def test_without_authorities_of_clients_the_port_speaks_no_tls():
    """The certificate may be there for servers that this process follows."""
    assert TlsFiles.of_server(StreamSettings(tls_certificate="c", tls_key="k")) is None


def test_a_certificate_given_to_the_command_wants_authorities():
    with pytest.raises(BadCertificate):
        Certificates(TlsFiles.of_server(StreamSettings(), {"tls_certificate": "c", "tls_key": "k"}))


@pytest.fixture
def kept(authority, monkeypatch):
    monkeypatch.setattr(tls, "CHECK_SECONDS", 0.0)
    return Certificates(TlsFiles(*authority.sign("server", server=True), str(authority.file)))


def test_broken_new_files_leave_the_old_ones_in_force(kept, caplog):
    first = kept.context()
    Path(kept._files.certificate).write_text("broken")
    os.utime(kept._files.certificate, (1, 1))
    assert kept.context() is first
    assert kept.context() is first
    assert len([record for record in caplog.records if "old_certificates_stay" in record.getMessage()]) == 1


def test_a_client_checks_the_server(authority):
    context = client_context(TlsFiles(authorities=str(authority.file)))
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Both sides in memory; raises what either does."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                sides.remove(side)


def test_a_server_whose_certificate_has_no_key_identifiers_is_trusted_on_every_python(tmp_path):
    """Python 3.13 refuses such by default; they are what openssl 3.0 makes."""
    authority = Authority(tmp_path, bare=True)
    files = TlsFiles(*authority.sign("server", server=True), str(authority.file))
    handshake(server_context(files), client_context(TlsFiles(authorities=str(authority.file))))


def test_a_stranger_is_trusted_on_no_python(tmp_path):
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = TlsFiles(*stranger.sign("server", server=True), str(stranger.file))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(files), client_context(TlsFiles(authorities=str(authority.file))))
