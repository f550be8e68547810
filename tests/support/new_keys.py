"""A TLS client that asks for new keys (KeyUpdate) again and again, which Python's ``ssl`` cannot do."""

from __future__ import annotations

import _ssl
import ctypes
import socket
from pathlib import Path

#: Of the library that Python itself uses. Without a module of its own, Python has it in itself.
_LIBRARY = ctypes.CDLL(getattr(_ssl, "__file__", None))
for _name in ("SSL_CTX_new", "TLS_client_method", "SSL_new"):
    getattr(_LIBRARY, _name).restype = ctypes.c_void_p
_ANSWERED = 1  # SSL_KEY_UPDATE_REQUESTED: the server has to make new keys and to send a record, too


def ask_for_new_keys(port: int, certificate: str, key: str, times: int) -> int:
    """Asks so many times, and reads no answer. Returns how often it could, until the connection was lost."""
    lib, pointer = _LIBRARY, ctypes.c_void_p
    context = pointer(lib.SSL_CTX_new(pointer(lib.TLS_client_method())))
    assert Path(certificate).exists()
    assert lib.SSL_CTX_use_certificate_chain_file(context, certificate.encode()) == 1
    assert lib.SSL_CTX_use_PrivateKey_file(context, key.encode(), 1) == 1
    with socket.create_connection(("127.0.0.1", port)) as made:
        made.settimeout(None)  # OpenSSL uses the descriptor itself
        client = pointer(lib.SSL_new(context))
        try:
            lib.SSL_set_fd(client, made.fileno())
            assert lib.SSL_connect(client) == 1
            for done in range(times):
                if lib.SSL_key_update(client, _ANSWERED) != 1 or lib.SSL_do_handshake(client) != 1:
                    return done
            return times
        finally:
            lib.SSL_free(client)
            lib.SSL_CTX_free(context)
