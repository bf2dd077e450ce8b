"""Samples the gauges of ``metrics``: a thread in each worker process, of which one among all asks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import get_args

from ..backoff import Outage
from ..errors import BrokerUnavailable, LedgerError
from ..ledger import (
    Connection,
    ExclusiveLock,
    Ledger,
    count_todos,
    count_unresolved_dead_letters,
    list_adapter_activity,
    list_upkeep,
)
from ..model import TodoState
from ..pull import PullAdapter
from ..schedules import UpkeepOptions
from ..telemetry.gauge_file import GaugeFile, Sample, remove_left_behind

logger = logging.getLogger(__name__)

#: Seconds between two rounds, in each of which a thing is asked once at most, by one process among all.
INTERVAL = 5.0

#: What takes long is asked less often: an answer costs a fiftieth of one connection's time at most, but for what takes
#: so long that it would be asked less than every five minutes (seconds).
SPARSE, LONGEST_INTERVAL = 50, 300.0

#: How long one answer may take.
TIMEOUT = timedelta(seconds=10)

#: Seconds that the end of a worker waits for this thread.
STOP_PATIENCE = 1.0

_LEDGER = "switchboard.telemetry.metrics"


@dataclass(slots=True)
class _Question:
    """Something to ask of the ledger, its last answer, and the monotonic second at which it is asked again."""

    ask: Callable[[Connection], list[Sample]]
    outage: Outage
    due_at: float = 0.0
    #: When it last answered.
    answered_at: float = 0.0
    took: float = 0.0
    #: None: it is not known.
    samples: list[Sample] | None = None


class Sampler:
    """One a serving broker whose process has a ``directory`` of metrics (``gauge_file.metrics_directory``).

    Who holds the lock asks the ledger; who holds an adapter's asks its source how much waits there. What cannot be
    asked has no samples; when the process that asked is gone, the next one has the lock at once.
    """

    def __init__(self, directory: Path, ledger: Ledger, adapters: Iterable[PullAdapter], queues: Iterable[str]) -> None:
        self._directory = directory
        self._shared = GaugeFile(directory, "livemostrecent")
        self._own = GaugeFile(directory, "livesum")
        self._ledger = ledger
        self._adapters = {f"{_LEDGER}.{adapter.name}": adapter for adapter in adapters}
        #: The queues of this process: one without todos has 0 of them, not none.
        self._own_queues = {*queues, *(adapter.options.queue for adapter in self._adapters.values())}
        #: Every other queue with todos, and when it last had any, by the answer that says so.
        self._seen_queues: dict[str, float] = {}
        self._lock = ExclusiveLock(ledger, _LEDGER, *self._adapters)
        self._outage = Outage("metrics: the ledger", logger, {})
        self._outages = {
            name: Outage(f"metrics: the lag of adapter {adapter.name}", logger, {"adapter": adapter.name})
            for name, adapter in self._adapters.items()
        }
        self._todos: dict[TodoState, _Question] = {
            state: _question(f"the number of {state} todos", partial(self._ask_todos, state=state))
            for state in get_args(TodoState)
        }
        self._questions = [
            *self._todos.values(),
            _question("the state of adapters", _ask_adapters),
            _question("the number of dead letters", _ask_dead_letters),
            _question("the state of upkeep", _ask_upkeep),
        ]
        #: By the name of the lock: what each source last said of itself.
        self._lags: dict[str, list[Sample]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="switchboard-sampler", daemon=True)

    def start(self) -> None:
        """Begins to sample."""
        self._thread.start()

    def stopping(self) -> None:
        """Asks nothing more; what is being asked goes on."""
        self._stopped.set()

    def stop(self) -> None:
        """Ends the thread, or leaves it where a source gives it no answer; exposes nothing."""
        self._stopped.set()
        self._thread.join(STOP_PATIENCE)
        self._shared.remove()
        self._own.remove()

    def _run(self) -> None:
        writing = Outage(f"metrics: {self._directory}", logger, {})
        broken = False
        try:
            while not self._stopped.is_set():
                try:
                    self._round()
                    writing.over()
                    broken = False
                except OSError as error:
                    writing.failed(error)
                except Exception:
                    # A defect, ours or an adapter's, must not end what is right: it is told once, and goes on.
                    if not broken:
                        logger.exception("metrics: what waits cannot be sampled; trying again every %g s", INTERVAL)
                    broken = True
                self._stopped.wait(INTERVAL)
        finally:
            self._lock.release()
            self._shared.remove()
            self._own.remove()

    def _round(self) -> None:
        remove_left_behind(self._directory)
        self._own.write(self._pool())
        ours = self._take()
        samples = list(self._of_ledger()) if _LEDGER in ours else []
        # What the ledger says is not kept waiting for a source that gives no answer.
        self._lags = {name: lag for name, lag in self._lags.items() if name in ours}
        self._expose(samples)
        self._lags = self._ask_lags(ours)
        self._expose(samples)

    def _expose(self, samples: list[Sample]) -> None:
        samples = samples + [sample for lag in self._lags.values() for sample in lag]
        if samples and not self._stopped.is_set():
            self._shared.write(samples)
        else:
            self._shared.remove()

    def _take(self) -> frozenset[str]:
        try:
            self._lock.held()
            return self._lock.take()
        except LedgerError as error:
            self._outage.failed(error)
            return frozenset()

    # The ledger

    def _of_ledger(self) -> Iterator[Sample]:
        now = time.monotonic()
        for question in self._questions:
            if now < question.due_at or self._stopped.is_set():
                continue
            try:
                self._ask(question, now)
            except LedgerError as error:
                question.samples = None
                if question.took >= TIMEOUT.total_seconds():
                    # It is this one that takes too long.
                    question.outage.failed(error)
                    continue
                self._outage.failed(error)
                for other in self._questions:
                    # What nobody knows any more is not shown as if it were so, and is asked as soon as it can be.
                    other.samples, other.due_at = None, 0.0
                return
            question.outage.over()
            self._outage.over()
        # Of this process alone: where it is stopped, and holds the lock, its numbers stay, and this one with them.
        yield Sample("switchboard_sampled_timestamp_seconds", {}, time.time())
        yield from self._zeros()
        for question in self._questions:
            yield from question.samples or ()

    def _ask(self, question: _Question, now: float) -> None:
        began: float | None = None
        try:
            with self._ledger.transaction(timeout=TIMEOUT, doing="metrics") as tx:
                began = time.monotonic()
                question.samples = question.ask(tx.connection)
            question.answered_at = time.monotonic()
        finally:
            question.took = time.monotonic() - began if began is not None else 0.0
            question.due_at = now + min(LONGEST_INTERVAL, max(INTERVAL, question.took * SPARSE))

    def _ask_todos(self, connection: Connection, *, state: TodoState) -> list[Sample]:
        samples = []
        for found in count_todos(connection, state):
            samples.append(Sample("switchboard_todos", {"queue": found.queue, "state": state}, found.count))
            if found.oldest_age_seconds is not None:
                labels = {"queue": found.queue}
                samples.append(Sample("switchboard_oldest_pending_age_seconds", labels, found.oldest_age_seconds))
        return samples

    def _zeros(self) -> Iterator[Sample]:
        """Of every queue and known state; what an answer has is written after it, and in its place."""
        known = {state: question for state, question in self._todos.items() if question.samples is not None}
        for question in known.values():
            seen = {sample.labels["queue"]: question.answered_at for sample in question.samples or ()}
            self._seen_queues |= {queue: max(at, self._seen_queues.get(queue, 0.0)) for queue, at in seen.items()}
        if len(known) == len(self._todos):
            # Some answers are older than others: a todo between two states is in none of them.
            oldest = min(question.answered_at for question in known.values())
            self._seen_queues = {queue: at for queue, at in self._seen_queues.items() if at >= oldest}
        for queue in self._own_queues | self._seen_queues.keys():
            if "pending" in known:
                yield Sample("switchboard_oldest_pending_age_seconds", {"queue": queue}, 0.0)
            for state in known:
                yield Sample("switchboard_todos", {"queue": queue, "state": state}, 0.0)

    # The sources

    def _ask_lags(self, ours: frozenset[str]) -> dict[str, list[Sample]]:
        found = {}
        silent: set[str] = set()
        for name, adapter in self._adapters.items():
            # One address that gives no answer is waited for once a round, however many adapters read there.
            if name not in ours or adapter.broker in silent or self._stopped.is_set():
                continue
            try:
                lag = adapter.lag()
            except BrokerUnavailable as error:
                if not error.answered:
                    silent.add(adapter.broker)
                self._outages[name].failed(error)
                continue
            self._outages[name].over()
            labels = {"adapter": adapter.name}
            found[name] = [Sample("switchboard_adapter_pending", labels, lag.pending)]
            if lag.unread is not None:
                found[name].append(Sample("switchboard_adapter_unread", labels, lag.unread))
        return found

    def _pool(self) -> Iterator[Sample]:
        use = self._ledger.pool_use()
        yield Sample("switchboard_pool_connections", {}, use.size)
        yield Sample("switchboard_pool_connections_in_use", {}, use.in_use)
        yield Sample("switchboard_pool_connections_max", {}, use.max_size)
        yield Sample("switchboard_pool_requests_waiting", {}, use.waiting)


def _question(what: str, ask: Callable[[Connection], list[Sample]]) -> _Question:
    # That one answer takes too long is no outage of the ledger, and must not be told as one, nor hide one.
    return _Question(ask, Outage(f"metrics: {what}", logger, {"reason": "metrics_too_slow"}))


def _ask_adapters(connection: Connection) -> list[Sample]:
    samples = []
    for adapter in list_adapter_activity(connection):
        labels = {"adapter": adapter.name}
        samples.append(Sample("switchboard_adapter_enabled", labels, float(adapter.enabled)))
        samples.append(Sample("switchboard_adapter_consumers", labels, adapter.consumers))
        if adapter.polled_at_seconds is not None:
            name = "switchboard_adapter_last_poll_timestamp_seconds"
            samples.append(Sample(name, labels, adapter.polled_at_seconds))
    return samples


def _ask_dead_letters(connection: Connection) -> list[Sample]:
    return [
        Sample("switchboard_dead_letters_unresolved", {"adapter": found.adapter, "reason": found.reason}, found.count)
        for found in count_unresolved_dead_letters(connection)
    ]


def _ask_upkeep(connection: Connection) -> list[Sample]:
    samples = []
    for row in list_upkeep(connection):
        if row.job not in UpkeepOptions.model_fields:
            # A repair that is made when it is needed has no schedule that it could be late for.
            continue
        labels, succeeded_at = {"upkeep": row.job}, row.last_succeeded_at.timestamp()
        samples.append(Sample("switchboard_upkeep_last_success_timestamp_seconds", labels, succeeded_at))
        samples.append(Sample("switchboard_upkeep_last_duration_seconds", labels, row.last_duration_seconds))
    return samples
