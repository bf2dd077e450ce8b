"""What goes wrong during a soak: chosen by chance, from a seed."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import psycopg
import redis
from proxy import Proxy

from soak.crew import Crew
from switchboard.embedded import PostgresServer, ValkeyServer

#: Seconds between two faults, at most.
LONGEST_PEACE = 3.0

#: Seconds that a server is away or a way stalls, at most: longer than a command's patience and the short claim_idle.
LONGEST_OUTAGE = 8.0

_END_ALL = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'switchboard'"


class Faults(threading.Thread):
    """Breaks one thing after another until it is stopped, and leaves everything whole then.

    A stalled way does not keep other faults from happening: it is mended by a timer of its own."""

    def __init__(
        self,
        *,
        seed: int,
        crews: Sequence[Crew],
        redis_ways: Sequence[Proxy],
        postgres_ways: Sequence[Proxy],
        valkey: ValkeyServer,
        postgres: PostgresServer,
    ) -> None:
        super().__init__(name="faults")
        self.counts: Counter[str] = Counter()
        #: What went wrong with making things go wrong: a server that did not start again.
        self.failure: BaseException | None = None
        self._chance = random.Random(f"{seed} faults")
        self._crews = crews
        self._redis_ways = redis_ways
        self._postgres_ways = postgres_ways
        self._valkey = valkey
        self._postgres = postgres
        self._mending: list[threading.Timer] = []
        self._stop_now = threading.Event()
        self._kinds: list[tuple[int, str, Callable[[], bool]]] = [
            (12, "workers killed", self._kill),
            (4, "workers stopped", self._stop_crew),
            (4, "redis cut", lambda: self._break(self._redis_ways, Proxy.cut)),
            (3, "redis half-closed", lambda: self._break(self._redis_ways, Proxy.half_close)),
            (5, "redis reset in a reply", lambda: self._reset(self._redis_ways)),
            (3, "redis stalled", lambda: self._stall(self._redis_ways)),
            (1, "redis refused", lambda: self._refuse(self._redis_ways)),
            (1, "redis clients paused", self._pause_clients),
            (3, "postgres cut", lambda: self._break(self._postgres_ways, Proxy.cut)),
            (2, "postgres half-closed", lambda: self._break(self._postgres_ways, Proxy.half_close)),
            (3, "postgres reset in a reply", lambda: self._reset(self._postgres_ways)),
            (2, "postgres stalled", lambda: self._stall(self._postgres_ways)),
            (2, "postgres sessions ended", self._end_sessions),
            (1, "valkey restarted", self._restart_valkey),
            (1, "postgres restarted", self._restart_postgres),
        ]

    def stop(self) -> None:
        self._stop_now.set()

    def run(self) -> None:
        # Each once, so that the shortest run has seen them all; then by weight.
        first = [(name, fault) for _, name, fault in self._kinds]
        self._chance.shuffle(first)
        weights = [weight for weight, *_ in self._kinds]
        try:
            while not self._stop_now.wait(self._chance.uniform(0.2, LONGEST_PEACE)):
                name, fault = first.pop() if first else self._chance.choices(self._kinds, weights)[0][1:]
                if fault():
                    self.counts[name] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has to end whole and say so
            self.failure = error
        finally:
            self._mend()

    def _mend(self) -> None:
        for timer in self._mending:
            timer.cancel()
            timer.join()
        for way in (*self._redis_ways, *self._postgres_ways):
            way.flow()
            way.accept()

    def _kill(self) -> bool:
        return self._chance.choice(self._crews).kill_one(self._chance)

    def _stop_crew(self) -> bool:
        return self._chance.choice(self._crews).stop_once()

    def _break(self, ways: Sequence[Proxy], how: Callable[[Proxy], None]) -> bool:
        how(self._chance.choice(ways))
        return True

    def _reset(self, ways: Sequence[Proxy]) -> bool:
        self._chance.choice(ways).reset_in_reply(self._chance.choice((0, 1, 5, 40, 400, 4_000)))
        return True

    def _stall(self, ways: Sequence[Proxy]) -> bool:
        way = self._chance.choice(ways)
        way.stall()
        self._later(way.flow)
        return True

    def _refuse(self, ways: Sequence[Proxy]) -> bool:
        way = self._chance.choice(ways)
        way.refuse()
        way.cut()
        self._later(way.accept)
        return True

    def _later(self, mend: Callable[[], None]) -> None:
        timer = threading.Timer(self._chance.uniform(0.2, LONGEST_OUTAGE), mend)
        self._mending = [known for known in self._mending if known.is_alive()] + [timer]
        timer.start()

    def _pause_clients(self) -> bool:
        with redis.Redis.from_url(self._valkey.url, socket_timeout=5) as client:
            client.client_pause(self._chance.randint(100, 3_000))
        return True

    def _end_sessions(self) -> bool:
        with psycopg.connect(self._postgres.url, autocommit=True, connect_timeout=10) as admin:
            admin.execute(_END_ALL)
        return True

    def _restart_valkey(self) -> bool:
        self._chance.choice((self._valkey.kill, self._valkey.stop))()
        self._stop_now.wait(self._chance.uniform(0, LONGEST_OUTAGE))
        self._valkey.start()
        return True

    def _restart_postgres(self) -> bool:
        self._chance.choice((self._postgres.kill, self._postgres.stop))()
        self._stop_now.wait(self._chance.uniform(0, LONGEST_OUTAGE))
        self._postgres.start()
        return True
