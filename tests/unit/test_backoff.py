"""An outage: told once when it begins and once when it ends, with waits that grow, stay bounded and begin anew."""

import logging
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from waiting import eventually

from switchboard.backoff import FIRST_WAIT, LONGEST_WAIT, Outage

logger = logging.getLogger("switchboard.test_backoff")
FIELDS: dict[str, object] = {"adapter": "deploys", "broker": "redis://localhost:6379/0"}


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.DEBUG, logger=logger.name)
    return Outage("PostgreSQL", logger, FIELDS)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def waited_after(outage: Outage) -> tuple[float, float]:
    """The wait that one more failure sets, in milliseconds, and how late it was read."""
    began = time.monotonic()
    outage.failed(ConnectionError("refused"))
    wait = outage.wait_seconds * 1000
    return wait, (time.monotonic() - began) * 1000


def test_at_first_nothing_is_away(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    assert not outage.away
    assert outage.wait_seconds == 0
    outage.over()
    assert not outage.away
    assert caplog.records == []


def test_one_line_tells_that_it_went_and_one_that_it_is_back(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        outage.failed(ConnectionError(f"refused, {number}"))
        assert outage.away
    outage.over()
    outage.over()
    assert not outage.away
    went, back = caplog.records
    assert went.levelno == logging.ERROR
    assert went.getMessage() == "PostgreSQL is unavailable: refused, 0; trying again with backoff"
    assert back.levelno == logging.WARNING
    assert back.getMessage().startswith("PostgreSQL is back after 0.")


def test_a_second_outage_is_told_again(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        outage.failed(ConnectionError("refused"))
        outage.over()
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING] * 2


def test_both_lines_carry_the_structured_fields(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.failed(ConnectionError("refused"))
    outage.over()
    for record in caplog.records:
        assert {name: getattr(record, name) for name in FIELDS} == FIELDS


def test_waits_double_with_jitter_and_are_bounded(outage: Outage) -> None:
    for attempt in range(40):
        least = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT / 2)
        wait, late = waited_after(outage)
        assert least - 1 - late <= wait <= min(least * 2, LONGEST_WAIT)


def test_waits_are_not_the_same_for_all(outage: Outage) -> None:
    # Workers that lost one server together must not come back to it together.
    others = [Outage("PostgreSQL", logger, FIELDS) for _ in range(20)]
    for _ in range(10):
        for other in others:
            other.failed(ConnectionError("refused"))
    waits = [other.wait_seconds for other in others]
    assert max(waits) - min(waits) > 0.1


def test_waits_begin_anew_after_an_answer(outage: Outage) -> None:
    for _ in range(20):
        outage.failed(ConnectionError("refused"))
    outage.over()
    assert outage.wait_seconds == 0
    wait, _ = waited_after(outage)
    assert wait <= FIRST_WAIT * 2


def test_the_next_try_becomes_due_while_it_is_still_away(outage: Outage) -> None:
    outage.failed(ConnectionError("refused"))
    eventually(lambda: outage.wait_seconds == 0, every=0.01, what="the next try is due")
    assert outage.away


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_notice_together_tell_it_once(caplog: pytest.LogCaptureFixture) -> None:
    # Every worker thread that acknowledges and the one that reads share one outage.
    rounds, threads = 200, 8
    outages = [Outage("PostgreSQL", logger, FIELDS) for _ in range(rounds)]
    barrier = threading.Barrier(threads)

    def notice() -> None:
        for outage in outages:
            barrier.wait()
            outage.failed(ConnectionError("refused"))

    noticing = [threading.Thread(target=notice) for _ in range(threads)]
    for thread in noticing:
        thread.start()
    for thread in noticing:
        thread.join()
    assert len(caplog.records) == rounds
