"""The reference is complete: what is not documented fails here."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from django.core.management import get_commands

from streams.conf import StreamSettings

PROJECT = Path(__file__).resolve().parents[2]
ROOMS = {"replsite", "streams", "events", "state", "pipeline"}


def page(name: str) -> str:
    return (PROJECT / "docs" / "reference" / name).read_text()


def test_every_direct_dependency_says_what_it_is_for() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    pins = [*project["dependencies"], *(pin for extra in project["optional-dependencies"].values() for pin in extra)]
    documented = set(
        re.findall(r"[a-z0-9-]+", " ".join(re.findall(r"^\| ([a-z0-9, -]+) \|", page("dependencies.md"), re.M)))
    )
    assert {re.split(r"[=\[<>~]", pin)[0].lower() for pin in pins} - documented == set()


def test_every_pin_is_exact() -> None:
    lines = [
        line for line in (PROJECT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert [line for line in lines if "==" not in line] == []


def test_every_environment_variable_is_documented() -> None:
    read = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', (PROJECT / "replsite" / "settings.py").read_text()))
    assert {name for name in read if f"`{name}`" not in page("settings.md")} == set()


def test_every_setting_of_the_engine_is_documented() -> None:
    names = {f"REPLSITE_{field.name.upper()}" for field in fields(StreamSettings)}
    assert {name for name in names if f"`{name}`" not in page("settings.md")} == set()


def test_only_the_settings_module_reads_the_environment() -> None:
    readers = [
        path
        for room in ROOMS
        for path in (PROJECT / room).rglob("*.py")
        if re.search(r"(environ(\.get\(|\[)|getenv\()\s*[\"'](REPLSITE|DATABASE_URL)", path.read_text())
    ]
    assert [str(path.relative_to(PROJECT)) for path in readers if path.name != "settings.py"] == []


def test_every_command_is_documented() -> None:
    ours = {name for name, app in get_commands().items() if app in ROOMS}
    assert {name for name in ours if f"`manage.py {name}" not in page("commands.md")} == set()
