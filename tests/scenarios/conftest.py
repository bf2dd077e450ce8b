"""What the scenarios stand between, and who listens to what they report."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from proxy import Proxy

from scenarios.support import Sentry


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    """Between a source and its workers; the scenarios themselves go past it."""
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        yield proxy


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    with Sentry() as sentry:
        yield sentry
