"""No modules import each other in a circle, counted with imports inside functions and for types; and these are few."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.session import PROJECT

ROOMS = ("streams", "state", "events", "pipeline", "replsite")
#: Modules that import a module of ours inside a function, and why. ``AppConfig.ready`` of each app does it too: Django's way.
INSIDE_FUNCTIONS = {
    # The extra may not be installed.
    "pipeline.operations.export": "Spark",
    "pipeline.operations.import_events": "Spark",
    "pipeline.management.commands.import_events": "Spark",
    "pipeline.management.commands.pipeline": "Spark",
    "replsite.checks": "Spark",
    "streams.replication.connectors": "Redis",
    "pipeline.management.commands.doctor": "Spark",
    "pipeline.management.commands.mirror": "Spark",
    "pipeline.mirror.mirroring": "Spark",
    # The process has to be set up before: Django's apps, a forked worker of Spark, an event loop of another kind.
    "streams.caches": "not every site has the app with its table",
    "streams.follow.dead_letters": "Django's apps are loaded later",
    "pipeline.source.data_source": "in an executor",
    "pipeline.source.write": "in an executor",
    "pipeline.spark.run_tasks": "in an executor",
    "replsite.management.commands.serve": "only when it serves",
    "replsite.management.commands.streams": "only for its actions and for terminals: a fifth of its start",
    "streams.management.commands.runreplication": "only when it serves",
    "streams.replication.serve": "only where pages are served",
    "streams.workers": "only where a relay is wanted",
}
FOUND = {
    ".".join((path.parent if path.name == "__init__.py" else path.with_suffix("")).relative_to(PROJECT).parts): path
    for room in ROOMS
    for path in (PROJECT / room).rglob("*.py")
}


def imports_of(tree: ast.AST, *, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """(module, whether inside a function) of each import of ours."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
        for name in names:
            module = next((found for found in (name, name.rpartition(".")[0]) if found in FOUND), None)
            if module is not None:
                yield module, inside
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports_of(node, inside=inside or is_function)


@pytest.fixture(scope="module")
def imports() -> dict[str, list[tuple[str, bool]]]:
    """Imports of each module. Each process that collects tests loads this file, so they are not read before a test asks."""
    return {name: list(imports_of(ast.parse(path.read_text()))) for name, path in FOUND.items()}


def test_no_modules_import_each_other_in_a_circle(imports):
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for name, found in imports.items():
        graph[name].update(module for module, _ in found if module != name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_imports_inside_functions_are_known(imports):
    found = {name for name, names in imports.items() if any(inside for _, inside in names)}
    assert {name for name in found if not name.endswith(".apps")} == set(INSIDE_FUNCTIONS)
