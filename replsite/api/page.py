"""Serves the page about the API: each operation with its parameters, its answer and its permission.

The page is made from the OpenAPI description, which `/api/v1/openapi.json` serves to programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from replsite.api.api import api

_METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation, or a field of the JSON of its request or answer."""

    name: str
    place: str
    type: str
    is_required: bool
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API."""

    key: str
    method: str
    path: str
    title: str
    paragraphs: list[str]
    parameters: list[Parameter] = field(default_factory=list)
    answer: list[Parameter] = field(default_factory=list)


def described(openapi: Mapping[str, Any]) -> dict[str, list[Operation]]:
    """Returns a dictionary from each tag of an OpenAPI description to the operations that have it as their first tag."""
    schemas = openapi.get("components", {}).get("schemas", {})
    found: dict[str, list[Operation]] = {}
    for path, operations in openapi["paths"].items():
        for method in _METHODS:
            if method in operations:
                operation = operations[method]
                found.setdefault((operation.get("tags") or ["Other"])[0], []).append(
                    _operation(method, path, operation, schemas)
                )
    return dict(sorted(found.items()))


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Operation:
    parameters = [
        Parameter(p["name"], p["in"], _type(p["schema"]), p.get("required", False), _text(p))
        for p in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    good = next(code for code in operation["responses"] if str(code).startswith("2"))
    answer = operation["responses"][good].get("content", {}).get("application/json", {}).get("schema", {})
    return Operation(
        operation["operationId"], method.upper(), path, operation.get("summary", ""),
        operation.get("description", "").replace("`", "").split("\n\n"),
        [*parameters, *_fields(body, schemas, "JSON")], list(_fields(answer, schemas, "")),
    )  # fmt: skip


def _fields(schema: Mapping[str, Any] | None, schemas: Mapping[str, Any], place: str) -> Iterator[Parameter]:
    schema = (schema or {}).get("items", schema) or {}
    named = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    required = named.get("required", ())
    for name, member in named.get("properties", {}).items():
        yield Parameter(name, place, _type(member), name in required, _text(member))


def _text(member: Mapping[str, Any]) -> str:
    text: str = member.get("description") or member.get("schema", {}).get("description") or ""
    return text.replace("`", "")


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(choice) for choice in schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    kind = str(schema.get("type", "any"))
    return f"list of {_type(schema['items'])}" if kind == "array" and "items" in schema else kind


@require_safe
def _api_page(request: HttpRequest) -> HttpResponse:
    context = {
        **admin.site.each_context(request),
        "title": "HTTP API",
        "groups": described(api.get_openapi_schema()),
        "openapi": reverse("api:openapi-json"),
        "tokens": reverse("admin:replsite_api_apitoken_changelist"),
    }
    return TemplateResponse(request, "api/page.html", context)


api_page = admin.site.admin_view(_api_page)
