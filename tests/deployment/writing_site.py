"""The site's settings with one more page, which appends a fact for each POST: an application of one's own in the servers."""

from replsite.settings import *  # noqa: F403

ROOT_URLCONF = "tests.deployment.writing_urls"
