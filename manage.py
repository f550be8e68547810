#!/usr/bin/env python
"""Django's command line for the replsite site."""

import asyncio
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db.utils import OperationalError, ProgrammingError

from streams.runtime.output import output_written

_LISTS_COMMANDS: tuple[list[str], ...] = ([], ["help"], ["help", "--commands"], ["--help"], ["-h"])
_MISSING = ("42P01", "42703")  # PostgreSQL's codes for a table and for a column that does not exist


def main() -> None:
    """Run the command named on the command line; what is no mistake of ours is one line at most, not a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    gc.set_threshold(50_000, 20, 50)  # what is imported stays: to look for garbage in it took a fifth of every start
    if sys.stdout is None:  # started with a closed standard output
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process
    if sys.argv[1:2] in (["serve"], ["runreplication"], ["mirror"]):
        _take_the_fast_event_loop()
    # structlog imports Twisted for its part ``structlog.twisted`` wherever Twisted is installed, which took a tenth of every
    # start. An entry of None makes it go without that part, which nothing here uses.
    sys.modules.setdefault("structlog.twisted", None)  # type: ignore[arg-type]
    _import_structlog_alone()
    if sys.argv[1:] in _LISTS_COMMANDS and "DJANGO_AUTO_COMPLETE" not in os.environ:  # which imports commands
        with suppress(ImproperlyConfigured):  # Django meets it again, and tells it below the list
            _name_apps_without_models()
    with output_written():
        _run()


def _import_structlog_alone() -> None:
    """Without rich, which structlog imports for a renderer that nothing here uses, and most commands do not need."""
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        import structlog  # noqa: F401, PLC0415 - while rich seems not to be there

        del sys.modules["rich"]


def _name_apps_without_models() -> None:
    """For a list of commands, which Django reads from the folders of the apps: their models are most of a start."""
    if not apps.ready:
        for entry in settings.INSTALLED_APPS:
            config = AppConfig.create(entry)
            apps.app_configs[config.label] = config
        apps.apps_ready = apps.ready = True


def _run() -> None:
    try:
        execute_from_command_line(sys.argv)
    except (OperationalError, ProgrammingError) as error:
        from streams.db import driver  # noqa: PLC0415 - needs the settings

        mistake_of_ours = isinstance(error, ProgrammingError) and driver.sqlstate(error) not in _MISSING
        if "--traceback" in sys.argv or mistake_of_ours:
            raise
        _fail(f"error: {driver.explain(error)}")
    except ImproperlyConfigured as error:
        if "--traceback" in sys.argv:
            raise
        _fail(f"error: a setting cannot be used: {' '.join(str(error).split())}", 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(said: str, status: int = 1) -> NoReturn:
    """Say why at once: the output may turn out to be unwritable on the way out, and that error would take this one's place."""
    sys.stderr.write(f"{said}\n")
    sys.exit(status)


def _take_the_fast_event_loop() -> None:
    """Processes that run for long only, and here: daphne makes its reactor, for ever, when Django imports the installed apps."""
    with suppress(ImportError):  # everything works without it, at twice the cost
        import uvloop  # noqa: PLC0415 - optional

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


if __name__ == "__main__":
    main()
