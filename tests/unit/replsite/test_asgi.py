"""HTTP and raw TCP side by side in the site's ASGI application; it opens no WebSocket."""

from channels.routing import ProtocolTypeRouter
from channels.testing import WebsocketCommunicator

from streams.replication.server.consumer import ReplicationConsumer


def test_the_application_serves_http_and_tcp():
    from replsite.asgi import application

    assert isinstance(application, ProtocolTypeRouter)
    assert set(application.application_mapping) == {"http", "websocket", "tcp"}
    assert application.application_mapping["tcp"].consumer_class is ReplicationConsumer


async def test_a_websocket_is_refused():
    from replsite.asgi import application

    assert (await WebsocketCommunicator(application, "/ws/live/").connect())[0] is False
