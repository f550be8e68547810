"""The stream engine: ordered change streams with several writers on PostgreSQL. The engine has no notion of rooms or events.

``Fact``, ``stream``, ``upcast``, ``handles``, ``testing``, ``stream_view``, ``stream_consumer`` and ``durable`` are what a
program needs. They are imported when they are first used, so importing this package loads no models and needs no settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams import testing
    from streams.browsers.consumer import stream_consumer
    from streams.browsers.durable import durable
    from streams.browsers.view import stream_view
    from streams.declare import stream, upcast
    from streams.errors import VersionConflict
    from streams.facts import Fact
    from streams.follow.handlers import handles
    from streams.traces import TraceParentField

__all__ = [
    "Fact",
    "TraceParentField",
    "VersionConflict",
    "durable",
    "handles",
    "stream",
    "stream_consumer",
    "stream_view",
    "testing",
    "upcast",
]

#: Name -> the module that has it. A name that is a module itself maps to its own path.
_HOMES = {
    "Fact": "streams.facts",
    "TraceParentField": "streams.traces",
    "VersionConflict": "streams.errors",
    "durable": "streams.browsers.durable",
    "handles": "streams.follow.handlers",
    "stream": "streams.declare",
    "stream_consumer": "streams.browsers.consumer",
    "stream_view": "streams.browsers.view",
    "testing": "streams.testing",
    "upcast": "streams.declare",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_installed(name)
    module = import_module(home)
    found = globals()[name] = module if home == f"{__name__}.{name}" else getattr(module, name)
    return found


def _check_installed(name: str) -> None:
    from django.apps import apps  # noqa: PLC0415 - the pure modules of this package need no Django
    from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415

    if apps.apps_ready and not apps.is_installed(__name__):  # Django's own error would name a model of ours
        raise ImproperlyConfigured(f"Add 'streams' to INSTALLED_APPS: streams.{name} needs its tables.")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
