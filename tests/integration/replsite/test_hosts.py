"""Requests under a name that is not ours."""

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


def test_a_wrong_host_is_answered_and_leaves_no_trace_in_the_log(caplog):
    answer = Client().get("/health/live", headers={"host": "elsewhere.example"})
    assert answer.status_code == 400
    assert not [record for record in caplog.records if record.exc_info]
