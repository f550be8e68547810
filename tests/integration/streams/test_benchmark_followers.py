"""Followers of the latency benchmark count from when the server knows them, or a busy machine looks like lost facts."""

from __future__ import annotations

import json
import select
import socket

from script.benchmarks.broadcast import hear, process, say


def test_they_are_connected_when_the_server_has_answered_each():
    """The kernel connects what the server has not accepted yet: facts that are sent now do not come to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with process("-m", "script.benchmarks.receipts", str(port), "2") as followers:
            clients = [server.accept()[0] for _ in range(2)]
            try:
                for client in clients:
                    assert client.recv(100) == b"REPLICATE \n"
                clients[0].sendall(b"POSITION caches master 1 1\nPOSITION events master 1 1\n")
                assert not select.select([followers.stdout], [], [], 0.5)[0]
                clients[1].sendall(b"POSITION caches master 1 1\n")
                assert hear(followers) == "connected"
                for client in clients:
                    client.sendall(b'RDATA caches master 7 ["a", ["b"], 1]\n')
                    client.shutdown(socket.SHUT_WR)
                for client in clients:
                    assert client.recv(100) == b""  # it has read to the end
                say(followers, "end")
                received = json.loads(hear(followers))
            finally:
                for client in clients:
                    client.close()
    assert [len(times) for times in received.values()] == [2]
    assert list(received) == ["7"]
