"""What no server of a test can be made to show: other clocks, old releases, and certificates."""

import pytest

from switchboard.finding import clock_finding
from switchboard.pull.redis_inspection import transport_security, version_finding


@pytest.mark.parametrize(
    ("there", "severity", "what"),
    [
        (1000.0, "ok", "agrees"),
        # Anything between the question and the answer agrees with this host's clock.
        (1004.9, "ok", "agrees"),
        (1008.5, "warning", "3.5 s ahead of this host's"),
        (996.0, "warning", "4.0 s behind this host's"),
    ],
)
def test_a_clock_that_differs_is_said_with_how_much(there: float, severity: str, what: str) -> None:
    finding = clock_finding("it", there, began=1000.0, ended=1005.0)
    assert finding.severity == severity
    assert what in finding.what
    assert ("NTP" in finding.remedy) == (severity == "warning")


@pytest.mark.parametrize(
    ("info", "severity", "what"),
    [
        ({"redis_version": "7.2.4"}, "ok", "Redis 7.2.4"),
        ({"redis_version": "6.2.0"}, "ok", "Redis 6.2.0"),
        ({"redis_version": "6.0.16"}, "error", "Redis 6.0.16 is older than 6.2"),
        # Valkey says a Redis version, too.
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "ok", "Valkey 9.1.2"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, "error", "Valkey 7.1.0 is older than 7.2"),
    ],
)
def test_an_old_release_is_an_error(info: dict[str, str], severity: str, what: str) -> None:
    finding = version_finding(info, "it")
    assert (finding.severity, finding.what) == (severity, what)


@pytest.mark.parametrize(
    ("url", "severities"),
    [
        ("redis://redis.example/0", []),
        ("redis://bot:secret@127.0.0.1/0", []),
        ("redis://bot:secret@[::1]:6379/0", []),
        ("unix://bot:secret@/run/redis.sock", []),
        ("redis://bot:secret@redis.example/0", ["warning"]),
        ("redis://bot:secret@10.0.0.7/0", ["warning"]),
        ("rediss://bot:secret@redis.example/0", ["ok"]),
        ("rediss://bot:secret@redis.example/0?ssl_cert_reqs=none", ["warning"]),
    ],
)
def test_what_can_be_read_on_the_way_is_a_warning(url: str, severities: list[str]) -> None:
    findings = list(transport_security(url, "it"))
    assert [finding.severity for finding in findings] == severities
    assert "secret" not in str(findings)
