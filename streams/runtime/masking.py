"""Masking of passwords in text that is kept or shown: command lines, addresses, errors (pure).

The following is masked: the password of an address (``postgresql://user:PASSWORD@host``), and the values of
``password=``, ``secret:`` and the like in connection strings, queries of addresses, headers and dictionaries. On a
command line, the value after an option that names a secret is masked as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

BLOT = "***"
#: Shorter secrets are not masked, because they could occur in ordinary words.
SHORTEST_SECRET = 6
#: Matches up to the last @ of a word, because a password may contain an @ that should have been written as %40. What a
#: password contains ends at nothing else but a blank: better too much is masked than too little.
_IN_ADDRESS = re.compile(r"(://[^\s:/]*:)\S{1,1000}(?=@)")
#: The same in an argument of a command line, which ends where the argument ends.
_IN_ARGUMENT = re.compile(r"(://[^:/]*:).+(?=@)", re.DOTALL)
_NAMED = re.compile(
    r"(?i)(password|passwd|passphrase|\bpwd|\bsecret|\baccess_token|\bapi[_-]?key|\bauthorization)(['\"]?\s*[=:]\s*)"
    r"(?:(?:bearer|basic)\s+)?(?:[bru]{0,2}(?:'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?)[^\s,;&)}\]]*|(?:\\.|[^\s&])+)"
)
_OPTION = re.compile(r"(?i)(--?[\w-]*(?:password|passwd|passphrase|secret|token|api-?key)[\w-]*)(=.*)?", re.DOTALL)
#: Options whose value says where a secret is, and is not the secret itself.
_NAMES_A_PLACE = re.compile(r"(?i)-(?:file|path|env|name|url)$")


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns the text with the ``secrets`` and its passwords replaced by ``BLOT``."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, BLOT)
    return _NAMED.sub(rf"\1\2{BLOT}", _IN_ADDRESS.sub(rf"\1{BLOT}", text))


def masked_command(arguments: Sequence[str]) -> str:
    """Returns the arguments as one line, with passwords replaced by ``BLOT``."""
    words: list[str] = []
    hides_next = False
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if hides_next and not argument.startswith("-"):
            words.append(BLOT)
            hides_next = False
        elif option and not _NAMES_A_PLACE.search(option[1]):
            words.append(f"{option[1]}={BLOT}" if option[2] else option[1])
            hides_next = not option[2]
        else:
            words.append(masked(_IN_ARGUMENT.sub(rf"\1{BLOT}", argument)))
            hides_next = False
    return " ".join(words)
