#!/usr/bin/env python
"""Django's command line for the replsite site."""

import os
import sys

from django.core.management import execute_from_command_line
from django.db.utils import OperationalError


def main() -> None:
    """Run the command named on the command line; a database that cannot be reached is one line, not a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:
        if "--traceback" in sys.argv:
            raise
        sys.exit(f"error: the database cannot be used: {str(error).strip()}")


if __name__ == "__main__":
    main()
