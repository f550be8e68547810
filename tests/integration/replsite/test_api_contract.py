"""The HTTP API against its own OpenAPI description: made-up requests to a real server on a real database."""

from __future__ import annotations

import json
from collections import Counter
from urllib.request import urlopen

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from events.sending.send import NewEvent, create_room
from replsite.api.tokens import make_token
from tests.support.effort import examples
from tests.support.wire_client import ready_ports
from tests.support.writing import append

schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis here")
pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLES = examples(12)


@pytest.fixture
def port(start_manage) -> int:
    env = {"REPLSITE_API_REQUESTS_PER_MINUTE": "0"}
    return ready_ports(start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env))["http"]


def test_every_operation_keeps_what_openapi_says(port, capfd):
    """No error of ours, and every answer has a status, a type and a form that the description names."""
    room = create_room("@ann:site")
    (message,) = room.add([NewEvent("@ann:site", "m.room.message", {"body": "hello"})])
    append()
    there = {"room_id": room.room_id, "event_id": message.event_id, "user_id": "@ann:site", "name": "master", "job": 1}
    boss = User.objects.create_superuser("boss")
    headers = {"Authorization": f"Bearer {make_token(boss, 'schemathesis', 1)[1]}"}
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/api/v1/openapi.json")
    checks = schemathesis.checks
    kept = [
        checks.not_a_server_error,
        checks.CHECKS.get_one("status_code_conformance"),
        checks.CHECKS.get_one("content_type_conformance"),
        checks.CHECKS.get_one("response_schema_conformance"),
    ]
    tried, statuses = [], Counter[int]()
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(), is_there=st.booleans())
        def keeps(case, is_there):
            if is_there:
                case.path_parameters.update({name: there[name] for name in case.path_parameters if name in there})
            statuses[case.call_and_validate(headers=headers, checks=kept).status_code] += 1

        keeps()
        tried.append(operation.label)
    assert len(tried) == sum(len(one) for one in _paths(port).values())
    assert {200, 202, 400, 404} <= set(statuses), "it tried what works and what does not"
    assert 401 not in statuses
    assert "Traceback" not in capfd.readouterr().err


def _paths(port: int) -> dict[str, dict]:
    with urlopen(f"http://127.0.0.1:{port}/api/v1/openapi.json") as answer:
        return json.load(answer)["paths"]
