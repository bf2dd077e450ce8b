"""Upkeep beside everything else, and killed midway: nothing live is harmed, and what is half done is not done."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
from line import Line
from waiting import eventually

from switchboard.ledger import Ledger, migrate

TASKS = """
import os
import dramatiq, switchboard

dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"]))


@switchboard.todo(queue="line", store_then_ack=True)
def work(todo):
    number = int(switchboard.ledger.get_event(switchboard.transaction(), todo.event_id).payload_size > 0)
    switchboard.transaction().execute("INSERT INTO worked (key, seen) VALUES (%s, %s)", (todo.idempotency_key, number))
"""


DELETING = """
SELECT count(*) FROM pg_stat_activity
WHERE query LIKE '%DELETE FROM events%' AND state = 'active'
  AND datname = current_database() AND pid <> pg_backend_pid()
"""


def command(database_url: str, *arguments: str, cwd: Path, **env: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "DATABASE_URL": database_url, "SWITCHBOARD_CONFIG": "", **env}
    return subprocess.Popen([sys.executable, "-m", "switchboard.cli", *arguments], env=environment, cwd=cwd)


def test_a_prune_that_is_killed_midway_has_changed_nothing(database_url: str, tmp_path: Path) -> None:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with psycopg.connect(database_url, autocommit=True) as database:
        # Given more than one step of old todos and events, and a server on which deleting events takes its time
        database.execute(
            "INSERT INTO todos (queue, title, state, completed_at) "
            "SELECT 'q', 't', 'done', now() - interval '40 days' FROM generate_series(1, 25000)"
        )
        database.execute(
            "INSERT INTO events (source, family, trust_mode, payload, payload_size, received_at) "
            "SELECT 'a', 'queue', 'queue', '', 0, now() - interval '40 days' FROM generate_series(1, 2000)"
        )
        database.execute(
            "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); "
            "RETURN OLD; END $$; CREATE TRIGGER slowly BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION slowly()"
        )
        before = counts(database)
        # When its process is killed while it deletes events, with every todo deleted before
        pruning = command(database_url, "prune", cwd=tmp_path)
        try:
            eventually(lambda: database.execute(DELETING).fetchone() != (0,), within=60, every=0.02)
        finally:
            pruning.kill()
            pruning.wait()
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        # Then nothing has changed, and the next one does it all
        assert counts(database) == before == (25_000, 2_000, 0)
        database.execute("DROP TRIGGER slowly ON events")
        assert command(database_url, "prune", cwd=tmp_path).wait() == 0
        assert counts(database) == (0, 0, 1)


def counts(database: "psycopg.Connection") -> tuple[int, ...]:
    row = database.execute(
        "SELECT (SELECT count(*) FROM todos), (SELECT count(*) FROM events), (SELECT count(*) FROM upkeep)"
    ).fetchone()
    assert row
    return tuple(row)


def test_upkeep_beside_ingestion_claims_and_completion_harms_nothing_live(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    """Every message becomes a todo that is worked once, with its event there, though next to nothing is kept."""
    (tmp_path / "tasks.py").write_text(TASKS)
    line = Line(tmp_path, database_url, redis_url)
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    line.rows("CREATE TABLE worked (key text, seen integer)")
    line.rows("UPDATE settings SET value = '50' WHERE key = 'retention_max_rows'")
    ran: list[int] = []
    with line.running(modules=("tasks", "switchboard.actors"), processes=2) as worker:
        for _ in range(4):
            line.publish(500)
            for name in ("prune", "reap"):
                ran.append(command(database_url, name, cwd=tmp_path, LINE_URL=redis_url).wait())
        eventually(lambda: line.value("SELECT count(*) FROM worked") >= len(line.published), within=120)
        assert line.rows("SELECT state, last_error FROM todos WHERE state <> 'done'") == [], worker.output
    assert ran == [0] * 8
    assert sorted(key for (key,) in line.rows("SELECT key FROM worked")) == sorted(line.published)
    assert line.value("SELECT min(seen) FROM worked") == 1
    assert line.rows("SELECT reason FROM dead_letters") == []
    # And what has ended goes
    assert command(database_url, "prune", cwd=tmp_path).wait() == 0
    assert line.value("SELECT count(*) FROM todos") == line.value("SELECT count(*) FROM events") == 50
