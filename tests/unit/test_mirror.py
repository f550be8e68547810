"""This folder mirrors the tree: a test of ``streams/core/tokens.py`` is ``streams/core/test_tokens.py``."""

from __future__ import annotations

from tests.support.session import PROJECT

HERE = PROJECT / "tests" / "unit"
#: Tests that are not of one module, and what they are of.
OF_SEVERAL_MODULES = {
    "events/history/test_checked_states.py": "states that are checked: rows, chunked_walk",
    "pipeline/operations/test_arguments_of_operations.py": "all operations",
    "pipeline/operations/test_words.py": "operations that delete",
    "replsite/live_rows/test_json.py": "rows of all tables as JSON",
    "replsite/test_colours.py": "styles of the dashboard",
    "streams/replication/transport/test_admission.py": "who comes in: tcp_scope, tcp_places, tls",
    "streams/test_package.py": "streams without its app",
    "test_copied_commands.py": "commands that templates and status words offer, and manage.py",
    "test_downloads.py": "the shell functions of script/_environment that load something",
    "test_identifiers.py": "all modules of some packages",
    "test_imports.py": "all modules",
    "test_interpreters.py": "the shell functions of script/_environment",
    "test_mirror.py": "this folder",
    "test_pre_commit.py": "the hooks and .ci/run",
    "test_purity.py": "all pure packages",
    "test_scripts.py": "all shell scripts",
    "test_test_sessions.py": "all tests with a database",
}


def test_each_unit_test_has_the_place_and_name_of_its_module():
    without = set()
    for path in HERE.rglob("test_*.py"):
        place = path.relative_to(HERE)
        module = PROJECT / place.with_name(place.name.removeprefix("test_"))
        if not module.is_file() and not (module.with_suffix("") / "__init__.py").is_file():
            without.add(place.as_posix())
    assert without == set(OF_SEVERAL_MODULES)
