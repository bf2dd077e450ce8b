"""`make soak`: five minutes of producers, workers and everything that can go wrong between them, then a count.

Servers come from wheels, on free ports, and end with it. The schedule of faults comes from `--seed`; what the
threads of three programs make of it does not, so a seed repeats a run in kind, not to the message.
"""

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import redis
from proxy import Proxy

from soak.audit import Account, Outside, total
from soak.crew import Crew
from soak.faults import Faults
from soak.lines import LINES, Producer
from switchboard.demo.signals import exit_on_signals
from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.ledger import Ledger, migrate

#: Worker processes of each `dramatiq switchboard.actors`.
CREWS = (2, 1, 1)

#: Seconds between two lines of progress where nobody watches them live.
LOG_SECONDS = 10

#: Seconds that everything has to settle once nothing goes wrong any more.
PATIENCE_SECONDS = 180

_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'this ledger takes no %', NEW.title; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON todos FOR EACH ROW WHEN (NEW.title LIKE 'refused%')
EXECUTE FUNCTION refuse();
"""

# Some fail: what is failed is to be acknowledged too.
_END_TODOS = """
UPDATE todos SET state = CASE WHEN mod(id, 10) = 0 THEN 'failed' ELSE 'done' END, completed_at = now()
WHERE id IN (
    SELECT id FROM todos WHERE queue = ANY(%s) AND state = 'pending' ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED
)
"""


class Completer(threading.Thread):
    """Ends todos of lines that acknowledge on completion, until it is stopped."""

    def __init__(self, database_url: str) -> None:
        super().__init__(name="completer")
        self._url = database_url
        self._queues = [line.name for line in LINES if line.completes]
        self._stop_now = threading.Event()

    def stop(self) -> None:
        self._stop_now.set()

    def run(self) -> None:
        while not self._stop_now.wait(0.3):
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
                connection.execute(_END_TODOS.encode(), (self._queues,))


class Soak:
    """One run; `report` is what there is to say when it has ended."""

    def __init__(self, folder: Path, *, minutes: float, seed: int, per_second: float) -> None:
        self._folder = folder
        self._seconds = minutes * 60
        self._seed = seed
        self._per_second = per_second
        self._began = time.monotonic()
        self._say_at = 0.0
        self.report: dict[str, Any] = {"seed": seed, "minutes": minutes}
        self.accounts: list[Account] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        with ExitStack() as stack:
            postgres = PostgresServer(self._folder / "postgres", settings={"max_connections": "200"})
            valkey = ValkeyServer(self._folder / "valkey", settings={"appendfsync": "always"}, appendonly=True)
            for server in (postgres, valkey):
                stack.enter_context(server)
            self._prepare(postgres.url)
            redis_ways = [stack.enter_context(Proxy("127.0.0.1", valkey.port)) for _ in range(len(CREWS) + 1)]
            postgres_ways = [stack.enter_context(Proxy("127.0.0.1", postgres.port)) for _ in CREWS]
            outside = Outside(valkey.url, postgres.url)
            crews = [
                Crew(number, self._folder, self._environment(valkey, mine, ledger), processes=processes)
                for number, (processes, mine, ledger) in enumerate(zip(CREWS, redis_ways, postgres_ways, strict=False))
            ]
            producers = [
                # The ids of a keyed stream and the bodies of a list take lost answers: theirs are lost often.
                Producer(
                    line,
                    _redis_url(redis_ways[-1].port) if line.keyed or line.kind == "redis-list" else valkey.url,
                    seed=self._seed,
                    per_second=self._per_second,
                )
                for line in LINES
            ]
            faults = Faults(
                seed=self._seed, crews=crews, redis_ways=redis_ways, postgres_ways=postgres_ways,
                valkey=valkey, postgres=postgres,
            )  # fmt: skip
            completer = Completer(postgres.url)
            try:
                for thread in (*crews, *producers, completer):
                    thread.start()
                _wait(lambda: all(crew.ready() for crew in crews), 60)
                faults.start()
                self._watch(outside, producers, faults)
                faults.stop()
                faults.join()
                self._end_producers(producers)
                settled = self._settle(outside, producers, faults)
                self._end(crews)
            finally:
                faults.stop()
                for producer in producers:
                    producer.stop()
                completer.stop()
                for crew in crews:
                    crew.end()
                for each in (faults, *producers, *crews, completer):
                    if each.ident is not None:
                        each.join(60)
            self._count(outside, producers, crews, faults, settled)

    def _prepare(self, database_url: str) -> None:
        (self._folder / "switchboard.toml").write_text("\n\n".join(line.table() for line in LINES) + "\n")
        ledger = Ledger(database_url)
        migrate(ledger)
        ledger.close()
        with psycopg.connect(database_url, autocommit=True) as admin:
            admin.execute(_REFUSE.encode())

    def _environment(self, valkey: ValkeyServer, redis_way: Proxy, postgres_way: Proxy) -> dict[str, str]:
        return {
            "DATABASE_URL": f"postgresql://postgres@127.0.0.1:{postgres_way.port}/postgres",
            "SOAK_REDIS_URL": _redis_url(redis_way.port),
            "SWITCHBOARD_BROKER_URL": valkey.url,
            "SWITCHBOARD_CONFIG": str(self._folder / "switchboard.toml"),
        }

    def _watch(self, outside: Outside, producers: Sequence[Producer], faults: Faults) -> None:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until and faults.is_alive():
            self._say("soaking", outside, producers, faults)
            time.sleep(1)

    def _end_producers(self, producers: Sequence[Producer]) -> None:
        for producer in producers:
            producer.stop()
        for producer in producers:
            producer.join(60)
            if producer.is_alive():
                self.wrong.append(f"the {producer.name} got no answer from the source for a minute")

    def _settle(self, outside: Outside, producers: Sequence[Producer], faults: Faults) -> float | None:
        """Seconds until nothing waited any more; None where that never came."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_SECONDS:
            self._say("settling", outside, producers, faults)
            with suppress(redis.RedisError, psycopg.Error):
                if outside.quiet(LINES):
                    return time.monotonic() - began
            time.sleep(0.5)
        return None

    def _end(self, crews: Sequence[Crew]) -> None:
        for crew in crews:
            crew.end()
        for crew in crews:
            crew.join(60)

    def _say(self, doing: str, outside: Outside, producers: Sequence[Producer], faults: Faults) -> None:
        live = sys.stderr.isatty()
        if time.monotonic() < self._say_at:
            return
        self._say_at = time.monotonic() + (1 if live else LOG_SECONDS)
        sent = sum(len(producer.sent) for producer in producers)
        try:
            todos, letters, waiting = outside.look(LINES)
            found = f"{todos:,} todos, {letters} dead letters, {waiting:,} waiting"
        except (redis.RedisError, psycopg.Error, KeyError):
            found = "a server is away"
        clock = timedelta(seconds=int(time.monotonic() - self._began))
        line = f"{clock} {doing}: {sent:,} published, {found}; {faults.counts.total()} faults"
        if live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _count(
        self, outside: Outside, producers: Sequence[Producer], crews: Sequence[Crew], faults: Faults,
        settled: float | None,
    ) -> None:  # fmt: skip
        self.accounts = [outside.account(producer) for producer in producers]
        workers: Counter[str] = Counter()
        for crew in crews:
            workers.update({key: value for key, value in asdict(crew.record).items() if isinstance(value, int)})
        slowest = max(crew.record.slowest_stop_seconds for crew in crews)
        if settled is None:
            self.wrong.append(f"it did not settle within {PATIENCE_SECONDS} s")
        if faults.failure is not None:
            self.wrong.append(f"a fault could not be made or mended: {faults.failure!r}")
        for what in ("ended_by_itself", "stuck", "bad_exits"):
            if workers[what]:
                self.wrong.append(f"workers: {workers[what]} {what.replace('_', ' ')}")
        for account in self.accounts:
            self.wrong += account.wrong
        self.report |= {
            "passed": not self.wrong,
            "wrong": self.wrong,
            "lines": [asdict(account) for account in (*self.accounts, total(self.accounts))],
            "faults": dict(sorted(faults.counts.items())),
            "workers": {**workers, "slowest_stop_seconds": round(slowest, 1)},
            "settled_seconds": None if settled is None else round(settled, 1),
            "log": self._read_logs(),
        }

    def _read_logs(self) -> dict[str, int]:
        """Lines the workers wrote, by level, and what each traceback ended with."""
        counted: Counter[str] = Counter(lines=0)
        for log in self._folder.glob("worker-*.log"):
            in_traceback = False
            for line in log.read_text(errors="replace").splitlines():
                counted["lines"] += 1
                for level in ("ERROR", "WARNING", "CRITICAL"):
                    counted[level.lower()] += f"[{level}]" in line
                if in_traceback and not line.startswith(" "):
                    counted[f"tracebacks of {line.partition(':')[0]}"] += 1
                in_traceback = line.startswith("Traceback") or (in_traceback and line.startswith(" "))
        return dict(counted)


