"""Migrations since the version before leave its processes alone."""

from __future__ import annotations

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import models
from django.db.migrations import Migration, operations

from tests.deployment.additive import newer_than, refusals
from tests.deployment.older import LEAVES


def test_migrations_since_the_version_before_only_add():
    newer = newer_than(LEAVES)
    assert len(newer) > 1
    assert refusals(newer) == []


def made_of(*steps: operations.base.Operation, atomic: bool = True) -> Migration:
    migration = Migration("0099_test", "streams")
    migration.operations, migration.atomic = list(steps), atomic
    return migration


INDEX = models.Index(fields=["name"], name="i")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (operations.AddField("reader", "more", models.TextField()), "null=True or db_default"),
        (operations.AddField("reader", "more", models.TextField(default="")), "null=True or db_default"),
        (operations.AddField("reader", "more", models.TextField(null=True, db_index=True)), "AddIndexConcurrently"),
        (operations.AddField("reader", "more", models.TextField(null=True, unique=True)), "AddIndexConcurrently"),
        (operations.AddIndex("reader", INDEX), "AddIndexConcurrently"),
        (AddIndexConcurrently("reader", INDEX), "atomic = False"),
        (operations.RemoveField("reader", "name"), "version after"),
        (operations.RenameField("reader", "name", "title"), "version after"),
        (operations.AlterField("reader", "name", models.CharField(max_length=5)), "version after"),
        (operations.DeleteModel("reader"), "version after"),
        (operations.RenameModel("reader", "listener"), "version after"),
        (operations.RemoveIndex("reader", "i"), "version after"),
        (operations.AddConstraint("reader", models.UniqueConstraint(fields=["name"], name="u")), "version after"),
        (operations.AlterUniqueTogether("reader", {("name", "key")}), "version after"),
        (operations.RunSQL("DROP TABLE streams_reader"), "Older processes:"),
        (operations.RunPython(lambda *_: None), "Older processes:"),
        (operations.SeparateDatabaseAndState([operations.RemoveField("reader", "name")]), "version after"),
    ],
)
def test_what_an_older_process_could_not_bear_is_refused(step, told):
    (line,) = refusals([made_of(step)])
    assert told in line
    assert line.startswith("streams.0099_test: ")


@pytest.mark.parametrize(
    "step",
    [
        operations.CreateModel("New", [("id", models.BigAutoField(primary_key=True))]),
        operations.AddField("reader", "more", models.TextField(null=True)),
        operations.AddField("reader", "more", models.TextField(db_default="")),
        operations.AlterModelOptions("reader", {"ordering": ["name"]}),
        operations.SeparateDatabaseAndState(state_operations=[operations.RemoveField("reader", "name")]),
    ],
)
def test_what_it_does_not_notice_is_taken(step):
    assert refusals([made_of(step)]) == []


def test_a_table_that_is_new_itself_is_free():
    new = operations.CreateModel("New", [("id", models.BigAutoField(primary_key=True))])
    assert refusals([made_of(new, operations.AddIndex("new", INDEX), operations.RemoveField("new", "id"))]) == []


def test_an_index_that_is_built_beside_writers_is_taken():
    assert refusals([made_of(AddIndexConcurrently("reader", INDEX), atomic=False)]) == []
