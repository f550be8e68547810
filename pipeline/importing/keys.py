"""Reads the file with the server keys that an import uses to verify signatures. Runs in Spark's driver, without Django."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from events.errors import UnusableKeys
from events.room.verification import KeyRing
from streams.jobs.errors import UnusableArguments

__all__ = ["TRUSTED", "VERIFIED", "Signatures", "read_keys"]

TRUSTED, VERIFIED = "trusted", "verified"
_MOST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Signatures:
    """The treatment of signatures in an import. They are verified with ``keys``, or trusted if ``keys`` is None.

    ``name`` identifies the keys. It has a digest of the file's content, so other keys have another name.
    """

    keys: KeyRing | None = None
    name: str = TRUSTED

    @property
    def word(self) -> str:
        return TRUSTED if self.keys is None else VERIFIED


def read_keys(path: str | Path | None) -> Signatures:
    """Reads keys from a file in the format of ``KeyRing.from_json``. If ``path`` is None, signatures are trusted.

    Raises ``UnusableArguments`` if the file does not exist, is too large or unreadable, or has unusable keys.
    """
    if path is None:
        return Signatures()
    file = Path(path)
    try:
        if not file.is_file():
            raise UnusableArguments(f"{file} is no file: name one with the keys of servers.")
        if file.stat().st_size > _MOST_BYTES:
            raise UnusableArguments(f"{file} has more than {_MOST_BYTES:,} bytes; so many keys are not read.")
        text = file.read_bytes()
        return Signatures(KeyRing.from_json(text), f"{VERIFIED} {sha256(text).hexdigest()}")
    except (OSError, ValueError) as error:
        why = "the keys cannot be used" if isinstance(error, UnusableKeys) else "it cannot be read"
        raise UnusableArguments(f"{file}: {why}: {error}.") from error
