"""The page of models is what the code says, and the code says what every table and column is."""

import re

import pytest
from django.apps import apps

from tests.support.scripts import load_script

script = load_script("models_page")
MODELS = [model for label in script.APPS for model in apps.get_app_config(label).get_models()]
LINES = script.PAGE.read_text().splitlines()


def section(model):
    """The lines of a model's section."""
    start = LINES.index(f"### {model.__name__}")
    ends = [n for n, line in enumerate(LINES) if n > start and line.startswith(("## ", "### "))]
    return LINES[start : min(ends, default=len(LINES))]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_every_field_is_on_the_page(model):
    documented = {line.split("`")[1] for line in section(model) if line.startswith("| `")}
    assert documented == {field.name for field in model._meta.concrete_fields}


@pytest.mark.parametrize(
    "model", [m for m in MODELS if m._meta.app_label in ("events", "state")], ids=lambda m: m.__name__
)
def test_every_field_of_rooms_and_state_says_what_it_is(model):
    silent = [field.name for field in model._meta.concrete_fields if not script.words_of(field) and not field.choices]
    assert silent == [], "give the field a help text, or the name a line in script/models_page.py"


@pytest.mark.parametrize("model", [m for m in MODELS if hasattr(m, "read")], ids=lambda m: m.__name__)
def test_every_question_is_on_the_page_with_an_answer(model):
    names = [name for name, value in vars(model.read._queryset_class).items() if callable(value) and name[0] != "_"]
    answers = re.findall(rf"^\* `{model.__name__}\.read\..*(?:\n  .*)*", "\n".join(section(model)), re.M)
    assert names and len(answers) == len(names)
    assert all(answer.rstrip().endswith(".") for answer in answers)
