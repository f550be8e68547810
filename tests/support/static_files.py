"""The list of static files, made once in a process: each test client that sends a request would make it anew, in 10 ms."""

from __future__ import annotations

from whitenoise.middleware import WhiteNoiseMiddleware

__all__ = ["list_static_files_once"]


def list_static_files_once() -> None:
    """Let each middleware have the files that the first one found. Those that other settings lead to are found again."""
    find = WhiteNoiseMiddleware.add_files_from_finders
    found: dict[tuple[object, ...], dict[str, object]] = {}

    def add_files_from_finders(self: WhiteNoiseMiddleware) -> None:
        settings = (self.static_prefix, self.static_root, self.max_age, self.allow_all_origins, self.charset)
        if settings not in found:
            find(self)
            found[settings] = dict(self.files)
        self.files.update(found[settings])

    WhiteNoiseMiddleware.add_files_from_finders = add_files_from_finders
