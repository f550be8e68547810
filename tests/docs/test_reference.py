"""The reference is complete: what is not documented fails here."""

import ast
import re
import tomllib
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

from django.core.management import get_commands

from pipeline.pipeline_settings import PipelineSettings
from replsite.site_settings import SiteSettings, StartSettings
from streams.stream_settings import StreamSettings

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


def imported_by() -> dict[str, set[str]]:
    """Package -> the modules of the rooms that import it, anywhere in the module."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (path for room in ROOMS for path in (PROJECT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named = [node.module]
            for name in named:
                found[name.partition(".")[0]].add(str(path.relative_to(PROJECT)))
    return found


def test_packages_are_known_to_whom_the_page_says() -> None:
    _, _, table = page("dependencies.md").partition("## Imported in few modules")
    told: dict[str, set[str]] = defaultdict(set)
    for name, rest in re.findall(r"^\| (\w+) \| (`.*) \|$", table, re.M):  # a package with many has several rows
        told[name] |= set(re.findall(r"`([^`]+)`", rest))
    assert len(told) > 10
    known = imported_by()
    assert {name: known[name] for name in told} == told
    outside = {name for name in known["psycopg2"] | known["psycopg"] if not name.startswith("pipeline/")}
    assert outside == {"streams/db/driver_psycopg2.py", "streams/db/driver_psycopg3.py"}


def test_every_pin_is_exact() -> None:
    lines = [
        line for line in (PROJECT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert [line for line in lines if "==" not in line] == []


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


def test_every_setting_that_the_code_names_is_documented() -> None:
    """Names that Django settings do not have: what our code calls things of its own."""
    ours = {"REPLSITE_RESYNC_NEEDED"}
    sources = [path.read_text() for room in ROOMS for path in (PROJECT / room).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"\bREPLSITE_[A-Z_]*[A-Z]\b", text)} - ours
    assert len(named) > 40
    assert {name for name in named if f"`{name}`" not in page("settings.md")} == set()


def test_every_setting_is_read() -> None:
    """Declared and never asked for: a setting without effect."""
    sources = " ".join(path.read_text() for room in ROOMS for path in (PROJECT / room).rglob("*.py"))
    kinds = (StreamSettings, SiteSettings, StartSettings, PipelineSettings)
    assert {one.name for kind in kinds for one in fields(kind) if f".{one.name}" not in sources} == set()


def test_pages_name_settings_that_exist() -> None:
    other = {
        "REPLSITE_RESYNC_NEEDED",
        "REPLSITE_BENCH_EVENTS",
        "REPLSITE_BENCH_TURNS",
        "REPLSITE_MIGRATIONS",
        "REPLSITE_MIGRATION_MODULES",
    }
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    pages.remove(PROJECT / "docs" / "how-to" / "upgrade.md")  # which says what came in the place of those that are gone
    named = {name for path in pages for name in re.findall(r"\bREPLSITE_[A-Z_]*[A-Z]\b", path.read_text())}
    assert {name for name in named - other if f"`{name}`" not in page("settings.md")} == set()
