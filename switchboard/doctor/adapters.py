"""The adapters: what each finds at its source, who reads it, and what the ledger knows of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby

from ..finding import Finding
from ..ledger import Connection, count_unresolved_dead_letters, list_adapters
from ..ledger.consumers import ConsumerRow, list_consumers
from ..pull import PullAdapter

#: How long a source may give its consumers no answer before that is an error.
UNANSWERED = timedelta(seconds=60)


def check_adapter(adapter: PullAdapter) -> Iterator[Finding]:
    """What is wrong at its source; raises ``BrokerUnavailable`` where that does not answer."""
    try:
        yield from adapter.inspect()
    finally:
        adapter.close()


def check_shared_sources(adapters: Sequence[PullAdapter]) -> list[Finding]:
    """Adapters that take each other's messages: the same source, read in the same name."""
    sharing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for adapter in adapters:
        if not adapter.exclusive:
            sharing[adapter.broker, adapter.namespace, adapter.reader_identity].append(adapter.name)
    return [
        Finding(
            "shared_source", f"adapter {names[0]}", "error",
            f"{' and '.join(names)} read the same source, {namespace.partition(':')[2]} at {broker}, "
            "so that each gets a part of its messages",
            "give each a group of its own, where both are to have all messages; else keep one",
        )
        for (broker, namespace, _), names in sharing.items()
        if len(names) > 1
    ]  # fmt: skip


def check_consumers(connection: Connection, adapters: Sequence[PullAdapter]) -> Iterator[Finding]:
    """Adapters that nobody reads, that are switched off, or that only the ledger knows."""
    registered = {row.name: row for row in list_adapters(connection) if row.family == "queue"}
    here = {adapter.name for adapter in adapters}
    there = [consumer for consumer in list_consumers(connection) if consumer.is_there]
    for name in sorted(here | set(registered)):
        subject = f"adapter {name}"
        row = registered.get(name)
        consumers = [consumer for consumer in there if consumer.adapter == name]
        if name not in here:
            yield from _only_in_the_ledger(subject, bool(consumers))
        elif row is not None and not row.enabled:
            yield Finding(
                "enabled", subject, "warning", "it is disabled: its messages wait at the source",
                f"switchboard adapters enable {name}",
            )  # fmt: skip
        elif not consumers:
            yield Finding(
                "consumers", subject, "error", "no worker polls it",
                "start one, `dramatiq switchboard.actors`; see that -Q, if given, names "
                f"adapter.{name}, and that its switchboard.toml is this one",
            )  # fmt: skip
        else:
            yield from _last_polls(subject, consumers)


def _only_in_the_ledger(subject: str, is_read: bool) -> Iterator[Finding]:
    if is_read:
        yield Finding(
            "configuration", subject, "warning", "a worker reads it, and the configuration here does not name it",
            "give that worker and this command the same switchboard.toml; one added in code is looked at by its worker",
        )  # fmt: skip
    else:
        yield Finding("configuration", subject, "ok", "no worker reads it, and the configuration does not name it")


def _last_polls(subject: str, consumers: Sequence[ConsumerRow]) -> Iterator[Finding]:
    polls = [consumer.asked_at - consumer.polled_at for consumer in consumers if consumer.polled_at is not None]
    busy = any(consumer.storing_since is not None for consumer in consumers)
    if (polls and min(polls) < UNANSWERED) or busy:
        yield Finding("consumers", subject, "ok", f"running consumers {len(consumers)}")
        return
    errors = [consumer.last_error for consumer in consumers if consumer.last_error]
    ago = f"for {min(polls).total_seconds():.0f} s" if polls else "yet"
    yield Finding(
        "consumers", subject, "error",
        f"its workers have had no answer from the source {ago}{f': {errors[-1]}' if errors else ''}",
        "see what is wrong with the source above, and the workers' logs",
    )  # fmt: skip


def check_dead_letters(connection: Connection) -> Iterator[Finding]:
    """Messages that could not become work, and that nobody has decided about."""
    for adapter, counts in groupby(count_unresolved_dead_letters(connection), lambda each: each.adapter):
        found = list(counts)
        number, age_seconds = sum(each.count for each in found), max(each.oldest_age_seconds for each in found)
        yield Finding(
            "dead_letters", f"adapter {adapter}", "warning",
            f"unresolved dead letters: {number}, the oldest {timedelta(seconds=int(age_seconds))} old",
            f"switchboard dead-letters list --adapter {adapter}; then replay or discard them",
        )  # fmt: skip
