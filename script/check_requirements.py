#!/usr/bin/env python
"""Checks that ``requirements.txt`` is what ``pyproject.toml`` asks for, by the metadata of the installed packages.

It asks no registry, so a new release of some package never changes the answer. Every package of ``pyproject.toml`` must
be in ``requirements.txt``, in a version that it allows. Every installed package must have the version that is pinned
there. The pins must be exactly what the requirements need, directly or not.

The extra ``java`` does not count: set-up installs it where Java is missing. Nor does ``psycopg``: set-up installs it in a
folder of its own, because Django would use it in place of psycopg2. Pins whose marker does not hold for this
Python are left out. A check under each Python covers all of them.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parent.parent
OUTSIDE = {"java", "psycopg"}
REMEDY = (
    "Make it anew: uv pip compile --python-version 3.11 --no-strip-markers --extra site --extra django-metrics"
    " --extra rooms --extra embedded --extra spark --extra dev --extra redis"
    " --no-emit-index-url --no-emit-find-links --no-annotate pyproject.toml -o requirements.txt"
)


def wanted(project: dict[str, Any]) -> list[Requirement]:
    """Returns the direct requirements for this Python, with those of all extras that count."""
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras if name not in OUTSIDE for line in extras[name])]
    return _for_this_python(lines)


def pins(text: str) -> dict[str, str]:
    """Returns version by name for this Python, from a requirements file that has only pins."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    found = _for_this_python(line for line in lines if line)
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}


def _for_this_python(lines: Iterable[str]) -> list[Requirement]:
    found = (Requirement(line) for line in lines)
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def closure(direct: list[Requirement]) -> set[str]:
    """Returns the names of all packages that the requirements need on this Python, including themselves."""
    seen: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(one.name), extra) for one in direct for extra in ("", *one.extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in distribution(name).requires or []:
            need = Requirement(line)
            # What a package needs without a marker was added when it was visited without an extra.
            if need.marker is None and extra:
                continue
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(need.name), more) for more in ("", *need.extras)]
    return {name for name, _ in seen}


def problems(project: dict[str, Any], text: str) -> list[str]:
    """Returns the problems, one line each."""
    pinned, direct = pins(text), wanted(project)
    found = [
        f"pyproject.toml asks for {one}, requirements.txt has {pinned.get(canonicalize_name(one.name), 'nothing')}"
        for one in direct
        if not one.specifier.contains(pinned.get(canonicalize_name(one.name), ""), prereleases=True)
    ]
    try:
        found += [
            f"{name}=={version} is pinned, {distribution(name).version} is installed"
            for name, version in pinned.items()
            if distribution(name).version != version
        ]
        needed = closure(direct)
    except PackageNotFoundError as error:
        return [*found, f"{error.name} is needed and not installed"]
    found += [f"{name} is needed and not pinned" for name in sorted(needed - pinned.keys())]
    return found + [f"{name} is pinned and not needed" for name in sorted(pinned.keys() - needed)]


def main() -> int:
    """Prints the problems. Returns 1 if there are any."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    found = problems(project, (PROJECT / "requirements.txt").read_text())
    if found:
        sys.stderr.write("\n".join([*found, REMEDY, ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
