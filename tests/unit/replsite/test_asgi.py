"""Three protocols side by side in the site's ASGI application."""

from channels.routing import ProtocolTypeRouter

from streams.replication.server.consumer import ReplicationConsumer


def test_the_application_serves_three_protocols():
    from replsite.asgi import application

    assert isinstance(application, ProtocolTypeRouter)
    assert set(application.application_mapping) == {"http", "websocket", "tcp"}
    assert application.application_mapping["tcp"].consumer_class is ReplicationConsumer
