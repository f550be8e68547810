"""Passwords in text that is kept or shown: command lines, addresses, errors (pure).

What is hidden: the password of an address (``postgresql://user:PASSWORD@host``), values of ``password=``, ``secret:`` and their
like in connection strings, queries of addresses, headers and dictionaries, and on a command line what follows an option that
names a secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["BLOT", "masked", "masked_command"]

BLOT = "***"
#: Up to the last @ of the word: a password may hold one that should have been written %40.
_IN_ADDRESS = re.compile(r"(://[^\s:/@\"']*:)[^\s\"']{1,1000}(?=@)")
_NAMED = re.compile(
    r"(?i)(password|passwd|passphrase|\bpwd|\bsecret|\baccess_token|\bapi[_-]?key|\bauthorization)(['\"]?\s*[=:]\s*)"
    r"(?:(?:bearer|basic)\s+)?(?:'(?:[^'\\]|\\.)*'?|\"[^\"]*\"?|[^\s,;&)'\"]+)"
)
_OPTION = re.compile(r"(?i)(--?[\w-]*(?:password|passwd|passphrase|secret|token|api-?key)[\w-]*)(=.*)?", re.DOTALL)
#: Such an option names where the secret is.
_NAMES_A_PLACE = re.compile(r"(?i)-(?:file|path|env|name|url)$")


def masked(text: str) -> str:
    """The text without the passwords in it."""
    return _NAMED.sub(rf"\1\2{BLOT}", _IN_ADDRESS.sub(rf"\1{BLOT}", text))


def masked_command(arguments: Sequence[str]) -> str:
    """A command line without the passwords in it."""
    said: list[str] = []
    hides_next = False
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if hides_next and not argument.startswith("-"):
            said.append(BLOT)
            hides_next = False
        elif option and not _NAMES_A_PLACE.search(option[1]):
            said.append(f"{option[1]}={BLOT}" if option[2] else option[1])
            hides_next = not option[2]
        else:
            said.append(masked(argument))
            hides_next = False
    return " ".join(said)
