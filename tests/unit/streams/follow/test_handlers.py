"""Options of handlers that cannot work are refused where they are written, with what would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import django
import pytest

from streams.errors import BadHandler, UnknownTable
from streams.follow import handlers as declared
from streams.follow.handlers import Begin, Handler, OnFailure, handles
from streams.replication.protocol.ordering import View


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    django.setup()
    before = {reader: dict(known) for reader, known in declared._handlers.items()}
    yield
    declared._handlers.clear()
    declared._handlers.update(before)


def _of_one(fact: Any) -> None: ...


def _of_none() -> None: ...


def _of_two(fact: Any, more: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"begin": "odlest"}, r"begin='odlest' is none of Begin\.NOW, Begin\.OLDEST"),
        ({"view": "liner"}, r"view='liner' is none of View\.WRITER, View\.LINEAR"),
        ({"on_failure": "PARK"}, r"on_failure='PARK' is none of OnFailure\.STOP, OnFailure\.PARK"),
        ({"attempts": "3"}, "must be numbers above 0"),
        ({"attempts": 0}, "must be numbers above 0"),
        ({"retry_seconds": "1"}, "must be numbers above 0"),
        ({"task": "send_mail", "each": True}, "task='send_mail' is neither a task nor a function"),
        ({"eech": True}, "there is no option eech; there are each, view"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_unusable_option_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadHandler, match=text):
        handles("caches", reader="mailer", **options)(_of_one)


def test_texts_of_the_choices_are_choices() -> None:
    handler = Handler("caches", "mailer", _of_one, view="linear", begin="oldest", on_failure="park")  # type: ignore[arg-type]
    assert (handler.view, handler.begin, handler.on_failure) == (View.LINEAR, Begin.OLDEST, OnFailure.PARK)
    assert isinstance(handler.begin, Begin)


@pytest.mark.parametrize(
    ("function", "each", "given"),
    [(_of_none, True, "a model instance"), (_of_two, True, "a model instance"), (_of_none, False, "a Chunk")],
)
def test_a_function_that_cannot_take_a_fact_is_refused(function: Callable[..., Any], *, each: bool, given: str) -> None:
    with pytest.raises(BadHandler, match=f"is called with one argument, {given}"):
        handles("caches", reader="mailer", each=each)(function)


def test_a_decorator_may_give_further_arguments() -> None:
    @wraps(_of_two)
    def with_more(fact: Any) -> None:
        _of_two(fact, 1)

    handles("caches", reader="mailer")(with_more)
    assert declared.handlers_of("mailer")[0].function is with_more


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UnknownTable, match=r"\['caches'\] is no model"):
        handles(["caches"], reader="mailer")  # type: ignore[arg-type]


def test_an_alias_of_no_database_is_refused() -> None:
    handler = Handler("caches", "mailer", _of_one, using="othr")
    with pytest.raises(BadHandler, match="using='othr' is no alias in DATABASES; there are default"):
        handler.check_stream()
