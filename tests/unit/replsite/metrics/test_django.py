"""What clients can do to the request metrics."""

from django.http import HttpResponse
from django.urls import path
from prometheus_client import REGISTRY, generate_latest

urlpatterns = [path("here", lambda request: HttpResponse("x"), name="here")]


def test_methods_that_clients_make_up_are_one_label(settings, client):
    settings.ROOT_URLCONF = __name__
    for number in range(20):
        client.generic(f"MADEUP{number}", "/here")
    assert client.generic("GET", "/here").status_code == 200
    exported = generate_latest(REGISTRY).decode()
    assert "MADEUP" not in exported
    assert 'method="<invalid method>",view="here"' in exported