def _redis_url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def show(soak: Soak) -> None:
    """The table, for people."""
    report = soak.report
    columns = f"{'line':10}{'published':>11}{'todos':>9}{'dead letters':>14}{'lost':>7}{'twice':>7}{'pending':>9}"
    print(columns + f"{'sent again':>12}")
    for account in (*soak.accounts, total(soak.accounts)):
        if account.line == "all":
            account.lost = [key for each in soak.accounts for key in each.lost]
            account.twice = [key for each in soak.accounts for key in each.twice]
        print(
            f"{account.line:10}{account.published:11,}{account.todos:9,}{sum(account.dead_letters.values()):14,}"
            f"{len(account.lost):7,}{len(account.twice):7,}{account.pending:9,}{account.repeated:12,}"
        )
    print("\ndead letters:", ", ".join(f"{n} {why}" for why, n in sorted(total(soak.accounts).dead_letters.items())))
    print("faults:", ", ".join(f"{number} {name}" for name, number in report["faults"].items()))
    print("workers:", ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in report["workers"].items()))
    print("log:", ", ".join(f"{number:,} {name}" for name, number in report["log"].items()))
    print(f"settled in {report['settled_seconds']} s; seed {report['seed']}")
    for line in soak.wrong:
        print(f"WRONG: {line}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.run", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long things go wrong (5)")
    parser.add_argument("--seed", type=int, default=None, help="which faults, in which order (by chance)")
    parser.add_argument("--per-second", type=float, default=60.0, help="messages on each of the lines (60)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="switchboard-soak-"))
    soak = Soak(folder, minutes=options.minutes, seed=seed, per_second=options.per_second)
    print(f"seed {seed}, {options.minutes:g} minutes, in {folder}", file=sys.stderr, flush=True)
    kept = True
    try:
        with exit_on_signals():
            soak.run()
        kept = bool(soak.wrong)
    finally:
        if kept:
            print(f"\nthe workers' logs and the servers' data are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if options.json:
        print(json.dumps(soak.report, indent=2))
    else:
        show(soak)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    raise SystemExit(main())
