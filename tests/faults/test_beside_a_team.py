"""`dramatiq myapp.tasks switchboard.actors`: beside a team's own actors, on the broker that team has set."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.redis import RedisBroker
from line import Line
from waiting import eventually

MODULES = ("myapp.tasks", "switchboard.actors")

TASKS = """
import os, time
import dramatiq, redis, switchboard

dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["TEAM_URL"]))
notes = redis.Redis.from_url(os.environ["TEAM_URL"])

@dramatiq.actor
def note(text):
    notes.rpush("notes", text)

@dramatiq.actor
def slow(seconds):
    notes.rpush("started", seconds)
    time.sleep(seconds)
    notes.rpush("ended", seconds)
"""


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp/__init__.py").touch()
    (tmp_path / "myapp/tasks.py").write_text(TASKS)
    # No SWITCHBOARD_BROKER_URL: the broker is the team's.
    env = {"TEAM_URL": redis_url, "SWITCHBOARD_BROKER_URL": ""}
    return Line(tmp_path, database_url, redis_url, options={"claim_idle": "5s"}, env=env)


@pytest.fixture
def team(redis_url: str) -> Iterator["Team"]:
    broker = RedisBroker(url=redis_url)  # type: ignore[no-untyped-call]
    with redis.Redis.from_url(redis_url) as notes:
        yield Team(broker, notes)
    broker.close()
    broker.client.close()


class Team:
    """Sends to the team's own actors, and sees what they did."""

    def __init__(self, broker: RedisBroker, notes: Any) -> None:
        self._broker = broker
        self._notes = notes

    def send(self, actor: str, *args: object) -> None:
        message = dramatiq.Message[None](queue_name="default", actor_name=actor, args=args, kwargs={}, options={})
        self._broker.enqueue(message)

    def noted(self, key: str) -> list[str]:
        return sorted(note.decode() for note in self._notes.lrange(key, 0, -1))


def test_both_work_on_the_teams_own_broker(line: Line, team: Team) -> None:
    with line.running(modules=MODULES, processes=2) as worker:
        for number in range(50):
            team.send("note", f"{number:02}")
        line.publish(500)
        line.settle(worker)
        texts = [f"{number:02}" for number in range(50)]
        eventually(lambda: team.noted("notes") == texts, what="the team's actors have run, each once")
        assert "Traceback" not in worker.output, worker.output


def test_both_go_on_after_a_worker_was_killed(line: Line, team: Team) -> None:
    with line.running(modules=MODULES) as worker:
        line.publish(20)
        line.settle(worker)
        worker.kill_all()
        team.send("note", "after")
        line.publish(20)
        worker.start()
        worker.wait_ready()
        line.settle(worker)
        eventually(lambda: team.noted("notes") == ["after"], what="the team's actor has run")


def test_every_thread_is_busy_for_longer_than_claim_idle_and_nothing_is_delivered_twice(line: Line, team: Team) -> None:
    threads, busy_seconds = 2, 15
    with line.running(modules=MODULES, threads=threads) as busy:
        for _ in range(threads):
            team.send("slow", busy_seconds)
        eventually(lambda: len(team.noted("started")) == threads, what="every thread is busy")
        line.publish(40)
        eventually(lambda: line.pending(), what="it has read, and nobody is free to store it")
        held = {entry["message_id"]: entry["consumer"] for entry in line.pending()}
        with line.running(env={"SWITCHBOARD_BROKER_URL": line.source_url}) as another:
            line.publish(40)
            eventually(lambda: line.stored() > 0, what="the other worker stores what is left")
            while len(team.noted("ended")) < threads:
                for entry in line.pending():
                    assert entry["times_delivered"] == 1
                    assert held.get(entry["message_id"], entry["consumer"]) == entry["consumer"]
            line.settle(busy)
            assert another.pids
    # Nothing was even tried twice.
    assert line.attempts() == 80


def test_a_worker_busy_with_slow_actors_stores_as_soon_as_a_thread_is_free(line: Line, team: Team) -> None:
    with line.running(modules=MODULES, threads=1) as worker:
        for _ in range(3):
            team.send("slow", 2)
        eventually(lambda: team.noted("started"), what="the thread is busy")
        line.publish(40)
        line.settle(worker)
        # Before the team's others, which were there first: a batch has the lower priority number.
        assert len(team.noted("ended")) < 3
