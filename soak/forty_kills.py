"""`python -m soak.forty_kills`: forty SIGKILLs in a row, many of them inside the store, and 200 good messages.

No message may be dead-lettered, and each is to be stored once: a death spends a try of what was alone in the store as
it happened, and of nothing else.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from line import Line, restart
from waiting import eventually
from worker import Worker

from switchboard.demo.signals import exit_on_signals
from switchboard.embedded import PostgresServer, ValkeyServer

MESSAGES = 200

#: Kills for which the table stays locked, at most: so often in a row nothing can be stored.
LONGEST_LOCK = 8

#: Seconds after its start at which a worker is killed, at most: it reads after one, and tries suspects after two.
LONGEST_LIFE = 5.0

_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT%'"


class Kills:
    """`inside` counts those that found an insert waiting in PostgreSQL."""

    def __init__(self, line: Line, worker: Worker, *, kills: int, seed: int) -> None:
        self.left = kills
        self.inside = 0
        self._all = kills
        self._line = line
        self._worker = worker
        self._chance = random.Random(seed)

    def run(self) -> None:
        self._line.publish(MESSAGES // 2)
        with self._line.locked():
            # At first nothing can be stored: all of it goes through the deaths.
            self._worker.start()
            self._worker.wait_ready()
            self._kill_inside(min(LONGEST_LOCK, self.left))
        while self.left:
            self._line.publish(min(MESSAGES // 20, MESSAGES - len(self._line.published)))
            if self._chance.random() < 0.5:
                time.sleep(self._chance.uniform(0, LONGEST_LIFE))
                self._kill()
                self._start_again()
            else:
                with self._line.locked():
                    self._kill_inside(min(self._chance.randint(1, LONGEST_LOCK), self.left))
        self._line.publish(MESSAGES - len(self._line.published))

    def _kill_inside(self, kills: int) -> None:
        # PostgreSQL does not see the death of a client whose insert waits: those of the dead go on waiting.
        dead = 0
        for _ in range(kills):
            if self._line.stored() < len(self._line.published):
                eventually(partial(self._blocked_beside, dead), within=20, what="an insert of the living waits")
                self.inside += 1
            self._kill()
            dead = self._blocked()
            self._start_again()

    def _blocked(self) -> int:
        return int(self._line.value(_BLOCKED))

    def _blocked_beside(self, dead: int) -> bool:
        return self._blocked() > dead

    def _kill(self) -> None:
        self._worker.kill_one()
        self.left -= 1
        tries = [entry["times_delivered"] for entry in self._line.pending()]
        shown = {count: tries.count(count) for count in sorted(set(tries))}
        print(
            f"kill {self._all - self.left}: published {len(self._line.published)}, stored {self._line.stored()}, "
            f"pending by tries {shown}",
            file=sys.stderr,
            flush=True,
        )

    def _start_again(self) -> None:
        restart(self._worker)
        self._worker.wait_ready()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.forty_kills")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="switchboard-kills-"))
    began = time.monotonic()
    print(f"seed {options.seed}, in {folder}", file=sys.stderr)
    with exit_on_signals(), ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(folder / "postgres"))
        valkey = stack.enter_context(ValkeyServer(folder / "valkey"))
        line = Line(folder, postgres.url, valkey.url)
        with line.running() as worker:
            # The ledger has its tables now.
            worker.kill_all()
            line.slow_down(0.005)
            kills = Kills(line, worker, kills=options.kills, seed=options.seed)
            kills.run()
            try:
                line.settle(worker, within=60)
            except AssertionError as wrong:
                print(f"WRONG: {wrong}\n{worker.output[-3000:]}")
                print("dead letters:", line.rows("SELECT idempotency_key, reason, deliveries FROM dead_letters"))
                return 1
    shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{options.kills} kills, {kills.inside} of them inside the store: {MESSAGES} published, {MESSAGES} todos, "
        f"0 dead letters, 0 pending; {time.monotonic() - began:.0f} s, seed {options.seed}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
