"""The site's settings with short times, so that a minute holds many deaths, and no more than a minute is waited."""

from replsite.settings import *  # noqa: F403

REPLSITE_HEARTBEAT_SECONDS = 0.5
REPLSITE_PING_INTERVAL_SECONDS = 1.0
REPLSITE_PING_TIMEOUT_SECONDS = 4.0
REPLSITE_SEND_STALL_LIMIT_SECONDS = 5.0
