"""What a worker's log says: structured fields on our records, and JSON lines where they are asked for."""

import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from deploys import CONFIG, Deploys
from hypothesis import given
from hypothesis import strategies as st
from serving import Served
from waiting import eventually
from worker import Worker

from switchboard.telemetry.logs import JsonFormatter

CARD = "4111-1111-1111-1111"

TEAM = """
import dramatiq, logging, os, switchboard, warnings
dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"]))

@switchboard.todo(queue="deploys")
def deploy(todo):
    logger = logging.getLogger("team")
    if todo.payload.get("fails"):
        raise ValueError("two\\nlines about redis://user:hunter2@host/0")
    if todo.payload.get("hostile"):
        logger.warning("one\\ntwo\\r\\x1b[31m\\x00\\ud800 \\u2028 end", extra={"order": "a\\nb", "body": b"raw"})
        warnings.warn("this is old", DeprecationWarning)
    return object() if todo.payload.get("odd") else None
"""

#: A team that sets up its own logging.
OWN_LOGGING = """
import logging.config
logging.config.dictConfig({
    "version": 1, "disable_existing_loggers": False,
    "formatters": {"own": {"format": "OWN %(levelname)s %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"level": "INFO", "handlers": ["own"]},
})
"""


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis") -> Deploys:
    line = Deploys(tmp_path, database_url, redis_url, redis_client)
    line.write("team.py", TEAM)
    line.modules = ("team", "switchboard.actors")
    line.env |= {"SWITCHBOARD_LOG": "json", "PYTHONWARNINGS": "default"}
    return line


def records(worker: Worker) -> list[dict[str, Any]]:
    """The lines of the worker's processes; those of the command itself, which imports nothing of ours, are left out."""
    lines = [line for line in worker.output.split("\n") if line and "[dramatiq.MainProcess]" not in line]
    return [json.loads(line) for line in lines]


def wait_ready(worker: Worker) -> None:
    def ready() -> bool:
        assert worker.parent.poll() is None, worker.output
        return "Worker process is ready for action." in worker.output

    eventually(ready, within=30, what="it is ready")


def test_every_line_of_a_workers_processes_is_an_object_with_its_fields(line: Deploys) -> None:
    with line.worker() as worker:
        wait_ready(worker)
        # A bad body, a failure with a traceback, hostile text, a result that is no JSON, an outage of the source.
        line.publish(CARD * 100, json.dumps({"fails": True, "card": CARD}), '{"hostile": true}', '{"odd": true}')
        line.settle(todos=3, dead_letters=1)
        line.ended(2)
        line.client.delete("deploys")
        line.client.set("deploys", "no stream")
        eventually(lambda: "source_unavailable" in worker.output, within=20, what="the outage is told")
        assert worker.terminate() == 0
        found = records(worker)

    for record in found:
        at = datetime.fromisoformat(record["time"])
        assert record["time"].endswith("Z")
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
        assert {"level", "logger", "message", "process", "thread"} <= record.keys()
    by_logger = {record["logger"]: record for record in found}
    assert "dramatiq.WorkerProcess(0)" in by_logger
    assert "this is old" in by_logger["py.warnings"]["message"]

    [dead] = [record for record in found if record.get("reason") == "too_large"]
    assert dead["level"] == "ERROR"
    assert (dead["adapter"], dead["queue"]) == ("deploys", "deploys")
    assert dead["broker"].startswith("redis://")
    assert re.fullmatch(r"\d+-0", dead["message_id"])

    todos = dict(line.rows("SELECT payload ->> 'odd', id FROM todos"))
    [odd] = [record for record in found if "which is not JSON" in record["message"]]
    assert (odd["queue"], odd["todo_id"]) == ("deploys", todos["true"])

    [outage] = [record for record in found if record.get("reason") == "source_unavailable"]
    assert (outage["adapter"], outage["level"]) == ("deploys", "ERROR")

    [failure] = [record for record in found if "exception" in record]
    assert failure["exception"].startswith("Traceback (most recent call last):\n")
    assert failure["exception"].endswith("ValueError: two\nlines about redis://user:«redacted»@host/0")

    hostile = by_logger["team"]
    assert hostile["message"] == "one\ntwo\r\x1b[31m\x00\ufffd \u2028 end"
    assert hostile["order"] == "a\nb"
    assert "body" not in hostile, "what is neither text nor a number has no place in a line"
    assert CARD not in worker.output


@pytest.mark.parametrize("modules", [("switchboard.actors",), ("team",)])
def test_json_lines_need_neither_a_team_nor_our_actors(line: Deploys, modules: tuple[str, ...]) -> None:
    line.modules = modules
    with line.worker() as worker:
        wait_ready(worker)
        assert worker.terminate() == 0
        assert {record["logger"] for record in records(worker)} >= {"dramatiq.WorkerProcess(0)"}


