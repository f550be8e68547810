"""Certificates for tests: an authority, and what it signed, as PEM files in a folder."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
_NO_USE = dict.fromkeys(
    (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
        "decipher_only",
    ),
    False,
)  # fmt: skip
_SIGNING = x509.KeyUsage(**_NO_USE, key_cert_sign=True, crl_sign=True)


class Authority:
    """Signs certificates. ``file`` is its own certificate.

    ``bare``: without key identifiers and uses, as ``openssl x509 -req`` of version 3.0 signs.
    """

    def __init__(self, folder: Path, name: str = "authority", *, bare: bool = False) -> None:
        self.folder = folder
        self._bare = bare
        self.file = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.datetime.now(datetime.UTC)
        building = _builder(self._name, self._name, self._key, now - DAY, now + DAY)
        building = building.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if not bare:
            building = building.add_extension(_SIGNING, critical=True)
            building = building.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        made = building.sign(self._key, hashes.SHA256())
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, server: bool = False, expired: bool = False) -> tuple[str, str]:
        """The files of a new certificate and its key. An empty name: it has none in its subject."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        until = now - DAY if expired else now + DAY
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        building = _builder(_name(name), self._name, key, now - 2 * DAY, until)
        building = building.add_extension(x509.SubjectAlternativeName(names), critical=False)
        building = building.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if not self._bare:
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            building = building.add_extension(signer, critical=False)
        made = building.sign(self._key, hashes.SHA256())
        certificate, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(certificate), str(key_file)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    since: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(until)
