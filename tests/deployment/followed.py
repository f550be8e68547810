"""What a follower in a process of its own prints."""

from __future__ import annotations

import json
import subprocess
import threading


class Followed:
    """What ``manage.py follow`` prints, token by token."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.tokens: list[int] = []
        self._thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.tokens.append(json.loads(line)["token"])
