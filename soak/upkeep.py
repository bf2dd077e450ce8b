"""`make soak-upkeep`: a real worker and two real `periodiq` processes for three minutes of the clock.

Two schedulers send every job twice. Each minute leases run out, old rows wait to be pruned and a worker has died with
deliveries in hand; at the end everything of it is counted from outside.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import redis
from worker import Worker

from switchboard.demo.signals import exit_on_signals
from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.ledger import Ledger, migrate

#: How long everything runs.
SECONDS = 180

CONFIG = """
[adapters.deploys]
type   = "redis-stream"
url    = "${SWITCHBOARD_BROKER_URL}"
stream = "deploys"
queue  = "deploys"

[upkeep]
prune = "* * * * *"
reap  = "* * * * *"
"""

_EXPIRE = """
INSERT INTO todos (queue, title, state, owner, lease_expires_at, attempt)
SELECT 'forgotten', 't', 'claimed', 'a-worker-that-died', now() - interval '1 second', 1 FROM generate_series(1, 100)
"""

_AGE = """
INSERT INTO todos (queue, title, state, completed_at)
SELECT 'old', 't', 'done', now() - interval '40 days' FROM generate_series(1, 100)
"""


def main() -> int:
    """Runs it; 0 where everything was as it should be, with the counts as JSON on standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long it runs (default: %(default)s)")
    seconds = parser.parse_args().seconds
    folder = Path(tempfile.mkdtemp(prefix="switchboard-upkeep-"))
    with exit_on_signals(), ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = stack.enter_context(PostgresServer(folder / "postgres"))
        valkey = stack.enter_context(ValkeyServer(folder / "valkey"))
        with closing(Ledger(postgres.url)) as ledger:
            migrate(ledger)
        (folder / "switchboard.toml").write_text(CONFIG)
        env = {"DATABASE_URL": postgres.url, "SWITCHBOARD_BROKER_URL": valkey.url, "SWITCHBOARD_CONFIG": ""}
        worker = stack.enter_context(Worker(cwd=folder, env=env, processes=2))
        worker.wait_ready()
        for number in range(2):
            log = stack.enter_context((folder / f"periodiq-{number}.log").open("wb"))
            scheduler = subprocess.Popen(
                [Path(sys.executable).with_name("periodiq"), "switchboard.actors"],
                cwd=folder, env={**os.environ, **env}, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            stack.callback(scheduler.wait)
            stack.callback(scheduler.kill)
        with psycopg.connect(postgres.url, autocommit=True) as database:
            rounds, last = _run(database, valkey.url, seconds)
            counts = _count(database, valkey.url, last)
        said = worker.output + "".join(path.read_text() for path in folder.glob("periodiq-*.log"))
        counts |= {"rounds": rounds, "errors_logged": said.count("[ERROR]") + said.count("Traceback")}
    wrong = [name for name in ("left_expired", "left_old", "left_pending", "overdue", "errors_logged") if counts[name]]
    print(json.dumps(counts, indent=2))
    if wrong or counts["requeued"] != 100 * rounds:
        print(f"not as it should be: {', '.join(wrong) or 'requeued'}\n{said[-4000:]}", file=sys.stderr)
        return 1
    return 0


def _run(database: "psycopg.Connection", redis_url: str, seconds: int) -> tuple[int, float]:
    """Makes work for upkeep each half minute, but for the last minute and a half; how often, and when last."""
    rounds, deadline, last = 0, time.monotonic() + seconds, 0.0
    with redis.Redis.from_url(redis_url) as client:
        while (left := deadline - time.monotonic()) > 0:
            if left > 90 or not rounds:
                database.execute(_EXPIRE)
                database.execute(_AGE)
                client.xadd("deploys", {"n": rounds})
                rounds, last = rounds + 1, time.monotonic()
            print(f"{left:4.0f} s left, {rounds} rounds", file=sys.stderr)
            time.sleep(min(30, max(0.1, left)))
    return rounds, last


def _count(database: "psycopg.Connection", redis_url: str, last: float) -> dict[str, float]:
    def value(query: str) -> float:
        row = database.execute(query.encode()).fetchone()
        return float(row[0]) if row and row[0] is not None else 0.0

    with redis.Redis.from_url(redis_url) as client:
        pending = client.xpending("deploys", "switchboard")["pending"]
    return {
        "requeued": value("SELECT count(*) FROM todos WHERE queue = 'forgotten' AND state = 'pending'"),
        "left_expired": value("SELECT count(*) FROM todos WHERE queue = 'forgotten' AND state = 'claimed'"),
        "left_old": value("SELECT count(*) FROM todos WHERE queue = 'old'"),
        "left_pending": float(pending),
        "overdue": value("SELECT count(*) FROM upkeep WHERE last_succeeded_at < now() - interval '70 seconds'"),
        "jobs": value("SELECT count(*) FROM upkeep"),
        "seconds_since_the_last_work": time.monotonic() - last,
    }


if __name__ == "__main__":
    sys.exit(main())
