"""A team's own test of a view: Django's ``AsyncClient`` in a test's transaction, which counts as committed."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import AsyncClient, override_settings
from django.urls import path

from streams import stream_view
from tests.support.writing import append, stream

urlpatterns = [
    path(
        "events/", stream_view(stream(), allow=lambda request: True, render=lambda fact: str(fact.stream_id), beat=0.1)
    )
]


@pytest.mark.django_db
@override_settings(ROOT_URLCONF=__name__)
def test_facts_of_the_tests_own_transaction_arrive():
    async def visit():
        expected = await sync_to_async(append)(2)
        response = await AsyncClient().get("/events/?after=0")
        assert response.status_code == 200, response.content
        found: list[str] = []
        async with asyncio.timeout(20):
            async for part in response.streaming_content:
                found += [line for line in part.decode().splitlines() if line.startswith("data: ") and "{" not in line]
                if len(found) == 2 and len(expected) == 2:
                    expected += await sync_to_async(append)()
                if len(found) == 3:
                    break
        response.close()
        assert found == [f"data: {number}" for number in expected]

    async_to_sync(visit)()