def test_a_teams_own_handlers_stay_as_they_are(line: Deploys) -> None:
    line.write("team.py", OWN_LOGGING + TEAM)
    with line.worker() as worker:
        wait_ready(worker)
        line.publish(CARD * 100)
        line.settle(dead_letters=1)
        assert worker.terminate() == 0
        assert "OWN ERROR dead letter from adapter deploys: too_large" in worker.output
        assert '{"time"' not in worker.output


def test_text_is_what_a_worker_says_where_nothing_else_is_asked_for(line: Deploys) -> None:
    line.env["SWITCHBOARD_LOG"] = ""
    with line.running() as worker:
        assert worker.terminate() == 0
        assert '{"time"' not in worker.output


@pytest.mark.parametrize("modules", [("team", "switchboard.actors"), ("team",), ("switchboard.actors",)])
def test_an_unknown_value_stops_the_start_with_one_line(line: Deploys, modules: tuple[str, ...]) -> None:
    line.modules = modules
    line.env["SWITCHBOARD_LOG"] = "yaml"
    with line.worker() as worker:
        eventually(lambda: worker.parent.poll() is not None, within=30, what="it has ended")
        assert worker.parent.returncode != 0
        assert worker.output.count("switchboard: SWITCHBOARD_LOG: expected json or text, got 'yaml'\n") == 1
        assert "Traceback" not in worker.output


def test_the_scheduler_writes_json_lines(line: Deploys) -> None:
    line.write("switchboard.toml", CONFIG)
    log = line.folder / "periodiq.log"
    with log.open("wb") as out:
        scheduler = subprocess.Popen(
            [sys.executable, "-c", "from periodiq import entrypoint; entrypoint()", *line.modules],
            cwd=line.folder,
            env=os.environ | line.environment(),
            stdout=out,
            stderr=out,
        )
    try:
        eventually(lambda: "switchboard.reap@" in log.read_text(), within=40, what="it says what it schedules")
    finally:
        scheduler.kill()
        scheduler.wait()
    # Its first line comes before it imports anything.
    first, *lines = log.read_text().split("\n")[:-1]
    assert "Starting Periodiq" in first
    assert any("switchboard.reap@" in json.loads(text)["message"] for text in lines)


def formatted(message: str, *args: object, **extra: object) -> dict[str, Any]:
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f.py", 1, message, args, None, extra=extra)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert text.isascii()
    found: dict[str, Any] = json.loads(text)
    return found


@given(st.text(), st.text(alphabet=st.characters(categories=["Cs", "Cc", "Lu"])))
def test_any_text_is_one_line_that_can_be_read_and_stored(text: str, hostile: str) -> None:
    found = formatted("%s", text + hostile, order=hostile)
    for value in (found["message"], found["order"]):
        value.encode()  # no lone surrogate


def test_numbers_that_json_does_not_know_are_text() -> None:
    found = formatted("x", a=float("nan"), b=float("inf"), c=1.5, d=True, e=None)
    assert [found[name] for name in "abcde"] == ["nan", "inf", 1.5, True, None]


def test_credentials_are_masked_in_each_field() -> None:
    found = formatted("at redis://bot:hunter2@host", url="postgresql://a:hunter2@host/db")
    assert "hunter2" not in json.dumps(found)


def test_a_field_does_not_take_the_place_of_the_lines_own() -> None:
    assert formatted("true", level="fake", time="never")["level"] == "INFO"


def test_what_serves_webhooks_writes_json_lines_as_a_worker_does(database_url: str, tmp_path: Path) -> None:
    config = "[adapters.hooks]\ntype = 'github'\nqueue = 'q'\nsecret = '${HOOKS_SECRET}'\n"
    env = {"SWITCHBOARD_LOG": "json", "HOOKS_SECRET": "hush-hush-hush-hush"}
    with Served(tmp_path, database_url, config, env) as served:
        assert served.post("/webhooks/hooks?token=hush-hush-hush-hush", b"{}").status_code == 401
        lines = [json.loads(line) for line in eventually(lambda: refusals(served))]
    assert (lines[0]["level"], lines[0]["adapter"]) == ("WARNING", "hooks")
    assert all(isinstance(json.loads(line), dict) for line in served.output.splitlines())
    assert "hush-hush-hush-hush" not in served.output


def refusals(served: Served) -> list[str]:
    return [line for line in served.output.splitlines() if "webhook to adapter hooks refused, 401" in line]
